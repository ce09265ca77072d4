/* What the user of a program is told on stderr, and what else may be behind that number. Descriptor
   2 is replaced in the manner that the first argument names; then the same verb is refused so many
   times as the second says. */
#include "check.h"

static int query_port_2(int fd)
{
    struct ib_uverbs_query_port_resp response = {};
    struct {
        struct ib_uverbs_cmd_hdr header;
        struct ib_uverbs_query_port core;
    } command = {
        .header = {IB_USER_VERBS_CMD_QUERY_PORT, sizeof command / 4, sizeof response / 4},
        .core = {.response = (uintptr_t)&response, .port_num = 2},
    };
    return write(fd, &command, sizeof command);
}

static volatile int signals;

static void count(int number)
{
    signals += number == SIGPIPE;
}

/* A file of the program's own that gets the number of stderr. */
static int table(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd == 2);
    return fd;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    const char *how = argv[1], *path = argv[3];
    int times = atoi(argv[2]), pipe_ends[2], child = 0;
    CHECK(signal(SIGPIPE, count) != SIG_ERR);
    int fd = open_device();
    if (!strcmp(how, "reused by a file")) {
        close(2);
        table(path);
    } else if (!strcmp(how, "reused behind its back")) {
        syscall(SYS_close, 2);
        CHECK(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0600) == 2);
    } else if (!strcmp(how, "closed")) {
        close(2);
    } else if (!strcmp(how, "a pipe of the program's")) {
        CHECK(pipe(pipe_ends) == 0 && dup2(pipe_ends[1], 2) == 2);
    } else if (!strcmp(how, "in a child")) {
        child = fork();
        if (child == 0) {
            close(fd);
            fd = open_device();
        }
    } else if (!strcmp(how, "in a signal handler's way")) {
        sigset_t all;
        sigfillset(&all);
        CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    }
    for (int i = 0; i < times; i++) {
        errno = 0;
        ssize_t written = query_port_2(fd);
        if (written != -1 || errno != EINVAL)
            _exit(2);
    }
    if (child > 0) {
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            _exit(3);
    }
    if (!strcmp(how, "a pipe of the program's")) {
        int unread = -1;
        char byte;
        fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
        unread = read(pipe_ends[0], &byte, 1);
        if (unread != -1)
            _exit(4);
    }
    _exit(signals ? 5 : 0);
}
