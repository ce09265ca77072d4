/* The connection manager by the kernel's commands: a connection from its beginning to its end,
   events and their counts, and what is no command. The addresses are those of both devices. */
#include "check.h"
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>

#define CM "/dev/infiniband/rdma_cm"
#define PORT 7174

/* Writes a command of any kind; `in` bytes of request, and room for `out` bytes of answer. */
static ssize_t command(int fd, __u32 cmd, const void *request, __u16 in, __u16 out)
{
    struct {
        struct rdma_ucm_cmd_hdr header;
        char request[512];
    } bytes = {.header = {cmd, in, out}};
    memcpy(bytes.request, request, in);
    ssize_t len = sizeof bytes.header + in;
    ssize_t written = write(fd, &bytes, len);
    CHECK(written == len || written == -1);
    return written < 0 ? -1 : 0;
}

#define ORDER(fd, cmd, request) command(fd, RDMA_USER_CM_CMD_##cmd, &(request), sizeof(request), 0)
#define ASK(fd, cmd, request, answer)                                                     \
    ((request).response = (uintptr_t)&(answer),                                           \
     command(fd, RDMA_USER_CM_CMD_##cmd, &(request), sizeof(request), sizeof(answer)))

static int open_cm(int flags)
{
    int fd = open(CM, O_RDWR | flags);
    CHECK(fd >= 0);
    return fd;
}

static struct sockaddr_in6 address(const char *text, int port)
{
    struct sockaddr_in6 room = {};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&room;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    CHECK(inet_pton(AF_INET, text, &v4->sin_addr) == 1);
    return room;
}

static __u32 create_id(int fd, __u64 uid)
{
    struct rdma_ucm_create_id request = {.uid = uid, .ps = RDMA_PS_TCP};
    struct rdma_ucm_create_id_resp answer = {};
    CHECK(ASK(fd, CREATE_ID, request, answer) == 0);
    return answer.id;
}

/* Destroys an id; gives how many of its events were read. */
static int destroy_id(int fd, __u32 id)
{
    struct rdma_ucm_destroy_id request = {.id = id};
    struct rdma_ucm_destroy_id_resp answer = {.events_reported = 99};
    if (ASK(fd, DESTROY_ID, request, answer) != 0)
        return -1;
    return answer.events_reported;
}

static int readable(int fd, int patience)
{
    struct pollfd it = {.fd = fd, .events = POLLIN | POLLOUT};
    return poll(&it, 1, patience) == 1 && it.revents == POLLIN;
}

static struct rdma_ucm_event_resp event(int fd, __u32 kind, __u64 uid)
{
    struct rdma_ucm_get_event request = {};
    struct rdma_ucm_event_resp answer = {};
    CHECK(ASK(fd, GET_EVENT, request, answer) == 0);
    CHECK(answer.event == kind && answer.uid == uid);
    return answer;
}

static int no_event(int fd)
{
    struct rdma_ucm_get_event request = {};
    struct rdma_ucm_event_resp answer = {};
    return ASK(fd, GET_EVENT, request, answer);
}

static void is_a_device(void)
{
    struct stat st;
    CHECK(stat(CM, &st) == 0 && st.st_mode == (S_IFCHR | 0666));
    CHECK(major(st.st_rdev) == 10 && access(CM, R_OK | W_OK) == 0);
    int fd = open("/sys/class/misc/rdma_cm/abi_version", O_RDONLY);
    char version[3] = "";
    CHECK(read(fd, version, 2) == 2 && strcmp(version, "4\n") == 0 && close(fd) == 0);

    int plain = open_cm(0), strict = open_cm(O_CLOEXEC | O_NONBLOCK);
    CHECK(plain == 3 && strict == 4);
    struct stat same;
    CHECK(fstat(plain, &same) == 0 && S_ISCHR(same.st_mode) && same.st_rdev == st.st_rdev);
    CHECK(fcntl(plain, F_GETFD) == 0 && fcntl(strict, F_GETFD) == FD_CLOEXEC);
    CHECK(!(fcntl(plain, F_GETFL) & O_NONBLOCK) && fcntl(strict, F_GETFL) & O_NONBLOCK);
    FAILS(EINVAL, read(plain, &(char){0}, 1));
    CHECK(!readable(plain, 0));
    FAILS(EAGAIN, no_event(strict));
    /* Another name of the same channel. */
    int other = dup(strict);
    __u32 id = create_id(other, 1);
    CHECK(close(strict) == 0 && destroy_id(other, id) == 0);
    FAILS(ENOENT, destroy_id(other, id));
    CHECK(close(other) == 0 && close(plain) == 0 && hidden() == 0);
}

static void what_is_no_command_is_refused(const char *server)
{
    int fd = open_cm(O_NONBLOCK);
    __u32 id = create_id(fd, 1);
    FAILS(EINVAL, write(fd, "short", 5));
    FAILS(EINVAL, command(fd, 77, "", 0, 0));
    FAILS(ENOSYS, command(fd, RDMA_USER_CM_CMD_GET_OPTION, "", 0, 0));
    struct rdma_ucm_create_id space = {.ps = 1};
    struct rdma_ucm_create_id_resp made;
    FAILS(EINVAL, ASK(fd, CREATE_ID, space, made));
    struct rdma_ucm_create_id nowhere = {.ps = RDMA_PS_TCP, .response = 8};
    FAILS(EFAULT, command(fd, RDMA_USER_CM_CMD_CREATE_ID, &nowhere, sizeof nowhere, 4));
    FAILS(ENOSPC, command(fd, RDMA_USER_CM_CMD_CREATE_ID, &nowhere, sizeof nowhere, 3));

    /* What librdmacm tries first of all. */
    struct rdma_ucm_bind ib = {.id = id, .addr_size = 48, .addr = {.ss_family = 27}};
    FAILS(EINVAL, ORDER(fd, BIND, ib));

    struct rdma_ucm_set_option tos = {.optval = 8, .id = id, .optlen = 1};
    FAILS(EFAULT, ORDER(fd, SET_OPTION, tos));
    __u32 value = 0x28;
    tos.optval = (uintptr_t)&value;
    CHECK(ORDER(fd, SET_OPTION, tos) == 0);
    tos.optlen = 4;
    FAILS(EINVAL, ORDER(fd, SET_OPTION, tos));
    tos.optname = 9;
    FAILS(ENOSYS, ORDER(fd, SET_OPTION, tos));

    struct rdma_ucm_bind_ip twice = {.id = id, .addr = address(server, PORT)};
    CHECK(ORDER(fd, BIND_IP, twice) == 0);
    FAILS(EINVAL, ORDER(fd, BIND_IP, twice));
    __u32 other = create_id(fd, 2);
    twice.id = other;
    FAILS(EADDRINUSE, ORDER(fd, BIND_IP, twice));
    /* Both end with the channel, and the port is free again. */
    CHECK(close(fd) == 0);
    fd = open_cm(0);
    twice.id = create_id(fd, 3);
    CHECK(ORDER(fd, BIND_IP, twice) == 0 && close(fd) == 0 && hidden() == 0);
}

/* An id that listens, and is told of so in a channel. */
static __u32 listens(int fd, const char *server)
{
    __u32 id = create_id(fd, 0x1111);
    struct rdma_ucm_bind_ip bind = {.id = id, .addr = address(server, PORT)};
    CHECK(ORDER(fd, BIND_IP, bind) == 0);
    struct rdma_ucm_listen listen = {.id = id, .backlog = 5};
    CHECK(ORDER(fd, LISTEN, listen) == 0);
    struct rdma_ucm_query query = {.id = id};
    struct rdma_ucm_query_route_resp route = {};
    CHECK(ASK(fd, QUERY_ROUTE, query, route) == 0);
    CHECK(memcmp(&route.src_addr, &bind.addr, sizeof(struct sockaddr_in)) == 0);
    CHECK(route.node_guid != 0 && route.port_num == 1 && route.ibdev_index == UINT32_MAX);
    return id;
}

static __u32 resolves(int fd, const char *client, const char *server)
{
    __u32 id = create_id(fd, 0x2222);
    struct rdma_ucm_resolve_ip resolve = {
        .src_addr = address(client, 0),
        .dst_addr = address(server, PORT),
        .id = id,
        .timeout_ms = 2000,
    };
    CHECK(ORDER(fd, RESOLVE_IP, resolve) == 0);
    CHECK(event(fd, 0, 0x2222).id == id);
    struct rdma_ucm_resolve_route route = {.id = id, .timeout_ms = 2000};
    CHECK(ORDER(fd, RESOLVE_ROUTE, route) == 0);
    event(fd, 2, 0x2222);
    struct rdma_ucm_query query = {.id = id};
    struct rdma_ucm_query_route_resp found = {};
    CHECK(ASK(fd, QUERY_ROUTE, query, found) == 0);
    CHECK(found.num_paths == 1 && found.ib_route[0].pkey == 0xffff && found.node_guid != 0);
    CHECK(found.ib_route[0].dgid[10] == 0xff && found.ib_route[0].dgid[12] == 127);
    return id;
}

static struct rdma_ucm_conn_param param(__u32 qpn, const char *data)
{
    struct rdma_ucm_conn_param it = {.qp_num = qpn, .valid = 1, .retry_count = 7};
    it.private_data_len = strlen(data);
    memcpy(it.private_data, data, it.private_data_len);
    return it;
}

static void a_connection(const char *client_address, const char *server_address)
{
    int server = open_cm(0), client = open_cm(0);
    __u32 listener = listens(server, server_address);
    __u32 active = resolves(client, client_address, server_address);
    struct rdma_ucm_connect connect = {.conn_param = param(17, "hello"), .id = active};
    CHECK(ORDER(client, CONNECT, connect) == 0);

    CHECK(readable(server, 10000));
    struct rdma_ucm_event_resp request = event(server, 4, 0x1111);
    CHECK(request.id != listener && request.param.conn.qp_num == 17);
    CHECK(strncmp((char *)request.param.conn.private_data, "hello", 5) == 0);
    __u32 passive = request.id;
    struct rdma_ucm_init_qp_attr to_rtr = {.id = passive, .qp_state = 2};
    struct ib_uverbs_qp_attr attr = {};
    CHECK(ASK(server, INIT_QP_ATTR, to_rtr, attr) == 0);
    CHECK(attr.qp_attr_mask & 1 && attr.qp_state == 2 && attr.dest_qp_num == 17);
    struct rdma_ucm_accept accept = {
        .uid = 0x3333, .conn_param = param(18, "welcome"), .id = passive,
    };
    CHECK(ORDER(server, ACCEPT, accept) == 0);

    struct rdma_ucm_event_resp response = event(client, 5, 0x2222);
    CHECK(response.id == active && response.param.conn.qp_num == 18);
    CHECK(strncmp((char *)response.param.conn.private_data, "welcome", 7) == 0);
    struct rdma_ucm_accept confirm = {.id = active};
    CHECK(ORDER(client, ACCEPT, confirm) == 0);
    CHECK(event(server, 9, 0x3333).id == passive);

    /* The id goes on in another channel, where its event is waited for with epoll. */
    int other = open_cm(O_NONBLOCK), epoll = epoll_create1(0);
    struct rdma_ucm_migrate_id migrate = {.id = active, .fd = client};
    struct rdma_ucm_migrate_resp moved = {};
    CHECK(ASK(other, MIGRATE_ID, migrate, moved) == 0 && moved.events_reported == 3);
    migrate.fd = 0;
    FAILS(EINVAL, ASK(other, MIGRATE_ID, migrate, moved));
    migrate.fd = 999;
    FAILS(ENOENT, ASK(other, MIGRATE_ID, migrate, moved));
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, other, &(struct epoll_event){.events = EPOLLIN}) == 0);
    FAILS(EAGAIN, no_event(other));
    struct rdma_ucm_disconnect disconnect = {.id = passive};
    CHECK(ORDER(server, DISCONNECT, disconnect) == 0);
    struct epoll_event ready;
    CHECK(epoll_wait(epoll, &ready, 1, 10000) == 1);
    event(other, 10, 0x2222);
    FAILS(EAGAIN, no_event(other));
    CHECK(!readable(client, 0));
    event(server, 10, 0x3333);

    /* A child has neither the channels nor the ids, and what it closes stays open here. */
    pid_t child = fork();
    if (child == 0) {
        FAILS(EIO, destroy_id(server, listener));
        FAILS(EIO, no_event(server));
        CHECK(close(server) == 0 && close(other) == 0);
        _exit(0);
    }
    wait_for(child);

    CHECK(destroy_id(server, passive) == 2 && destroy_id(server, listener) == 1);
    CHECK(destroy_id(other, active) == 4);
    CHECK(close(epoll) == 0 && close(other) == 0 && close(client) == 0 && close(server) == 0);
    CHECK(hidden() == 0);
}

static void *waits(void *fd)
{
    event(*(int *)fd, 0, 0x4444);
    return NULL;
}

/* Nobody listens there; and an event that a thread waits for. */
static void a_rejection(const char *client, const char *server)
{
    int fd = open_cm(0);
    __u32 id = create_id(fd, 0x4444);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits, &fd) == 0);
    usleep(20000);
    struct rdma_ucm_resolve_ip resolve = {
        .src_addr = address(client, 0), .dst_addr = address(server, PORT), .id = id,
    };
    CHECK(ORDER(fd, RESOLVE_IP, resolve) == 0 && pthread_join(thread, NULL) == 0);
    struct rdma_ucm_resolve_route route = {.id = id, .timeout_ms = 2000};
    CHECK(ORDER(fd, RESOLVE_ROUTE, route) == 0);
    event(fd, 2, 0x4444);
    struct rdma_ucm_connect connect = {.conn_param = param(19, ""), .id = id};
    CHECK(ORDER(fd, CONNECT, connect) == 0);
    CHECK(event(fd, 8, 0x4444).status == 8);
    CHECK(destroy_id(fd, id) == 3 && close(fd) == 0 && hidden() == 0);
}

static void *waits_for_ever(void *fd)
{
    no_event(*(int *)fd);
    CHECK(!"this thread is told nothing");
    return NULL;
}

/* As rping and others end. */
static void a_channel_is_closed_while_a_thread_waits(void)
{
    int fd = open_cm(0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits_for_ever, &fd) == 0);
    usleep(20000);
    CHECK(close(fd) == 0 && hidden() == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    is_a_device();
    what_is_no_command_is_refused(argv[2]);
    a_connection(argv[1], argv[2]);
    a_rejection(argv[1], argv[2]);
    a_channel_is_closed_while_a_thread_waits();
    return 0;
}
