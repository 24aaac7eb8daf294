/* Blocking calls: which calls are recorded, and which thread ended a wait.  Knows threads and
 * addresses; knows no libc call.
 *
 * The event of a wait is written before the call, so a hang is in the log; the event of a short
 * wait is taken back.  A waiter enters the address of the semaphore, condition variable or futex in
 * a table; a thread waking by the address writes its number there. */
#ifndef PENSTOCK_WAITS_H
#define PENSTOCK_WAITS_H

#include "log.h"
#include "objects.h"

#pragma GCC visibility push(hidden)

#define WAITERS 4096 /* waiting threads at once; the waker of further waiters is not known */
#define WAIT_PLACES 4096

struct waiter {
    uint64_t address; /* 0: free */
    uint64_t mark;    /* turn << 32 | shared << 31 | number of the waking thread */
    uint64_t marked;  /* ticks; 0: not known */
    uint64_t unused;
};

/* Wiped by fork: a parent's waiter does not wait in the child. */
struct waits {
    uint16_t counts[WAIT_PLACES]; /* of waiters, by their address */
    struct waiter waiters[WAITERS];
};

extern struct waits *waits_state;
extern uint64_t waits_recorded_ticks; /* WAIT_RECORDED_NS */

/* The data of a wrapper on the stack.  The wait itself lies in struct thread: when a cancelled
 * thread unwinds the wrapper, the end of the thread still finds the wait. */
struct waiting {
    struct wait *wait; /* NULL: not recorded, as part of another wait */
    uint64_t serial;
};

int waits_start(void);

/* address 0: nothing wakes by address.  shown: the event's offset while in flight. */
void waits_begin(struct waiting *waiting, enum op op, uint64_t address, int64_t shown,
                 const void *caller);

/* Leaves errno alone.  error 0: success. */
void waits_end(struct waiting *waiting, int error);

/* Likewise for a wait for a descriptor: the file becomes the event's offset. */
void waits_end_fd(struct waiting *waiting, int error, int fd);

/* phase: the cause, if the descriptor is a connection and the caller knows the cause. */
void waits_end_net(struct waiting *waiting, int error, int fd, enum net_phase phase);

/* The call did not wait: no event. */
void waits_forget(struct waiting *waiting);

/* An ended call, after a wait for a connection. */
struct connection;
void waits_past(enum op op, struct connection *connection, uint64_t start, uint64_t ticks,
                int error, enum net_phase phase, const void *caller);

/* The thread's latest wait, in epoll, was for the bytes: the event gets the connection. */
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

/* Before a call waking at most n of the waiters on an address.  is_counted: the call adds a count
 * for waiters to take away, as a semaphore's call does. */
void waits_wake_slowly(uint64_t address, uint32_t n, bool is_counted);
void waits_move(uint64_t address); /* waiters there may now be woken at another address */

static inline uint32_t waits_place(uint64_t address)
{
    return (uint32_t)((address >> 2) * 0x9e3779b97f4a7c15u >> 52);
}

/* Whether a thread may wait there: a single load if nobody waits. */
__attribute__((always_inline)) static inline bool waits_at(const void *address)
{
    return LIKELY(recorder_on) &&
           UNLIKELY(__atomic_load_n(&waits_state->counts[waits_place((uint64_t)(uintptr_t)address)],
                                    __ATOMIC_RELAXED));
}

#pragma GCC visibility pop

#endif
