/* The engine: first the bytes in memory, then io_uring or threads for the rest. */
#include "feed.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (128 << 10) /* a thread here calls open, fstat and pread */
#define MOST_THREADS 256
#define WAITED_NS 50000 /* a file opened and read sooner was in memory */
#define ASKED_AGAIN_AFTER 8
#define FEW_IN_FLIGHT 8 /* so many waiting threads cost less than the kernel's threads for a ring */

struct feed {
    struct ring *ring; /* NULL: threads only, or not yet */
    bool wants_ring;
    bool may_choose; /* a ring only where a ring pays */
    unsigned most;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t threads[MOST_THREADS];
    unsigned n_threads;
    unsigned asks_again_in; /* rounds of names to come that wake threads at once */
    /* The rest is written under the lock, the list while `busy` is 0 and told with the round. */
    bool is_closing;
    uint64_t round;
    unsigned wanted; /* threads with a lower number take part in the round */
    unsigned busy;   /* number of wanted threads still in the round */
    struct feed_request *requests;
    uint32_t n;
    unsigned flags;
    _Atomic uint32_t next;
};

struct member {
    struct feed *feed;
    unsigned number;
};

int64_t feed_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* --- a request -------------------------------------------------------------------------------- */

bool feed_direct_range(const struct feed_request *request, uint64_t *destination, int64_t *offset,
                       int64_t *length)
{
    int64_t lead = request->offset & (FEED_PAGE - 1);

    if (request->direct_fd < 0 || (request->destination & (FEED_PAGE - 1)) != (uint64_t)lead)
        return false;
    *destination = request->destination - lead;
    *offset = request->offset - lead;
    *length = (lead + request->length + FEED_PAGE - 1) & -(int64_t)FEED_PAGE;
    return true;
}

bool feed_took(struct feed_request *request, int64_t got, bool was_direct)
{
    int64_t lead = was_direct ? request->offset & (FEED_PAGE - 1) : 0;

    if (got < 0 && (got == -EINTR || got == -EAGAIN))
        return false;
    if (got < 0 && was_direct && (got == -EINVAL || got == -EOPNOTSUPP)) {
        request->direct_fd = -1; /* here the file is read through the page cache */
        return false;
    }
    if (got < 0) {
        request->error = (int32_t)-got;
    } else if (got <= lead) { /* none of our bytes: the file ends before the offset */
        request->error = ENODATA;
    } else {
        request->how = was_direct ? FEED_DIRECT : FEED_BUFFERED;
        request->moved += got - lead;
        if (request->moved > request->length)
            request->moved = request->length;
    }
    return request->error || request->moved == request->length;
}

static int64_t read_once(struct feed_request *request, int fd)
{
    ssize_t got = pread(fd, (void *)(request->destination + request->moved),
                        request->length - request->moved, request->offset + request->moved);

    return got < 0 ? -errno : got;
}

static void read_open(struct feed_request *request)
{
    uint64_t destination;
    int64_t offset, length;

    /* The rest after a short direct read is read buffered: its offset may lie anywhere. */
    while (!request->moved && feed_direct_range(request, &destination, &offset, &length)) {
        ssize_t got = pread(request->direct_fd, (void *)destination, length, offset);

        if (feed_took(request, got < 0 ? -errno : got, true))
            return;
    }
    while (!feed_took(request, read_once(request, request->fd), false))
        continue;
}

static void read_named(struct feed_request *request, unsigned flags)
{
    int fd = open((const char *)request->path, O_RDONLY | O_CLOEXEC);
    struct stat status;

    if (fd < 0) {
        request->error = errno;
        return;
    }
    if (request->length) { /* of an empty record nothing is left to be read */
        request->fd = fd;
        read_open(request);
        request->fd = -1;
    }
    /* Checked afterwards, to notice a write during the read too. */
    if (flags & FEED_WHOLE_FILES &&
        (fstat(fd, &status) || status.st_size != request->length ||
         status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec != request->written_ns))
        request->error = ESTALE;
    close(fd);
}

static void read_one(struct feed_request *request, unsigned flags)
{
    int64_t begun = feed_now_ns();

    if (!request->length && !request->path)
        request->how = FEED_FROM_MEMORY;
    else if (request->path)
        read_named(request, flags);
    else
        read_open(request);
    request->how = request->how ? request->how : FEED_BUFFERED;
    request->latency_ns = feed_now_ns() - begun;
}

/* Make an attempt without waiting for the device.
 *
 * Where the bytes are not there, the kernel begins to read the bytes into the page cache all the
 * same (seen with 6.18).  A buffered read profits; a read past the page cache asks first. */
static bool read_from_memory(struct feed_request *request)
{
    struct iovec place = {(void *)request->destination, request->length};
    uint8_t is_held = 0;
    ssize_t got;

    if (request->direct_fd >= 0 &&
        (penstock_feed_held(request->fd, &request->offset, &request->length, &is_held, 1) ||
         !is_held))
        return false;
    got = preadv2(request->fd, &place, 1, request->offset, RWF_NOWAIT);
    if (got != request->length)
        return false; /* read again as a whole: a direct read must begin where the range does */
    request->moved = got;
    request->how = FEED_FROM_MEMORY;
    return true;
}

/* --- threads ---------------------------------------------------------------------------------- */

static void take_requests(struct feed *feed)
{
    for (;;) {
        uint32_t i = atomic_fetch_add(&feed->next, 1);

        if (i >= feed->n)
            return;
        if (feed->requests[i].how == FEED_NOT_DONE)
            read_one(&feed->requests[i], feed->flags);
    }
}

/* Read files alone: a file in memory is read sooner than a thread is woken.  True: all were in
 * memory. */
static bool take_names_alone(struct feed *feed)
{
    if (feed->asks_again_in) {
        feed->asks_again_in--;
        return false;
    }
    for (;;) {
        uint32_t i = atomic_fetch_add(&feed->next, 1);

        if (i >= feed->n)
            return true;
        if (feed->requests[i].how != FEED_NOT_DONE)
            continue;
        read_one(&feed->requests[i], feed->flags);
        if (feed->requests[i].latency_ns > WAITED_NS) {
            feed->asks_again_in = ASKED_AGAIN_AFTER;
            return false;
        }
    }
}

static void *thread_main(void *argument)
{
    struct member *member = argument;
    struct feed *feed = member->feed;
    unsigned number = member->number;
    uint64_t seen = 0;

    free(member);
    pthread_setname_np(pthread_self(), "penstock-feed");
    pthread_mutex_lock(&feed->lock);
    while (!feed->is_closing) {
        if (seen == feed->round || number >= feed->wanted) {
            pthread_cond_wait(&feed->work, &feed->lock);
            continue;
        }
        seen = feed->round;
        pthread_mutex_unlock(&feed->lock);
        take_requests(feed);
        pthread_mutex_lock(&feed->lock);
        if (--feed->busy == 0)
            pthread_cond_signal(&feed->done);
    }
    pthread_mutex_unlock(&feed->lock);
    return NULL;
}

/* Fewer threads than asked for are enough: the caller reads too. */
static void start_threads(struct feed *feed, unsigned wanted)
{
    pthread_attr_t attributes;
    sigset_t all, before;

    if (feed->n_threads >= wanted || pthread_attr_init(&attributes))
        return;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (feed->n_threads < wanted) {
        struct member *member = malloc(sizeof *member);

        if (!member)
            break;
        *member = (struct member){feed, feed->n_threads};
        if (pthread_create(&feed->threads[feed->n_threads], &attributes, thread_main, member)) {
            free(member);
            break;
        }
        feed->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static void read_by_threads(struct feed *feed, struct feed_request *requests, uint32_t n,
                            uint32_t n_left, unsigned depth, unsigned flags, bool is_named)
{
    unsigned helpers = (depth < n_left ? depth : n_left) - 1;

    feed->requests = requests; /* no thread looks at the list before the round is told */
    feed->n = n;
    feed->flags = flags;
    atomic_store(&feed->next, 0);
    if (is_named && take_names_alone(feed))
        return;
    helpers = helpers < MOST_THREADS ? helpers : MOST_THREADS;
    start_threads(feed, helpers);
    helpers = helpers < feed->n_threads ? helpers : feed->n_threads;
    pthread_mutex_lock(&feed->lock);
    feed->wanted = feed->busy = helpers;
    feed->round++;
    if (helpers)
        pthread_cond_broadcast(&feed->work);
    pthread_mutex_unlock(&feed->lock);
    take_requests(feed);
    pthread_mutex_lock(&feed->lock);
    while (feed->busy)
        pthread_cond_wait(&feed->done, &feed->lock);
    feed->wanted = 0;
    pthread_mutex_unlock(&feed->lock);
}

/* --- the engine ------------------------------------------------------------------------------- */

struct feed *penstock_feed_open(int kind, unsigned most, int *error)
{
    struct feed *feed = calloc(1, sizeof *feed);

    *error = 0;
    if (!feed) {
        *error = -ENOMEM;
        return NULL;
    }
    feed->most = most ? most : 1;
    if (feed->most > MOST_THREADS)
        feed->most = MOST_THREADS;
    feed->wants_ring = kind != FEED_THREADS;
    feed->may_choose = kind == FEED_AUTO;
    /* A watcher would count the trial of a ring as unseen reads: try later, then. */
    if (feed->wants_ring && !penstock_feed_is_watched()) {
        *error = ring_open(&feed->ring, feed->most);
        if (*error && !feed->may_choose) {
            free(feed);
            return NULL;
        }
        feed->wants_ring = !*error;
        *error = 0;
    }
    pthread_mutex_init(&feed->lock, NULL);
    pthread_cond_init(&feed->work, NULL);
    pthread_cond_init(&feed->done, NULL);
    return feed;
}

void penstock_feed_close(struct feed *feed)
{
    if (!feed)
        return;
    pthread_mutex_lock(&feed->lock);
    feed->is_closing = true;
    pthread_cond_broadcast(&feed->work);
    pthread_mutex_unlock(&feed->lock);
    for (unsigned i = 0; i < feed->n_threads; i++)
        pthread_join(feed->threads[i], NULL);
    pthread_cond_destroy(&feed->done);
    pthread_cond_destroy(&feed->work);
    pthread_mutex_destroy(&feed->lock);
    if (feed->ring)
        ring_close(feed->ring);
    free(feed);
}

void penstock_feed_forget(struct feed *feed)
{
    if (feed && feed->ring)
        ring_forget(feed->ring);
    free(feed);
}

/* libc's pread lies in libc.  Where our slot leads elsewhere, somebody has put himself between. */
int penstock_feed_is_watched(void)
{
    /* To find the owner of the code takes a tenth of a millisecond: once for each target. */
    static _Atomic(uintptr_t) plain, watched;
    ssize_t (*volatile slot)(int, void *, size_t, off_t) = pread;
    uintptr_t leads_to = (uintptr_t)slot;
    Dl_info libc, found;

    if (leads_to == atomic_load(&plain))
        return 0;
    if (leads_to == atomic_load(&watched))
        return 1;
    if (!dladdr((void *)gnu_get_libc_version, &libc) || !dladdr((void *)slot, &found))
        return 0;
    atomic_store(libc.dli_fbase == found.dli_fbase ? &plain : &watched, leads_to);
    return libc.dli_fbase != found.dli_fbase;
}

static uint32_t prepare(struct feed_request *requests, uint32_t n, bool tries_memory,
                        bool *is_named)
{
    uint32_t n_left = 0;

    *is_named = false;
    for (uint32_t i = 0; i < n; i++) {
        struct feed_request *request = &requests[i];

        request->moved = request->latency_ns = 0;
        request->error = 0;
        request->how = FEED_NOT_DONE;
        if (request->path)
            *is_named = true;
        else if (!request->length)
            request->how = FEED_FROM_MEMORY;
        else if (tries_memory)
            read_from_memory(request);
        n_left += request->how == FEED_NOT_DONE;
    }
    return n_left;
}

/* Whether a buffered read waits for pages without a thread (Linux 5.9 and later).  Elsewhere, as on
 * FUSE and NFS, the kernel gives each read of a ring a separate thread. */
static bool waits_alone(int fd)
{
    struct statfs about;

    if (fstatfs(fd, &about))
        return true;
    switch ((uint32_t)about.f_type) {
    case 0xef53:     /* ext4 */
    case 0x58465342: /* xfs */
    case 0x9123683e: /* btrfs */
    case 0xf2f52010: /* f2fs */ return true;
    }
    return false;
}

static bool needs_threads(const struct feed_request *requests, uint32_t n, uint32_t n_left,
                          unsigned depth)
{
    if (n_left == 1 || depth == 1) /* the caller reads the request */
        return true;
    for (uint32_t i = 0; depth <= FEW_IN_FLIGHT && i < n; i++) {
        /* as for the others: all requests are of a single data set */
        if (requests[i].how == FEED_NOT_DONE)
            return requests[i].direct_fd < 0 && !waits_alone(requests[i].fd);
    }
    return false;
}

static void count(const struct feed_request *requests, uint32_t n, struct feed_tally *tally)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct feed_request *request = &requests[i];

        tally->bytes += request->moved;
        tally->failed += request->error != 0;
        if (request->how == FEED_FROM_MEMORY) {
            tally->from_memory++;
            continue;
        }
        tally->read++;
        tally->latency_ns += request->latency_ns;
        tally->direct += request->how == FEED_DIRECT;
    }
}

static uint32_t n_direct(const struct feed_request *requests, uint32_t n)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++)
        found += requests[i].direct_fd >= 0;
    return found;
}

/* Close a ring that is of no use any more, and open one where it is wanted. */
static void renew_ring(struct feed *feed, bool is_watched)
{
    if (feed->ring && !ring_is_usable(feed->ring)) {
        ring_close(feed->ring);
        feed->ring = NULL;
    }
    if (feed->wants_ring && !feed->ring && !is_watched)
        feed->wants_ring = ring_open(&feed->ring, feed->most) == 0;
}

/* Returns the number of requests that are left for the threads. */
static uint32_t read_by_ring(struct feed *feed, struct feed_request *requests, uint32_t n,
                             unsigned depth, unsigned flags)
{
    uint32_t n_left = 0;

    ring_read(feed->ring, requests, n, depth, flags & FEED_STAY_DEEP);
    for (uint32_t i = 0; i < n; i++)
        n_left += requests[i].how == FEED_NOT_DONE;
    return n_left;
}

int penstock_feed_read(struct feed *feed, struct feed_request *requests, uint32_t n, unsigned depth,
                       unsigned flags, struct feed_tally *tally)
{
    int64_t begun = feed_now_ns();
    bool is_watched = penstock_feed_is_watched();
    uint32_t n_left, asked_direct;
    bool is_named;

    if (!feed || !tally || (n && !requests))
        return -EINVAL;
    *tally = (struct feed_tally){0};
    depth = depth < 1 ? 1 : depth > feed->most ? feed->most : depth;
    asked_direct = n_direct(requests, n);
    /* A watcher would take the attempt for a failed read. */
    n_left = prepare(requests, n, flags & FEED_TRY_MEMORY && !is_watched, &is_named);
    renew_ring(feed, is_watched);
    if (n_left && feed->ring && !is_watched && !is_named &&
        !(feed->may_choose && needs_threads(requests, n, n_left, depth))) {
        n_left = read_by_ring(feed, requests, n, depth, flags);
        tally->used_uring = 1;
    }
    if (n_left)
        read_by_threads(feed, requests, n, n_left, depth, flags, is_named);
    count(requests, n, tally);
    tally->direct_refused = asked_direct - n_direct(requests, n);
    tally->elapsed_ns = feed_now_ns() - begun;
    return 0;
}
