/* The destination of events.  Signals are blocked in everything here except inline functions: a
 * handler with I/O finds either the state before or the state after.  Only direct system calls, no
 * allocation by libc. */
#include "log.h"

#include <linux/falloc.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"
#include "counters.h"
#include "guard.h"
#include "log_parts.h"

#define POOL_BYTES 65536
#define CARRIED_MAX                                                                                \
    48 /* most nested calls in flight of a thread; older calls stay in their block */
#define KEYS_WITHOUT_ALLOCATION 32 /* glibc keeps values of the first keys inside the thread */

HOT struct log *log_state;
HOT int recorder_on;
HOT int recorder_paused;
_Thread_local struct thread *log_self INITIAL_EXEC;
_Thread_local uint32_t log_own_calls INITIAL_EXEC;
static _Thread_local uint64_t own_since INITIAL_EXEC;
void (*log_thread_ends)(struct thread *thread);

static pthread_key_t key;
static bool has_key;

/* --- small tools ---------------------------------------------------------------------------- */

/* Not SIGBUS: the kernel ends a program with SIGBUS blocked at a touch of a missing part of a file.
 * A thread with SIGBUS blocked can receive SIGBUS from the thread's first block on. */
#define BUS (1ull << (SIGBUS - 1))

void signals_block(sigset_t *before)
{
    uint64_t all = ~BUS;

    own_call(SYS_rt_sigprocmask, SIG_SETMASK, &all, before, 8);
}

void signals_restore(const sigset_t *before)
{
    uint64_t set;

    memcpy(&set, before, sizeof set);
    set &= ~BUS;
    own_call(SYS_rt_sigprocmask, SIG_SETMASK, &set, NULL, 8);
}

uint64_t log_own_begin(void)
{
    uint64_t now = clock_ticks();

    if (own_since && now - own_since < clock_ticks_per_s) /* else a handler jumped out of us */
        return 0;
    own_since = now;
    return now;
}

void log_own_end(uint64_t start)
{
    struct log_header *header = log_state ? log_state->header : NULL;

    if (!start)
        return;
    own_since = 0;
    if (!header)
        return;
    __atomic_fetch_add(&header->own_calls, log_own_calls, __ATOMIC_RELAXED);
    __atomic_fetch_add(&header->own_ticks, clock_ticks() - start, __ATOMIC_RELAXED);
    log_own_calls = 0;
}

/* A separate lock: fork wipes the memory, so a child never inherits a taken lock. */
bool log_try_lock(uint32_t *lock)
{
    return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE);
}

void log_lock(uint32_t *lock)
{
    while (!log_try_lock(lock))
        syscall(SYS_sched_yield);
}

void log_unlock(uint32_t *lock)
{
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

void log_anchor(void)
{
    struct log_header *header = log_state ? log_state->header : NULL;
    uint64_t ns, ticks;

    if (!header)
        return;
    /* Both clocks are read first, so that a kill hardly ever falls between the two stores: a reader
     * refuses a log with disagreeing clocks. */
    ns = clock_ns(CLOCK_MONOTONIC);
    ticks = clock_ticks();
    header->last_ns = ns;
    header->last_ticks = ticks;
}

/* --- threads and blocks ----------------------------------------------------------------------- */

static struct thread *free_threads; /* both wiped together with the pool: see take_thread */
static struct thread *pool;
static uint32_t pool_used;
static uint32_t pool_pid;

void log_make_key(void)
{
    has_key = !pthread_key_create(&key, log_thread_end);
    if (has_key && key >= KEYS_WITHOUT_ALLOCATION)
        has_key = false; /* a value for the key could allocate inside an allocator's own call */
}

static struct thread *take_thread(void)
{
    struct thread *thread;
    uint32_t pid = (uint32_t)own_call(SYS_getpid);

    log_lock(&log_state->lock);
    if (pool_pid != pid) { /* a forked child: the parent's threads are not here */
        pool_pid = pid;
        free_threads = NULL;
        pool = NULL;
    }
    thread = free_threads;
    if (thread) {
        free_threads = thread->next;
    } else {
        if (!pool || pool_used == POOL_BYTES / sizeof *pool) {
            pool = log_map_wiped(POOL_BYTES);
            pool_used = 0;
        }
        thread = pool ? &pool[pool_used++] : NULL;
    }
    log_unlock(&log_state->lock);
    return thread;
}

static bool is_in_child(void)
{
    return log_state->pid && log_state->pid != (uint32_t)own_call(SYS_getpid);
}

bool log_is_borrowed(void)
{
    return log_state && ((log_self && log_self->is_borrowed) || is_in_child());
}

void log_switch_on(void)
{
    static int windows;

    windows = windows < INT32_MAX ? windows + 1 : 1;
    __atomic_store_n(&recorder_on, windows, __ATOMIC_SEQ_CST);
}

/* Called with signals blocked.  Once a window the kernel is asked for the process: a vfork child
 * older than the window runs on its parent's thread, and no wrapper has noted the child. */
struct thread *log_thread(void)
{
    struct thread *thread = log_self;
    int now = recorder_on;

    if (thread && thread->is_used && thread->window == now)
        return thread;
    if (is_in_child())
        return NULL;
    if (!thread) {
        thread = take_thread();
        if (!thread) {
            log_fail(ENOMEM, "no memory for a thread's place");
            return NULL;
        }
        memset(thread, 0, sizeof *thread);
        log_self = thread;
    }
    if (!thread->is_used) {
        thread->is_used = 1;
        thread->tid = (uint32_t)own_call(SYS_gettid);
        thread->number = __atomic_add_fetch(&log_state->threads, 1, __ATOMIC_RELAXED);
        if (has_key)
            pthread_setspecific(key, thread);
    }
    if (thread->log != log_state->serial)
        thread->block = thread->parked = NULL; /* of an earlier log */
    thread->window = now;
    return thread;
}

static void begin_round(struct thread *thread, struct block *block)
{
    block->magic = BLOCK_MAGIC;
    block->kind = BLOCK_EVENTS;
    block->thread = thread->number;
    block->tid = thread->tid;
    block->first = clock_ticks();
    own_call(SYS_prctl, 16 /* PR_GET_NAME */, block->name, 0, 0, 0);
    __atomic_store_n(&block->round, __atomic_add_fetch(&log_state->rounds, 1, __ATOMIC_RELAXED),
                     __ATOMIC_RELEASE);
}

static bool acquire_block(struct thread *thread)
{
    uint32_t serial = __atomic_load_n(&log_state->serial, __ATOMIC_ACQUIRE);
    struct block *block = log_map_unit(&thread->unit, thread->address);

    if (!block)
        return false;
    thread->address = block;
    thread->log = serial;
    block->used = 0;
    block->texts = LOG_UNIT_BYTES;
    block->limit = EVENTS_PER_BLOCK;
    begin_round(thread, block);
    __atomic_store_n(&thread->block, block, __ATOMIC_RELEASE);
    return true;
}

/* A call in flight on the way from a full block to the next block. */
struct carried {
    struct event event;
    uint64_t start, asked, moved;
};

/* Calls in flight must not leave with a full block: the end of the call would not find the event.
 * The events stay in the full block, too: the reader takes the later copy. */
static uint32_t copy_carried(const struct block *block, struct carried *carried)
{
    const struct event *events = log_events(block);
    uint32_t n = 0;
    uint32_t i;

    for (i = block->used; i-- > 0 && n < CARRIED_MAX;) {
        const struct event_rest *rest;

        if (event_ticks(&events[i]) || !event_op(&events[i]) || event_op(&events[i]) == OP_REST)
            continue;
        rest = event_rest(block, &events[i]);
        carried[n].event = events[i];
        carried[n].start = event_start(block, &events[i]);
        carried[n].asked = rest ? rest->asked : events[i].asked;
        carried[n].moved = rest ? rest->moved : events[i].moved;
        n++;
    }
    return n;
}

static void put_wide(struct event *event, const struct carried *call)
{
    struct event_rest *rest = (struct event_rest *)(event + 1);

    *rest = (struct event_rest){OP_REST << 16, call->start, call->asked, call->moved};
    event->done = call->event.done;
    event->offset = call->event.offset;
    event->asked = event->moved = 0;
    __atomic_store_n(&event->begun, call->event.begun & 0xffffff, __ATOMIC_RELEASE);
}

/* Put the carried calls, oldest first; return the number of slots. */
static uint32_t put_carried(struct event *place, const struct carried *carried, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        put_wide(place + 2 * i, &carried[n - 1 - i]);
    return 2 * n;
}

/* A reader of a killed process' log relies on the order of the stores: first the block is empty,
 * then has another round, then holds the carried events.  A slot not yet written in the round must
 * hold no event or text of an earlier round. */
static void next_round(struct thread *thread, struct block *block, const struct carried *carried,
                       uint32_t n)
{
    __atomic_store_n(&block->used, 0, __ATOMIC_RELEASE);
    memset(block + 1, 0, LOG_UNIT_BYTES - sizeof *block);
    block->texts = LOG_UNIT_BYTES;
    block->limit = EVENTS_PER_BLOCK;
    begin_round(thread, block);
    block->carried = put_carried(log_events(block), carried, n);
    __atomic_store_n(&block->used, block->carried, __ATOMIC_RELEASE);
}

static bool write_block(struct thread *thread, struct block *block, const struct carried *carried,
                        uint32_t n)
{
    long error = log_write_closed(log_next_unit(), block);

    if (error) {
        log_fail((int)-error, "the log cannot grow");
        return false;
    }
    __atomic_add_fetch(&log_state->header->chunk_bytes, LOG_UNIT_BYTES, __ATOMIC_RELAXED);
    next_round(thread, block, carried, n);
    return true;
}

/* Move the ended events left by the fold to the front: the application's spans, all with a rest.
 * Return the number of slots. */
static uint32_t gather_spans(struct block *block)
{
    struct event *events = log_events(block);
    uint32_t n = 0;
    uint32_t i;

    for (i = 0; i < block->used; i++) {
        struct event event = events[i];
        const struct event_rest *rest = event_rest(block, &events[i]);
        struct carried span;

        if (!event_op(&event) || event_op(&event) == OP_REST || !event_ticks(&event) || !rest)
            continue;
        span = (struct carried){event, rest->start, rest->asked, rest->moved};
        events[i].begun = 0;
        put_wide(&events[n], &span);
        n += 2;
    }
    return n;
}

/* Past the budget: single events become counts; texts, the application's spans and calls in flight
 * stay. */
static bool fold_block(struct thread *thread, struct block *block, const struct carried *carried,
                       uint32_t n_carried)
{
    struct event *events = log_events(block);
    uint32_t n;

    if (!counters_fold(block))
        return false;
    if (n_carried == CARRIED_MAX)
        return write_block(thread, block, carried, n_carried); /* there may be more spans */
    n = gather_spans(block);
    memset(&events[n], 0, (block->used - n) * sizeof *events);
    if (n + 2 * n_carried > EVENTS_PER_BLOCK / 2 || block->texts < LOG_UNIT_BYTES / 2) {
        block->used = n;
        return write_block(thread, block, carried, n_carried);
    }
    n += put_carried(&events[n], carried, n_carried);
    block->carried = n;
    __atomic_store_n(&block->used, n, __ATOMIC_RELEASE);
    begin_round(thread, block);
    return true;
}

static bool empty_block(struct thread *thread, struct block *block)
{
    struct carried carried[CARRIED_MAX];
    uint32_t n;

    log_anchor();
    if (block->used > block->limit)
        block->used = block->limit;
    n = copy_carried(block, carried);
    if (log_state->header->chunk_bytes + LOG_UNIT_BYTES > log_budget)
        return fold_block(thread, block, carried, n);
    return write_block(thread, block, carried, n);
}

static bool make_room(struct thread *thread, uint32_t text_bytes)
{
    struct block *block;

    if (!recorder_on || !log_ready())
        return false;
    block = thread->block;
    if (!block || thread->log != log_state->serial) {
        if (!acquire_block(thread))
            return false;
        block = thread->block;
    }
    if (block->used + 2 > block->limit ||
        sizeof *block + (block->used + 2) * sizeof(struct event) + text_bytes > block->texts)
        return empty_block(thread, block);
    return true;
}

/* Take two slots, in a single instruction while there is room; NULL: not recording. */
static struct event *take_two_slots(struct call *call)
{
    struct thread *thread = log_self;
    struct block *block = thread ? thread->block : NULL;
    struct event *event = NULL;
    sigset_t signals;
    uint64_t own;
    uint32_t slot;

    if (block && thread->window == recorder_on) {
        slot = log_reserve(&block->used, 2);
        if (slot + 2 <= block->limit)
            event = log_events(block) + slot;
    }
    if (!event) {
        own = log_own_begin();
        signals_block(&signals);
        thread = log_thread();
        if (thread && !thread->is_borrowed && make_room(thread, 0)) {
            block = thread->block;
            event = log_events(block) + log_reserve(&block->used, 2);
        }
        signals_restore(&signals);
        log_own_end(own);
    }
    if (event) {
        call->thread = thread;
        call->block = block;
        call->event = event;
        call->round = block->round;
    }
    return event;
}

/* Begin an event with a rest: start, asked and moved may have any value.  Also the way out of a
 * full block, and into the first block. */
bool log_begin_wide(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t asked)
{
    int error = errno;
    struct event *event = recorder_on ? take_two_slots(call) : NULL;
    struct event_rest *rest = (struct event_rest *)event + 1;

    errno = error;
    if (!event)
        return log_lost();
    event->done = log_done(0, 0, file);
    event->offset = offset;
    event->asked = event->moved = 0;
    rest->mark = OP_REST << 16;
    rest->asked = log_bounded(asked);
    rest->moved = 0;
    call->file = file;
    call->op = op;
    call->is_wide = true;
    call->start = clock_ticks();
    if (call->start - call->thread->looked > log_look_ticks)
        call->start = log_look(call->thread);
    rest->start = call->start;
    __atomic_store_n(&event->begun, log_begun(0, op, file), __ATOMIC_RELEASE);
    return true;
}

void log_began_earlier(struct call *call, uint64_t start)
{
    struct event *event = log_event(call);
    struct event_rest *rest = event ? event_rest(call->block, event) : NULL;

    if (!event || start < call->block->first)
        return; /* an event never begins before the block */
    call->start = start;
    if (rest)
        rest->start = start;
    else
        event->begun = log_begun(start - call->block->first, call->op, call->file);
}

/* Two stores, as the id stands in two halves: right before the call or the end, so a process hardly
 * dies between the stores. */
void log_turned_to(struct call *call, uint32_t file)
{
    struct event *event = file ? log_event(call) : NULL;

    if (!event)
        return;
    call->file = file;
    event->done = log_done(0, 0, file);
    event->begun = (event->begun & ~0xffffull) | (file & 0xffff);
}

/* The block may have been emptied, or another log begun, while the call was under way. */
struct event *log_event(const struct call *call)
{
    struct thread *thread = log_self;
    struct block *block = thread == call->thread ? thread->block : NULL;
    struct event *events = log_events(block);
    uint32_t i;

    if (!block || thread->log != log_state->serial)
        return NULL;
    if (block == call->block && block->round == call->round)
        return call->event;
    for (i = 0; i + 1 < block->carried; i += 2)
        if (event_start(block, &events[i]) == call->start && event_op(&events[i]) == call->op &&
            !event_ticks(&events[i]))
            return &events[i];
    return NULL;
}

/* An event without a rest turns out to need a rest: the event is taken back and written again. */
static struct event *widen(struct event *event, const struct call *call)
{
    struct carried old = {*event, call->start, event->asked, 0};
    struct call anew;
    struct event *wide;

    event->begun = 0;
    wide = take_two_slots(&anew);
    if (wide)
        put_wide(wide, &old);
    else
        log_lost();
    return wide;
}

void log_end_slowly(const struct call *call, uint64_t ticks, int error, int64_t offset,
                    uint64_t moved)
{
    uint64_t is_long = ticks >> EVENT_LONG_BIT != 0, length = ticks;
    /* As in log_end_at: if the window ended meanwhile, the block still has the event. */
    bool is_there = !call->is_wide && !is_long && !(moved >> 32) &&
                    call->thread->block == call->block && call->block->round == call->round;
    struct event *event = is_there ? call->event : log_event(call);
    struct event_rest *rest;
    int kept = errno;

    if (!event)
        return;
    rest = is_there ? NULL : event_rest(log_self->block, event);
    if (!rest && moved >> 32) {
        event = widen(event, call);
        rest = (struct event_rest *)event + 1;
        errno = kept;
    }
    if (!event)
        return;
    if (ticks >> 63)
        ticks = 0; /* two processors' counters a little apart */
    else if (is_long)
        ticks = ticks >> EVENT_LONG_SHIFT | is_long << EVENT_LONG_BIT;
    if (rest)
        rest->moved = log_bounded(moved);
    else
        event->moved = (uint32_t)moved;
    if (offset != LOG_SAME_OFFSET)
        event->offset = offset;
    __atomic_store_n(&event->done, log_done(ticks ? ticks : 1, error, call->file),
                     __ATOMIC_RELEASE);
    if (length >= log_look_ticks && call->op < OP_FORK && call->thread->log == log_state->serial)
        account_call(call, length);
}

/* --- waits ------------------------------------------------------------------------------------ */

/* Most waits are short, and their events are taken back: the next wait uses the slot again, so
 * short waits do not fill the log.  A signal handler with a wait in between may have used the
 * slot. */
bool log_open_wait(struct call *call, enum op op, uint32_t file, int64_t offset)
{
    struct thread *thread = log_self;
    struct block *block = thread->block;
    struct event *event = thread->spare;
    uint64_t since_first;

    if (!event || thread->spare_round != block->round)
        return log_begin(call, op, file, offset, 0);
    thread->spare = NULL;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (event->begun)
        return log_begin(call, op, file, offset, 0);
    event->done = log_done(0, 0, file);
    event->offset = offset;
    event->asked = event->moved = 0;
    *call = (struct call){thread, block, event, block->round, clock_ticks(), file, op, false};
    since_first = call->start - block->first;
    if (since_first >> EVENT_TIME_BITS)
        return log_begin(call, op, file, offset, 0);
    __atomic_store_n(&event->begun, log_begun(since_first, op, file), __ATOMIC_RELEASE);
    return true;
}

/* A full block in the file shows the event in flight, so the carried event must end. */
bool log_take_back(const struct call *call)
{
    struct thread *thread = log_self;
    struct block *block = thread == call->thread ? thread->block : NULL;

    if (!block || thread->log != log_state->serial)
        return true;
    if (block != call->block || block->round != call->round)
        return !log_event(call);
    __atomic_store_n(&call->event->begun, 0, __ATOMIC_RELEASE);
    if (!call->is_wide) {
        thread->spare_round = block->round;
        thread->spare = call->event;
    }
    return true;
}

/* Record an ended call without an event. */
bool log_past(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t start,
              uint64_t ticks, int error, uint64_t asked, uint64_t moved)
{
    if (!log_begin_wide(call, op, file, offset, asked))
        return false;
    call->start = start;
    ((struct event_rest *)(call->event + 1))->start = start;
    log_end_slowly(call, ticks, error, LOG_SAME_OFFSET, moved);
    return true;
}

void log_asked(const struct call *call, uint64_t asked)
{
    struct event *event = log_event(call);
    struct event_rest *rest = event ? event_rest(call->thread->block, event) : NULL;

    if (rest)
        rest->asked = asked;
    else if (event)
        event->asked = (uint32_t)asked;
}

struct thread *log_known(void)
{
    int error = errno;
    struct thread *thread = log_self;
    sigset_t signals;

    if (UNLIKELY(!thread || !thread->is_used)) {
        signals_block(&signals);
        thread = log_thread();
        signals_restore(&signals);
        errno = error;
    }
    return thread;
}

/* A vfork child runs on the parent's thread: the child's calls are neither the parent's nor worth a
 * log. */
void log_borrow(bool is_borrowed)
{
    sigset_t signals;
    int error = errno;
    struct thread *thread;

    signals_block(&signals);
    thread = log_thread();
    if (thread && is_borrowed != thread->is_borrowed) {
        thread->is_borrowed = is_borrowed;
        if (is_borrowed) {
            thread->parked = thread->block;
            thread->block = NULL;
        } else {
            thread->block = thread->parked;
        }
    }
    signals_restore(&signals);
    errno = error;
}

static void punch(uint64_t first, uint64_t end)
{
    long fd;

    first = (first + 4095) & ~4095ull;
    end &= ~4095ull;
    if (first >= end)
        return;
    fd = log_open_file();
    if (fd < 0)
        return;
    own_call(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, end - first);
    own_call(SYS_close, fd);
}

/* The block is not written any more: the head gets a checksum in the place of the limit. */
static void close_block(struct block *block)
{
    struct block head = log_closed_head(block);

    /* A reader ignores an impossible limit, like a sum. */
    block->used = head.used;
    __atomic_store_n(&block->limit, head.limit, __ATOMIC_RELEASE);
    __atomic_store_n(&block->kind, head.kind, __ATOMIC_RELEASE);
}

/* The process ends, and with the process the calling thread.  A later call begins another block. */
void log_close_own(void)
{
    struct thread *thread = log_self;
    int error = errno;
    sigset_t signals;

    signals_block(&signals);
    if (thread && thread->is_used && !thread->is_borrowed && thread->block &&
        thread->log == log_state->serial) {
        struct block *block = thread->block;

        __atomic_store_n(&thread->block, NULL, __ATOMIC_RELEASE);
        thread->spare = NULL;
        close_block(block);
    }
    signals_restore(&signals);
    errno = error;
}

/* A thread ends: the block stays in the file, the unused middle goes back to the disk. */
void log_thread_end(void *argument)
{
    struct thread *thread = argument;
    uint64_t own = log_own_begin();
    sigset_t signals;
    int error = errno;

    signals_block(&signals);
    if (log_self == thread && thread->is_used) {
        struct block *block;

        if (log_thread_ends)
            log_thread_ends(thread);
        block = thread->block;
        log_self = NULL;
        thread->block = NULL;
        thread->is_used = 0;
        if (block && thread->log == log_state->serial) {
            uint64_t start = log_unit_offset(thread->unit);

            close_block(block);
            punch(start + sizeof *block + block->used * sizeof(struct event), start + block->texts);
        }
        if (thread->address) {
            guard_remove(thread->address);
            own_call(SYS_munmap, thread->address, LOG_UNIT_BYTES);
        }
        if (thread->scratch)
            own_call(SYS_munmap, thread->scratch, SCRATCH_BYTES);
        thread->address = NULL;
        thread->scratch = NULL;
        log_lock(&log_state->lock);
        thread->next = free_threads;
        free_threads = thread;
        log_unlock(&log_state->lock);
    }
    signals_restore(&signals);
    log_own_end(own);
    errno = error;
}

char *log_scratch(void)
{
    struct thread *thread = log_thread();
    void *memory;

    if (!thread || thread->scratch)
        return thread ? thread->scratch : NULL;
    memory = (void *)own_call(SYS_mmap, NULL, SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (memory == MAP_FAILED)
        return NULL;
    own_call(SYS_madvise, memory, SCRATCH_BYTES, MADV_DONTFORK);
    thread->scratch = memory;
    return memory;
}

/* --- texts ------------------------------------------------------------------------------------ */

struct text *log_text(enum text_kind kind, uint32_t id, uint32_t base, const char *name,
                      const char *resolved)
{
    return log_text_with(kind, id, base, name, resolved, NULL, 0);
}

/* Store the meaning of an id in the calling thread's block; NULL when not recording. */
struct text *log_text_with(enum text_kind kind, uint32_t id, uint32_t base, const char *name,
                           const char *resolved, const void *more, uint32_t more_bytes)
{
    size_t name_bytes = strnlen(name, 4096) + 1;
    size_t resolved_bytes = strnlen(resolved, 4096) + 1;
    uint32_t bytes =
        (uint32_t)((sizeof(struct text) + name_bytes + resolved_bytes + 7) & ~7ull) + more_bytes;
    uint64_t own = log_own_begin();
    struct text *text = NULL;
    int error = errno;
    struct thread *thread;
    sigset_t signals;

    signals_block(&signals);
    thread = log_thread();
    if (thread && !thread->is_borrowed && make_room(thread, bytes)) {
        struct block *block = thread->block;
        char *names;

        text = (struct text *)((char *)block + block->texts - bytes);
        block->limit = (uint32_t)((block->texts - bytes - sizeof *block) / sizeof(struct event));
        *text = (struct text){bytes, kind, id, base, 0, 0, 0, 0, -1};
        names = (char *)(text + 1);
        memcpy(names, name, name_bytes - 1);
        names[name_bytes - 1] = 0;
        memcpy(names + name_bytes, resolved, resolved_bytes - 1);
        memset(names + name_bytes + resolved_bytes - 1, 0,
               bytes - sizeof *text - name_bytes - resolved_bytes + 1);
        if (more_bytes)
            memcpy((char *)text + bytes - more_bytes, more, more_bytes);
        __atomic_store_n(&block->texts, block->texts - bytes, __ATOMIC_RELEASE);
        thread->text = text;
        thread->text_round = block->round;
    }
    signals_restore(&signals);
    log_own_end(own);
    errno = error;
    return text;
}

struct text *log_last_text(uint32_t id)
{
    struct thread *thread = log_self;
    struct block *block = thread ? thread->block : NULL;

    if (!block || !thread->text || block->round != thread->text_round || thread->text->id != id ||
        thread->text->kind != TEXT_FILE)
        return NULL;
    return thread->text;
}
