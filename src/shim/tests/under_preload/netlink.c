/* The netlink socket in which the kernel says what RDMA devices it has. */
#include "check.h"
#include <linux/netlink.h>
#include <poll.h>
#include <rdma/rdma_netlink.h>

#define NETLINK_RDMA 20

struct request {
    struct nlmsghdr header;
    struct nlattr index_header;
    uint32_t index;
};

static struct request request(int command, int flags, uint32_t index)
{
    return (struct request){
        .header = {sizeof(struct request), RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command),
                   NLM_F_REQUEST | flags, 42, 0},
        .index_header = {8, RDMA_NLDEV_ATTR_DEV_INDEX},
        .index = index,
    };
}

/* The first attribute of this type. */
static const void *attribute(const void *message, int type)
{
    const struct nlmsghdr *header = message;
    for (unsigned at = NLMSG_HDRLEN; at + NLA_HDRLEN <= header->nlmsg_len;) {
        const struct nlattr *attr = (const void *)((const char *)message + at);
        if ((attr->nla_type & NLA_TYPE_MASK) == type)
            return attr + 1;
        at += NLA_ALIGN(attr->nla_len);
    }
    return NULL;
}

static void addresses(int fd)
{
    struct sockaddr_nl own = {.nl_family = AF_NETLINK, .nl_groups = 1}, got;
    socklen_t len = sizeof got;
    FAILS(EINVAL, bind(fd, (struct sockaddr *)&own, 4));
    FAILS(EFAULT, bind(fd, (struct sockaddr *)8, sizeof own));
    CHECK(bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&got, &len) == 0 && len == sizeof got);
    CHECK(got.nl_family == AF_NETLINK && got.nl_pid == (unsigned)getpid());
    len = 2;
    memset(&got, 0, sizeof got);
    CHECK(getsockname(fd, (struct sockaddr *)&got, &len) == 0 && len == sizeof got);
    CHECK(got.nl_family == AF_NETLINK && got.nl_pid == 0);
    FAILS(EFAULT, getsockname(fd, (struct sockaddr *)8, &len));
    CHECK(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &(int){1}, sizeof(int)) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){32768}, sizeof(int)) == 0);
}

/* One device, in each way to ask and to hear. */
static void one(int fd)
{
    struct request question = request(RDMA_NLDEV_CMD_GET, NLM_F_ACK, 1);
    struct iovec halves[2] = {{&question, 10}, {(char *)&question + 10, sizeof question - 10}};
    struct msghdr message = {.msg_iov = halves, .msg_iovlen = 2};
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK}, from;
    for (int way = 0; way < 4; way++) {
        ssize_t sent = way == 0   ? send(fd, &question, sizeof question, 0)
                       : way == 1 ? sendto(fd, &question, sizeof question, 0,
                                           (struct sockaddr *)&kernel, sizeof kernel)
                       : way == 2 ? sendmsg(fd, &message, 0)
                                  : write(fd, &question, sizeof question);
        CHECK(sent == sizeof question);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        CHECK(poll(&ready, 1, 0) == 1 && ready.revents == POLLIN);

        char answer[4096];
        socklen_t len = sizeof from;
        struct iovec whole = {answer, sizeof answer};
        struct msghdr into = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &whole,
                              .msg_iovlen = 1};
        memset(&from, 0xff, sizeof from);
        ssize_t got = way == 0   ? recv(fd, answer, sizeof answer, 0)
                      : way == 1 ? recvfrom(fd, answer, sizeof answer, 0,
                                            (struct sockaddr *)&from, &len)
                      : way == 2 ? recvmsg(fd, &into, 0)
                                 : read(fd, answer, sizeof answer);
        struct nlmsghdr *header = (void *)answer;
        CHECK(got == header->nlmsg_len && header->nlmsg_seq == 42);
        CHECK(header->nlmsg_type == question.header.nlmsg_type);
        CHECK(header->nlmsg_pid == (unsigned)getpid());
        CHECK(strcmp(attribute(answer, RDMA_NLDEV_ATTR_DEV_NAME), "urxe1") == 0);
        if (way == 1 || way == 2)
            CHECK(from.nl_family == AF_NETLINK && from.nl_pid == 0 && from.nl_groups == 0);
        CHECK(len == sizeof from && into.msg_namelen == sizeof from);

        CHECK(recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0);
        struct nlmsgerr *status = NLMSG_DATA(answer);
        CHECK(header->nlmsg_type == NLMSG_ERROR && status->error == 0);
        FAILS(EAGAIN, recv(fd, answer, sizeof answer, MSG_DONTWAIT));
    }
}

static int refusal(int fd, struct request question)
{
    char answer[4096];
    CHECK(send(fd, &question, sizeof question, 0) == sizeof question);
    CHECK(recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0);
    CHECK(((struct nlmsghdr *)answer)->nlmsg_type == NLMSG_ERROR);
    return -((struct nlmsgerr *)NLMSG_DATA(answer))->error;
}

static void refusals(int fd)
{
    CHECK(refusal(fd, request(RDMA_NLDEV_CMD_GET, 0, 2)) == ENODEV);
    CHECK(refusal(fd, request(RDMA_NLDEV_CMD_PORT_GET, 0, 0)) == EINVAL);
    CHECK(refusal(fd, request(RDMA_NLDEV_CMD_NEWLINK, 0, 0)) == EOPNOTSUPP);
    CHECK(refusal(fd, request(RDMA_NLDEV_CMD_RES_QP_GET, 0, 0)) == EINVAL);
    struct request other = request(RDMA_NLDEV_CMD_GET, 0, 0);
    other.header.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_LS, 1);
    CHECK(refusal(fd, other) == EINVAL);
    FAILS(EFAULT, send(fd, (void *)8, 24, 0));
    FAILS(EMSGSIZE, send(fd, &other, 1 << 20, 0));
    CHECK(send(fd, "xyz", 3, 0) == 3);
    FAILS(EAGAIN, recv(fd, &other, sizeof other, MSG_DONTWAIT));
}

/* How many messages a list has, up to its end. */
static int listed(int fd, int command)
{
    struct request question = request(command, NLM_F_DUMP, 0);
    CHECK(send(fd, &question, sizeof question, 0) == sizeof question);
    for (int count = 0;; count++) {
        char answer[4096];
        struct nlmsghdr *header = (void *)answer;
        CHECK(recv(fd, answer, sizeof answer, MSG_DONTWAIT) == header->nlmsg_len);
        CHECK(header->nlmsg_flags == NLM_F_MULTI);
        if (header->nlmsg_type == NLMSG_DONE)
            return count;
        CHECK(attribute(answer, RDMA_NLDEV_ATTR_DEV_NAME));
    }
}

int main(void)
{
    FAILS(ESOCKTNOSUPPORT, socket(AF_NETLINK, SOCK_STREAM, NETLINK_RDMA));
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
    CHECK(fd == 3 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    addresses(fd);
    one(fd);
    refusals(fd);
    CHECK(listed(fd, RDMA_NLDEV_CMD_GET) == 2 && listed(fd, RDMA_NLDEV_CMD_PORT_GET) == 1);
    CHECK(listed(fd, RDMA_NLDEV_CMD_RES_QP_GET) == 0 && listed(fd, RDMA_NLDEV_CMD_RES_GET) == 2);
    CHECK(hidden() == 0);

    /* A duplicate is the same socket, and so is a child's. */
    int other = dup(fd);
    CHECK(close(fd) == 0 && listed(other, RDMA_NLDEV_CMD_GET) == 2);
    pid_t child = fork();
    if (child == 0) {
        CHECK(listed(other, RDMA_NLDEV_CMD_RES_GET) == 2);
        _exit(0);
    }
    wait_for(child);
    CHECK(close(other) == 0);
    FAILS(EBADF, send(other, "x", 1, 0));

    /* The number may become another socket, which is not ours. */
    int pair[2];
    CHECK((fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA)) == 3);
    CHECK(syscall(SYS_close, fd) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    CHECK(pair[0] == fd && send(fd, "x", 1, 0) == 1 && recv(pair[1], &(char){0}, 1, 0) == 1);
    return 0;
}
