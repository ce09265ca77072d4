/* Descriptors that are closed, and used again, where no hook sees it. */
#include "check.h"
#include <linux/netlink.h>

#define NETLINK_RDMA 20

static void a_device_that_became_a_file(void)
{
    int fd = open_device(), other = dup(fd);
    char path[] = "/tmp/urxe-behind-XXXXXX";
    CHECK(syscall(SYS_close, fd) == 0);
    int file = mkstemp(path);
    CHECK(file == fd && unlink(path) == 0 && !is_device(fd));
    struct stat st;
    CHECK(write(fd, "a command?", 10) == 10);
    CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 10);
    WORKS(other);
    CHECK(close(fd) == 0 && close(other) == 0 && hidden() == 0);
}

static void our_own_that_became_files(void)
{
    int fd = open_device(), files[1024], null = open("/dev/null", O_RDWR), count = 0;
    for (int own = 512; own < 1024; own++) {
        if (syscall(SYS_fcntl, own, F_GETFD) < 0)
            continue;
        CHECK(syscall(SYS_dup2, null, own) == own);
        files[count++] = own;
    }
    CHECK(count != 0);
    FAILS(EIO, query_port(fd));
    CHECK(close(fd) == 0);
    /* They are the program's now, and stay open until it closes them. */
    for (int i = 0; i < count; i++)
        CHECK(write(files[i], "x", 1) == 1 && close(files[i]) == 0);
    fd = open_device();
    WORKS(fd);
    close(fd);
}

/* A slot of the program's own has numbers of its own, and closes some of them after its end. */
static void numbers_of_a_slot_that_has_ended(void)
{
    /* They are the shim's, and need no slot. */
    int sockets[64];
    for (int i = 0; i < 64; i++)
        CHECK((sockets[i] = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA)) >= 0);
    for (int round = 0; round < 10; round++) {
        CHECK(close(open_device()) == 0);
        usleep(20000);
    }
    for (int i = 0; i < 64; i++) {
        struct sockaddr_nl own = {.nl_family = AF_NETLINK};
        CHECK(bind(sockets[i], (struct sockaddr *)&own, sizeof own) == 0);
        CHECK(close(sockets[i]) == 0);
    }
}

int main(void)
{
    a_device_that_became_a_file();
    our_own_that_became_files();
    numbers_of_a_slot_that_has_ended();
    return 0;
}
