/* The daemon ends while the program polls: it finds that out by polling, and can clean up. With a
   further argument it says so, and once it is told on stdin that there is another daemon, it opens
   the device of that. */
#include "check.h"
#include "libibverbs.h"

static int async_fd;

/* Waits for it in a thread of its own. */
static void *wait_for_events(void *unused)
{
    struct ib_uverbs_async_event_desc event = {};
    CHECK(read(async_fd, &event, sizeof event) == sizeof event);
    CHECK(event.event_type == 8); /* IBV_EVENT_DEVICE_FATAL */
    FAILS(EIO, read(async_fd, &event, sizeof event));
    return unused;
}

static void destroy_cq(int fd, uint32_t handle)
{
    struct ib_uverbs_destroy_cq_resp response = {};
    struct {
        struct ib_uverbs_cmd_hdr header;
        struct ib_uverbs_destroy_cq core;
    } command = {
        .header = {IB_USER_VERBS_CMD_DESTROY_CQ, sizeof command / 4, sizeof response / 4},
        .core = {.response = (uintptr_t)&response, .cq_handle = handle},
    };
    CHECK(write(fd, &command, sizeof command) == sizeof command);
    CHECK(response.comp_events_reported == 0 && response.async_events_reported == 0);
    FAILS(ENOENT, write(fd, &command, sizeof command));
}

int main(int argc, char **argv)
{
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    CHECK(argc >= 2 && fd >= 0);
    async_fd = get_context(fd);
    struct ibv_context context;
    open_context(&context, fd);
    struct ibv_cq_ex queue = {};
    uint32_t handle = create_cq(fd, &queue);
    queue.context = &context;
    queue.start_poll = provider_start_poll;
    WORKS(fd);
    struct ibv_cq cq = {.context = &context};
    int is_extended = !strcmp(argv[1], "extended"), has_thread = !strcmp(argv[1], "events");
    pthread_t thread;
    if (has_thread)
        CHECK(pthread_create(&thread, NULL, wait_for_events, NULL) == 0);
    puts("ready");
    fflush(stdout);

    int found;
    do
        found = is_extended ? queue.start_poll(&queue, ATTR) : context.ops.poll_cq(&cq, 7, WC);
    while (found == (is_extended ? ENOENT : 0));
    CHECK(found == (is_extended ? EIO : -1));
    /* A child has nothing to do with it. */
    pid_t child = fork();
    if (child == 0) {
        CHECK(context.ops.poll_cq(&cq, 7, WC) == 0);
        FAILS(EIO, query_port(fd));
        _exit(0);
    }
    wait_for(child);
    if (has_thread)
        CHECK(pthread_join(thread, NULL) == 0);
    else
        wait_for_events(NULL);
    FAILS(EIO, query_port(fd));
    destroy_cq(fd, handle);
    CHECK(close(fd) == 0 && close(async_fd) == 0 && hidden() == 0);
    if (argc < 3)
        return 0;
    puts("lost");
    fflush(stdout);
    CHECK(getchar() != EOF);

    fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    async_fd = get_context(fd);
    WORKS(fd);
    handle = create_cq(fd, &(struct ibv_cq_ex){});
    destroy_cq(fd, handle);
    CHECK(close(fd) == 0 && close(async_fd) == 0 && hidden() == 0);
    return 0;
}
