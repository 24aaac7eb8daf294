/* Calls that block: which of them are recorded, and which thread ended them.  Knows threads and
 * addresses; knows no libc call.
 *
 * The event of a wait is written before the call, so that a hang is in the log; the event of a
 * short wait is taken back.  A waiter enters the address of its semaphore, condition variable or
 * futex in a table; a thread that wakes by this address writes its number there. */
#ifndef PENSTOCK_WAITS_H
#define PENSTOCK_WAITS_H

#include "log.h"
#include "objects.h"

#pragma GCC visibility push(hidden)

#define WAITERS 4096 /* threads that wait at once; those beyond are not told who woke them */
#define WAIT_PLACES 4096

struct waiter {
    uint64_t address; /* 0: free */
    uint64_t mark;    /* turn << 32 | shared << 31 | number of the thread that woke */
    uint64_t marked;  /* ticks; 0: not known */
    uint64_t unused;
};

/* Wiped by fork: who waits in a parent does not wait in its child. */
struct waits {
    uint16_t counts[WAIT_PLACES]; /* of waiters, by their address */
    struct waiter waiters[WAITERS];
};

extern struct waits *waits_state;
extern uint64_t waits_recorded_ticks; /* WAIT_RECORDED_NS */

/* What a wrapper keeps on its stack.  The wait itself lies in struct thread: when a cancelled
 * thread unwinds the wrapper, the end of the thread still finds the wait. */
struct waiting {
    struct wait *wait; /* NULL: not recorded, as it lies within another wait */
    uint64_t serial;
};

int waits_start(void);

/* address 0: nothing that can be woken by it.  shown: the event's offset while it is in flight. */
void waits_begin(struct waiting *waiting, enum op op, uint64_t address, int64_t shown,
                 const void *caller);

/* Leaves errno alone.  error 0: it ended as hoped. */
void waits_end(struct waiting *waiting, int error);

/* The same, of a call that awaited a descriptor: its file becomes the event's offset. */
void waits_end_fd(struct waiting *waiting, int error, int fd);

/* phase: what it waited for, if the descriptor is a connection and the caller knows. */
void waits_end_net(struct waiting *waiting, int error, int fd, enum net_phase phase);

/* The call did not wait: no event. */
void waits_forget(struct waiting *waiting);

/* A call that has ended, and waited for a connection. */
struct connection;
void waits_past(enum op op, struct connection *connection, uint64_t start, uint64_t ticks,
                int error, enum net_phase phase, const void *caller);

/* The thread's latest wait, in epoll, was for these bytes: its event gets the connection. */
void waits_polled_for(struct thread *thread, uint32_t file, enum net_phase phase);
void waits_received_slowly(int64_t bytes);

/* By recv, in the calling thread; negative: sent. */
__attribute__((always_inline)) static inline void waits_received(int64_t bytes)
{
    struct thread *thread = log_self;

    if (LIKELY(thread && thread->is_used && !thread->is_borrowed))
        thread->received += bytes;
    else
        waits_received_slowly(bytes);
}

/* A call by which at most n of those that wait on an address are woken, before it is made.
 * is_counted: it adds one to what waiters take away, as a semaphore's does. */
void waits_wake_slowly(uint64_t address, uint32_t n, bool is_counted);
void waits_move(uint64_t address); /* who waits there may be woken elsewhere from now on */

static inline uint32_t waits_place(uint64_t address)
{
    return (uint32_t)((address >> 2) * 0x9e3779b97f4a7c15u >> 52);
}

/* Whether anybody may wait there: one load, and no more where nobody does. */
__attribute__((always_inline)) static inline bool waits_at(const void *address)
{
    return LIKELY(recorder_on) &&
           UNLIKELY(__atomic_load_n(&waits_state->counts[waits_place((uint64_t)(uintptr_t)address)],
                                    __ATOMIC_RELAXED));
}

#pragma GCC visibility pop

#endif
