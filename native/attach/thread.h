/* A thread of another process, stopped by ptrace: calls in the thread's name, and the return to the
 * earlier work.  Knows registers; knows no library and no policy. */
#ifndef PENSTOCK_THREAD_H
#define PENSTOCK_THREAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include "target.h"

#define EXTENDED_BYTES 16384 /* of vector registers; AMX needs 11 KiB */

struct thread {
    pid_t id;
    struct user_regs_struct before; /* the state to return to */
    uint8_t extended[EXTENDED_BYTES];
    size_t extended_bytes;
    uint64_t signals; /* the mask of the thread */
    uint64_t memory;  /* ours, in the process of the thread */
    bool is_stopped, is_borrowed;
};

#define THREAD_MEMORY (512 << 10) /* a separate stack, with strings below */

/* Stop a thread.  -ESRCH: the thread has ended.  -ETIME: the thread did not stop soon, and is left
 * alone. */
int thread_stop(struct thread *thread, pid_t id);

/* Whether every signal is blocked, including the signals of the C library: only the C library and
 * the recorder block all signals, and then hold locks closed to every other thread. */
bool thread_is_closed(const struct thread *thread);

/* Save the state before the calls below, and take memory in the process. */
int thread_borrow(struct thread *thread, const struct target *target);

/* Call a function on the borrowed memory.  -ETIME: the function waits for a lock and was taken
 * back.  -EFAULT: the function raised a signal. */
int thread_call(struct thread *thread, const struct target *target, uint64_t function,
                const uint64_t arguments[3], uint64_t *result);

/* Let the thread continue as before; safe after any error.  Gives back the memory if possible. */
void thread_release(struct thread *thread, const struct target *target);

#endif
