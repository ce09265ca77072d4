/* forbid SYSTEM_CALL errno|kill PROGRAM ...: a program to which a system call is forbidden, as by
   the filter of a container: it fails with EPERM, or ends the program. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int number_of(const char *name)
{
    if (strcmp(name, "pwritev") == 0)
        return SYS_pwritev;
    if (strcmp(name, "memfd_create") == 0)
        return SYS_memfd_create;
    if (strcmp(name, "process_vm_readv") == 0)
        return SYS_process_vm_readv;
    return -1;
}

int main(int argc, char **argv)
{
    int number = argc > 3 ? number_of(argv[1]) : -1;
    if (number < 0)
        return 2;
    unsigned int action = strcmp(argv[2], "kill") == 0 ? SECCOMP_RET_KILL_PROCESS
                                                       : SECCOMP_RET_ERRNO | EPERM;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        perror("seccomp");
        return 2;
    }
    execv(argv[3], argv + 3);
    perror(argv[3]);
    return 2;
}
