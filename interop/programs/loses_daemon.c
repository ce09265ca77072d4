/* A program whose daemon is killed while it waits: by polling, by polling as extended completion
 * queues are, or for events. It prints that it is ready, finds that its work requests were flushed
 * and that the device is gone, cleans up and ends. */

#include "verbs_program.h"
#include <poll.h>
#include <pthread.h>

enum { RECEIVES = 8, SENDS = 4, LATER = 1, ALL = RECEIVES + SENDS };

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_cq_ex *extended;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[4096];

/* To a QP that does not exist; it waits for a response indefinitely. */
static void connect_to_nobody(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    EXPECT(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    union ibv_gid gid;
    EXPECT(ibv_query_gid(context, 1, 0, &gid) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 0xfffff,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}},
    };
    EXPECT(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                             IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .max_rd_atomic = 1};
    EXPECT(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void post_send(uint64_t wr_id)
{
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    wr.opcode = IBV_WR_SEND;
    EXPECT(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_recv(uint64_t wr_id)
{
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    EXPECT(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* What is found: 1, 0 if nothing, or -1 if polling fails. */
static int poll_once(struct ibv_wc *wc)
{
    if (!extended)
        return ibv_poll_cq(cq, 1, wc);
    struct ibv_poll_cq_attr attr = {};
    int result = ibv_start_poll(extended, &attr);
    if (result == ENOENT)
        return 0;
    if (result)
        return -1;
    *wc = (struct ibv_wc){
        .wr_id = extended->wr_id,
        .status = extended->status,
        .qp_num = ibv_wc_read_qp_num(extended),
    };
    ibv_end_poll(extended);
    return 1;
}

/* Work requests up to this number, each once, flushed. */
static void expect_flushed(int first, int last)
{
    int seen[ALL + LATER] = {};
    for (int count = first; count < last;) {
        struct ibv_wc wc;
        int found = poll_once(&wc);
        EXPECT(found >= 0);
        if (!found)
            continue;
        EXPECT(wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == qp->qp_num);
        EXPECT(wc.wr_id >= (uint64_t)first && wc.wr_id < (uint64_t)last && !seen[wc.wr_id]++);
        count++;
    }
}

static void *wait_for_the_end(void *unused)
{
    struct ibv_async_event event;
    EXPECT(ibv_get_async_event(context, &event) == 0);
    EXPECT(event.event_type == IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&event);
    EXPECT(ibv_get_async_event(context, &event) == -1);
    return unused;
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    int by_events = !strcmp(argv[1], "events");
    context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    EXPECT(pd);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    EXPECT(mr);
    channel = ibv_create_comp_channel(context);
    EXPECT(channel);
    if (!strcmp(argv[1], "extended")) {
        struct ibv_cq_init_attr_ex attr = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_QP_NUM};
        extended = ibv_create_cq_ex(context, &attr);
        EXPECT(extended);
        cq = ibv_cq_ex_to_cq(extended);
    } else {
        cq = ibv_create_cq(context, 64, NULL, channel, 0);
    }
    EXPECT(cq);
    qp = create_qp(pd, cq);
    EXPECT(qp);
    connect_to_nobody();
    for (int i = 0; i < RECEIVES; i++)
        post_recv(i);
    for (int i = RECEIVES; i < ALL; i++)
        post_send(i);
    EXPECT(ibv_req_notify_cq(cq, 0) == 0);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, wait_for_the_end, NULL) == 0);
    printf("ready\n");
    fflush(stdout);

    struct ibv_cq *of_event;
    void *of_cq;
    if (by_events) {
        struct pollfd waiting = {.fd = channel->fd, .events = POLLIN};
        EXPECT(poll(&waiting, 1, -1) == 1);
        EXPECT(ibv_get_cq_event(channel, &of_event, &of_cq) == 0 && of_event == cq);
        ibv_ack_cq_events(cq, 1);
    }
    expect_flushed(0, ALL);
    EXPECT(pthread_join(thread, NULL) == 0);
    post_send(ALL);
    expect_flushed(ALL, ALL + LATER);
    struct ibv_wc wc;
    int found;
    while ((found = poll_once(&wc)) == 0)
        ;
    EXPECT(found < 0);
    if (by_events) {
        EXPECT(ibv_req_notify_cq(cq, 0) == 0);
        EXPECT(ibv_get_cq_event(channel, &of_event, &of_cq) == -1);
    }

    EXPECT(ibv_alloc_pd(context) == NULL);
    EXPECT(ibv_destroy_qp(qp) == 0);
    EXPECT(ibv_destroy_cq(cq) == 0);
    EXPECT(ibv_destroy_comp_channel(channel) == 0);
    EXPECT(ibv_dereg_mr(mr) == 0);
    EXPECT(ibv_dealloc_pd(pd) == 0);
    EXPECT(ibv_close_device(context) == 0);
    return 0;
}
