/* Structures of libibverbs as its header has them where it is installed, else as we know them; and
   what stands for libibverbs and its provider: a context and completion queues whose polls can be
   counted. */
#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>
#else
struct ibv_device;
struct ibv_wc;
struct ibv_poll_cq_attr;
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
struct ibv_cq_ex {
    struct ibv_context *context;
    void *channel, *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed, comp_mask, status;
    uint64_t wr_id;
    int (*start_poll)(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
};
#endif

#define WC ((struct ibv_wc *)0x2000)
#define ATTR ((struct ibv_poll_cq_attr *)0x3000)

static int polls, completions;

/* Where the ring of the last completion queue lies in its device, and how long it is. */
static uint64_t last_ring[2];

static int provider_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    polls += cq->context != NULL && count == 7 && wc == WC;
    return completions;
}

static int provider_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
    polls += cq->context != NULL && attr == ATTR;
    return completions ? 0 : ENOENT;
}

static void open_context(struct ibv_context *context, int fd)
{
    *context = (struct ibv_context){.cmd_fd = fd};
    context->ops.poll_cq = provider_poll_cq;
}

/* Has the device make a completion queue, as ibv_create_cq does; gives its handle. What lies at
   `cq` is filled in afterwards. */
static uint32_t create_cq(int fd, void *cq)
{
    struct {
        struct ib_uverbs_create_cq_resp core;
        uint64_t ring[2];
    } response = {};
    struct {
        struct ib_uverbs_cmd_hdr header;
        struct ib_uverbs_create_cq core;
    } command = {
        .header = {IB_USER_VERBS_CMD_CREATE_CQ, sizeof command / 4, sizeof response / 4},
        .core = {.response = (uintptr_t)&response,
                 .user_handle = (uintptr_t)cq,
                 .cqe = 10,
                 .comp_channel = -1},
    };
    CHECK(write(fd, &command, sizeof command) == sizeof command);
    memcpy(last_ring, response.ring, sizeof last_ring);
    return response.core.cq_handle;
}
