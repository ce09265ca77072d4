/* What the shim needs of libibverbs: a function that opens a device, and a context whose polls can
   be counted. A "device" is the descriptor of what was opened. */
#include "libibverbs.h"
#include <stdlib.h>

int polls, completions;

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    polls += cq->context != NULL && count == 7 && wc == WC;
    return completions;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->ops.poll_cq = poll_cq;
    context->cmd_fd = *(int *)device;
    return context;
}
