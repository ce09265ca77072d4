/* Files of RDMA devices, by every function that names or looks at one. */
#include "check.h"
#include <sys/inotify.h>
#include <sys/ioctl.h>

#define CLASS "/sys/class/infiniband"

static int accept_all(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int is_uverbs0(const struct stat *st)
{
    return st->st_mode == (S_IFCHR | 0666) && st->st_rdev == makedev(231, 192);
}

static void opens(void)
{
    int fds[] = {
        open(DEVICE, O_RDWR),
        open64("//dev/./infiniband/uverbs0", O_RDWR | O_CLOEXEC),
        openat(AT_FDCWD, DEVICE, O_RDWR | O_CLOEXEC),
        openat64(AT_FDCWD, DEVICE, O_RDWR | O_NONBLOCK),
    };
    int close_on_exec[] = {0, FD_CLOEXEC, FD_CLOEXEC, 0};
    for (int i = 0; i < 4; i++) {
        CHECK(fds[i] == 3 + i && is_device(fds[i]));
        CHECK(fcntl(fds[i], F_GETFD) == close_on_exec[i]);
        CHECK((fcntl(fds[i], F_GETFL) & O_ACCMODE) == O_RDWR);
        FAILS(ENOTTY, ioctl(fds[i], 0xc0181b01, NULL));
        FAILS(EINVAL, read(fds[i], &(char){0}, 1));
    }
    for (int i = 0; i < 4; i++)
        CHECK(close(fds[i]) == 0);
    FAILS(EBADF, close(fds[0]));
    FAILS(ENOENT, open("/dev/infiniband/uverbs9", O_RDWR));
    FAILS(ENOENT, open("/dev/infiniband/umad0", O_RDWR));
    FAILS(EEXIST, open(DEVICE, O_RDWR | O_CREAT | O_EXCL, 0600));
    FAILS(ENOTDIR, open(DEVICE, O_RDONLY | O_DIRECTORY));
    FAILS(ENOTDIR, open(DEVICE "/", O_RDWR));

    int fd = open(CLASS "/urxe0/node_type", O_RDONLY);
    char text[9] = "";
    CHECK(fd == 3 && read(fd, text, 8) == 6 && strcmp(text, "1: CA\n") == 0 && close(fd) == 0);
    int dir = open(CLASS "_verbs", O_RDONLY | O_DIRECTORY);
    fd = openat(dir, "uverbs0/ibdev", O_RDONLY);
    CHECK(fd == 4 && close(fd) == 0 && close(dir) == 0);
    FILE *file = fopen(CLASS "_verbs/uverbs0/dev", "re");
    CHECK(file && fgets(text, 9, file) && strcmp(text, "231:192\n") == 0);
    CHECK((file = freopen(CLASS "/urxe0/node_type", "r", file)) && fgetc(file) == '1');
    CHECK(fclose(file) == 0);
    CHECK((file = fopen64(CLASS "/urxe0/node_type", "r")) && fclose(file) == 0);
    long words;
    CHECK((file = fopen(CLASS "/urxe0/ports/1/counters/port_xmit_data", "r")));
    CHECK(fscanf(file, "%ld\n", &words) == 1 && words >= 0 && fclose(file) == 0);
}

static void looks(void)
{
    int fd = open(DEVICE, O_RDWR), dir = open("/", O_RDONLY);
    struct stat st;
    struct stat64 st64;
    CHECK(stat(DEVICE, &st) == 0 && is_uverbs0(&st));
    CHECK(lstat(DEVICE, &st) == 0 && is_uverbs0(&st));
    CHECK(fstat(fd, &st) == 0 && is_uverbs0(&st));
    CHECK(fstatat(dir, DEVICE, &st, 0) == 0 && is_uverbs0(&st));
    CHECK(fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && is_uverbs0(&st));
    CHECK(stat64(DEVICE, &st64) == 0 && st64.st_rdev == makedev(231, 192));
    CHECK(fstat64(fd, &st64) == 0 && st64.st_rdev == makedev(231, 192));
#ifdef STATX_BASIC_STATS
    struct statx stx;
    CHECK(statx(dir, DEVICE, 0, STATX_BASIC_STATS, &stx) == 0 && stx.stx_rdev_minor == 192);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx) == 0);
    CHECK(S_ISCHR(stx.stx_mode) && stx.stx_rdev_major == 231 && stx.stx_rdev_minor == 192);
#endif

#ifdef __GLIBC__
    /* Those of programs that are older than glibc 2.33. */
    int (*xstat)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, "__xstat");
    int (*lxstat)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, "__lxstat64");
    int (*fxstat)(int, int, struct stat *) = dlsym(RTLD_DEFAULT, "__fxstat");
    int (*fxstatat)(int, int, const char *, struct stat *, int) =
        dlsym(RTLD_DEFAULT, "__fxstatat");
    CHECK(xstat(1, DEVICE, &st) == 0 && is_uverbs0(&st));
    CHECK(lxstat(1, DEVICE, &st) == 0 && is_uverbs0(&st));
    CHECK(fxstat(1, fd, &st) == 0 && is_uverbs0(&st));
    CHECK(fxstatat(1, AT_FDCWD, DEVICE, &st, 0) == 0 && is_uverbs0(&st));
#endif

    FAILS(ENOENT, stat("/dev/infiniband/uverbs9", &st));
    CHECK(stat("/dev/null", &st) == 0 && st.st_rdev == makedev(1, 3));
    CHECK(stat(CLASS, &st) == 0 && S_ISDIR(st.st_mode));
    close(fd);
    close(dir);
}

static void names(void)
{
    char buf[PATH_MAX];
    CHECK(access(DEVICE, R_OK | W_OK) == 0);
    CHECK(faccessat(AT_FDCWD, DEVICE, R_OK | W_OK, AT_EACCESS) == 0);
    CHECK(euidaccess(DEVICE, W_OK) == 0 && eaccess(CLASS, R_OK) == 0);
    FAILS(ENOENT, access("/dev/infiniband/uverbs9", F_OK));
    char *real = realpath(CLASS "/urxe0/../urxe0", NULL);
    CHECK(real && strstr(real, "/class/infiniband/urxe0") && !realpath(CLASS "/x", buf));
    free(real);
#ifdef __GLIBC__
    CHECK((real = canonicalize_file_name(CLASS)));
    free(real);
#endif
    FAILS(EINVAL, readlink(CLASS, buf, sizeof buf));
    FAILS(EINVAL, readlinkat(AT_FDCWD, CLASS, buf, sizeof buf));

    DIR *dir = opendir(CLASS);
    CHECK(dir && closedir(dir) == 0);
    struct dirent **list;
    CHECK(scandir(CLASS, &list, accept_all, alphasort) == 2);
    CHECK(strcmp(list[0]->d_name, "urxe0") == 0 && strcmp(list[1]->d_name, "urxe1") == 0);
    free(list[0]), free(list[1]), free(list);

    int watch = inotify_init1(IN_CLOEXEC);
    CHECK(inotify_add_watch(watch, "/dev/infiniband", IN_CREATE) == 1 && close(watch) == 0);
    CHECK(chdir(CLASS) == 0 && access("urxe1/node_guid", R_OK) == 0 && chdir("/") == 0);
}

/* What succeeds leaves errno alone, as libc does. */
static void errno_is_kept(void)
{
    struct stat st;
    errno = 77;
    int fd = open(DEVICE, O_RDWR), other = dup(fd);
    CHECK(fstat(fd, &st) == 0 && stat(DEVICE, &st) == 0 && access(DEVICE, R_OK) == 0);
    CHECK(dup2(fd, other) == other && close(other) == 0 && close(fd) == 0);
    CHECK(errno == 77);
}

int main(void)
{
    opens();
    looks();
    names();
    errno_is_kept();
    int fd = socket(AF_NETLINK, SOCK_RAW, 0);
    CHECK(fd == 3 && close(fd) == 0);
    CHECK(hidden() == 0);
    return 0;
}
