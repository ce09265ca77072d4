/* The order in which a program that polls its memory sees what its peer writes there.
 *
 *   polls_memory [-d DEVICE] [-x GID_INDEX] [-p PORT] [-n ROUNDS] [-s BYTES] [-m]          polls
 *   polls_memory [-d DEVICE] [-x GID_INDEX] [-p PORT] [-n ROUNDS] [-s BYTES] [-m] SERVER   writes
 *
 * Each round writes its number into every word of a slot of the server's memory, and then announces
 * it in one of four ways. A server that has seen round n must find nothing older than n in the slot.
 * It prints how often it looked, and how often it found older data; that must be 0. With -m, only
 * messages are looked at, and not the order within one.
 */

#include "verbs_program.h"
#include <endian.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

enum { SLOTS = 64, IN_FLIGHT = 8, SOURCES = 2 * IN_FLIGHT, LONGEST = 1 << 16 };

/* How the server learns of a round. */
enum way { FLAG, FLAG_APART, LAST_WORD, ATOMIC, WAYS };
static const char *const ways[WAYS] = {
    [FLAG] = "a flag written after the data, in the same MR",
    [FLAG_APART] = "a flag written after the data, in an MR of its own",
    [LAST_WORD] = "the last word of the data",
    [ATOMIC] = "a fetch-and-add after the data",
};

struct side {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    int socket;
    /* The slots (at the client: the sources), and a page of flags behind them. */
    uint64_t *data, *flag;
    struct ibv_mr *data_mr;
    /* A page by itself. */
    uint64_t *apart;
    struct ibv_mr *apart_mr;
};

/* What the sides send each other. */
struct hello {
    uint64_t data, flag, apart;
    uint32_t qpn, data_rkey, apart_rkey;
    uint32_t mtu;
    union ibv_gid gid;
};

static const char *device_name;
/* Where older data was found, if it was. */
static char example[200];
static const char *port = "18515";
static int gid_index;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static void transfer(int socket, bool sends, void *bytes, size_t len)
{
    for (char *at = bytes; len > 0;) {
        ssize_t done = sends ? write(socket, at, len) : read(socket, at, len);
        EXPECT(done > 0);
        at += done;
        len -= done;
    }
}

static struct ibv_context *open_named(void)
{
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    EXPECT(devices);
    struct ibv_context *context = NULL;
    for (int i = 0; i < count && !context; i++)
        if (!device_name || strcmp(ibv_get_device_name(devices[i]), device_name) == 0)
            context = ibv_open_device(devices[i]);
    EXPECT(context);
    ibv_free_device_list(devices);
    return context;
}

static void *pages(size_t len)
{
    void *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(start != MAP_FAILED);
    return start;
}

static int connect_tcp(const char *server)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = server ? 0 : AI_PASSIVE};
    struct addrinfo *found;
    if (!server)
        hints.ai_family = AF_INET6;
    EXPECT(getaddrinfo(server, port, &hints, &found) == 0);
    int one = 1, no = 0, fd = socket(found->ai_family, SOCK_STREAM, 0);
    EXPECT(fd >= 0);
    if (server) {
        double limit = seconds() + 10;
        while (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
            EXPECT(seconds() < limit);
            close(fd);
            usleep(50000);
            EXPECT((fd = socket(found->ai_family, SOCK_STREAM, 0)) >= 0);
        }
    } else {
        EXPECT(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
        EXPECT(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0);
        EXPECT(bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0);
        int accepted = accept(fd, NULL, NULL);
        EXPECT(accepted >= 0);
        close(fd);
        fd = accepted;
    }
    freeaddrinfo(found);
    return fd;
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
    EXPECT((errno = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE)) == 0);
}

/* Opens everything and connects; what the peer has sent is in `peer`. */
static void set_up(struct side *side, const char *server, struct hello *peer)
{
    size_t len = (size_t)SLOTS * LONGEST + 4096;
    side->context = open_named();
    EXPECT(side->pd = ibv_alloc_pd(side->context));
    EXPECT(side->cq = ibv_create_cq(side->context, 256, NULL, NULL, 0));
    struct ibv_qp_init_attr init = {
        .send_cq = side->cq,
        .recv_cq = side->cq,
        .cap = {.max_send_wr = 4 * IN_FLIGHT, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    EXPECT(side->qp = ibv_create_qp(side->pd, &init));
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    side->data = pages(len);
    side->flag = side->data + (size_t)SLOTS * LONGEST / 8;
    side->apart = pages(4096);
    EXPECT(side->data_mr = ibv_reg_mr(side->pd, side->data, len, access));
    EXPECT(side->apart_mr = ibv_reg_mr(side->pd, side->apart, 4096, access));

    struct ibv_port_attr attr;
    EXPECT(ibv_query_port(side->context, 1, &attr) == 0);
    struct hello hello = {
        .data = (uintptr_t)side->data,
        .flag = (uintptr_t)side->flag,
        .apart = (uintptr_t)side->apart,
        .qpn = side->qp->qp_num,
        .data_rkey = side->data_mr->rkey,
        .apart_rkey = side->apart_mr->rkey,
        .mtu = attr.active_mtu,
    };
    EXPECT(ibv_query_gid(side->context, 1, gid_index, &hello.gid) == 0);
    side->socket = connect_tcp(server);
    transfer(side->socket, true, &hello, sizeof hello);
    transfer(side->socket, false, peer, sizeof *peer);

    modify(side->qp,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access},
           IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(side->qp,
           (struct ibv_qp_attr){
               .qp_state = IBV_QPS_RTR,
               .path_mtu = peer->mtu < hello.mtu ? peer->mtu : hello.mtu,
               .dest_qp_num = peer->qpn,
               .max_dest_rd_atomic = 1,
               .min_rnr_timer = 12,
               .ah_attr = {.is_global = 1,
                           .port_num = 1,
                           .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}},
           },
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    modify(side->qp,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .max_rd_atomic = 1},
           IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Waits until the other side is at the same point. */
static void meet(const struct side *side)
{
    char byte = 0;
    transfer(side->socket, true, &byte, 1);
    transfer(side->socket, false, &byte, 1);
}

static uint64_t *slot(const struct side *side, uint64_t round)
{
    return side->data + round % SLOTS * (LONGEST / 8);
}

/* Polls until the last round has come. Returns how often older data was found. */
static uint64_t poll_memory(const struct side *side, enum way way, uint64_t rounds, size_t words)
{
    uint64_t looked = 0, older = 0, seen = 0;
    double limit = seconds() + 30;
    while (seen < rounds) {
        uint64_t now = seen, polls = 0;
        while (now <= seen) {
            /* The slot of the next last word is not announced; a later one will do. */
            uint64_t *flag = way == LAST_WORD    ? slot(side, seen + 1) + words - 1
                             : way == FLAG_APART ? side->apart
                                                 : side->flag;
            now = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
            if (now <= seen && ++polls % 512 == 0) {
                EXPECT(seconds() < limit);
                sched_yield();
            }
        }
        const uint64_t *data = slot(side, now);
        size_t word = 0;
        uint64_t value = now;
        while (value >= now && word < words)
            value = __atomic_load_n(&data[word++], __ATOMIC_RELAXED);
        if (value < now && older++ == 0)
            snprintf(example, sizeof example, "%zu bytes, %s: word %zu of round %lu was of round %lu",
                     8 * words, ways[way], word - 1, now, value);
        looked++;
        seen = now;
    }
    printf("%6zu bytes, %s: looked %lu times, older data behind it %lu times\n", 8 * words,
           ways[way], looked, older);
    return older;
}

static void write_memory(const struct side *side, const struct hello *peer, enum way way,
                         uint64_t rounds, size_t words)
{
    int pending = 0;
    for (uint64_t round = 1; round <= rounds; round++) {
        uint64_t *source = side->data + round % SOURCES * (LONGEST / 8);
        for (size_t word = 0; word < words; word++)
            source[word] = round;
        struct ibv_sge sges[2] = {
            {.addr = (uintptr_t)source, .length = 8 * words, .lkey = side->data_mr->lkey},
            {.addr = (uintptr_t)source, .length = 8, .lkey = side->data_mr->lkey},
        };
        bool is_apart = way == FLAG_APART;
        struct ibv_send_wr says = {
            .sg_list = &sges[1],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED,
            .wr.rdma = {.remote_addr = is_apart ? peer->apart : peer->flag,
                        .rkey = is_apart ? peer->apart_rkey : peer->data_rkey},
        };
        if (way == ATOMIC) {
            /* The old value comes back, and is not looked at. */
            sges[1] = (struct ibv_sge){(uintptr_t)side->apart, 8, side->apart_mr->lkey};
            says.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            says.wr.atomic.remote_addr = peer->flag;
            says.wr.atomic.compare_add = 1;
            says.wr.atomic.rkey = peer->data_rkey;
        }
        struct ibv_send_wr writes = {
            .next = way == LAST_WORD ? NULL : &says,
            .sg_list = &sges[0],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = way == LAST_WORD ? IBV_SEND_SIGNALED : 0,
            .wr.rdma = {.remote_addr = peer->data + round % SLOTS * LONGEST,
                        .rkey = peer->data_rkey},
        };
        struct ibv_send_wr *bad;
        EXPECT((errno = ibv_post_send(side->qp, &writes, &bad)) == 0);
        pending++;
        double limit = seconds() + 30;
        while (pending == IN_FLIGHT || (round == rounds && pending > 0)) {
            struct ibv_wc wc;
            int count = ibv_poll_cq(side->cq, 1, &wc);
            EXPECT(count >= 0 && seconds() < limit);
            if (count == 1 && wc.status != IBV_WC_SUCCESS) {
                printf("round %lu: %s\n", round, ibv_wc_status_str(wc.status));
                exit(1);
            }
            pending -= count;
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t rounds = 5000;
    size_t only = 0;
    bool messages_only = false;
    for (int option; (option = getopt(argc, argv, "d:x:n:s:p:mF")) != -1;) {
        switch (option) {
        case 'd': device_name = optarg; break;
        case 'x': gid_index = atoi(optarg); break;
        case 'n': rounds = strtoull(optarg, NULL, 10); break;
        case 's': only = strtoull(optarg, NULL, 10); break;
        case 'p': port = optarg; break;
        case 'm': messages_only = true; break;
        case 'F': break; /* perftest has it, and is run by the same scripts */
        default: return 2;
        }
    }
    struct side side = {0};
    struct hello peer;
    set_up(&side, argv[optind], &peer);
    uint64_t older = 0;
    static const size_t sizes[] = {8, 64, 256, 1024, 3000, 16384, LONGEST};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (only && sizes[i] != only)
            continue;
        /* As much time for the long ones as for the short. */
        uint64_t count = sizes[i] <= 4096 ? rounds : rounds / (sizes[i] / 4096) + 1;
        for (enum way way = 0; way < WAYS; way++) {
            if (messages_only && way == LAST_WORD)
                continue;
            memset(side.data, 0, (size_t)SLOTS * LONGEST + 4096);
            memset(side.apart, 0, 4096);
            meet(&side);
            if (argv[optind])
                write_memory(&side, &peer, way, count, sizes[i] / 8);
            else
                older += poll_memory(&side, way, count, sizes[i] / 8);
            meet(&side);
        }
    }
    EXPECT(ibv_destroy_qp(side.qp) == 0);
    EXPECT(ibv_destroy_cq(side.cq) == 0);
    EXPECT(ibv_dereg_mr(side.data_mr) == 0 && ibv_dereg_mr(side.apart_mr) == 0);
    EXPECT(ibv_dealloc_pd(side.pd) == 0);
    EXPECT(ibv_close_device(side.context) == 0);
    if (older > 0)
        printf("older data %lu times; the last example: %s\n", older, example);
    return older > 0;
}
