/* Children: of fork, with threads about, and of vfork. */
#include "check.h"

/* The parent's connection is not held open. */
static void holds_no_connection(void)
{
    char link[64], target[64] = "", first[64] = "";
    for (int own = 512; own < 1024; own++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", own);
        if (readlink(link, target, sizeof target - 1) < 0)
            continue;
        /* All are one and the same pipe, at its end. */
        if (!first[0])
            memcpy(first, target, sizeof first);
        CHECK(memcmp(target, "pipe:", 5) == 0 && strcmp(target, first) == 0);
        CHECK(syscall(SYS_read, own, link, 1) == 0);
    }
    CHECK(first[0] != 0);
}

/* Also where there is no /dev/null. */
static void a_child_without_files_begins_anew(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int own = open_device();
        /* Other users may not do so. */
        if (chroot("/proc") == 0) {
            CHECK(chdir("/") == 0);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                int type;
                for (int parents = 512; parents < 1024; parents++)
                    CHECK(getsockopt(parents, SOL_SOCKET, SO_TYPE, &type,
                                     &(socklen_t){sizeof type}) != 0);
                _exit(0);
            }
            wait_for(grandchild);
        }
        WORKS(own);
        _exit(0);
    }
    wait_for(child);
}

static void a_child_begins_anew(int fd, int channel)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        holds_no_connection();
        CHECK(is_device(fd));
        FAILS(EIO, query_port(fd));
        int own = open_device();
        WORKS(own);
        FAILS(EIO, query_port(fd));
        CHECK(close(fd) == 0 && close(channel) == 0);
        WORKS(own);

        /* And a child of the child. */
        pid_t grandchild = fork();
        if (grandchild == 0) {
            FAILS(EIO, query_port(own));
            CHECK(close(own) == 0);
            own = open_device();
            WORKS(own);
            _exit(0);
        }
        wait_for(grandchild);
        WORKS(own);
        CHECK(close_range(3, ~0U, 0) == 0);
        _exit(0);
    }
    wait_for(child);
    WORKS(fd);
}

/* Until it ends or becomes another program, its memory is its parent's, but its descriptors are
   its own: as Python and make start programs. */
static void a_child_of_vfork_closes_everything(int fd)
{
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        close(fd);
        dup2(0, 600);
        dup2(0, 512);
        close_range(3, ~0U, 0);
        _exit(0);
    }
    wait_for(child);
    CHECK(is_device(fd));
    WORKS(fd);

    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    wait_for(child);
    WORKS(fd);
}

static volatile int is_over;

static void *opens_and_closes(void *unused)
{
    while (!is_over)
        close(open_device());
    return unused;
}

static void forks_among_threads(int fd)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, opens_and_closes, NULL) == 0);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            int own = open_device();
            WORKS(own);
            FAILS(EIO, query_port(fd));
            CHECK(close(fd) == 0 && close(own) == 0);
            _exit(0);
        }
        wait_for(child);
    }
    is_over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    WORKS(fd);
}

int main(void)
{
    int fd = open_device(), other = dup(fd);
    a_child_begins_anew(fd, other);
    a_child_without_files_begins_anew();
    a_child_of_vfork_closes_everything(fd);
    forks_among_threads(fd);
    return 0;
}
