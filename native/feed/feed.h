/* Reads a list of byte ranges with many requests in flight: by io_uring where the kernel permits,
 * else by threads with pread.  Knows descriptors and memory; knows no index, no record, no Python.
 *
 * An engine is for a single thread at a time, and for the opening process. */
#ifndef PENSTOCK_FEED_H
#define PENSTOCK_FEED_H

#include <stdbool.h>
#include <stdint.h>

#define FEED_PAGE 4096 /* the largest alignment for offsets and memory of O_DIRECT */

enum feed_kind { FEED_THREADS = 1, FEED_URING = 2, FEED_AUTO = 3 };

enum feed_how {
    FEED_NOT_DONE = 0,
    FEED_FROM_MEMORY = 1, /* the page cache had all the bytes: an attempt without waiting */
    FEED_BUFFERED = 2,
    FEED_DIRECT = 3,
};

enum feed_flags {
    FEED_TRY_MEMORY = 1, /* first try the page cache, for an answer at once */
    /* a request with a path is for the whole file: another size or time of the last write is
     * ESTALE */
    FEED_WHOLE_FILES = 2,
    /* the next request follows at once on a finished request, whatever the CPU time: to measure a
     * depth */
    FEED_STAY_DEEP = 4
};

/* A range of a file.  For O_DIRECT `destination` and `offset` must agree in their place in a page,
 * and the rest of the pages around the destination must be the request's own. */
struct feed_request {
    uint64_t destination; /* address */
    int64_t offset, length;
    int64_t moved;      /* out: bytes read */
    int64_t latency_ns; /* out */
    uint64_t path;      /* address of a name to open and to close again; 0: `fd` is open */
    int64_t written_ns; /* of a whole file: time of the last write */
    int32_t fd;
    int32_t direct_fd; /* the same file opened with O_DIRECT, -1: none */
    int32_t error;     /* out: errno; ENODATA: the file ends before the range does */
    int32_t how;       /* out: enum feed_how */
};

/* The work of a call of penstock_feed_read. */
struct feed_tally {
    int64_t elapsed_ns;
    int64_t latency_ns;                 /* summed over the requests not in memory */
    int64_t bytes;                      /* arrived bytes */
    uint32_t from_memory, read, failed; /* requests */
    uint32_t direct, direct_refused;    /* of `read`; asked for O_DIRECT and got none */
    uint32_t used_uring;                /* 0 or 1 */
};

/* Distinguishes a file from another file and from a changed file.  size_bytes: -1: no regular file
 * is there, the file may not be looked at, or has times beyond 64 bits; then all else is 0. */
struct feed_seen {
    int64_t size_bytes, mtime_ns, ctime_ns;
    uint64_t inode, device;
};

_Static_assert(sizeof(struct feed_request) == 72, "Python lays requests out as an array");
_Static_assert(sizeof(struct feed_tally) == 48, "Python lays the tally out as an array");
_Static_assert(sizeof(struct feed_seen) == 40, "Python lays these out as an array");

struct feed;

#define FEED_API __attribute__((visibility("default")))

/* most: requests in flight at the most.  Gives NULL and -errno.  The kernel or a container may
 * refuse FEED_URING, but no other kind.  FEED_AUTO takes threads after a refusal, and where threads
 * are quicker. */
FEED_API struct feed *penstock_feed_open(int kind, unsigned most, int *error);

/* Return when every request has its bytes or its error.  0, or -errno when no request was tried.
 * While a watcher wants to see the reads (penstock_feed_is_watched), the reads are plain preads. */
FEED_API int penstock_feed_read(struct feed *feed, struct feed_request *requests, uint32_t n,
                                unsigned depth, unsigned flags, struct feed_tally *tally);

FEED_API void penstock_feed_close(struct feed *feed);

/* Call in a child after fork: the parent's threads are not here, and the ring is not ours to
 * use. */
FEED_API void penstock_feed_forget(struct feed *feed);

/* Whether a recorder stands between us and libc's pread: ours, or another tool's. */
FEED_API int penstock_feed_is_watched(void);

/* held[i]: 1: the whole range is in the page cache, 0: not all.  -errno: the kernel does not answer
 * (before 6.5), or not for the user. */
FEED_API int penstock_feed_held(int fd, const int64_t *offsets, const int64_t *lengths,
                                uint8_t *held, uint32_t n);

/* 1: all the ranges are in the page cache, 0: not all.  -errno as above. */
FEED_API int penstock_feed_all_held(int fd, const int64_t *offsets, const int64_t *lengths,
                                    uint32_t n);

/* 1: the last byte of each range is in the page cache, 0: not of each.  Takes a tenth of the time
 * for whole ranges: cachestat waits for a group's counters to be summed up. */
FEED_API int penstock_feed_ends_held(int fd, const int64_t *offsets, const int64_t *lengths,
                                     uint32_t n);

/* Return the bytes of a file in the page cache, in whole pages.  -errno as above. */
FEED_API int64_t penstock_feed_cached(int fd);

/* Map a file, read-only, in place of memory reserved by the caller.  0 or -errno. */
FEED_API int penstock_feed_map(int fd, void *memory, int64_t length);

/* Ask the kernel to read the ranges into memory soon, in pieces: the kernel shortens larger
 * pieces. */
FEED_API int penstock_feed_hint(int fd, const int64_t *offsets, const int64_t *lengths, uint32_t n,
                                uint32_t piece_bytes);

/* Look at n files, links followed.  names: each with a NUL, without gaps. */
FEED_API void penstock_feed_look(const char *names, struct feed_seen *seen, uint32_t n);

/* Words in shared memory. */
FEED_API uint32_t penstock_feed_load(const uint32_t *word);
FEED_API void penstock_feed_store(uint32_t *word, uint32_t value);   /* and wakes waiters */
FEED_API uint32_t penstock_feed_add(uint32_t *word, uint32_t value); /* gives the value before */
/* Until the word is no longer `seen`, at most so long.  0 changed, -ETIMEDOUT. */
FEED_API int penstock_feed_wait(const uint32_t *word, uint32_t seen, unsigned timeout_ms);

/* --- between the files of the engine -------------------------------------------------------- */

struct ring;

int ring_open(struct ring **made, unsigned entries);
/* Whether the calling thread may use the ring: some rings belong to the opening thread. */
bool ring_is_usable(const struct ring *ring);
void ring_close(struct ring *ring);
void ring_forget(struct ring *ring);
/* Leaves requests refused by the kernel as FEED_NOT_DONE. */
void ring_read(struct ring *ring, struct feed_request *requests, uint32_t n, unsigned depth,
               bool stays_deep);

int64_t feed_now_ns(void);
/* Begin and length of a direct read of the request; false: a direct read is impossible. */
bool feed_direct_range(const struct feed_request *request, uint64_t *destination, int64_t *offset,
                       int64_t *length);
/* Take the result of a read.  True: the request is complete, or failed. */
bool feed_took(struct feed_request *request, int64_t got, bool was_direct);

#endif
