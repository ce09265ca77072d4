/* A handle is of the context that it was made in. In another one of the same process it does not
   exist, nor does it after its object is destroyed; so it is with event channels and their ids. */
#include "check.h"
#include "commands.h"
#include <netinet/in.h>

/* One object of each kind. */
struct objects {
    __u32 pd, ah, mr, mw, channel, cq, srq, qp;
};

static int make_ah(int fd, __u32 pd, __u32 *ah)
{
    struct ib_uverbs_create_ah it = {.pd_handle = pd, .attr = {.is_global = 1, .port_num = 1}};
    it.attr.grh.dgid[10] = it.attr.grh.dgid[11] = 0xff;
    it.attr.grh.dgid[12] = 127;
    it.attr.grh.dgid[15] = 1;
    WITH_DRIVER(ib_uverbs_create_ah_resp) answer = {};
    if (ASK(fd, CREATE_AH, it, answer) != 0)
        return -1;
    *ah = answer.core.ah_handle;
    return 0;
}

static int make_mr(int fd, __u32 pd, __u32 *mr)
{
    static char memory[4096];
    struct ib_uverbs_reg_mr it = {
        .start = (uintptr_t)memory, .hca_va = (uintptr_t)memory, .length = sizeof memory,
        .pd_handle = pd, .access_flags = 1,
    };
    struct ib_uverbs_reg_mr_resp answer = {};
    if (ASK(fd, REG_MR, it, answer) != 0)
        return -1;
    *mr = answer.mr_handle;
    return 0;
}

static int make_mw(int fd, __u32 pd, __u32 *mw)
{
    struct ib_uverbs_alloc_mw it = {.pd_handle = pd, .mw_type = 1};
    struct ib_uverbs_alloc_mw_resp answer = {};
    if (ASK(fd, ALLOC_MW, it, answer) != 0)
        return -1;
    *mw = answer.mw_handle;
    return 0;
}

static int make_cq(int fd, int channel, __u32 *cq)
{
    struct ib_uverbs_create_cq it = {.cqe = 3, .comp_channel = channel};
    WITH_DRIVER(ib_uverbs_create_cq_resp) answer = {};
    if (ASK(fd, CREATE_CQ, it, answer) != 0)
        return -1;
    *cq = answer.core.cq_handle;
    return 0;
}

static int make_srq(int fd, __u32 pd, __u32 *srq)
{
    struct ib_uverbs_create_srq it = {.pd_handle = pd, .max_wr = 3, .max_sge = 1};
    WITH_DRIVER(ib_uverbs_create_srq_resp) answer = {};
    if (ASK(fd, CREATE_SRQ, it, answer) != 0)
        return -1;
    *srq = answer.core.srq_handle;
    return 0;
}

static int make_qp(int fd, __u32 pd, __u32 send_cq, __u32 recv_cq, const __u32 *srq, __u32 *qp)
{
    struct ib_uverbs_create_qp it = {
        .pd_handle = pd, .send_cq_handle = send_cq, .recv_cq_handle = recv_cq,
        .srq_handle = srq ? *srq : 0, .is_srq = srq != NULL, .max_send_wr = 3, .max_send_sge = 1,
        .max_recv_wr = 3, .max_recv_sge = 1, .qp_type = 4,
    };
    WITH_DRIVER(ib_uverbs_create_qp_resp) answer = {};
    if (ASK(fd, CREATE_QP, it, answer) != 0)
        return -1;
    *qp = answer.core.qp_handle;
    return 0;
}

static struct objects make_all(int fd)
{
    struct objects made = {};
    struct ib_uverbs_alloc_pd pd = {};
    struct ib_uverbs_alloc_pd_resp pd_made = {};
    CHECK(ASK(fd, ALLOC_PD, pd, pd_made) == 0);
    made.pd = pd_made.pd_handle;
    struct ib_uverbs_create_comp_channel channel = {};
    struct ib_uverbs_create_comp_channel_resp channel_made = {};
    CHECK(ASK(fd, CREATE_COMP_CHANNEL, channel, channel_made) == 0);
    made.channel = channel_made.fd;
    CHECK(make_ah(fd, made.pd, &made.ah) == 0 && make_mr(fd, made.pd, &made.mr) == 0);
    CHECK(make_mw(fd, made.pd, &made.mw) == 0 && make_cq(fd, made.channel, &made.cq) == 0);
    CHECK(make_srq(fd, made.pd, &made.srq) == 0);
    CHECK(make_qp(fd, made.pd, made.cq, made.cq, &made.srq, &made.qp) == 0);
    return made;
}

static void destroy_all(int fd, struct objects of)
{
    char answer[256];
    struct ib_uverbs_destroy_qp qp = {.qp_handle = of.qp};
    CHECK(ASK(fd, DESTROY_QP, qp, answer) == 0);
    struct ib_uverbs_destroy_srq srq = {.srq_handle = of.srq};
    CHECK(ASK(fd, DESTROY_SRQ, srq, answer) == 0);
    struct ib_uverbs_destroy_cq cq = {.cq_handle = of.cq};
    CHECK(ASK(fd, DESTROY_CQ, cq, answer) == 0);
    struct ib_uverbs_dealloc_mw mw = {of.mw};
    CHECK(ORDER(fd, DEALLOC_MW, mw) == 0);
    struct ib_uverbs_dereg_mr mr = {of.mr};
    CHECK(ORDER(fd, DEREG_MR, mr) == 0);
    struct ib_uverbs_destroy_ah ah = {of.ah};
    CHECK(ORDER(fd, DESTROY_AH, ah) == 0);
    struct ib_uverbs_dealloc_pd pd = {of.pd};
    CHECK(ORDER(fd, DEALLOC_PD, pd) == 0);
}

/* Everything that can be done to an object, where it does not exist. */
static void knows_none_of(int fd, struct objects of)
{
    __u32 made;
    FAILS(ENOENT, make_ah(fd, of.pd, &made));
    FAILS(ENOENT, make_mr(fd, of.pd, &made));
    FAILS(ENOENT, make_mw(fd, of.pd, &made));
    FAILS(ENOENT, make_srq(fd, of.pd, &made));

    char answer[256];
    struct ib_uverbs_dealloc_pd pd = {of.pd};
    FAILS(ENOENT, ORDER(fd, DEALLOC_PD, pd));
    struct ib_uverbs_destroy_ah ah = {of.ah};
    FAILS(ENOENT, ORDER(fd, DESTROY_AH, ah));
    struct ib_uverbs_dereg_mr mr = {of.mr};
    FAILS(ENOENT, ORDER(fd, DEREG_MR, mr));
    struct ib_uverbs_dealloc_mw mw = {of.mw};
    FAILS(ENOENT, ORDER(fd, DEALLOC_MW, mw));

    struct ib_uverbs_req_notify_cq notify = {.cq_handle = of.cq};
    FAILS(ENOENT, ORDER(fd, REQ_NOTIFY_CQ, notify));
    struct ib_uverbs_resize_cq resize = {.cq_handle = of.cq, .cqe = 7};
    FAILS(ENOENT, ASK(fd, RESIZE_CQ, resize, answer));
    struct ib_uverbs_destroy_cq cq = {.cq_handle = of.cq};
    FAILS(ENOENT, ASK(fd, DESTROY_CQ, cq, answer));

    struct { struct ib_uverbs_modify_srq core; char driver[8]; } limit = {
        .core = {.srq_handle = of.srq, .attr_mask = 2, .srq_limit = 1}
    };
    FAILS(ENOENT, ORDER(fd, MODIFY_SRQ, limit));
    struct ib_uverbs_query_srq query_srq = {.srq_handle = of.srq};
    FAILS(ENOENT, ASK(fd, QUERY_SRQ, query_srq, answer));
    struct ib_uverbs_destroy_srq srq = {.srq_handle = of.srq};
    FAILS(ENOENT, ASK(fd, DESTROY_SRQ, srq, answer));

    struct ib_uverbs_query_qp query_qp = {.qp_handle = of.qp};
    FAILS(ENOENT, ASK(fd, QUERY_QP, query_qp, answer));
    struct ib_uverbs_modify_qp modify = {.qp_handle = of.qp, .attr_mask = 1, .qp_state = 6};
    FAILS(ENOENT, ORDER(fd, MODIFY_QP, modify));
    struct ib_uverbs_post_send send = {.qp_handle = of.qp};
    FAILS(ENOENT, command(fd, IB_USER_VERBS_CMD_POST_SEND, &send, sizeof send, 4));
    struct ib_uverbs_attach_mcast attach = {.qp_handle = of.qp};
    FAILS(ENOENT, ORDER(fd, ATTACH_MCAST, attach));
    struct ib_uverbs_detach_mcast detach = {.qp_handle = of.qp};
    FAILS(ENOENT, ORDER(fd, DETACH_MCAST, detach));
    struct ib_uverbs_destroy_qp qp = {.qp_handle = of.qp};
    FAILS(ENOENT, ASK(fd, DESTROY_QP, qp, answer));

    /* Beside some that are there. The number of a QP that is gone may be another's. */
    struct objects own = make_all(fd);
    FAILS(ENOENT, make_qp(fd, of.pd, own.cq, own.cq, NULL, &made));
    FAILS(ENOENT, make_qp(fd, own.pd, of.cq, own.cq, NULL, &made));
    FAILS(ENOENT, make_qp(fd, own.pd, own.cq, of.cq, NULL, &made));
    FAILS(ENOENT, make_qp(fd, own.pd, own.cq, own.cq, &of.srq, &made));
    destroy_all(fd, own);
    CHECK(close(own.channel) == 0);
}

static ssize_t cm(int fd, __u32 number, const void *request, __u16 in, __u16 out)
{
    struct {
        struct rdma_ucm_cmd_hdr header;
        char request[512];
    } bytes = {.header = {number, in, out}};
    memcpy(bytes.request, request, in);
    return write(fd, &bytes, sizeof bytes.header + in) < 0 ? -1 : 0;
}

#define CM_ORDER(fd, name, it) cm(fd, RDMA_USER_CM_CMD_##name, &(it), sizeof(it), 0)
#define CM_ASK(fd, name, it, answer)                                                       \
    ((it).response = (uintptr_t)&(answer),                                                 \
     cm(fd, RDMA_USER_CM_CMD_##name, &(it), sizeof(it), sizeof(answer)))

static __u32 create_id(int fd)
{
    struct rdma_ucm_create_id it = {.ps = RDMA_PS_UDP};
    struct rdma_ucm_create_id_resp made = {};
    CHECK(CM_ASK(fd, CREATE_ID, it, made) == 0);
    return made.id;
}

/* Of an id the kernel says that it is another channel's, where it tells that from one that is not
   there at all. */
static void ids_are_of_their_channel(void)
{
    int one = open("/dev/infiniband/rdma_cm", O_RDWR), two = open("/dev/infiniband/rdma_cm", O_RDWR);
    CHECK(one >= 0 && two >= 0);
    __u32 id = create_id(one);
    for (int round = 0; round < 2; round++) {
        int expected = round == 0 ? EINVAL : ENOENT;
        struct sockaddr_in any = {.sin_family = AF_INET};
        struct rdma_ucm_bind_ip bind = {.id = id};
        memcpy(&bind.addr, &any, sizeof any);
        FAILS(expected, CM_ORDER(two, BIND_IP, bind));
        struct rdma_ucm_listen listen = {.id = id};
        FAILS(expected, CM_ORDER(two, LISTEN, listen));
        struct rdma_ucm_query query = {.id = id};
        struct rdma_ucm_query_route_resp route;
        FAILS(expected, CM_ASK(two, QUERY_ROUTE, query, route));
        /* It is not where it is said to be. */
        struct rdma_ucm_migrate_id migrate = {.id = id, .fd = two};
        struct rdma_ucm_migrate_resp moved;
        FAILS(expected, CM_ASK(two, MIGRATE_ID, migrate, moved));
        struct rdma_ucm_destroy_id destroy = {.id = id};
        struct rdma_ucm_destroy_id_resp destroyed;
        FAILS(expected, CM_ASK(two, DESTROY_ID, destroy, destroyed));
        if (round == 0)
            CHECK(CM_ASK(one, DESTROY_ID, destroy, destroyed) == 0);
    }
    CHECK(close(one) == 0 && close(two) == 0);
}

int main(void)
{
    int one = open_device(), two = open_device();
    struct objects made = make_all(one);
    knows_none_of(two, made);
    FAILS(EBADF, make_cq(two, made.channel, &(__u32){0}));
    destroy_all(one, made);
    knows_none_of(one, made);
    CHECK(close(made.channel) == 0);
    knows_none_of(one, (struct objects){~0u, ~0u, ~0u, ~0u, -1, ~0u, ~0u, ~0u});
    CHECK(close(one) == 0 && close(two) == 0);
    ids_are_of_their_channel();
    CHECK(hidden() == 0);
    return 0;
}
