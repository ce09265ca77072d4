/* Duplicating and closing, also of what the program does not know it has. */
#include "check.h"
#include "commands.h"
#include <sys/resource.h>

/* The last number that a process may have by the usual limit of 1,024 descriptors. */
#define LAST 1023

/* The shim's own are between 512 and this, as long as there are few of them. */
#define BEHIND_OWN 900

static void duplicates(void)
{
    int fd = open_device();
    int others[] = {
        dup(fd), dup2(fd, 40), dup3(fd, 41, O_CLOEXEC), fcntl(fd, F_DUPFD, 50),
        fcntl(fd, F_DUPFD_CLOEXEC, LAST),
    };
    CHECK(close(fd) == 0);
    for (int i = 0; i < 5; i++) {
        CHECK(is_device(others[i]));
        WORKS(others[i]);
        CHECK(hidden() != 0);
        CHECK(close(others[i]) == 0);
    }
    CHECK(hidden() == 0);
}

static void replacing(void)
{
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0);

    /* A device by a pipe: the device is closed, and the pipe is a pipe. */
    int fd = open_device();
    CHECK(dup2(pipe_ends[1], fd) == fd && hidden() == 0);
    CHECK(write(fd, "pipe", 4) == 4 && close(fd) == 0);

    /* A pipe by a device. */
    fd = open_device();
    CHECK(dup2(fd, pipe_ends[1]) == pipe_ends[1]);
    WORKS(pipe_ends[1]);

    /* A failure changes nothing. */
    FAILS(EBADF, dup2(999, fd));
    FAILS(EINVAL, dup3(fd, fd, 0));
    FAILS(EBADF, dup2(fd, -1));
    CHECK(dup2(fd, fd) == fd);
    WORKS(fd);

    /* What the program does not have is not replaced, and not closed. */
    for (int own = 512; own < BEHIND_OWN; own++) {
        if (syscall(SYS_fcntl, own, F_GETFD) < 0)
            continue;
        FAILS(EBUSY, dup2(0, own));
        FAILS(EBADF, close(own));
    }
    WORKS(fd);
    close(fd), close(pipe_ends[0]), close(pipe_ends[1]);
    CHECK(hidden() == 0);
}

static void close_all_by_close(void)
{
    for (int fd = 3; fd < BEHIND_OWN; fd++)
        close(fd);
}

static void close_all_by_range(void)
{
    CHECK(close_range(3, ~0U, 0) == 0);
}

#ifdef __GLIBC__
static void close_all_by_closefrom(void)
{
    closefrom(3);
}
#endif

static void closing_everything(void (*close_all)(void))
{
    int fd = open_device(), high = fcntl(fd, F_DUPFD, LAST);
    /* Above the shim's own, so that those are in the middle of what is closed. */
    CHECK(close_range(3, BEHIND_OWN, 0) == 0 && !is_device(fd));
    WORKS(high);
    close_all();
    CHECK(close(high) == (close_all == close_all_by_close ? 0 : -1));
    CHECK(hidden() == 0);
    fd = open_device();
    CHECK(fd == 3);
    WORKS(fd);
    CHECK(close_range(3, 100, CLOSE_RANGE_CLOEXEC) == 0);
    WORKS(fd);
    FAILS(EINVAL, close_range(3, 2, 0));
    WORKS(fd);
    close(fd);
}

static void parts(void)
{
    int fd = open_device();
    char none = 0;
    void *volatile nowhere = NULL;
    volatile size_t lots = SIZE_MAX;
    volatile int too_many = 2000, negative = -1;
    struct iovec junk[] = {{&none, 0}, {"xyz", 3}};
    FAILS(EINVAL, writev(fd, junk, 2));
    FAILS(EINVAL, readv(fd, (struct iovec[]){{&none, 1}}, 1));
    FAILS(EFAULT, write(fd, nowhere, 32));
    FAILS(EFAULT, write(fd, junk, lots));
    FAILS(EINVAL, writev(fd, junk, too_many));
    FAILS(EINVAL, writev(fd, junk, negative));
    close(fd);
}

/* A program that may open no more is told so. */
static void too_many(void)
{
    int fd = open_device(), next = dup(fd);
    struct rlimit before;
    CHECK(next > fd && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit less = {.rlim_cur = next, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &less) == 0);
    FAILS(EMFILE, create_comp_channel(fd));
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    int channel = create_comp_channel(fd);
    CHECK(channel >= 0 && close(channel) == 0 && close(fd) == 0 && hidden() == 0);
}

int main(void)
{
    duplicates();
    replacing();
    closing_everything(close_all_by_close);
    closing_everything(close_all_by_range);
#ifdef __GLIBC__
    closing_everything(close_all_by_closefrom);
#endif
    parts();
    too_many();
    return 0;
}
