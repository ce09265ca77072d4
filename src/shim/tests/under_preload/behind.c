/* Descriptors that are closed, and used again, where no hook sees it. */
#include "check.h"

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

int main(void)
{
    a_device_that_became_a_file();
    our_own_that_became_files();
    return 0;
}
