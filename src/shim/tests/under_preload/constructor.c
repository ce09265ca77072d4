/* A library whose constructor runs before the shim's own could. */
#include "check.h"

__attribute__((constructor)) static void early(void)
{
    struct stat st;
    int fd = open("/dev/null", O_RDWR);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && fstat(fd, &st) == 0 && close(fd) == 0);
    CHECK(stat(DEVICE, &st) == 0 && S_ISCHR(st.st_mode));
}
