/* A program whose two queue pairs send to each other, one thread for each, sleeping on events and
 * polling. It cleans everything up, so that sanitizers and valgrind report nothing. */

#include "verbs_program.h"
#include <pthread.h>

enum { MESSAGES = 200, LENGTH = 3000 };

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *memory;
    int number;
};

static void open_end(struct end *end, struct ibv_context *context, int number)
{
    end->context = context;
    end->number = number;
    end->pd = ibv_alloc_pd(context);
    EXPECT(end->pd);
    end->channel = ibv_create_comp_channel(context);
    EXPECT(end->channel);
    end->cq = ibv_create_cq(context, 64, end, end->channel, 0);
    EXPECT(end->cq);
    end->qp = create_qp(end->pd, end->cq);
    EXPECT(end->qp);
    end->memory = calloc(2, LENGTH);
    EXPECT(end->memory);
    end->mr = ibv_reg_mr(end->pd, end->memory, 2 * LENGTH, IBV_ACCESS_LOCAL_WRITE);
    EXPECT(end->mr);
}

static void connect_end(struct end *end, const struct end *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    EXPECT(ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    union ibv_gid gid;
    EXPECT(ibv_query_gid(end->context, 1, 0, &gid) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
    };
    EXPECT(ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                             IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    EXPECT(ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* What arrives is in the second half. */
static void post_recv(struct end *end)
{
    struct ibv_sge sge = {(uintptr_t)end->memory + LENGTH, LENGTH, end->mr->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
    EXPECT(ibv_post_recv(end->qp, &wr, &bad) == 0);
}

static void post_send(struct end *end, int message)
{
    memset(end->memory, message + end->number, LENGTH);
    struct ibv_sge sge = {(uintptr_t)end->memory, LENGTH, end->mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
    wr.send_flags = IBV_SEND_SIGNALED;
    EXPECT(ibv_post_send(end->qp, &wr, &bad) == 0);
}

/* Waits for a message and for the completion of one: by events, or by polling. */
static void wait_for_both(struct end *end, int message)
{
    for (int missing = 2; missing;) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(end->cq, 1, &wc);
        if (!found && message % 2) {
            EXPECT(ibv_req_notify_cq(end->cq, 0) == 0);
            found = ibv_poll_cq(end->cq, 1, &wc);
            if (!found) {
                struct ibv_cq *cq;
                void *context;
                EXPECT(ibv_get_cq_event(end->channel, &cq, &context) == 0);
                EXPECT(cq == end->cq && context == end);
                ibv_ack_cq_events(cq, 1);
                continue;
            }
        }
        EXPECT(found >= 0);
        if (!found)
            continue;
        EXPECT(wc.status == IBV_WC_SUCCESS);
        missing--;
        if (wc.opcode == IBV_WC_RECV)
            for (int i = 0; i < LENGTH; i++)
                EXPECT(end->memory[LENGTH + i] == (unsigned char)(message + !end->number));
    }
}

static void *run(void *argument)
{
    struct end *end = argument;
    for (int message = 0; message < MESSAGES; message++) {
        post_recv(end);
        post_send(end, message);
        wait_for_both(end, message);
    }
    return NULL;
}

static void close_end(struct end *end)
{
    EXPECT(ibv_destroy_qp(end->qp) == 0);
    EXPECT(ibv_destroy_cq(end->cq) == 0);
    EXPECT(ibv_destroy_comp_channel(end->channel) == 0);
    EXPECT(ibv_dereg_mr(end->mr) == 0);
    EXPECT(ibv_dealloc_pd(end->pd) == 0);
    free(end->memory);
}

int main(int argc, char **argv)
{
    struct ibv_context *context = open_device();
    struct end ends[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        open_end(&ends[i], context, i);
    for (int i = 0; i < 2; i++)
        connect_end(&ends[i], &ends[!i]);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, run, &ends[i]) == 0);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 2; i++)
        close_end(&ends[i]);
    /* For valgrind, to look at a device that is open to the end. */
    if (argc < 2 || strcmp(argv[1], "open"))
        EXPECT(ibv_close_device(context) == 0);
    return 0;
}
