/* A program that forks while it has a device open. The child cannot use its parent's
 * objects, can open the device for itself, and when it ends its parent goes on as before. */

#include "verbs_program.h"
#include <sys/wait.h>

static int child(struct ibv_context *of_parent)
{
    EXPECT(ibv_alloc_pd(of_parent) == NULL);
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    EXPECT(pd);
    EXPECT(ibv_dealloc_pd(pd) == 0);
    EXPECT(ibv_close_device(context) == 0);
    return 0;
}

int main(void)
{
    EXPECT(ibv_fork_init() == 0);
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    EXPECT(pd);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    EXPECT(cq);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0)
        return child(context);
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    struct ibv_qp *qp = create_qp(pd, cq);
    EXPECT(qp);
    EXPECT(ibv_destroy_qp(qp) == 0);
    EXPECT(ibv_destroy_cq(cq) == 0);
    EXPECT(ibv_dealloc_pd(pd) == 0);
    EXPECT(ibv_close_device(context) == 0);
    return 0;
}
