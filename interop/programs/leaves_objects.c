/* A program that makes one object of each kind and ends without destroying any. */

#include "verbs_program.h"

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    EXPECT(pd);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    EXPECT(channel);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, channel, 0);
    EXPECT(cq);
    EXPECT(ibv_req_notify_cq(cq, 0) == 0);
    EXPECT(create_qp(pd, cq));
    static char buffer[1 << 20];
    EXPECT(ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE));
    return 0;
}
