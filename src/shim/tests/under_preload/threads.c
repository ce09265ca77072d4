/* Threads that share a device, signals that come in between, threads that are cancelled. */
#include "check.h"
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

int main(void)
{
    null = open("/dev/null", O_RDWR);
    threads_and_signals();
    alarm(20);
    int ends[2], fd = open(DEVICE, O_RDWR);
    CHECK(pipe(ends) == 0);
    a_reader_is_cancelled(ends[0]);
    a_reader_is_cancelled(get_context(fd));
    WORKS(fd);
    return 0;
}
