/* Threads that share a device, signals that come in between, threads that are cancelled. */
#include "check.h"
#include "commands.h"
#include <sys/mman.h>
#include <time.h>

enum { ROUNDS = 300 };

static int null;
static volatile int signals;

static void on_signal(int number)
{
    char byte;
    int before = errno;
    CHECK(write(null, "x", 1) == 1 && read(null, &byte, 1) == 0);
    int copy = dup(null);
    CHECK(copy >= 0 && close(copy) == 0);
    signals += number == SIGALRM;
    errno = before;
}

static void *uses_a_device(void *device)
{
    int fd = *(int *)device;
    for (int round = 0; round < ROUNDS; round++) {
        int copy = dup(fd);
        CHECK(copy >= 0 && is_device(copy));
        WORKS(copy);
        CHECK(close(copy) == 0);
        CHECK(write(null, "x", 1) == 1);
        if (round % 8 == 0) {
            int own = open_device();
            WORKS(own);
            CHECK(close(own) == 0);
        }
    }
    return NULL;
}

static void threads_and_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    timer_t timer;
    struct itimerspec often = {{0, 500000}, {0, 500000}};
    CHECK(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    int fd = open_device();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, uses_a_device, &fd) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    timer_delete(timer);
    WORKS(fd);
    close(fd);
    CHECK(signals > 0 && hidden() == 0);
}

static void *reads(void *fd)
{
    char event[16];
    read(*(int *)fd, event, sizeof event);
    return NULL;
}

/* Reading is where a thread may be cancelled, as in rdma-core's own examples. */
static void a_reader_is_cancelled(int fd)
{
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, reads, &fd) == 0);
    usleep(50000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}

struct registrant {
    int fd;
    __u32 pd;
    volatile int is_begun;
};

static void *registers(void *argument)
{
    struct registrant *own = argument;
    size_t len = 64 * 4096;
    void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (;;) {
        dereg_mr(own->fd, reg_mr(own->fd, own->pd, memory, len));
        own->is_begun = 1;
    }
}

/* Writing is where it may be cancelled too, but within a command there is nothing of the kind. */
static void a_thread_that_registers_is_cancelled(void)
{
    struct registrant registrant = {.fd = open_device()};
    registrant.pd = alloc_pd(registrant.fd);
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        void *result;
        registrant.is_begun = 0;
        CHECK(pthread_create(&thread, NULL, registers, &registrant) == 0);
        while (!registrant.is_begun)
            usleep(100);
        usleep(round * 37);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        WORKS(registrant.fd);
    }
    CHECK(close(registrant.fd) == 0);
}

static volatile int has_ended;

static void *waits_for_the_end(void *channel)
{
    char event[8];
    FAILS(EIO, read(*(int *)channel, event, sizeof event));
    has_ended = 1;
    return NULL;
}

/* As programs end that have a thread for completions. */
static void a_channel_is_closed_while_a_thread_waits(void)
{
    int fd = open_device(), channel = create_comp_channel(fd);
    pthread_t thread;
    CHECK(channel >= 0 && pthread_create(&thread, NULL, waits_for_the_end, &channel) == 0);
    usleep(20000);
    CHECK(close(channel) == 0);
    usleep(50000);
    WORKS(fd);
    CHECK(!has_ended);
    CHECK(close(fd) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(has_ended && hidden() == 0);
}

int main(void)
{
    null = open("/dev/null", O_RDWR);
    threads_and_signals();
    alarm(20);
    int ends[2], fd = open(DEVICE, O_RDWR);
    CHECK(pipe(ends) == 0);
    a_reader_is_cancelled(ends[0]);
    int events = get_context(fd);
    a_reader_is_cancelled(events);
    WORKS(fd);
    CHECK(close(events) == 0 && close(fd) == 0);
    a_thread_that_registers_is_cancelled();
    a_channel_is_closed_while_a_thread_waits();
    return 0;
}
