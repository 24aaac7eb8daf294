/* Where events go: per-thread blocks, mapped from the log's file, so that what is stored survives
 * the process.  Knows bytes, threads and fork; knows no libc call and no descriptor of the program.
 */
#ifndef PENSTOCK_LOG_H
#define PENSTOCK_LOG_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "events.h"

#pragma GCC visibility push(hidden)

#define EVENTS_PER_BLOCK ((LOG_UNIT_BYTES - sizeof(struct block)) / sizeof(struct event))
#define SCRATCH_BYTES 4096
#define SPANS_PER_THREAD 32 /* nested or overlapping */
#define NAMES_MAX 65536
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define INITIAL_EXEC __attribute__((tls_model("initial-exec")))

struct thread;

/* What a wrapper keeps on its stack between begin and end. */
struct call {
    struct thread *thread;
    struct block *block;
    struct event *event;
    uint64_t round;
    uint64_t start;
    uint32_t file;
    enum op op;
};

/* Lives in memory that a fork wipes, so a child finds no block and begins a log of its own. */
struct thread {
    struct block *block;  /* NULL: none yet, or another log began */
    struct block *parked; /* the parent's block while a vfork child borrows the thread */
    void *address;        /* where the latest block was mapped; the next one goes there too */
    uint64_t unit;        /* of the file that is mapped there */
    uint32_t number;
    uint32_t tid;
    uint32_t log; /* serial of the log that the block belongs to */
    uint16_t is_used;
    uint16_t is_borrowed; /* by a vfork child: its calls are not the parent's */
    struct thread *next;
    char *scratch;     /* for names, with signals blocked: a handler's stack may hold no page */
    struct text *text; /* the latest, as long as the block is of text_round */
    uint64_t text_round;
    struct call spans[SPANS_PER_THREAD]; /* begun by the application; start 0: free */
    struct call fork;                    /* the vfork under way */
};

/* All of the recorder's state that belongs to one process image; zero in a forked child. */
struct log {
    struct log_header *header;
    uint32_t serial; /* changes with every new log of this process */
    uint32_t lock;   /* of the fold and of starting; taken with signals blocked */
    uint64_t rounds;
    uint32_t patch_lock; /* of the slots' tables */
    uint32_t threads;
    struct counters *counters;
    uint64_t forks; /* grows before each fork: descriptors opened earlier may be shared */
    char path[4096];
    uint8_t has_name[NAMES_MAX / 8]; /* written to this log */
};

extern struct log *log_state; /* wiped by fork */
extern int recorder_on;       /* 1 while a window is open and nothing went wrong */
extern _Thread_local struct thread *log_self INITIAL_EXEC;
extern char log_folder[3072];

void *log_map_wiped(size_t bytes); /* private memory, zero in a forked child */
int log_setup(void);
int log_start(const char *folder, uint64_t budget_bytes, uint32_t origin);
void log_stop(uint32_t state);
void log_anchor(void); /* reads both clocks into the header */
void log_fail(int error, const char *what);
bool log_lost(void);  /* counts a call that our own failure leaves without an event; false */
bool log_ready(void); /* slow: a forked child makes its log here */
struct thread *log_thread(void);
void log_thread_end(void *thread);
struct text *log_text(enum text_kind kind, uint32_t id, uint32_t base, const char *name,
                      const char *resolved);
char *log_scratch(void); /* SCRATCH_BYTES of this thread, with signals blocked; NULL: no memory */
struct text *log_last_text(uint32_t id); /* this thread's latest, if it is of id and still here */
bool log_try_lock(uint32_t *lock);
void log_lock(uint32_t *lock);
void log_unlock(uint32_t *lock);
long log_write_unit(uint64_t unit, const void *data);
void *log_map_unit(uint64_t *unit, void *address);
void log_borrow(bool is_borrowed);
void signals_block(sigset_t *before);
void signals_restore(const sigset_t *before);

/* What every wrapper asks first.  No: no window is open, or the recording failed and the call is
 * only counted. */
static inline bool log_is_on(void)
{
    return LIKELY(recorder_on) || log_lost();
}

/* The owner adds to its own cursor: one instruction, so that a signal handler cannot take the slot.
 */
static inline uint32_t log_reserve(uint32_t *used)
{
#if defined(__x86_64__)
    uint32_t slot = 1;

    __asm__ volatile("xaddl %0, %1" : "+r"(slot), "+m"(*used) : : "cc", "memory");
    return slot;
#else
    return __atomic_fetch_add(used, 1, __ATOMIC_RELAXED);
#endif
}

bool log_begin_slowly(struct call *call);
struct event *log_event(const struct call *call); /* where it is now; NULL: gone */
void log_end_slowly(const struct call *call, uint64_t word, int64_t offset, uint64_t moved);

static inline uint64_t log_word(uint64_t ticks, enum op op, int error)
{
    return (ticks ? ticks : 1) << 16 | (uint64_t)op << 8 | (uint8_t)error;
}

static inline uint64_t log_clamp(uint64_t bytes)
{
    return bytes < EVENT_BYTES_MAX ? bytes : EVENT_BYTES_MAX;
}

/* Opens an event; false: not recording.  The clock is read last, so our own work is not the call's.
 */
__attribute__((always_inline)) static inline bool
log_begin(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t asked)
{
    struct thread *thread = log_self;
    struct block *block;
    struct event *event;
    uint32_t slot;

    if (UNLIKELY(!thread || !(block = __atomic_load_n(&thread->block, __ATOMIC_RELAXED))))
        goto slowly;
    slot = log_reserve(&block->used);
    if (UNLIKELY(slot >= block->limit))
        goto slowly;
    call->thread = thread;
    call->block = block;
    call->event = (struct event *)(block + 1) + slot;
    call->round = block->round;
    goto fill;

slowly:
    if (!log_begin_slowly(call))
        return false;
fill:
    event = call->event;
    event->asked_file = log_clamp(asked) << 16 | (file & 0xffff);
    event->moved_file = file >> 16;
    event->offset = offset;
    event->word = (uint64_t)op << 8;
    call->op = op;
    call->file = file;
    event->start = call->start = clock_ticks();
    return true;
}

#define LOG_SAME_OFFSET INT64_MIN

/* Completes the event.  Leaves errno alone. */
__attribute__((always_inline)) static inline void log_end_at(const struct call *call, int error,
                                                             int64_t offset, uint64_t moved)
{
    struct event *event = call->event;
    uint64_t word = log_word(clock_ticks() - call->start, call->op, error);

    if (UNLIKELY(call->thread->block != call->block || call->block->round != call->round)) {
        log_end_slowly(call, word, offset, log_clamp(moved));
        return;
    }
    event->moved_file = log_clamp(moved) << 16 | (event->moved_file & 0xffff);
    if (offset != LOG_SAME_OFFSET)
        event->offset = offset;
    __atomic_store_n(&event->word, word, __ATOMIC_RELEASE);
}

static inline void log_end(const struct call *call, int error, uint64_t moved)
{
    log_end_at(call, error, LOG_SAME_OFFSET, moved);
}

static inline uint32_t event_file(const struct event *event)
{
    return (uint32_t)(event->asked_file & 0xffff) | (uint32_t)(event->moved_file & 0xffff) << 16;
}

#pragma GCC visibility pop

#endif
