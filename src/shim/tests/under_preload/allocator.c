/* An allocator that gives memory back with its lock held, as tcmalloc does, while other threads
   register memory, which allocates. */
#include "check.h"
#include "commands.h"
#include <sys/mman.h>

enum { ROUNDS = 300, LEN = 16 * 4096, ARENA = 512 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *arena, *unused;
static size_t taken;

/* Every one is new; nothing of it is ever used again. */
static void *take(size_t alignment, size_t len)
{
    pthread_mutex_lock(&lock);
    if (!arena) {
        arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        unused = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (alignment < 16)
        alignment = 16;
    /* Its length stands before it. */
    size_t start = (taken + 16 + alignment - 1) / alignment * alignment;
    taken = start + len;
    CHECK(arena != MAP_FAILED && unused != MAP_FAILED && taken <= ARENA);
    memcpy(arena + start - sizeof len, &len, sizeof len);
    madvise(unused, LEN, MADV_DONTNEED);
    pthread_mutex_unlock(&lock);
    return arena + start;
}

void *malloc(size_t len)
{
    return take(16, len);
}

void free(void *memory)
{
    (void)memory;
}

void *calloc(size_t count, size_t len)
{
    return take(16, count * len);
}

void *realloc(void *memory, size_t len)
{
    void *longer = take(16, len);
    size_t before = 0;
    if (memory)
        memcpy(&before, (char *)memory - sizeof before, sizeof before);
    return before ? memcpy(longer, memory, before < len ? before : len) : longer;
}

void *memalign(size_t alignment, size_t len)
{
    return take(alignment, len);
}

void *aligned_alloc(size_t alignment, size_t len)
{
    return take(alignment, len);
}

int posix_memalign(void **memory, size_t alignment, size_t len)
{
    *memory = take(alignment, len);
    return 0;
}

static int fd;
static __u32 pd;
static volatile int is_over;

static void *allocates(void *nothing)
{
    while (!is_over) {
        volatile char *memory = malloc(1);
        memory[0] = 1;
        /* Or the arena is at its end too soon. */
        sched_yield();
    }
    return nothing;
}

int main(void)
{
    fd = open_device();
    pd = alloc_pd(fd);
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *again = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && again != MAP_FAILED);
    /* This one is remapped while there are no threads, and stays so. */
    reg_mr(fd, pd, memory, LEN);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, allocates, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++)
        dereg_mr(fd, reg_mr(fd, pd, again, LEN));
    is_over = 1;
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
