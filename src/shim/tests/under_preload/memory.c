/* Memory that is registered, in a program of one thread: what the program does with it is as with
   memory that was never registered. */
#include "check.h"
#include "commands.h"
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
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

static unsigned char *first_page_of(unsigned char *memory)
{
    return (unsigned char *)(((uintptr_t)memory + PAGE - 1) / PAGE * PAGE);
}

/* It begins amid a page, behind what malloc keeps there. */
static void what_malloc_gives_is_remapped_but_for_its_ends(int fd, __u32 pd)
{
    unsigned char *memory = malloc(LEN);
    CHECK(memory != NULL && first_page_of(memory) != memory);
    memset(memory, 7, LEN);
    for (int i = 0; i < 2; i++) {
        __u32 mr = reg_mr(fd, pd, memory, LEN);
        CHECK(is_remapped(first_page_of(memory)) && is_all(memory, LEN, 7));
        dereg_mr(fd, mr);
        CHECK(!is_remapped(first_page_of(memory)) && is_all(memory, LEN, 7));
    }
    memory = realloc(memory, 2 * LEN);
    CHECK(memory != NULL && is_all(memory, LEN, 7));
    __u32 mr = reg_mr(fd, pd, memory, 2 * LEN);
    CHECK(is_remapped(first_page_of(memory)) && is_all(memory, LEN, 7));
    dereg_mr(fd, mr);
    free(memory);
}

enum { LOCAL_WRITE = 1, ON_DEMAND = 1 << 6 };

static int reg_on_demand(int fd, __u32 pd, const void *memory, int rights, __u32 *lkey)
{
    struct ib_uverbs_reg_mr it = {
        .start = (uintptr_t)memory, .hca_va = (uintptr_t)memory, .length = LEN,
        .pd_handle = pd, .access_flags = ON_DEMAND | rights,
    };
    struct ib_uverbs_reg_mr_resp answer = {};
    int result = ASK(fd, REG_MR, it, answer);
    *lkey = answer.lkey;
    return result;
}

static void what_may_only_be_read_is_not_written_on_demand(int fd, __u32 pd)
{
    unsigned char *memory = memory_of(LEN);
    __u32 lkey;
    CHECK(mprotect(memory + PAGE, PAGE, PROT_READ) == 0);
    FAILS(EFAULT, reg_on_demand(fd, pd, memory, LOCAL_WRITE, &lkey));
    CHECK(reg_on_demand(fd, pd, memory, 0, &lkey) == 0);
    /* It is not in use yet, and may come. */
    CHECK(mprotect(memory + PAGE, PAGE, PROT_NONE) == 0);
    CHECK(reg_on_demand(fd, pd, memory, LOCAL_WRITE, &lkey) == 0);
}

static int is_there(void *page)
{
    unsigned char here = 0;
    CHECK(mincore(page, PAGE, &here) == 0);
    return here & 1;
}

/* As `ibv_advise_mr` writes it. */
static int advise(int fd, __u32 pd, int advice, int flags, struct ib_uverbs_sge *list, int count)
{
    struct {
        struct ib_uverbs_ioctl_hdr header;
        struct ib_uverbs_attr attrs[4];
    } it = {
        .header = {sizeof it, UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, 4, 0, 0, 0},
        .attrs = {
            {.attr_id = UVERBS_ATTR_ADVISE_MR_PD_HANDLE, .flags = 1, .data = pd},
            {.attr_id = UVERBS_ATTR_ADVISE_MR_ADVICE, .flags = 1, .len = 8, .data = advice},
            {.attr_id = UVERBS_ATTR_ADVISE_MR_FLAGS, .flags = 1, .len = 4},
            {.attr_id = UVERBS_ATTR_ADVISE_MR_SGE_LIST, .flags = 1, .len = count * sizeof *list,
             .data = (uintptr_t)list},
        },
    };
    memcpy(&it.attrs[2].data, &flags, sizeof flags);
    return ioctl(fd, RDMA_VERBS_IOCTL, &it);
}

static void memory_on_demand_can_be_brought_in(int fd, __u32 pd)
{
    enum {
        READ = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
        WRITE = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        NOTHING = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        FLUSH = IB_UVERBS_ADVISE_MR_FLAG_FLUSH,
    };
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    __u32 readable, writable;
    CHECK(memory != MAP_FAILED);
    CHECK(reg_on_demand(fd, pd, memory, 0, &readable) == 0);
    CHECK(reg_on_demand(fd, pd, memory, LOCAL_WRITE, &writable) == 0);
    struct ib_uverbs_sge piece = {(uintptr_t)memory + 3 * PAGE, PAGE, readable};
    CHECK(advise(fd, pd, NOTHING, 0, &piece, 1) == 0 && !is_there(memory + 3 * PAGE));
    FAILS(EPERM, advise(fd, pd, WRITE, FLUSH, &piece, 1));
    struct ib_uverbs_sge pieces[2] = {piece, {(uintptr_t)memory + LEN - PAGE, PAGE, writable}};
    CHECK(advise(fd, pd, READ, FLUSH, pieces, 2) == 0);
    pieces[0].lkey = writable;
    CHECK(advise(fd, pd, WRITE, 0, pieces, 2) == 0);
    CHECK(is_there(memory + 3 * PAGE) && is_there(memory + LEN - PAGE));
    CHECK(!is_there(memory + 4 * PAGE));

    FAILS(EOPNOTSUPP, advise(fd, pd, 3, 0, &piece, 1));
    FAILS(EINVAL, advise(fd, pd, READ, 2, &piece, 1));
    FAILS(EINVAL, advise(fd, pd, READ, 0, &piece, 0));
    FAILS(EFAULT, advise(fd, pd, READ, 0, (void *)8, 1));
    FAILS(EINVAL, advise(fd, pd + 1, READ, 0, &piece, 1));
    pieces[0].length = LEN;
    FAILS(EFAULT, advise(fd, pd, READ, 0, pieces, 1));
    piece.lkey ^= 1;
    FAILS(EINVAL, advise(fd, pd, READ, 0, &piece, 1));
    /* What is gone is noticed by who waits for it. */
    CHECK(munmap(memory + LEN - PAGE, PAGE) == 0);
    CHECK(advise(fd, pd, READ, 0, pieces + 1, 1) == 0);
    FAILS(EFAULT, advise(fd, pd, READ, FLUSH, pieces + 1, 1));

    /* All else is for libraries to write, as they do where there is no `ioctl` for it. */
    struct ib_uverbs_ioctl_hdr other = {sizeof other, UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR,
                                        0, 0, 0, 0};
    FAILS(ENOTTY, ioctl(fd, RDMA_VERBS_IOCTL, &other));
    FAILS(ENOTTY, ioctl(fd, RDMA_VERBS_IOCTL, (void *)8));
}

int main(void)
{
    int fd = open_device();
    __u32 pd = alloc_pd(fd);
    what_madvise_refuses_changes_nothing(fd, pd);
    memory_may_be_longer_than_files(fd, pd);
    what_was_registered_can_be_made_longer(fd, pd);
    what_malloc_gives_is_remapped_but_for_its_ends(fd, pd);
    what_may_only_be_read_is_not_written_on_demand(fd, pd);
    memory_on_demand_can_be_brought_in(fd, pd);
    return 0;
}
