/* Guarantees of verbs that no program of a distribution tests: a send queue of one place is free
 * after each poll, memory of no bytes has keys, memory with a window bound to it is busy, a bind
 * takes the low 8 bits of a key, controlled Q_Keys are for root. */

#include "verbs_program.h"

#define ROUNDS 20000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char buffer[4096];

/* With one place in its send queue. */
static struct ibv_qp *create_small(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = type,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    EXPECT(qp && attr.cap.max_send_wr == 1);
    return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    EXPECT(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}},
    };
    EXPECT(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    EXPECT(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    EXPECT(ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static enum ibv_wc_status next_status(void)
{
    struct ibv_wc wc;
    int found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    EXPECT(found == 1);
    return wc.status;
}

static enum ibv_wc_status carry_out(struct ibv_qp *qp, struct ibv_send_wr wr)
{
    struct ibv_send_wr *bad;
    wr.send_flags |= IBV_SEND_SIGNALED;
    EXPECT(ibv_post_send(qp, &wr, &bad) == 0);
    return next_status();
}

static enum ibv_wc_status write_to(struct ibv_qp *qp, struct ibv_mr *from, uint64_t addr,
                                   uint32_t rkey, uint32_t length)
{
    struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = length, .lkey = from->lkey};
    return carry_out(qp, (struct ibv_send_wr){
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .wr.rdma = {.remote_addr = addr, .rkey = rkey},
                         });
}

int main(void)
{
    context = open_device();
    pd = ibv_alloc_pd(context);
    EXPECT(pd);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    EXPECT(cq);
    struct ibv_qp *qp = create_small(IBV_QPT_RC), *peer = create_small(IBV_QPT_RC);
    connect_to(qp, peer->qp_num);
    connect_to(peer, qp->qp_num);
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, all);
    EXPECT(mr);
    uint64_t addr = (uintptr_t)buffer;

    for (int round = 0; round < ROUNDS; round++)
        EXPECT(write_to(qp, mr, addr + 64, mr->rkey, 8) == IBV_WC_SUCCESS);

    struct ibv_mr *nothing = ibv_reg_mr(pd, buffer, 0, all);
    EXPECT(nothing);
    EXPECT(write_to(qp, nothing, addr, nothing->rkey, 0) == IBV_WC_SUCCESS);
    EXPECT(ibv_dereg_mr(nothing) == 0);

    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    EXPECT(mw);
    uint32_t rkey = (mw->rkey & ~0xffu) | 0x5a;
    struct ibv_send_wr bind = {
        .opcode = IBV_WR_BIND_MW,
        .bind_mw = {
            .mw = mw,
            .rkey = 0xabcdef5a,
            .bind_info = {.mr = mr,
                          .addr = addr,
                          .length = 64,
                          .mw_access_flags = IBV_ACCESS_REMOTE_WRITE},
        },
    };
    EXPECT(carry_out(peer, bind) == IBV_WC_SUCCESS);
    EXPECT(write_to(qp, mr, addr + 8, rkey, 8) == IBV_WC_SUCCESS);
    EXPECT(ibv_dereg_mr(mr) == EBUSY);
    EXPECT(write_to(qp, mr, addr + 8, rkey, 8) == IBV_WC_SUCCESS);
    EXPECT(ibv_dealloc_mw(mw) == 0);

    struct ibv_qp *datagrams = create_small(IBV_QPT_UD);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x80010000};
    int refused = ibv_modify_qp(datagrams, &attr,
                                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    EXPECT(refused == (geteuid() == 0 ? 0 : EPERM));

    EXPECT(ibv_destroy_qp(datagrams) == 0);
    EXPECT(ibv_destroy_qp(qp) == 0);
    EXPECT(ibv_destroy_qp(peer) == 0);
    EXPECT(ibv_dereg_mr(mr) == 0);
    EXPECT(ibv_destroy_cq(cq) == 0);
    EXPECT(ibv_dealloc_pd(pd) == 0);
    EXPECT(ibv_close_device(context) == 0);
    return 0;
}
