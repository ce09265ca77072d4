/* Where no daemon is, everything is as without the shim. */
#include "check.h"

int main(void)
{
    struct stat st;
    int native = syscall(SYS_openat, AT_FDCWD, DEVICE, O_RDWR);
    int found = open(DEVICE, O_RDWR);
    CHECK((found >= 0) == (native >= 0) && hidden() == 0);
    native = syscall(SYS_access, "/sys/class/infiniband", F_OK);
    CHECK(access("/sys/class/infiniband", F_OK) == native);
    CHECK(stat("/sys/class/infiniband", &st) == native);
    native = syscall(SYS_socket, AF_NETLINK, SOCK_RAW, 20);
    CHECK((socket(AF_NETLINK, SOCK_RAW, 20) >= 0) == (native >= 0));
    return 0;
}
