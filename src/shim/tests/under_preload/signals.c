/* What a program does at SIGSEGV and SIGBUS is what it says, also behind a handler of the shim's. */
#include "check.h"
#include <setjmp.h>
#include <sys/mman.h>

static sigjmp_buf back;
static volatile int calls;

static void leave(int number)
{
    calls += number == SIGSEGV || number == SIGBUS;
    siglongjmp(back, 1);
}

static void leave_with_info(int number, siginfo_t *info, void *context)
{
    CHECK(info->si_signo == number && context);
    leave(number);
}

/* The handler that the kernel calls: what a library that is loaded cannot stand in for. */
static void *called(int number)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } action = {};
    CHECK(syscall(SYS_rt_sigaction, number, NULL, &action, 8) == 0);
    return action.handler;
}

/* A fault of the program's own, and a signal that is sent. */
static void is_left(volatile char *place)
{
    int before = calls;
    if (sigsetjmp(back, 1) == 0)
        *place = 1;
    if (sigsetjmp(back, 1) == 0)
        CHECK(raise(SIGBUS) == 0);
    CHECK(calls == before + 2);
}

int main(void)
{
    const char *in_process = getenv("URXE_IN_PROCESS");
    int guarded = in_process && *in_process == '1';
#ifndef __x86_64__
    guarded = 0;
#endif
    int fd = open_device();
    volatile char *place = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);

    struct sigaction info = {.sa_sigaction = leave_with_info, .sa_flags = SA_SIGINFO}, old, now;
    sigaddset(&info.sa_mask, SIGUSR1);
    CHECK(sigaction(SIGSEGV, &info, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGBUS, &info, NULL) == 0);
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == leave_with_info);
    CHECK(now.sa_flags & SA_SIGINFO && sigismember(&now.sa_mask, SIGUSR1) == 1);
    CHECK((called(SIGSEGV) != (void *)leave_with_info) == guarded);
    is_left(place);

    CHECK((void *)signal(SIGSEGV, leave) == (void *)leave_with_info);
    CHECK((void *)signal(SIGBUS, leave) == (void *)leave_with_info);
    CHECK((called(SIGSEGV) != (void *)leave) == guarded);
    is_left(place);

    /* Once, and then by default: as a child, which ends by it. */
    struct sigaction once = {.sa_handler = leave, .sa_flags = SA_RESETHAND | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &once, NULL) == 0);
    if (sigsetjmp(back, 1) == 0)
        *place = 1;
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        *place = 1;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);

    FAILS(EINVAL, sigaction(SIGKILL, &once, NULL));
    close(fd);
    return 0;
}
