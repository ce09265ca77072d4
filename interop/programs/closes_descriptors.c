/* A program that closes every descriptor that it did not open itself, as daemons do, and then uses
 * the same numbers for files. What it writes there is not taken for a command to a device, even if
 * it looks like one; and it can open the device again. */

#include "verbs_program.h"
#include <fcntl.h>

enum { NUMBERS = 1024 };

int main(void)
{
    struct ibv_context *context = open_device();
    EXPECT(ibv_alloc_pd(context));
    for (int fd = 3; fd < NUMBERS; fd++)
        close(fd);

    char name[] = "closes_descriptors_XXXXXX";
    int file = mkstemp(name);
    EXPECT(file >= 0);
    EXPECT(unlink(name) == 0);
    /* The doorbell: command 28 with 8 words of request and 1 of response, for QP 0. */
    const unsigned char doorbell[32] = {28, 0, 0, 0, 8, 0, 1, 0};
    int written = 0;
    for (int fd = 3; fd < 64; fd++) {
        /* This number is used by something else. */
        if (fd != file && (fcntl(fd, F_GETFD) >= 0 || dup2(file, fd) != fd))
            continue;
        EXPECT(write(fd, doorbell, sizeof doorbell) == sizeof doorbell);
        written++;
    }
    EXPECT(written > 32);
    unsigned char found[32];
    for (int i = 0; i < written; i++) {
        EXPECT(pread(file, found, sizeof found, i * sizeof found) == sizeof found);
        EXPECT(memcmp(found, doorbell, sizeof found) == 0);
    }
    EXPECT(pread(file, found, sizeof found, written * sizeof found) == 0);

    struct ibv_context *again = open_device();
    EXPECT(ibv_alloc_pd(again));
    return 0;
}
