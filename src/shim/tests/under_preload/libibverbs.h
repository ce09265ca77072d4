/* struct ibv_context as the header of libibverbs has it where it is installed, else as we know it. */
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>
#else
struct ibv_device;
struct ibv_wc;
struct ibv_cq {
    struct ibv_context *context;
};
struct ibv_context {
    struct ibv_device *device;
    struct {
        void *before[11];
        int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *wc);
        void *after[20];
    } ops;
    int cmd_fd;
};
#endif

#define WC ((struct ibv_wc *)0x2000)
