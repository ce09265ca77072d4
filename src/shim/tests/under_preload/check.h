/* What the programs of these tests share. Each is a plain C program that knows nothing of urxe;
   it ends with 1, and says where, if something is not as with a kernel's device. */

#ifndef CHECK_H
#define CHECK_H

#include <features.h>
#ifndef __GLIBC__
/* What the kernel's headers leave to glibc's and would define beside musl's. */
#define __UAPI_DEF_IN6_ADDR 0
#define __UAPI_DEF_SOCKADDR_IN6 0
#define __UAPI_DEF_IPV6_MREQ 0
/* Not in musl: a program that looks for it by name finds the shim's. */
#define close_range ((int (*)(unsigned, unsigned, int))dlsym(RTLD_DEFAULT, "close_range"))
#endif

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            int why = errno;                                                              \
            dprintf(2, "%s:%d: not so: %s (errno: %s)\n", __FILE__, __LINE__, #condition, \
                    strerror(why));                                                       \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

/* The call fails, for this reason. */
#define FAILS(errno_expected, call) CHECK((errno = 0, (call) == -1 && errno == (errno_expected)))

#define DEVICE "/dev/infiniband/uverbs0"

static inline int is_device(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == 231;
}

/* Makes an open device ready for other commands; gives its descriptor of asynchronous events. */
static inline int get_context(int fd)
{
    struct ib_uverbs_get_context_resp response = {};
    struct {
        struct ib_uverbs_cmd_hdr header;
        struct ib_uverbs_get_context core;
    } command = {
        .header = {IB_USER_VERBS_CMD_GET_CONTEXT, sizeof command / 4, sizeof response / 4},
        .core = {.response = (uintptr_t)&response},
    };
    CHECK(write(fd, &command, sizeof command) == sizeof command);
    return response.async_fd;
}

/* The device alone: asynchronous events are not listened to. */
static inline int open_device(void)
{
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && is_device(fd) && close(get_context(fd)) == 0);
    return fd;
}

/* Asks for something small; 0, or -1 and errno. */
static inline int query_port(int fd)
{
    struct ib_uverbs_query_port_resp response = {};
    struct {
        struct ib_uverbs_cmd_hdr header;
        struct ib_uverbs_query_port core;
    } command = {
        .header = {IB_USER_VERBS_CMD_QUERY_PORT, sizeof command / 4, sizeof response / 4},
        .core = {.response = (uintptr_t)&response, .port_num = 1},
    };
    ssize_t written = write(fd, &command, sizeof command);
    if (written < 0)
        return -1;
    CHECK(written == sizeof command && response.link_layer == 2);
    return 0;
}

#define WORKS(fd) CHECK(query_port(fd) == 0)

static inline void wait_for(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* How many descriptors are open that the shim keeps for itself, seen with raw system calls. */
static inline int hidden(void)
{
    int count = 0;
    for (int fd = 512; fd < 1024; fd++)
        count += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
    return count;
}

#endif
