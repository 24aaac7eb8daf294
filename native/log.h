/* The destination of events: per-thread blocks, mapped from the log's file, so that stored events
 * survive the process.  Knows bytes, threads and fork; knows no libc call and no descriptor of the
 * program. */
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
struct waiter;

/* The data of a wrapper on the stack between begin and end. */
struct call {
    struct thread *thread;
    struct block *block;
    struct event *event;
    uint64_t round;
    uint64_t start;
    uint32_t file;
    enum op op;
    bool is_wide; /* the event has a rest */
};

/* The present wait of a thread; see waits.h. */
struct wait {
    uint64_t serial; /* 0: in nothing */
    uint64_t start, address;
    int64_t shown; /* the event's offset while in flight */
    const void *caller, *frame;
    struct waiter *waiter; /* NULL: the waiter is not published */
    struct call call;      /* the place of the event, if already written */
    uint32_t turn;
    uint8_t op;
    bool is_open;
};

/* Lives in memory wiped by a fork, so a child finds no block and begins a separate log. */
struct thread {
    struct block *block; /* NULL: none yet, or another log began */
    uint64_t looked;     /* ticks when the next two were read: see account.h */
    uint64_t looked_cpu_ns, looked_delay_ns;
    struct block *parked; /* the parent's block while a vfork child borrows the thread */
    void *address;        /* where the latest block was mapped; the next block goes there too */
    uint64_t unit;        /* of the file, mapped at `address` */
    uint32_t number;
    uint32_t tid;
    uint32_t log; /* serial of the block's log */
    uint16_t is_used;
    uint16_t is_borrowed; /* by a vfork child: the child's calls are not the parent's */
    int window;           /* recorder_on at the last check of the thread's process */
    struct thread *next;
    char *scratch;     /* for names, with signals blocked: a handler's stack may hold no page */
    struct text *text; /* the latest, as long as the block is of text_round */
    uint64_t text_round;
    struct call spans[SPANS_PER_THREAD]; /* begun by the application; start 0: free */
    struct call fork;                    /* the vfork under way */
    int64_t cpu_ns;                      /* of its clock, and ready without a CPU, when the step */
    int64_t delay_ns;                    /* before ended; -1: not measured */
    struct wait wait;
    uint64_t waits;      /* how many there were */
    int64_t received;    /* bytes by recv, less bytes sent, since the last wait for a descriptor */
    struct event *spare; /* a slot of round spare_round taken back: for the next wait */
    uint64_t spare_round;
    bool is_polled; /* the latest wait was in epoll; the next bytes show the cause */
    uint64_t polled_ticks;
    struct call polled;
};

/* The recorder's whole state of a process image; zero in a forked child. */
struct log {
    struct log_header *header;
    uint32_t pid;    /* of the process that made the header; 0: none yet */
    uint32_t serial; /* changes with every new log of this process */
    uint32_t lock;   /* of the fold and of starting; taken with signals blocked */
    uint64_t rounds;
    uint32_t patch_lock; /* of the slots' tables */
    uint32_t threads;
    struct counters *counters;
    uint32_t cpu_told; /* serial of the log with the CPU time of the start */
    uint64_t forks;    /* grows before each fork: descriptors opened earlier may be shared */
    char path[4096];
    uint8_t has_name[NAMES_MAX / 8]; /* written to this log */
};

extern struct log *log_state; /* wiped by fork */
/* the window's number while a window is open and nothing went wrong */
extern int recorder_on;
extern int recorder_paused; /* 1 while a window is open and, as asked, nothing is recorded */
extern _Thread_local struct thread *log_self INITIAL_EXEC;
extern char log_folder[3072];
extern void (*log_thread_ends)(struct thread *thread); /* called by a thread that is about to end */

/* Whether new programs and libraries are followed: also in a pause, as they would be missing after
 * the pause. */
static inline bool recorder_is_in(void)
{
    return recorder_on || recorder_paused;
}

void log_machine(char host[64], uint8_t boot_id[16]); /* both zeros before */
void *log_map_wiped(size_t bytes);                    /* private memory, zero in a forked child */
int log_setup(void);
int log_start(const char *folder, uint64_t budget_bytes, uint32_t origin);
void log_stop(uint32_t state);
void log_close_own(void); /* at the end of the process */
void log_anchor(void);    /* reads both clocks into the header */
void log_fail(int error, const char *what);
bool log_lost(void);  /* counts a call that lacks an event by our own failure; false */
bool log_ready(void); /* slow: a forked child makes its log here */
struct thread *log_thread(void);
void log_thread_end(void *thread);
struct text *log_text(enum text_kind kind, uint32_t id, uint32_t base, const char *name,
                      const char *resolved);
/* The same with bytes behind the names, a multiple of 8. */
struct text *log_text_with(enum text_kind kind, uint32_t id, uint32_t base, const char *name,
                           const char *resolved, const void *more, uint32_t more_bytes);
char *log_scratch(void); /* SCRATCH_BYTES of this thread, with signals blocked; NULL: no memory */
struct text *log_last_text(uint32_t id); /* the thread's latest, if of id and still here */
bool log_try_lock(uint32_t *lock);
void log_lock(uint32_t *lock);
void log_unlock(uint32_t *lock);
long log_write_closed(uint64_t unit, const struct block *block);
void *log_map_unit(uint64_t *unit, void *address);
void log_borrow(bool is_borrowed);

/* Whether the caller is a child, between vfork and exec, that runs on the memory and the thread of
 * the log's process.  Asks the kernel: a child older than the window passed no wrapper. */
bool log_is_borrowed(void);
void log_switch_on(void); /* recorder_on gets a number that no earlier window had */
void signals_block(sigset_t *before);
void signals_restore(const sigset_t *before);

/* The recorder's own system calls: own_call() counts a call, and the time between log_own_begin()
 * and log_own_end() is added to the log's header, an inner pair as part of the outer pair. */
extern _Thread_local uint32_t log_own_calls INITIAL_EXEC;
#define own_call(...) (log_own_calls++, syscall(__VA_ARGS__))
uint64_t log_own_begin(void);
void log_own_end(uint64_t start);

/* The first check of every wrapper.  No: no window is open, or the recording failed and the call is
 * only counted. */
static inline bool log_is_on(void)
{
    return LIKELY(recorder_on) || log_lost();
}

/* The owner adds to its own cursor: in a single instruction, so that a signal handler cannot take
 * the slots. */
static inline uint32_t log_reserve(uint32_t *used, uint32_t n)
{
#if defined(__x86_64__)
    __asm__ volatile("xaddl %0, %1" : "+r"(n), "+m"(*used) : : "cc", "memory");
    return n;
#else
    return __atomic_fetch_add(used, n, __ATOMIC_RELAXED);
#endif
}

extern uint64_t log_look_ticks;           /* maximum age of a thread's look when a call begins */
uint64_t log_look(struct thread *thread); /* the thread's CPU time and run-queue delay; the clock */

bool log_begin_wide(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t asked);
struct event *log_event(const struct call *call);          /* the present place; NULL: gone */
void log_began_earlier(struct call *call, uint64_t start); /* if the event can hold the time */
void log_turned_to(struct call *call, uint32_t file);      /* the file is known only now */
bool log_open_wait(struct call *call, enum op op, uint32_t file, int64_t offset);
bool log_take_back(const struct call *call); /* false: the event is in a block already written */
/* call: the place of the event, as long as the event is in the block; false: the event is gone. */
bool log_past(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t start,
              uint64_t ticks, int error, uint64_t asked, uint64_t moved);
void log_asked(const struct call *call, uint64_t asked); /* known only now */
struct thread *log_known(void); /* the calling thread, with or without a block; NULL: no memory */
void log_end_slowly(const struct call *call, uint64_t ticks, int error, int64_t offset,
                    uint64_t moved);

static inline struct event *log_events(const struct block *block)
{
    return (struct event *)(block + 1);
}

static inline uint64_t log_begun(uint64_t since_first, enum op op, uint32_t file)
{
    return since_first << 24 | (uint64_t)op << 16 | (file & 0xffff);
}

static inline uint64_t log_done(uint64_t ticks, int error, uint32_t file)
{
    return ticks << 24 | (uint64_t)(uint8_t)error << 16 | file >> 16;
}

static inline uint64_t log_bounded(uint64_t bytes)
{
    return bytes < INT64_MAX ? bytes : INT64_MAX;
}

/* Addresses and a span's two numbers are large as a rule. */
static inline bool log_is_wide(enum op op, uint64_t asked)
{
    return op >= OP_FIRST_APP || op == OP_MMAP || op == OP_MUNMAP || op == OP_MSYNC || asked >> 32;
}

/* Opens an event; false: not recording.  The clock is read last, so our own work is not the call's.
 */
__attribute__((always_inline)) static inline bool
log_begin(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t asked)
{
    struct thread *thread = log_self;
    struct block *block;
    struct event *event;
    uint64_t since_first;
    uint32_t slot;

    if (UNLIKELY(!thread || thread->window != recorder_on ||
                 !(block = __atomic_load_n(&thread->block, __ATOMIC_RELAXED)) ||
                 log_is_wide(op, asked)))
        goto wide;
    slot = log_reserve(&block->used, 1);
    if (UNLIKELY(slot >= block->limit))
        goto wide;
    event = log_events(block) + slot;
    event->done = log_done(0, 0, file);
    event->offset = offset;
    event->asked = (uint32_t)asked;
    event->moved = 0;
    call->thread = thread;
    call->block = block;
    call->event = event;
    call->round = block->round;
    call->file = file;
    call->op = op;
    call->is_wide = false;
    call->start = clock_ticks();
    if (UNLIKELY(call->start - thread->looked > log_look_ticks))
        call->start = log_look(thread);
    since_first = call->start - block->first;
    if (UNLIKELY(since_first >> EVENT_TIME_BITS))
        goto wide;
    __atomic_store_n(&event->begun, log_begun(since_first, op, file), __ATOMIC_RELEASE);
    return true;

wide:
    return log_begin_wide(call, op, file, offset, asked);
}

#define LOG_SAME_OFFSET INT64_MIN

/* Completes the event.  Leaves errno alone. */
__attribute__((always_inline)) static inline void log_end_at(const struct call *call, int error,
                                                             int64_t offset, uint64_t moved)
{
    struct event *event = call->event;
    uint64_t ticks = clock_ticks() - call->start;

    if (UNLIKELY(call->thread->block != call->block || call->block->round != call->round ||
                 call->is_wide || ticks >= log_look_ticks || moved >> 32)) {
        log_end_slowly(call, ticks, error, offset, moved);
        return;
    }
    event->moved = (uint32_t)moved;
    if (offset != LOG_SAME_OFFSET)
        event->offset = offset;
    __atomic_store_n(&event->done, log_done(ticks ? ticks : 1, error, call->file),
                     __ATOMIC_RELEASE);
}

__attribute__((always_inline)) static inline void log_end(const struct call *call, int error,
                                                          uint64_t moved)
{
    log_end_at(call, error, LOG_SAME_OFFSET, moved);
}

static inline enum op event_op(const struct event *event)
{
    return event->begun >> 16 & 0xff;
}

static inline uint32_t event_file(const struct event *event)
{
    return (uint32_t)(event->begun & 0xffff) | (uint32_t)(event->done & 0xffff) << 16;
}

/* 0: in flight. */
static inline uint64_t event_ticks(const struct event *event)
{
    uint64_t ticks = event->done >> 24;
    uint64_t is_long = ticks >> EVENT_LONG_BIT;

    return is_long ? (ticks ^ is_long << EVENT_LONG_BIT) << EVENT_LONG_SHIFT : ticks;
}

/* Return the rest of the event in a slot; NULL: no rest. */
static inline struct event_rest *event_rest(const struct block *block, const struct event *event)
{
    const struct event *next = event + 1;

    return next < log_events(block) + block->limit && event_op(next) == OP_REST
               ? (struct event_rest *)next
               : NULL;
}

static inline uint64_t event_start(const struct block *block, const struct event *event)
{
    const struct event_rest *rest = event_rest(block, event);

    return rest ? rest->start : block->first + (event->begun >> 24);
}

#pragma GCC visibility pop

#endif
