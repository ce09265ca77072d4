/* Memory that is registered, in a program of one thread: what the program does with it is as with
   memory that was never registered. */
#include "check.h"
#include "commands.h"
#include <sys/mman.h>
#include <sys/resource.h>

enum { LEN = 256 * 1024, PAGE = 4096 };

static unsigned char *memory_of(size_t len)
{
    unsigned char *memory =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, len);
    return memory;
}

static int is_all(const unsigned char *memory, size_t len, unsigned char byte)
{
    for (size_t i = 0; i < len; i++)
        if (memory[i] != byte)
            return 0;
    return 1;
}

/* Whether it lies in a memfd that the daemon sees too. */
static int is_remapped(const unsigned char *memory)
{
    char line[512], start[32];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    sprintf(start, "%lx-", (unsigned long)memory);
    while (fgets(line, sizeof line, maps))
        found |= strncmp(line, start, strlen(start)) == 0 && strstr(line, "rw-s") &&
                 strstr(line, "urxe-remapped");
    CHECK(fclose(maps) == 0);
    return found;
}

static void what_madvise_refuses_changes_nothing(int fd, __u32 pd)
{
    unsigned char *memory = memory_of(LEN);
    __u32 mr = reg_mr(fd, pd, memory, LEN);
    CHECK(is_remapped(memory));
    FAILS(EINVAL, madvise(memory + 8, PAGE, MADV_DONTNEED));
    FAILS(EINVAL, madvise(memory + 8, PAGE, MADV_FREE));
    FAILS(EINVAL, madvise(memory, PAGE, 12345));
    CHECK(is_all(memory, LEN, 7));
    /* Locked memory stays too; some users may lock none. */
    if (mlock(memory, PAGE) == 0) {
        FAILS(EINVAL, madvise(memory, PAGE, MADV_DONTNEED));
        CHECK(is_all(memory, LEN, 7) && munlock(memory, PAGE) == 0);
    }
    errno = 77;
    CHECK(madvise(memory, PAGE, MADV_DONTNEED) == 0 && errno == 77);
    CHECK(is_all(memory, PAGE, 0) && is_all(memory + PAGE, LEN - PAGE, 7));
    CHECK(madvise(memory + 2 * PAGE, 1, MADV_FREE) == 0 && errno == 77);
    CHECK(is_all(memory + PAGE, PAGE, 7) && is_all(memory + 3 * PAGE, LEN - 3 * PAGE, 7));
    /* What lies beside a hole is zeroed, and the hole is told of. */
    CHECK(munmap(memory + LEN - PAGE, PAGE) == 0);
    FAILS(ENOMEM, madvise(memory + LEN - 2 * PAGE, 2 * PAGE, MADV_DONTNEED));
    CHECK(is_all(memory + LEN - 2 * PAGE, PAGE, 0));
    dereg_mr(fd, mr);
    CHECK(munmap(memory, LEN) == 0);
}

static void memory_may_be_longer_than_files(int fd, __u32 pd)
{
    unsigned char *memory = memory_of(LEN);
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    struct rlimit less = {.rlim_cur = LEN / 2, .rlim_max = before.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &less) == 0);
    __u32 mr = reg_mr(fd, pd, memory, LEN);
    CHECK(!is_remapped(memory) && is_all(memory, LEN, 7));
    dereg_mr(fd, mr);
    /* And what is remapped is given back. */
    mr = reg_mr(fd, pd, memory, LEN / 2);
    CHECK(is_remapped(memory));
    dereg_mr(fd, mr);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(is_all(memory, LEN, 7) && munmap(memory, LEN) == 0);
}

static void what_was_registered_can_be_made_longer(int fd, __u32 pd)
{
    unsigned char *memory = memory_of(LEN);
    __u32 mr = reg_mr(fd, pd, memory, LEN);
    CHECK(is_remapped(memory));
    dereg_mr(fd, mr);
    memory = mremap(memory, LEN, 2 * LEN, MREMAP_MAYMOVE);
    CHECK(memory != MAP_FAILED);
    CHECK(is_all(memory, LEN, 7) && is_all(memory + LEN, LEN, 0));
    memset(memory + LEN, 7, LEN);
    mr = reg_mr(fd, pd, memory, 2 * LEN);
    CHECK(is_remapped(memory) && is_all(memory, 2 * LEN, 7));
    dereg_mr(fd, mr);
    CHECK(is_all(memory, 2 * LEN, 7) && munmap(memory, 2 * LEN) == 0);
}

int main(void)
{
    int fd = open_device();
    __u32 pd = alloc_pd(fd);
    what_madvise_refuses_changes_nothing(fd, pd);
    memory_may_be_longer_than_files(fd, pd);
    what_was_registered_can_be_made_longer(fd, pd);
    return 0;
}
