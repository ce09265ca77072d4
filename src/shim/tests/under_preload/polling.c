/* Who polls in vain yields the processor, unless nobody gives it back; and in the end sleeps. */
#include "check.h"
#include "libibverbs.h"
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

static int yields, sleeps, is_slow;

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void called(int signal, siginfo_t *info, void *context)
{
    mcontext_t *registers = &((ucontext_t *)context)->uc_mcontext;
    CHECK(signal == SIGSYS);
    /* The call succeeds. */
#if defined(__x86_64__)
    registers->gregs[REG_RAX] = 0;
#elif defined(__aarch64__)
    registers->regs[0] = 0;
#endif
    if (info->si_syscall == SYS_futex) {
        sleeps++;
        return;
    }
    CHECK(info->si_syscall == SYS_sched_yield);
    yields++;
    if (is_slow)
        sleep_ms(2);
}

/* Makes each sched_yield of this thread a SIGSYS, and each wait for what other processes change. */
static void count_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_yield, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAIT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action = {.sa_sigaction = called, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Before rdma-core 34, librxe has its ring where newer ones have start_poll. A program of such a
   one has no other queues. */
static void an_older_queue_keeps_its_ring(void)
{
    int device = open_device();
    struct ibv_context context;
    struct ibv_cq_ex queue = {};
    open_context(&context, device);
    create_cq(device, &queue);
    void *ring = mmap(NULL, (uint32_t)last_ring[1], PROT_READ | PROT_WRITE, MAP_SHARED, device,
                      last_ring[0]);
    CHECK(ring != MAP_FAILED);
    queue.context = &context;
    memcpy(&queue.start_poll, &ring, sizeof ring);
    for (int i = 0; i < 10; i++)
        WORKS(device);
    CHECK(memcmp(&queue.start_poll, &ring, sizeof ring) == 0);
    CHECK(context.ops.poll_cq != provider_poll_cq);
    CHECK(munmap(ring, (uint32_t)last_ring[1]) == 0 && close(device) == 0);
}

int main(void)
{
    an_older_queue_keeps_its_ring();
    int device = open_device(), second = open_device(), other = open("/dev/null", O_RDWR);
    CHECK(other >= 0);
    struct ibv_context ours, again, theirs;
    open_context(&ours, device);
    open_context(&again, second);
    open_context(&theirs, other);

    /* A command finds out what the one before could not know. */
    struct ibv_cq_ex queue = {}, of_again = {}, of_theirs = {.context = &theirs};
    create_cq(device, &queue);
    CHECK(ours.ops.poll_cq == provider_poll_cq);
    queue.context = &ours;
    queue.start_poll = provider_start_poll;
    WORKS(device);
    CHECK(ours.ops.poll_cq != provider_poll_cq && queue.start_poll != provider_start_poll);
    create_cq(second, &of_again);
    of_again.context = &again;
    WORKS(second);
    CHECK(again.ops.poll_cq == ours.ops.poll_cq && of_again.start_poll == NULL);
    /* What the handle leads to need be nothing of the kind. */
    create_cq(device, &of_theirs);
    create_cq(device, (void *)1);
    create_cq(device, "just a text, and not a short one");
    for (int i = 0; i < 10; i++)
        WORKS(device);
    CHECK(theirs.ops.poll_cq == provider_poll_cq);

    /* What is found is what the provider finds. */
    struct ibv_cq cq = {.context = &ours};
    count_calls();
    for (completions = -1; completions <= 3; ++completions)
        CHECK(ours.ops.poll_cq(&cq, 7, WC) == completions);
    CHECK(polls == 5 && yields == 0);

    completions = 0;
    for (int i = 0; i < 7; i++)
        ours.ops.poll_cq(&cq, 7, WC);
    CHECK(yields == 0);
    ours.ops.poll_cq(&cq, 7, WC);
    CHECK(yields == 1);
    while (yields < 10)
        ours.ops.poll_cq(&cq, 7, WC);

    /* When it has taken long twice in a row, that is not tried again for a while. On a busy machine
       it may take long by itself, and the while may be over soon. */
    is_slow = 1;
    for (int i = 0; i < 800; i++)
        ours.ops.poll_cq(&cq, 7, WC);
    CHECK(yields > 10 && yields < 20);
    /* Those who kept the processor so long want it; who has waited long does not poll on. */
    CHECK(sleeps > 0);
    is_slow = 0;
    while (yields < 30)
        ours.ops.poll_cq(&cq, 7, WC);

    /* And so it is with extended completion queues. */
    while (yields < 40)
        CHECK(queue.start_poll(&queue, ATTR) == ENOENT);
    completions = 1;
    CHECK(queue.start_poll(&queue, ATTR) == 0);
    return 0;
}
