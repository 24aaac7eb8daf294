/* One thread of another process, stopped by ptrace: calls made in its name, and its return to what
 * it did.  Knows registers; knows no library and no policy. */
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
    struct user_regs_struct before; /* to which it returns */
    uint8_t extended[EXTENDED_BYTES];
    size_t extended_bytes;
    uint64_t signals; /* its mask */
    uint64_t memory;  /* ours, in its process */
    bool is_stopped, is_borrowed;
};

#define THREAD_MEMORY (512 << 10) /* a stack of our own, and strings below it */

/* Stops a thread.  -ESRCH: it has ended.  -ETIME: it did not stop soon, and is left alone. */
int thread_stop(struct thread *thread, pid_t id);

/* Whether every signal waits, those of the C library too: only it and our own recorder do that, and
 * with locks held that nobody else could open. */
bool thread_is_closed(const struct thread *thread);

/* Keeps what the calls below change, and takes memory in the process. */
int thread_borrow(struct thread *thread, const struct target *target);

/* Calls a function on the borrowed memory.  -ETIME: it waits for a lock and was taken back.
 * -EFAULT: it raised a signal. */
int thread_call(struct thread *thread, const struct target *target, uint64_t function,
                const uint64_t arguments[3], uint64_t *result);

/* The thread goes on as if nothing had been; safe after any error.  Gives back the memory if it
 * can. */
void thread_release(struct thread *thread, const struct target *target);

#endif
