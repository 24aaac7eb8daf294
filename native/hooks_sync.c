/* Waits in libraries other than libc: accelerator runtimes, MPI, and libstdc++, with waits
 * attributed to the caller.  Knows the libraries' symbols; knows no ELF. */
#include "hook.h"
#include "hook_wait.h"

/* --- libstdc++ ----------------------------------------------------------------------------------
 */

/* Each function below waits in a single call; the wrapper of the inner call records the wait. */
#define HOOK_THROUGH(version, name, type, function, parameters, arguments)                         \
    HOOK_AS("libstdc++", version, name, type, function, parameters)                                \
    {                                                                                              \
        if (recorder_on)                                                                           \
            hooks_wait_through =                                                                   \
                (struct through){__builtin_extract_return_addr(__builtin_return_address(0)),       \
                                 __builtin_frame_address(0)};                                      \
        return real_##function arguments;                                                          \
    }

/* std::condition_variable::wait(std::unique_lock<std::mutex> &).  The two versions differ when a
 * thread is cancelled inside: the older version is noexcept.  Each has a separate wrapper. */
#define CONDITION_WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
HOOK_THROUGH("GLIBCXX_3.4.30", CONDITION_WAIT, void, condition_wait, (void *condition, void *lock),
             (condition, lock))
HOOK_THROUGH("GLIBCXX_3.4.11", CONDITION_WAIT, void, condition_wait_old,
             (void *condition, void *lock), (condition, lock))

/* std::thread::join() */
HOOK_THROUGH(NULL, "_ZNSt6thread4joinEv", void, thread_join, (void *thread), (thread))

/* The wait of std::future: (this, unsigned *word, unsigned value, bool has_timeout, s, ns). */
#define FUTURE_WAIT(how)                                                                           \
    "_ZNSt28__atomic_futex_unsigned_base" how "EPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_" \
    "IlS3_ILl1ELl1000000000EEEE"
HOOK_THROUGH(NULL, FUTURE_WAIT("19_M_futex_wait_until"), bool, future_wait,
             (void *base, unsigned *word, unsigned value, bool has_timeout, long s, long ns),
             (base, word, value, has_timeout, s, ns))
HOOK_THROUGH(NULL, FUTURE_WAIT("26_M_futex_wait_until_steady"), bool, future_wait_steady,
             (void *base, unsigned *word, unsigned value, bool has_timeout, long s, long ns),
             (base, word, value, has_timeout, s, ns))

/* --- accelerators and MPI -----------------------------------------------------------------------
 */

/* A call with numbers and pointers of any meaning, in registers and beyond: each is handed on
 * unchanged.  The library's own waits inside the call are part of its wait. */
#define PARAMETERS_1 long a
#define PARAMETERS_2 PARAMETERS_1, long b
#define PARAMETERS_3 PARAMETERS_2, long c
#define PARAMETERS_4 PARAMETERS_3, long d
#define PARAMETERS_5 PARAMETERS_4, long e
#define PARAMETERS_6 PARAMETERS_5, long f
#define PARAMETERS_7 PARAMETERS_6, long g
#define PARAMETERS_8 PARAMETERS_7, long h
#define PARAMETERS_9 PARAMETERS_8, long i
#define PARAMETERS_12 PARAMETERS_9, long j, long k, long l
#define PARAMETERS_0 void
#define ARGUMENTS_0
#define ARGUMENTS_1 a
#define ARGUMENTS_2 ARGUMENTS_1, b
#define ARGUMENTS_3 ARGUMENTS_2, c
#define ARGUMENTS_4 ARGUMENTS_3, d
#define ARGUMENTS_5 ARGUMENTS_4, e
#define ARGUMENTS_6 ARGUMENTS_5, f
#define ARGUMENTS_7 ARGUMENTS_6, g
#define ARGUMENTS_8 ARGUMENTS_7, h
#define ARGUMENTS_9 ARGUMENTS_8, i
#define ARGUMENTS_12 ARGUMENTS_9, j, k, l

/* Their errors are numbers of their own. */
#define HOOK_LIBRARY(provider, op, n, function)                                                    \
    HOOK_OF(provider, long, function, (PARAMETERS_##n))                                            \
    {                                                                                              \
        if (!recorder_on)                                                                          \
            return real_##function(ARGUMENTS_##n);                                                 \
        return BLOCKING(long, op, NULL, real_##function(ARGUMENTS_##n), (int)result ? EIO : 0);    \
    }

/* Waiting for the device; also calls waiting for the device where the queue of a stream is full, or
 * unpinned memory is to be copied. */
#define CUDA(n, function) HOOK_LIBRARY("libcudart", OP_SYNC, n, function)
CUDA(1, cudaStreamSynchronize)
CUDA(1, cudaStreamSynchronize_ptsz)
CUDA(1, cudaEventSynchronize)
CUDA(0, cudaDeviceSynchronize)
CUDA(0, cudaThreadSynchronize)
CUDA(4, cudaMemcpy)
CUDA(4, cudaMemcpy_ptds)
CUDA(5, cudaMemcpyAsync)
CUDA(5, cudaMemcpyAsync_ptsz)
CUDA(8, cudaLaunchKernel) /* dim3 by value: three numbers in two registers, twice */
CUDA(8, cudaLaunchKernel_ptsz)
CUDA(3, cudaLaunchKernelExC)
CUDA(3, cudaLaunchKernelExC_ptsz)
CUDA(2, cudaGraphLaunch)
CUDA(2, cudaGraphLaunch_ptsz)
CUDA(1, cudaFree)

#define DRIVER(n, function) HOOK_LIBRARY("libcuda.so", OP_SYNC, n, function)
DRIVER(1, cuStreamSynchronize)
DRIVER(1, cuStreamSynchronize_ptsz)
DRIVER(1, cuEventSynchronize)
DRIVER(0, cuCtxSynchronize)
DRIVER(3, cuMemcpyDtoH_v2)
DRIVER(3, cuMemcpyHtoD_v2)
DRIVER(4, cuMemcpyDtoHAsync_v2)

#define HIP(n, function) HOOK_LIBRARY("libamdhip64", OP_SYNC, n, function)
HIP(1, hipStreamSynchronize)
HIP(1, hipEventSynchronize)
HIP(0, hipDeviceSynchronize)
HIP(4, hipMemcpy)
HIP(5, hipMemcpyWithStream)
HIP(5, hipMemcpyAsync)

#define MPI(n, function) HOOK_LIBRARY("libmpi", OP_COLLECTIVE, n, function)
MPI(1, MPI_Barrier)
MPI(2, MPI_Wait)
MPI(3, MPI_Waitall)
MPI(4, MPI_Waitany)
MPI(5, MPI_Waitsome)
MPI(5, MPI_Bcast)
MPI(6, MPI_Allreduce)
MPI(7, MPI_Reduce)
MPI(6, MPI_Reduce_scatter)
MPI(6, MPI_Reduce_scatter_block)
MPI(6, MPI_Scan)
MPI(7, MPI_Allgather)
MPI(8, MPI_Allgatherv)
MPI(8, MPI_Gather)
MPI(9, MPI_Gatherv)
MPI(8, MPI_Scatter)
MPI(9, MPI_Scatterv)
MPI(7, MPI_Alltoall)
MPI(9, MPI_Alltoallv)
MPI(6, MPI_Send)
MPI(7, MPI_Recv)
MPI(12, MPI_Sendrecv)
MPI(4, MPI_Probe)

#define NCCL(n, function) HOOK_LIBRARY("libnccl", OP_COLLECTIVE, n, function)
NCCL(0, ncclGroupEnd)
NCCL(7, ncclAllReduce)
NCCL(6, ncclAllGather)
NCCL(7, ncclReduceScatter)
NCCL(7, ncclBroadcast)
NCCL(8, ncclReduce)
NCCL(6, ncclSend)
NCCL(6, ncclRecv)
