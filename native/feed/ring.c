/* io_uring by three system calls: a machine with only a C compiler has no liburing.  Knows how to
 * hand over a request and take back the result; knows no threads. */
#include "feed.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if __has_include(<linux/io_uring.h>) && defined(SYS_io_uring_setup)
#include <linux/io_uring.h>

#define MOST_BYTES (1u << 30) /* of a read: the field has 32 bits */

/* Linux 6.1: completions are processed by the only thread that uses the ring, when the thread asks.
 * Without these flags each completion interrupts the thread at any place.  Headers may be older
 * than the kernel. */
#define ONE_THREAD (1u << 12 | 1u << 13) /* IORING_SETUP_SINGLE_ISSUER, _DEFER_TASKRUN */

struct ring {
    int fd;
    pid_t thread;             /* the ring's only thread; 0: any thread, not two at a time */
    unsigned entries, queued; /* queued: pushed, and not yet taken by the kernel */
    _Atomic unsigned *sq_head, *sq_tail, *cq_head, *cq_tail;
    unsigned *sq_array, sq_mask, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    void *memory[3];
    size_t bytes[3];
};

static void *mapped(struct ring *ring, int which, size_t bytes, off_t offset)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, offset);

    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_DONTFORK); /* a child's reads would go into this process' ring */
    ring->memory[which] = memory;
    ring->bytes[which] = bytes;
    return memory;
}

static int map_ring(struct ring *ring, const struct io_uring_params *about)
{
    size_t sq_bytes = about->sq_off.array + about->sq_entries * sizeof(unsigned);
    size_t cq_bytes = about->cq_off.cqes + about->cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mapped(ring, 0, sq_bytes, IORING_OFF_SQ_RING);
    char *cq = mapped(ring, 1, cq_bytes, IORING_OFF_CQ_RING);

    ring->sqes = mapped(ring, 2, about->sq_entries * sizeof *ring->sqes, IORING_OFF_SQES);
    if (!sq || !cq || !ring->sqes)
        return -ENOMEM;
    ring->entries = about->sq_entries;
    ring->sq_head = (_Atomic unsigned *)(sq + about->sq_off.head);
    ring->sq_tail = (_Atomic unsigned *)(sq + about->sq_off.tail);
    ring->sq_mask = *(unsigned *)(sq + about->sq_off.ring_mask);
    ring->sq_array = (unsigned *)(sq + about->sq_off.array);
    ring->cq_head = (_Atomic unsigned *)(cq + about->cq_off.head);
    ring->cq_tail = (_Atomic unsigned *)(cq + about->cq_off.tail);
    ring->cq_mask = *(unsigned *)(cq + about->cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(cq + about->cq_off.cqes);
    return 0;
}

static int enter(struct ring *ring, unsigned submit, unsigned wait)
{
    long got = syscall(SYS_io_uring_enter, ring->fd, submit, wait,
                       wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);

    return got < 0 ? -errno : (int)got;
}

static void push(struct ring *ring, struct feed_request *request)
{
    unsigned tail = atomic_load_explicit(ring->sq_tail, memory_order_relaxed);
    struct io_uring_sqe *entry = &ring->sqes[tail & ring->sq_mask];
    uint64_t destination = request->destination + request->moved;
    int64_t offset = request->offset + request->moved, length = request->length - request->moved;
    int fd = request->fd;

    /* The rest after a short direct read is read buffered: its offset may lie anywhere. */
    if (!request->moved && feed_direct_range(request, &destination, &offset, &length))
        fd = request->direct_fd;
    *entry = (struct io_uring_sqe){0};
    entry->opcode = IORING_OP_READ;
    entry->fd = fd;
    entry->off = (uint64_t)offset;
    entry->addr = destination;
    entry->len = length > MOST_BYTES ? MOST_BYTES : (unsigned)length;
    /* The low bit marks a direct read; requests are aligned to 8. */
    entry->user_data = (uint64_t)(uintptr_t)request | (fd != request->fd);
    ring->sq_array[tail & ring->sq_mask] = tail & ring->sq_mask;
    atomic_store_explicit(ring->sq_tail, tail + 1, memory_order_release);
    ring->queued++;
}

/* Take all completions.  Return how many requests are no longer in flight. */
static unsigned reap(struct ring *ring)
{
    unsigned head = atomic_load_explicit(ring->cq_head, memory_order_relaxed), finished = 0;

    while (head != atomic_load_explicit(ring->cq_tail, memory_order_acquire)) {
        struct io_uring_cqe cqe = ring->cqes[head & ring->cq_mask];
        struct feed_request *request =
            (struct feed_request *)(uintptr_t)(cqe.user_data & ~(uint64_t)1);

        atomic_store_explicit(ring->cq_head, ++head, memory_order_release);
        if (!feed_took(request, cqe.res, cqe.user_data & 1)) {
            push(ring, request); /* the queue has room: the request has just left the queue */
            continue;
        }
        request->how = request->how ? request->how : FEED_BUFFERED;
        request->latency_ns = feed_now_ns() - request->latency_ns;
        finished++;
    }
    return finished;
}

/* The kernel refused: take back the requests not yet with the kernel, and wait for the others. */
static unsigned take_back(struct ring *ring)
{
    unsigned taken = ring->queued;
    unsigned tail = atomic_load_explicit(ring->sq_tail, memory_order_relaxed);

    for (unsigned i = 0; i < taken; i++) {
        uint64_t user_data = ring->sqes[(tail - 1 - i) & ring->sq_mask].user_data;
        struct feed_request *request = (struct feed_request *)(uintptr_t)(user_data & ~1ull);

        request->moved = 0;
        request->how = FEED_NOT_DONE;
    }
    atomic_store_explicit(ring->sq_tail, tail - taken, memory_order_release);
    ring->queued = 0;
    return taken;
}

void ring_read(struct ring *ring, struct feed_request *requests, uint32_t n, unsigned depth,
               bool stays_deep)
{
    const struct timespec nap = {0, 1000000};
    uint32_t next = 0;
    unsigned in_flight = 0;
    bool is_refused = false;

    depth = depth < ring->entries ? depth : ring->entries;
    while (in_flight || (next < n && !is_refused)) {
        unsigned wait;
        int got;

        for (; next < n && in_flight < depth && !is_refused; next++) {
            if (requests[next].how != FEED_NOT_DONE)
                continue;
            requests[next].latency_ns = feed_now_ns();
            push(ring, &requests[next]);
            in_flight++;
        }
        if (!in_flight)
            return;
        /* A wake-up takes half the CPU time of a read: wake once for several reads while others
         * keep the device busy, and once for the rest. */
        wait = next == n ? in_flight : stays_deep || in_flight < 8 ? 1 : in_flight / 4;
        got = enter(ring, ring->queued, wait);
        if (got >= 0) {
            ring->queued -= (unsigned)got;
        } else if (got != -EINTR && got != -EAGAIN && got != -EBUSY) {
            is_refused = true;
            in_flight -= take_back(ring);
            nanosleep(&nap, NULL);
        }
        in_flight -= reap(ring);
    }
}

/* Whether reads are served: rings came with 5.1, this read with 5.6, and a sandbox may have both
 * only for show. */
static int try_out(struct ring *ring)
{
    struct feed_request request = {.offset = 0, .length = 1, .direct_fd = -1, .fd = -1};

    ring_read(ring, &request, 1, 1, false);
    return request.error == EBADF ? 0 : -ENOSYS;
}

int ring_open(struct ring **made, unsigned entries)
{
    struct io_uring_params about = {.flags = ONE_THREAD};
    struct ring *ring = calloc(1, sizeof *ring);
    int error;

    if (!ring)
        return -ENOMEM;
    ring->thread = (pid_t)syscall(SYS_gettid);
    ring->fd = (int)syscall(SYS_io_uring_setup, entries, &about); /* closes itself on exec */
    if (ring->fd < 0 && errno == EINVAL) {                        /* an older kernel */
        about = (struct io_uring_params){0};
        ring->thread = 0;
        ring->fd = (int)syscall(SYS_io_uring_setup, entries, &about);
    }
    if (ring->fd < 0) {
        error = -errno;
        free(ring);
        return error;
    }
    error = map_ring(ring, &about);
    if (!error)
        error = try_out(ring);
    if (error)
        ring_close(ring);
    else
        *made = ring;
    return error;
}

bool ring_is_usable(const struct ring *ring)
{
    return !ring->thread || ring->thread == (pid_t)syscall(SYS_gettid);
}

void ring_close(struct ring *ring)
{
    for (int i = 0; i < 3; i++)
        if (ring->memory[i])
            munmap(ring->memory[i], ring->bytes[i]);
    close(ring->fd);
    free(ring);
}

/* The mappings are not in this process; the descriptor is. */
void ring_forget(struct ring *ring)
{
    close(ring->fd);
    free(ring);
}

#else /* built where the kernel's headers know no io_uring */

int ring_open(struct ring **made, unsigned entries)
{
    (void)made, (void)entries;
    return -ENOSYS;
}

bool ring_is_usable(const struct ring *ring)
{
    (void)ring;
    return false;
}

void ring_close(struct ring *ring)
{
    (void)ring;
}

void ring_forget(struct ring *ring)
{
    (void)ring;
}

void ring_read(struct ring *ring, struct feed_request *requests, uint32_t n, unsigned depth,
               bool stays_deep)
{
    (void)ring, (void)requests, (void)n, (void)depth, (void)stays_deep;
}

#endif
