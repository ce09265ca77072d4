/* Commands of a device, as libibverbs writes them. */

#ifndef COMMANDS_H
#define COMMANDS_H

#include "check.h"

/* Writes a command of any kind, with a driver's part that may be longer than is needed. */
static inline ssize_t command(int fd, __u32 number, const void *core, size_t in, size_t out)
{
    struct {
        struct ib_uverbs_cmd_hdr header;
        char core[256];
    } bytes = {.header = {number, (sizeof bytes.header + in) / 4, out / 4}};
    CHECK(in % 4 == 0 && out % 4 == 0 && in <= sizeof bytes.core);
    memcpy(bytes.core, core, in);
    ssize_t len = sizeof bytes.header + in;
    ssize_t written = write(fd, &bytes, len);
    CHECK(written == len || written == -1);
    return written < 0 ? -1 : 0;
}

#define ORDER(fd, name, core) command(fd, IB_USER_VERBS_CMD_##name, &(core), sizeof(core), 0)
/* `answer` begins with what the kernel answers, and has room for the driver's part. */
#define ASK(fd, name, core, answer)                                                        \
    ((core).response = (uintptr_t)&(answer),                                               \
     command(fd, IB_USER_VERBS_CMD_##name, &(core), sizeof(core), sizeof(answer)))

#define WITH_DRIVER(type) struct { struct type core; char driver[64]; }

static inline __u32 alloc_pd(int fd)
{
    struct ib_uverbs_alloc_pd it = {};
    struct ib_uverbs_alloc_pd_resp answer = {};
    CHECK(ASK(fd, ALLOC_PD, it, answer) == 0);
    return answer.pd_handle;
}

static inline __u32 reg_mr(int fd, __u32 pd, const void *memory, size_t len)
{
    struct ib_uverbs_reg_mr it = {
        .start = (uintptr_t)memory, .hca_va = (uintptr_t)memory, .length = len,
        .pd_handle = pd, .access_flags = 1,
    };
    struct ib_uverbs_reg_mr_resp answer = {};
    CHECK(ASK(fd, REG_MR, it, answer) == 0);
    return answer.mr_handle;
}

static inline void dereg_mr(int fd, __u32 mr)
{
    struct ib_uverbs_dereg_mr it = {mr};
    CHECK(ORDER(fd, DEREG_MR, it) == 0);
}

/* Gives the descriptor of a completion channel; -1 and errno if there can be none. */
static inline int create_comp_channel(int fd)
{
    struct ib_uverbs_create_comp_channel it = {};
    struct ib_uverbs_create_comp_channel_resp answer = {};
    return ASK(fd, CREATE_COMP_CHANNEL, it, answer) == 0 ? (int)answer.fd : -1;
}

#endif
