#include "waits.h"

#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "connections.h"
#include "files.h"

#define TRIES 64 /* places beside the own place where a waiter is searched */
#define TAKEN 1  /* the address of a waiter being filled */
#define SHARED 0x80000000u
#define SEVERAL 0x7fffffffu /* several threads may have ended the wait */

/* A second thread with a signal within 1 ms of the first did not wake the waiter: the waiter is
 * already being woken.  After 1 ms the waker is not known. */
#define SAME_WAKE_PER_S 1000

HOT struct waits *waits_state;
HOT uint64_t waits_recorded_ticks;
HOT static uint64_t same_wake_ticks;

/* --- wakers ----------------------------------------------------------------------------------- */

static void publish(struct wait *wait)
{
    uint32_t place = waits_place(wait->address), i;

    for (i = 0; i < TRIES; i++) {
        struct waiter *waiter = &waits_state->waiters[(place + i) % WAITERS];
        uint64_t none = 0;

        if (__atomic_load_n(&waiter->address, __ATOMIC_RELAXED) ||
            !__atomic_compare_exchange_n(&waiter->address, &none, TAKEN, false, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        wait->turn = (uint32_t)(waiter->mark >> 32) + 1;
        __atomic_store_n(&waiter->marked, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&waiter->mark, (uint64_t)wait->turn << 32, __ATOMIC_RELAXED);
        __atomic_store_n(&waiter->address, wait->address, __ATOMIC_RELEASE);
        __atomic_fetch_add(&waits_state->counts[place], 1, __ATOMIC_SEQ_CST);
        wait->waiter = waiter;
        return;
    }
}

/* Return the waking thread, 0 not known. */
static uint32_t unpublish(struct wait *wait)
{
    uint64_t mark = __atomic_load_n(&wait->waiter->mark, __ATOMIC_ACQUIRE);
    uint32_t waker = (uint32_t)mark & ~SHARED;

    __atomic_store_n(&wait->waiter->address, 0, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&waits_state->counts[waits_place(wait->address)], 1, __ATOMIC_RELAXED);
    wait->waiter = NULL;
    return waker == SEVERAL ? 0 : waker;
}

struct found {
    struct waiter *waiter;
    uint64_t mark;
};

/* Find the waiters on an address, each with a mark. */
static uint32_t find_waiters(uint64_t address, struct found *found)
{
    uint32_t place = waits_place(address), n = 0, others, i;

    others = __atomic_load_n(&waits_state->counts[place], __ATOMIC_ACQUIRE);
    for (i = 0; i < TRIES && others; i++) {
        struct waiter *waiter = &waits_state->waiters[(place + i) % WAITERS];
        uint64_t here = __atomic_load_n(&waiter->address, __ATOMIC_ACQUIRE);

        if (here != address) {
            others -= here > TAKEN && waits_place(here) == place;
            continue;
        }
        found[n] = (struct found){waiter, __atomic_load_n(&waiter->mark, __ATOMIC_ACQUIRE)};
        if (__atomic_load_n(&waiter->address, __ATOMIC_ACQUIRE) == address)
            n++;
        others--;
    }
    return n;
}

/* is_alone: nobody else waits there. */
static uint32_t marked_by(uint32_t number, uint32_t before, uint64_t age, bool is_alone,
                          bool is_shared, bool is_counted)
{
    uint32_t marker = before & ~SHARED;

    if (!marker)
        return number | (is_shared ? SHARED : 0);
    if (marker == SEVERAL)
        return SEVERAL;
    if (marker == number)
        return before | (is_shared ? SHARED : 0);
    if (!is_counted && is_alone && !(before & SHARED) && age < same_wake_ticks)
        return before;
    return SEVERAL;
}

static void mark(const struct found *found, uint32_t number, bool is_alone, bool is_shared,
                 bool is_counted)
{
    struct waiter *waiter = found->waiter;
    uint64_t before = found->mark, now = clock_ticks(), after;
    uint64_t age = now - __atomic_load_n(&waiter->marked, __ATOMIC_RELAXED);
    int tries = 4;

    do {
        after = (before & ~0xffffffffull) |
                marked_by(number, (uint32_t)before, age, is_alone, is_shared, is_counted);
        if (after == before)
            return;
        if (__atomic_compare_exchange_n(&waiter->mark, &before, after, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            if ((after & ~SHARED & 0xffffffff) == number)
                __atomic_store_n(&waiter->marked, now, __ATOMIC_RELAXED);
            return;
        }
    } while (before >> 32 == found->mark >> 32 && --tries); /* else the entry is another's by now */
}

static void wake(uint64_t address, uint32_t number, uint32_t n, bool is_counted)
{
    struct found found[TRIES];
    uint32_t n_found = find_waiters(address, found), i;

    for (i = 0; i < n_found; i++)
        mark(&found[i], number, n_found == 1, n < n_found, is_counted);
}

void waits_wake_slowly(uint64_t address, uint32_t n, bool is_counted)
{
    struct thread *thread = log_known();

    if (thread && !thread->is_borrowed)
        wake(address, thread->number, n, is_counted);
}

void waits_move(uint64_t address)
{
    wake(address, SEVERAL, 0, false);
}

/* --- waiters ---------------------------------------------------------------------------------- */

static bool can_be_woken(enum op op)
{
    return op == OP_SEM_WAIT || op == OP_COND_WAIT || op == OP_FUTEX || op == OP_JOIN;
}

/* The waker of a wait for a descriptor is not known. */
static bool is_for_descriptor(enum op op)
{
    return op == OP_POLL || op == OP_SELECT || op == OP_EPOLL || op == OP_RECEIVE || op == OP_SEND;
}

static uint32_t take_received(void)
{
    struct thread *thread = log_known();
    int64_t received = thread ? thread->received : 0;

    if (received <= 0) /* more was sent: later bytes are set against the difference */
        return 0;
    thread->received = 0;
    return received < UINT32_MAX ? (uint32_t)received : UINT32_MAX;
}

void waits_received_slowly(int64_t bytes)
{
    struct thread *thread = log_known();

    if (thread && !thread->is_borrowed)
        thread->received += bytes;
}

/* The event may have been written away meanwhile: then the cause of the wait stays unknown. */
void waits_polled_for(struct thread *thread, uint32_t file, enum net_phase phase)
{
    struct event *event = log_event(&thread->polled);

    thread->is_polled = false;
    if (!event || event_op(event) != OP_EPOLL)
        return;
    event->offset = file;
    log_asked(&thread->polled, phase);
}

static bool is_on_signal_stack(void)
{
    stack_t stack;

    return !sigaltstack(NULL, &stack) && stack.ss_flags & SS_ONSTACK;
}

/* The next bytes received by the thread show the cause of the wait. */
static void begin_polled(const struct call *call, uint64_t ticks)
{
    struct thread *thread = log_self;

    thread->polled = *call;
    thread->polled_ticks = ticks;
    thread->is_polled = true;
}

/* A waiting signal handler finds the wait of the thread as long as `serial` is set, and leaves the
 * wait alone: `serial` is set first and cleared last. */
static void close_wait(struct wait *wait, uint64_t ticks, int error, int64_t offset,
                       enum net_phase phase, bool is_kept)
{
    struct call call;
    uint32_t waker = wait->waiter ? unpublish(wait) : 0;

    if (error)
        waker = 0;
    if (ticks >> 63)
        ticks = 0; /* two processors' counters a little apart */
    is_kept = is_kept && ticks >= waits_recorded_ticks;
    if (is_kept && is_for_descriptor(wait->op))
        waker = take_received();
    if (wait->is_open && (is_kept || !log_take_back(&wait->call))) {
        if (phase)
            log_asked(&wait->call, phase);
        log_end_at(&wait->call, error, offset, waker);
        call = wait->call;
    } else if (!is_kept || wait->is_open || !recorder_on ||
               !log_past(&call, wait->op, objects_file(wait->caller),
                         offset == LOG_SAME_OFFSET ? wait->shown : offset, wait->start, ticks,
                         error, phase, waker)) {
        is_kept = false;
    }
    if (is_kept && wait->op == OP_EPOLL && !error)
        begin_polled(&call, ticks);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    wait->serial = 0;
}

/* Whether the wrapper's struct is still on the stack.  mincore comes first: the stack of a fiber
 * may have been unmapped. */
static bool is_intact(const struct wait *wait)
{
    const struct waiting *outer = wait->frame;
    uintptr_t page = getauxval(AT_PAGESZ), first = (uintptr_t)outer & ~(page - 1);
    unsigned char is_resident[2];

    return !own_call(SYS_mincore, first, (uintptr_t)(outer + 1) - first, is_resident) &&
           outer->wait == wait && outer->serial == wait->serial;
}

/* Whether a wait of the thread is still under way further up the stack: a signal handler waits, or
 * a library such as MPI waits inside an MPI call.  Otherwise the wait was left by unwinding or by
 * longjmp at an unknown time, and the event is taken back. */
static bool is_within(struct wait *wait, const void *frame)
{
    bool is_above = (uintptr_t)wait->frame > (uintptr_t)frame;

    if (is_above ? is_intact(wait) : is_on_signal_stack())
        return true;
    close_wait(wait, 0, 0, LOG_SAME_OFFSET, NET_NOT_KNOWN, false);
    return false;
}

void waits_begin(struct waiting *waiting, enum op op, uint64_t address, int64_t shown,
                 const void *caller)
{
    struct thread *thread = log_known();
    struct wait *wait = &thread->wait;
    int error = errno;

    waiting->wait = NULL;
    if (!thread || thread->is_borrowed || (wait->serial && is_within(wait, waiting)))
        return;
    thread->is_polled = false;
    waiting->wait = wait;
    waiting->serial = ++thread->waits;
    wait->frame = waiting;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    wait->serial = waiting->serial;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    wait->op = (uint8_t)op;
    wait->address = address;
    wait->shown = shown;
    wait->caller = caller;
    wait->waiter = NULL;
    wait->is_open = false;
    if (can_be_woken(op) && address)
        publish(wait);
    if (thread->block && thread->log == log_state->serial)
        wait->is_open = log_open_wait(&wait->call, op, objects_file(caller), shown);
    wait->start = wait->is_open ? wait->call.start : clock_ticks();
    errno = error;
}

static void end_wait(struct waiting *waiting, int error, int fd, enum net_phase phase)
{
    struct wait *wait = waiting->wait;
    uint64_t ticks = clock_ticks();
    int64_t offset = LOG_SAME_OFFSET;
    int kept = errno;

    if (!wait || wait->serial != waiting->serial) /* a forked child's memory was wiped */
        return;
    ticks -= wait->start;
    /* the file may have to be looked up */
    if (fd >= 0 && ticks >= waits_recorded_ticks && recorder_on) {
        struct slot_of_fd *slot = files_slot(fd);

        offset = slot && slot->file ? (int64_t)slot->file : LOG_SAME_OFFSET;
        if (slot && slot->flags & SLOT_CONNECTION)
            phase = connections_waited(fd, phase, ticks);
    }
    close_wait(wait, ticks, error, offset, phase, true);
    errno = kept;
}

void waits_end(struct waiting *waiting, int error)
{
    end_wait(waiting, error, -1, NET_NOT_KNOWN);
}

void waits_end_fd(struct waiting *waiting, int error, int fd)
{
    end_wait(waiting, error, fd, NET_NOT_KNOWN);
}

void waits_end_net(struct waiting *waiting, int error, int fd, enum net_phase phase)
{
    end_wait(waiting, error, fd, phase);
}

void waits_forget(struct waiting *waiting)
{
    int error = errno;

    if (waiting->wait && waiting->wait->serial == waiting->serial)
        close_wait(waiting->wait, 0, 0, LOG_SAME_OFFSET, NET_NOT_KNOWN, false);
    errno = error;
}

void waits_past(enum op op, struct connection *connection, uint64_t start, uint64_t ticks,
                int error, enum net_phase phase, const void *caller)
{
    struct thread *thread = log_known();
    struct call call;
    int kept = errno;

    connection->so_far.waited[phase] += ticks;
    if (thread && !thread->is_borrowed && recorder_on)
        log_past(&call, op, objects_file(caller), connection->file, start, ticks, error, phase,
                 take_received());
    errno = kept;
}

/* An ending thread is awaited by pthread_join, and was cancelled if still in a wait. */
static void thread_ends(struct thread *thread)
{
    uint64_t self = (uint64_t)pthread_self();

    if (thread->wait.serial)
        close_wait(&thread->wait, clock_ticks() - thread->wait.start, ECANCELED, LOG_SAME_OFFSET,
                   NET_NOT_KNOWN, true);
    if (recorder_on && waits_state->counts[waits_place(self)])
        wake(self, thread->number, 1, false);
}

int waits_start(void)
{
    if (!waits_state)
        waits_state = log_map_wiped(sizeof *waits_state);
    if (!waits_state)
        return -ENOMEM;
    waits_recorded_ticks = clock_ticks_per_s / (1000000000 / WAIT_RECORDED_NS);
    same_wake_ticks = clock_ticks_per_s / SAME_WAKE_PER_S;
    log_thread_ends = thread_ends;
    return objects_start();
}
