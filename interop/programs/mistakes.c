/* Mistakes that people make, each alone in a process of its own. What is printed of them is in
 * mistakes.expected: for each a line with its name, and behind it what its user is told. Whether
 * the program itself hears of it, by a return value or a completion, is checked here. */

#include "verbs_program.h"
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                         \
    (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |      \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                                         \
    (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |               \
     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
#define ALL_REMOTE                                                                       \
    (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[64 << 10] __attribute__((aligned(4096)));
static union ibv_gid gid;

/* How two QPs are connected; a mistake changes one of these. */
static struct ibv_qp_attr init_attr, rtr_attr, rts_attr;
static int init_mask = INIT_MASK, rtr_mask = RTR_MASK, rts_mask = RTS_MASK;

static void begin(void)
{
    context = open_device();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | ALL_REMOTE);
    EXPECT(pd && cq && mr && ibv_query_gid(context, 1, 0, &gid) == 0);
    init_attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_REMOTE};
    rtr_attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .dgid = gid}},
    };
    rts_attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .timeout = 8,
                                    .retry_cnt = 2,
                                    .rnr_retry = 1,
                                    .max_rd_atomic = 4};
}

static struct ibv_qp_init_attr usual_qp(void)
{
    return (struct ibv_qp_init_attr){
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1,
                .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
    };
}

static struct ibv_qp *new_qp(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    EXPECT(qp);
    return qp;
}

static void initialise(struct ibv_qp *qp)
{
    EXPECT(ibv_modify_qp(qp, &init_attr, init_mask) == 0);
}

static int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr attr = rtr_attr;
    attr.dest_qp_num = attr.dest_qp_num ? attr.dest_qp_num : peer;
    return ibv_modify_qp(qp, &attr, rtr_mask);
}

static int to_rts(struct ibv_qp *qp)
{
    return ibv_modify_qp(qp, &rts_attr, rts_mask);
}

/* Two QPs of this program, connected as the attributes say; the second in the usual way. */
static struct ibv_qp *one, *two;

static void connect_both(void)
{
    struct ibv_qp_attr usual = rtr_attr;
    one = new_qp();
    two = new_qp();
    initialise(one);
    initialise(two);
    EXPECT(to_rtr(one, two->qp_num) == 0 && to_rts(one) == 0);
    usual.dest_qp_num = 0;
    usual.rq_psn = 0;
    usual.path_mtu = IBV_MTU_1024;
    usual.ah_attr.grh.dgid = gid;
    rtr_attr = usual;
    EXPECT(to_rtr(two, one->qp_num) == 0 && to_rts(two) == 0);
}

static struct ibv_sge sge_of(uint32_t length, uint32_t lkey)
{
    return (struct ibv_sge){.addr = (uintptr_t)buffer, .length = length, .lkey = lkey};
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t addr,
                uint32_t rkey)
{
    struct ibv_send_wr *bad, wr = {
        .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {addr, rkey},
    };
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.compare_add = 1;
        wr.wr.atomic.rkey = rkey;
    }
    return ibv_post_send(qp, &wr, &bad);
}

static int post_receive(struct ibv_qp *qp, uint32_t length)
{
    struct ibv_sge sge = sge_of(length, mr->lkey);
    struct ibv_recv_wr *bad, wr = {.wr_id = 8, .sg_list = &sge, .num_sge = 1};
    return ibv_post_recv(qp, &wr, &bad);
}

/* The next completion is of this status. */
static void ends_with(enum ibv_wc_status status)
{
    struct ibv_wc wc;
    int found;
    do
        found = ibv_poll_cq(cq, 1, &wc);
    while (found == 0);
    EXPECT(found == 1);
    if (wc.status != status)
        printf("    status %d, expected %d\n", wc.status, status);
    EXPECT(wc.status == status);
}

#define FAILS(call) EXPECT((call) != 0)
#define IS_NULL(call) EXPECT((call) == NULL)

/* ---- Attributes of a QP ---- */

static void rtr_fails(void)
{
    struct ibv_qp *qp = new_qp();
    initialise(qp);
    FAILS(to_rtr(qp, 17));
}

static void gid_index_beyond_table(void) { rtr_attr.ah_attr.grh.sgid_index = 7; rtr_fails(); }
static void gid_of_other_family(void)
{
    EXPECT(inet_pton(AF_INET6, "fe80::1", &rtr_attr.ah_attr.grh.dgid) == 1);
    rtr_fails();
}
static void no_destination_gid(void)
{
    memset(&rtr_attr.ah_attr.grh.dgid, 0, sizeof gid);
    rtr_fails();
}
static void no_grh(void) { rtr_attr.ah_attr.is_global = 0; rtr_fails(); }
static void path_from_port_2(void) { rtr_attr.ah_attr.port_num = 2; rtr_fails(); }
static void path_mtu_in_bytes(void) { rtr_attr.path_mtu = 1024; rtr_fails(); }
static void path_mtu_of_no_code(void) { rtr_attr.path_mtu = 6; rtr_fails(); }
static void dest_qpn_of_25_bits(void) { rtr_attr.dest_qp_num = 1 << 24; rtr_fails(); }
static void min_rnr_timer_32(void) { rtr_attr.min_rnr_timer = 32; rtr_fails(); }
static void max_dest_rd_atomic_200(void) { rtr_attr.max_dest_rd_atomic = 200; rtr_fails(); }
static void path_mtu_not_given(void) { rtr_mask &= ~IBV_QP_PATH_MTU; rtr_fails(); }
static void dest_qpn_not_given(void) { rtr_mask &= ~IBV_QP_DEST_QPN; rtr_fails(); }
static void address_not_given(void) { rtr_mask &= ~IBV_QP_AV; rtr_fails(); }
static void timeout_too_early(void) { rtr_mask |= IBV_QP_TIMEOUT; rtr_fails(); }
static void alternate_path(void) { rtr_mask |= IBV_QP_ALT_PATH; rtr_fails(); }

static void init_fails(void)
{
    FAILS(ibv_modify_qp(new_qp(), &init_attr, init_mask));
}

static void port_2(void) { init_attr.port_num = 2; init_fails(); }
static void pkey_index_1(void) { init_attr.pkey_index = 1; init_fails(); }
static void access_flags_not_given(void) { init_mask &= ~IBV_QP_ACCESS_FLAGS; init_fails(); }
static void wrong_current_state(void)
{
    init_attr.cur_qp_state = IBV_QPS_RTS;
    init_mask |= IBV_QP_CUR_STATE;
    init_fails();
}

static void rts_fails(void)
{
    struct ibv_qp *qp = new_qp();
    initialise(qp);
    EXPECT(to_rtr(qp, 17) == 0);
    FAILS(to_rts(qp));
}

static void retry_cnt_8(void) { rts_attr.retry_cnt = 8; rts_fails(); }
static void rnr_retry_8(void) { rts_attr.rnr_retry = 8; rts_fails(); }
static void timeout_32(void) { rts_attr.timeout = 32; rts_fails(); }
static void max_rd_atomic_200(void) { rts_attr.max_rd_atomic = 200; rts_fails(); }
static void sq_psn_not_given(void) { rts_mask &= ~IBV_QP_SQ_PSN; rts_fails(); }

static void rts_without_rtr(void)
{
    struct ibv_qp *qp = new_qp();
    initialise(qp);
    FAILS(to_rts(qp));
}
static void rtr_without_init(void) { FAILS(to_rtr(new_qp(), 17)); }

/* ---- Objects ---- */

static void qp_fails(struct ibv_qp_init_attr attr) { IS_NULL(ibv_create_qp(pd, &attr)); }

static void cq_of_nothing(void) { IS_NULL(ibv_create_cq(context, 0, NULL, NULL, 0)); }
static void cq_too_large(void) { IS_NULL(ibv_create_cq(context, 100 << 20, NULL, NULL, 0)); }
static void cq_smaller_than_what_it_has(void) { FAILS(ibv_resize_cq(cq, 100 << 20)); }
static void max_send_wr_too_large(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.cap.max_send_wr = 10 << 20;
    qp_fails(attr);
}
static void max_send_sge_too_large(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.cap.max_send_sge = 99;
    qp_fails(attr);
}
static void max_inline_too_large(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.cap.max_inline_data = 100000;
    qp_fails(attr);
}
static void raw_packet_qp(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.qp_type = IBV_QPT_RAW_PACKET;
    qp_fails(attr);
}
static void srq_too_large(void)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 100 << 20, .max_sge = 1}};
    IS_NULL(ibv_create_srq(pd, &attr));
}
static struct ibv_srq *new_srq(void)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &attr);
    EXPECT(srq);
    return srq;
}
static void srq_limit_above_size(void)
{
    struct ibv_srq_attr attr = {.srq_limit = 1000};
    FAILS(ibv_modify_srq(new_srq(), &attr, IBV_SRQ_LIMIT));
}
static void mr_remote_write_without_local(void)
{
    IS_NULL(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_REMOTE_WRITE));
}
static void mr_of_unmapped_memory(void)
{
    char *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(gone != MAP_FAILED && munmap(gone, 8192) == 0);
    IS_NULL(ibv_reg_mr(pd, gone, 8192, IBV_ACCESS_LOCAL_WRITE));
}
static void mr_of_read_only_memory(void)
{
    char *only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(only != MAP_FAILED);
    IS_NULL(ibv_reg_mr(pd, only, 4096, IBV_ACCESS_LOCAL_WRITE));
}
static void pd_in_use(void) { FAILS(ibv_dealloc_pd(pd)); }
static void cq_in_use(void)
{
    new_qp();
    FAILS(ibv_destroy_cq(cq));
}
static void srq_in_use(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.srq = new_srq();
    EXPECT(ibv_create_qp(pd, &attr));
    FAILS(ibv_destroy_srq(attr.srq));
}
static void query_of_port_2(void)
{
    struct ibv_port_attr attr;
    FAILS(ibv_query_port(context, 2, &attr));
}
static void ah_without_grh(void)
{
    struct ibv_ah_attr attr = rtr_attr.ah_attr;
    attr.is_global = 0;
    IS_NULL(ibv_create_ah(pd, &attr));
}
static void ah_of_no_gid(void)
{
    struct ibv_ah_attr attr = rtr_attr.ah_attr;
    attr.grh.sgid_index = 9;
    IS_NULL(ibv_create_ah(pd, &attr));
}
static void group_of_rc_qp(void)
{
    union ibv_gid group;
    EXPECT(inet_pton(AF_INET6, "::ffff:239.1.2.3", &group) == 1);
    FAILS(ibv_attach_mcast(new_qp(), &group, 0));
}

/* ---- Posting ---- */

static void send_in_init(void)
{
    struct ibv_qp *qp = new_qp();
    initialise(qp);
    FAILS(post(qp, IBV_WR_SEND, sge_of(8, mr->lkey), 0, 0));
}
static void too_many_sges(void)
{
    connect_both();
    struct ibv_sge sges[40];
    for (int i = 0; i < 40; i++)
        sges[i] = sge_of(8, mr->lkey);
    struct ibv_send_wr *bad, wr = {.wr_id = 7, .sg_list = sges, .num_sge = 40,
                                   .opcode = IBV_WR_SEND};
    FAILS(ibv_post_send(one, &wr, &bad));
}
static void inline_too_long(void)
{
    connect_both();
    struct ibv_sge sge = sge_of(65, 0);
    struct ibv_send_wr *bad, wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1,
                                   .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};
    sge.length = 4096;
    FAILS(ibv_post_send(one, &wr, &bad));
}
static void receive_queue_full(void)
{
    struct ibv_qp *qp = new_qp();
    initialise(qp);
    int posted = 0;
    while (post_receive(qp, 8) == 0)
        EXPECT(++posted < 1000);
}
static void receive_on_qp_with_srq(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.srq = new_srq();
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    EXPECT(qp);
    initialise(qp);
    FAILS(post_receive(qp, 8));
}
static void atomic_not_aligned(void)
{
    connect_both();
    FAILS(post(one, IBV_WR_ATOMIC_FETCH_AND_ADD, sge_of(8, mr->lkey), (uintptr_t)buffer + 4,
               mr->rkey));
}

/* ---- Work requests that fail ---- */

static void request_fails(enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t addr,
                          uint32_t rkey, enum ibv_wc_status status)
{
    connect_both();
    EXPECT(post(one, opcode, sge, addr, rkey) == 0);
    ends_with(status);
}

static void write_fails(uint64_t addr, uint32_t rkey, enum ibv_wc_status status)
{
    request_fails(IBV_WR_RDMA_WRITE, sge_of(8, mr->lkey), addr, rkey, status);
}

static void wrong_lkey(void)
{
    request_fails(IBV_WR_RDMA_WRITE, sge_of(8, 0xbad), (uintptr_t)buffer, mr->rkey,
                  IBV_WC_LOC_PROT_ERR);
}
static void beyond_local_mr(void)
{
    struct ibv_sge sge = sge_of(16, mr->lkey);
    sge.addr += sizeof buffer - 8;
    request_fails(IBV_WR_RDMA_WRITE, sge, (uintptr_t)buffer, mr->rkey, IBV_WC_LOC_PROT_ERR);
}
static void lkey_of_another_pd(void)
{
    struct ibv_mr *other = ibv_reg_mr(ibv_alloc_pd(context), buffer, 64, 0);
    EXPECT(other);
    request_fails(IBV_WR_RDMA_WRITE, sge_of(8, other->lkey), (uintptr_t)buffer, mr->rkey,
                  IBV_WC_LOC_PROT_ERR);
}
static void read_into_memory_that_is_not_for_writing(void)
{
    struct ibv_mr *other = ibv_reg_mr(pd, buffer, 64, 0);
    EXPECT(other);
    request_fails(IBV_WR_RDMA_READ, sge_of(8, other->lkey), (uintptr_t)buffer, mr->rkey,
                  IBV_WC_LOC_PROT_ERR);
}
static void wrong_rkey(void) { write_fails((uintptr_t)buffer, 0xbad, IBV_WC_REM_ACCESS_ERR); }
static void beyond_remote_mr(void)
{
    write_fails((uintptr_t)buffer + sizeof buffer, mr->rkey, IBV_WC_REM_ACCESS_ERR);
}
static void mr_without_remote_write(void)
{
    struct ibv_mr *other = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE);
    EXPECT(other);
    write_fails((uintptr_t)buffer, other->rkey, IBV_WC_REM_ACCESS_ERR);
}
static void rkey_of_another_pd(void)
{
    struct ibv_mr *other = ibv_reg_mr(ibv_alloc_pd(context), buffer, 64,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    EXPECT(other);
    write_fails((uintptr_t)buffer, other->rkey, IBV_WC_REM_ACCESS_ERR);
}
static void rkey_deregistered(void)
{
    struct ibv_mr *other = ibv_reg_mr(pd, buffer, 64, IBV_ACCESS_LOCAL_WRITE | ALL_REMOTE);
    EXPECT(other);
    uint32_t rkey = other->rkey;
    EXPECT(ibv_dereg_mr(other) == 0);
    write_fails((uintptr_t)buffer, rkey, IBV_WC_REM_ACCESS_ERR);
}
static void qp_without_remote_read(void)
{
    init_attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    request_fails(IBV_WR_RDMA_READ, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey,
                  IBV_WC_REM_INV_REQ_ERR);
}
static void qp_without_remote_atomic(void)
{
    init_attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    request_fails(IBV_WR_ATOMIC_FETCH_AND_ADD, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey,
                  IBV_WC_REM_INV_REQ_ERR);
}
static void max_rd_atomic_0(void)
{
    rts_attr.max_rd_atomic = 0;
    request_fails(IBV_WR_RDMA_READ, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey,
                  IBV_WC_LOC_QP_OP_ERR);
}
static void no_receive_posted(void)
{
    request_fails(IBV_WR_SEND, sge_of(8, mr->lkey), 0, 0, IBV_WC_RNR_RETRY_EXC_ERR);
}
static void receive_too_short(void)
{
    connect_both();
    EXPECT(post_receive(two, 8) == 0);
    EXPECT(post(one, IBV_WR_SEND, sge_of(64, mr->lkey), 0, 0) == 0);
    struct ibv_wc wc;
    int failed = 0;
    while (failed < 2) {
        int found = ibv_poll_cq(cq, 1, &wc);
        EXPECT(found >= 0);
        failed += found == 1 && wc.status != IBV_WC_SUCCESS;
    }
}
static void nobody_at_that_address(void)
{
    EXPECT(inet_pton(AF_INET6, "::ffff:127.99.99.99", &rtr_attr.ah_attr.grh.dgid) == 1);
    write_fails((uintptr_t)buffer, mr->rkey, IBV_WC_RETRY_EXC_ERR);
}
static void wrong_dest_qpn(void)
{
    rtr_attr.dest_qp_num = 0xabcdef;
    write_fails((uintptr_t)buffer, mr->rkey, IBV_WC_RETRY_EXC_ERR);
}
static void wrong_psn(void)
{
    rts_attr.sq_psn = 5000;
    connect_both();
    EXPECT(post(one, IBV_WR_RDMA_WRITE, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey) == 0);
    ends_with(IBV_WC_RETRY_EXC_ERR);
}
static void peer_not_ready(void)
{
    one = new_qp();
    two = new_qp();
    initialise(one);
    initialise(two);
    EXPECT(to_rtr(one, two->qp_num) == 0 && to_rts(one) == 0);
    EXPECT(post(one, IBV_WR_RDMA_WRITE, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey) == 0);
    ends_with(IBV_WC_RETRY_EXC_ERR);
}
static void peer_gone(void)
{
    connect_both();
    EXPECT(ibv_destroy_qp(two) == 0);
    EXPECT(post(one, IBV_WR_RDMA_WRITE, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey) == 0);
    ends_with(IBV_WC_RETRY_EXC_ERR);
}
static void post_after_an_error(void)
{
    write_fails((uintptr_t)buffer, 0xbad, IBV_WC_REM_ACCESS_ERR);
    EXPECT(post(one, IBV_WR_RDMA_WRITE, sge_of(8, mr->lkey), (uintptr_t)buffer, mr->rkey) == 0);
    struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
    while (wc.status != IBV_WC_WR_FLUSH_ERR)
        EXPECT(ibv_poll_cq(cq, 1, &wc) >= 0);
}

/* ---- Datagrams ---- */

static struct ibv_qp *new_ud(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.qp_type = IBV_QPT_UD;
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    EXPECT(qp);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 17};
    EXPECT(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ==
           0);
    to.qp_state = IBV_QPS_RTR;
    EXPECT(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0);
    to.qp_state = IBV_QPS_RTS;
    EXPECT(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}
static void datagram_fails(uint32_t length, struct ibv_ah *ah, enum ibv_wc_status status)
{
    struct ibv_qp *qp = new_ud();
    struct ibv_sge sge = sge_of(length, mr->lkey);
    struct ibv_send_wr *bad, wr = {
        .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 17},
    };
    EXPECT(ibv_post_send(qp, &wr, &bad) == 0);
    ends_with(status);
}
static void datagram_longer_than_mtu(void)
{
    struct ibv_ah *ah = ibv_create_ah(pd, &rtr_attr.ah_attr);
    EXPECT(ah);
    datagram_fails(8192, ah, IBV_WC_LOC_LEN_ERR);
}
static void address_handle_of_another_pd(void)
{
    struct ibv_ah *ah = ibv_create_ah(ibv_alloc_pd(context), &rtr_attr.ah_attr);
    EXPECT(ah);
    datagram_fails(8, ah, IBV_WC_LOC_QP_OP_ERR);
}
static void qkey_not_given(void)
{
    struct ibv_qp_init_attr attr = usual_qp();
    attr.qp_type = IBV_QPT_UD;
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    EXPECT(qp);
    FAILS(ibv_modify_qp(qp, &init_attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
}

/* ---- Connections ---- */

static struct rdma_cm_id *new_id(void)
{
    struct rdma_cm_id *id;
    EXPECT(rdma_create_id(rdma_create_event_channel(), &id, NULL, RDMA_PS_TCP) == 0);
    return id;
}
static struct sockaddr_in address(const char *text, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    EXPECT(inet_pton(AF_INET, text, &to.sin_addr) == 1);
    return to;
}
static void comes(struct rdma_cm_id *id, enum rdma_cm_event_type expected)
{
    struct rdma_cm_event *event;
    EXPECT(rdma_get_cm_event(id->channel, &event) == 0);
    if (event->event != expected)
        printf("    %s, expected %s\n", rdma_event_str(event->event), rdma_event_str(expected));
    EXPECT(event->event == expected && rdma_ack_cm_event(event) == 0);
}
static void foreign_address(void)
{
    struct sockaddr_in to = address("203.0.113.5", 7471);
    FAILS(rdma_bind_addr(new_id(), (struct sockaddr *)&to));
}
static void port_in_use(void)
{
    struct sockaddr_in to = address("0.0.0.0", 17471);
    struct rdma_cm_id *id = new_id();
    EXPECT(rdma_bind_addr(id, (struct sockaddr *)&to) == 0 && rdma_listen(id, 1) == 0);
    FAILS(rdma_bind_addr(new_id(), (struct sockaddr *)&to));
}
static struct rdma_cm_id *resolved(void)
{
    char text[INET_ADDRSTRLEN];
    EXPECT(inet_ntop(AF_INET, &gid.raw[12], text, sizeof text));
    struct sockaddr_in to = address(text, 7999);
    struct rdma_cm_id *id = new_id();
    EXPECT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
    comes(id, RDMA_CM_EVENT_ADDR_RESOLVED);
    return id;
}
static void connect_without_route(void)
{
    struct rdma_cm_id *id = resolved();
    struct rdma_conn_param param = {.retry_count = 2};
    FAILS(rdma_connect(id, &param));
}
static void nobody_listens(void)
{
    struct rdma_cm_id *id = resolved();
    EXPECT(rdma_resolve_route(id, 2000) == 0);
    comes(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct ibv_qp_init_attr attr = usual_qp();
    attr.send_cq = attr.recv_cq = NULL;
    EXPECT(rdma_create_qp(id, NULL, &attr) == 0);
    struct rdma_conn_param param = {.retry_count = 2};
    EXPECT(rdma_connect(id, &param) == 0);
    comes(id, RDMA_CM_EVENT_REJECTED);
}

#define MISTAKE(name) {#name, name}

static const struct {
    const char *name;
    void (*make)(void);
} mistakes[] = {
    MISTAKE(gid_index_beyond_table),
    MISTAKE(gid_of_other_family),
    MISTAKE(no_destination_gid),
    MISTAKE(no_grh),
    MISTAKE(path_from_port_2),
    MISTAKE(path_mtu_in_bytes),
    MISTAKE(path_mtu_of_no_code),
    MISTAKE(dest_qpn_of_25_bits),
    MISTAKE(min_rnr_timer_32),
    MISTAKE(max_dest_rd_atomic_200),
    MISTAKE(path_mtu_not_given),
    MISTAKE(dest_qpn_not_given),
    MISTAKE(address_not_given),
    MISTAKE(timeout_too_early),
    MISTAKE(alternate_path),
    MISTAKE(port_2),
    MISTAKE(pkey_index_1),
    MISTAKE(access_flags_not_given),
    MISTAKE(wrong_current_state),
    MISTAKE(retry_cnt_8),
    MISTAKE(rnr_retry_8),
    MISTAKE(timeout_32),
    MISTAKE(max_rd_atomic_200),
    MISTAKE(sq_psn_not_given),
    MISTAKE(rts_without_rtr),
    MISTAKE(rtr_without_init),
    MISTAKE(cq_of_nothing),
    MISTAKE(cq_too_large),
    MISTAKE(cq_smaller_than_what_it_has),
    MISTAKE(max_send_wr_too_large),
    MISTAKE(max_send_sge_too_large),
    MISTAKE(max_inline_too_large),
    MISTAKE(raw_packet_qp),
    MISTAKE(srq_too_large),
    MISTAKE(srq_limit_above_size),
    MISTAKE(mr_remote_write_without_local),
    MISTAKE(mr_of_unmapped_memory),
    MISTAKE(mr_of_read_only_memory),
    MISTAKE(pd_in_use),
    MISTAKE(cq_in_use),
    MISTAKE(srq_in_use),
    MISTAKE(query_of_port_2),
    MISTAKE(ah_without_grh),
    MISTAKE(ah_of_no_gid),
    MISTAKE(group_of_rc_qp),
    MISTAKE(send_in_init),
    MISTAKE(too_many_sges),
    MISTAKE(inline_too_long),
    MISTAKE(receive_queue_full),
    MISTAKE(receive_on_qp_with_srq),
    MISTAKE(atomic_not_aligned),
    MISTAKE(wrong_lkey),
    MISTAKE(beyond_local_mr),
    MISTAKE(lkey_of_another_pd),
    MISTAKE(read_into_memory_that_is_not_for_writing),
    MISTAKE(wrong_rkey),
    MISTAKE(beyond_remote_mr),
    MISTAKE(mr_without_remote_write),
    MISTAKE(rkey_of_another_pd),
    MISTAKE(rkey_deregistered),
    MISTAKE(qp_without_remote_read),
    MISTAKE(qp_without_remote_atomic),
    MISTAKE(max_rd_atomic_0),
    MISTAKE(no_receive_posted),
    MISTAKE(receive_too_short),
    MISTAKE(nobody_at_that_address),
    MISTAKE(wrong_dest_qpn),
    MISTAKE(wrong_psn),
    MISTAKE(peer_not_ready),
    MISTAKE(peer_gone),
    MISTAKE(post_after_an_error),
    MISTAKE(datagram_longer_than_mtu),
    MISTAKE(address_handle_of_another_pd),
    MISTAKE(qkey_not_given),
    MISTAKE(foreign_address),
    MISTAKE(port_in_use),
    MISTAKE(connect_without_route),
    MISTAKE(nobody_listens),
};

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        if (argc > 1 && strcmp(argv[1], mistakes[i].name))
            continue;
        printf("== %s\n", mistakes[i].name);
        fflush(stdout);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            alarm(20);
            begin();
            mistakes[i].make();
            fflush(stdout);
            _exit(0);
        }
        int status;
        EXPECT(waitpid(child, &status, 0) == child);
        if (status != 0)
            printf("    ended with %#x\n", status);
        fflush(stdout);
        failed |= status != 0;
    }
    return failed;
}
