/* Shared by the programs in this directory. */

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(condition)                                                                \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

/* The first device. */
static inline struct ibv_context *open_device(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    EXPECT(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    EXPECT(context);
    ibv_free_device_list(devices);
    return context;
}

static inline struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    return ibv_create_qp(pd, &attr);
}
