#include "thread.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STOP_S 0.05 /* time limit for a stop */
#define CALL_S 10.0 /* time limit for loading a library without a lock in the way */
/* A thread is never left with foreign registers, however long the kernel or another thread delays
 * the thread: hence the bound. */
#define FOREVER_S 1e9
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define DIRECTION_FLAG 0x400

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The thread's next stop or end.  -ETIME, -ESRCH. */
static int next_stop(struct thread *thread, double seconds, int *status)
{
    const struct timespec nap = {0, 2000000};
    double end_s = now_s() + seconds;
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        pid_t got = waitpid(thread->id, status, __WALL | WNOHANG);

        if (got < 0)
            return -errno == -ECHILD ? -ESRCH : -errno;
        if (got) {
            thread->is_stopped = WIFSTOPPED(*status);
            return thread->is_stopped ? 0 : -ESRCH;
        }
        if (now_s() > end_s)
            return -ETIME;
        sigtimedwait(&child, NULL, &nap); /* blocked: a stop of the thread ends the wait at once */
    }
}

static int resume(struct thread *thread, int how, int number)
{
    if (ptrace(how, thread->id, NULL, (void *)(intptr_t)number))
        return -errno;
    thread->is_stopped = false;
    return 0;
}

static bool is_event(int status)
{
    return status >> 16 == PTRACE_EVENT_STOP;
}

/* Run a thread under a stop request until the stop; deliver a pending signal to the thread. */
static int until_event(struct thread *thread, double seconds)
{
    double end_s = now_s() + seconds;
    int status, error;

    for (;;) {
        error = next_stop(thread, end_s - now_s(), &status);
        if (error || is_event(status))
            return error;
        error =
            resume(thread, PTRACE_CONT, WSTOPSIG(status) == SYSCALL_STOP ? 0 : WSTOPSIG(status));
        if (error)
            return error;
    }
}

int thread_stop(struct thread *thread, pid_t id)
{
    int error;

    memset(thread, 0, sizeof *thread);
    thread->id = id;
    if (ptrace(PTRACE_SEIZE, id, NULL, (void *)PTRACE_O_TRACESYSGOOD))
        return -errno;
    if (ptrace(PTRACE_INTERRUPT, id, NULL, NULL))
        return -errno;
    error = until_event(thread, STOP_S);
    if (!error && ptrace(PTRACE_GETREGS, id, NULL, &thread->before))
        error = -errno;
    return error;
}

static int set_registers(struct thread *thread, const struct user_regs_struct *registers)
{
    return ptrace(PTRACE_SETREGS, thread->id, NULL, registers) ? -errno : 0;
}

/* At the entry of a call: run a harmless call instead, up to the end.  No known filter of system
 * calls forbids getpid. */
static int skip_call(struct thread *thread, struct user_regs_struct registers)
{
    int status, error;

    registers.orig_rax = SYS_getpid;
    error = set_registers(thread, &registers);
    if (!error)
        error = resume(thread, PTRACE_SYSCALL, 0);
    if (!error)
        error = next_stop(thread, FOREVER_S, &status);
    return error;
}

/* Make a system call in the thread's name, from the thread's current position. */
static int make_call(struct thread *thread, const struct target *target, long number,
                     const uint64_t arguments[6], uint64_t *result)
{
    struct user_regs_struct registers = thread->before;
    int status, error, stops;

    registers.rip = target->gadget;
    registers.rax = (unsigned long long)number;
    registers.orig_rax = (unsigned long long)-1;
    registers.rdi = arguments[0];
    registers.rsi = arguments[1];
    registers.rdx = arguments[2];
    registers.r10 = arguments[3];
    registers.r8 = arguments[4];
    registers.r9 = arguments[5];
    error = set_registers(thread, &registers);
    for (stops = 0; !error && stops < 2;) { /* the entry and the end */
        error = resume(thread, PTRACE_SYSCALL, 0);
        if (!error)
            error = next_stop(thread, FOREVER_S, &status);
        if (!error && WSTOPSIG(status) == SYSCALL_STOP)
            stops++;
        else if (!error && !is_event(status))
            error = -EFAULT;
    }
    if (!error && ptrace(PTRACE_GETREGS, thread->id, NULL, &registers))
        error = -errno;
    *result = registers.rax;
    return error;
}

/* Signals wait until the thread has the earlier state again.  Signals of our own code do not wait:
 * the kernel resets the handler of a blocked signal. */
static int hold_signals(struct thread *thread)
{
    uint64_t all = ~(1ull << (SIGTRAP - 1) | 1ull << (SIGSEGV - 1) | 1ull << (SIGBUS - 1) |
                     1ull << (SIGILL - 1) | 1ull << (SIGFPE - 1) | 1ull << (SIGSYS - 1));

    return ptrace(PTRACE_SETSIGMASK, thread->id, sizeof all, &all) ? -errno : 0;
}

bool thread_is_closed(const struct thread *thread)
{
    uint64_t never = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1), mask;

    return ptrace(PTRACE_GETSIGMASK, thread->id, sizeof mask, &mask) || (mask | never) == ~0ull;
}

int thread_borrow(struct thread *thread, const struct target *target)
{
    struct iovec vector = {thread->extended, sizeof thread->extended};
    const uint64_t arguments[6] = {
        0, THREAD_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0};
    uint64_t result = 0;
    int error;

    if (ptrace(PTRACE_GETREGSET, thread->id, (void *)NT_X86_XSTATE, &vector) ||
        ptrace(PTRACE_GETSIGMASK, thread->id, sizeof thread->signals, &thread->signals))
        return -errno;
    thread->extended_bytes = vector.iov_len;
    thread->is_borrowed = true;
    error = hold_signals(thread);
    if (!error)
        error = make_call(thread, target, SYS_mmap, arguments, &result);
    if (!error && (int64_t)result < 0 && (int64_t)result > -4096)
        error = (int)(int64_t)result;
    if (!error)
        thread->memory = result;
    return error;
}

/* Whether the thread waits for a lock, and so leaves nothing half done. */
static bool waits_for_lock(struct thread *thread)
{
    struct user_regs_struct registers;

    return !ptrace(PTRACE_GETREGS, thread->id, NULL, &registers) && registers.orig_rax == SYS_futex;
}

int thread_call(struct thread *thread, const struct target *target, uint64_t function,
                const uint64_t arguments[3], uint64_t *result)
{
    struct user_regs_struct registers = thread->before;
    /* As after a call: 8 bytes above a multiple of 16, with the address to return to. */
    uint64_t stack = thread->memory + THREAD_MEMORY - 72;
    bool is_late = false;
    int status, error;

    registers.rsp = stack;
    registers.rbp = 0; /* unwinders end here */
    registers.rip = function;
    registers.rax = 0;
    registers.orig_rax = (unsigned long long)-1;
    registers.eflags &= ~(unsigned long long)DIRECTION_FLAG;
    registers.rdi = arguments[0];
    registers.rsi = arguments[1];
    registers.rdx = arguments[2];
    error = target_write(target, stack, &target->gadget, sizeof target->gadget);
    if (!error)
        error = set_registers(thread, &registers);
    while (!error) {
        error = resume(thread, PTRACE_SYSCALL, 0);
        if (!error)
            error = next_stop(thread, CALL_S, &status);
        if (error == -ETIME && !ptrace(PTRACE_INTERRUPT, thread->id, NULL, NULL)) {
            is_late = true;
            error = next_stop(thread, FOREVER_S, &status);
        }
        if (error)
            break;
        /* also a stop of the whole process: the call under way ends first */
        if (is_event(status)) {
            if (is_late && waits_for_lock(thread))
                return -ETIME;
            is_late = false;
        } else if (WSTOPSIG(status) != SYSCALL_STOP) {
            return -EFAULT;
        } else if (ptrace(PTRACE_GETREGS, thread->id, NULL, &registers)) {
            error = -errno;
        } else if (registers.rip == target->gadget + 2 && registers.rsp == stack + 8) {
            /* The function returned into a system call: the call number is the result. */
            *result = registers.orig_rax;
            return skip_call(thread, registers);
        }
    }
    return error;
}

void thread_release(struct thread *thread, const struct target *target)
{
    const uint64_t arguments[6] = {thread->memory, THREAD_MEMORY, 0, 0, 0, 0};
    struct iovec vector = {thread->extended, thread->extended_bytes};
    uint64_t ignored;

    if (!thread->is_stopped)
        return; /* a running thread is unchanged, and is released when this program ends */
    if (thread->memory)
        make_call(thread, target, SYS_munmap, arguments, &ignored);
    if (thread->is_borrowed) {
        /* In a stop open to signals, so that a pending signal ends a call in the usual way. */
        if (ptrace(PTRACE_INTERRUPT, thread->id, NULL, NULL) || resume(thread, PTRACE_CONT, 0) ||
            until_event(thread, FOREVER_S))
            return;
        ptrace(PTRACE_SETREGSET, thread->id, (void *)NT_X86_XSTATE, &vector);
        ptrace(PTRACE_SETSIGMASK, thread->id, sizeof thread->signals, &thread->signals);
    }
    set_registers(thread, &thread->before);
    ptrace(PTRACE_DETACH, thread->id, NULL, NULL);
    thread->is_stopped = false;
}
