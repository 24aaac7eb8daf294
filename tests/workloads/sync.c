/* Waits for an accelerator and for other ranks, by libraries that stand for theirs.  By hand, in
 * order: a launch that blocks for 5 ms, cudaStreamSynchronize of 6 ms, cudaDeviceSynchronize of 5,
 * one of 7 ms that fails, MPI_Allreduce and MPI_Sendrecv of 5 ms each; and 100 launches that fail
 * at once. */
#include "known.h"

struct dim3 {
    unsigned x, y, z;
};

int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, uint64_t, void *);
int cudaStreamSynchronize(void *);
int cudaDeviceSynchronize(void);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
int MPI_Sendrecv(const void *, int, void *, int, int, void *, int, void *, int, int, void *,
                 void *);

int main(void)
{
    struct dim3 grid = {2, 3, 4}, block = {5, 6, 7};

    MUST(cudaLaunchKernel((void *)1, grid, block, (void **)8, 0x900000000, (void *)10) == 0);
    MUST(cudaStreamSynchronize((void *)6) == 0);
    MUST(cudaDeviceSynchronize() == 0);
    MUST(cudaStreamSynchronize((void *)7) == 700);
    MUST(MPI_Allreduce((void *)1, (void *)2, -3, (void *)4, (void *)5, (void *)6) == 0);
    MUST(MPI_Sendrecv((void *)1, 2, (void *)3, 4, -5, (void *)6, 7, (void *)8, 9, -10, (void *)11,
                      (void *)12) == 0);
    for (int i = 0; i < 100; i++)
        MUST(cudaLaunchKernel(NULL, grid, block, NULL, 0, NULL) == 1);
    return 0;
}
