/* A library between the shim and libc that is to hear of memory that a program gives up: as what
   UCX makes of libc's function. */
#include "check.h"
#include <sys/mman.h>

static volatile int heard;

int madvise(void *start, size_t len, int advice)
{
    heard++;
    return syscall(SYS_madvise, start, len, advice);
}

__attribute__((destructor)) static void late(void)
{
    int (*first)(void *, size_t, int) = dlsym(RTLD_DEFAULT, "madvise");
    CHECK(first != NULL);
    int before = heard;
    CHECK(first(NULL, 0, MADV_DONTNEED) == 0 && heard == before + 1);
}
