/* Shared words, and the state of the page cache and requests to it.  Knows the kernel's calls;
 * knows no request. */
#include "feed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NR_CACHESTAT 451 /* equal on every architecture with the call; Linux 6.5 */

uint32_t penstock_feed_load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void wake(const uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void penstock_feed_store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    wake(word);
}

uint32_t penstock_feed_add(uint32_t *word, uint32_t value)
{
    uint32_t before = __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);

    wake(word);
    return before;
}

int penstock_feed_wait(const uint32_t *word, uint32_t seen, unsigned timeout_ms)
{
    struct timespec left = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};

    if (penstock_feed_load(word) != seen)
        return 0;
    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &left, NULL, 0) && errno == ETIMEDOUT)
        return -ETIMEDOUT;
    return 0; /* woken, interrupted, or changed before we slept: the caller looks again */
}

/* Count the pages of a range in the page cache, or -errno.  A length of 0: to the file's end. */
static int64_t cached_pages(int fd, int64_t offset, int64_t length)
{
    uint64_t range[2] = {(uint64_t)offset, (uint64_t)length};
    uint64_t seen[5] = {0}; /* cached, dirty, in writeback, evicted, recently evicted */

    return syscall(NR_CACHESTAT, fd, range, seen, 0) ? -errno : (int64_t)seen[0];
}

int64_t penstock_feed_cached(int fd)
{
    int64_t pages = cached_pages(fd, 0, 0);

    return pages < 0 ? pages : pages * sysconf(_SC_PAGESIZE);
}

/* 1, 0 or -errno: whether the page cache has all of a range. */
static int is_held(int fd, int64_t offset, int64_t length)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    int64_t needed = (offset + length - 1) / page - offset / page + 1;
    int64_t cached = length ? cached_pages(fd, offset, length) : needed;

    if (cached < 0)
        return (int)cached;
    return cached >= needed;
}

int penstock_feed_held(int fd, const int64_t *offsets, const int64_t *lengths, uint8_t *held,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int answer = is_held(fd, offsets[i], lengths[i]);

        if (answer < 0)
            return answer;
        held[i] = (uint8_t)answer;
    }
    return 0;
}

int penstock_feed_all_held(int fd, const int64_t *offsets, const int64_t *lengths, uint32_t n)
{
    for (uint32_t i = 0, next; i < n; i = next) {
        int64_t end = offsets[i] + lengths[i];
        int answer;

        /* Adjacent ranges are asked for together: a call takes as long as a record's other work. */
        for (next = i + 1; next < n; next++) {
            if (offsets[next] < offsets[i] || offsets[next] > end + FEED_PAGE)
                break;
            if (offsets[next] + lengths[next] > end)
                end = offsets[next] + lengths[next];
        }
        answer = is_held(fd, offsets[i], end - offsets[i]);
        if (answer != 1)
            return answer;
    }
    return 1;
}

int penstock_feed_ends_held(int fd, const int64_t *offsets, const int64_t *lengths, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        char byte;
        struct iovec place = {&byte, 1};

        if (lengths[i] && preadv2(fd, &place, 1, offsets[i] + lengths[i] - 1, RWF_NOWAIT) != 1)
            return 0;
    }
    return 1;
}

int penstock_feed_map(int fd, void *memory, int64_t length)
{
    if (mmap(memory, (size_t)length, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return -errno;
    /* A page no longer in memory is read alone, without neighbours. */
    madvise(memory, (size_t)length, MADV_RANDOM);
    return 0;
}

int penstock_feed_hint(int fd, const int64_t *offsets, const int64_t *lengths, uint32_t n,
                       uint32_t piece_bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        for (int64_t done = 0; done < lengths[i]; done += piece_bytes) {
            int64_t left = lengths[i] - done;
            int error = posix_fadvise(fd, offsets[i] + done,
                                      left < piece_bytes ? left : piece_bytes, POSIX_FADV_WILLNEED);

            if (error)
                return -error;
        }
    }
    return 0;
}
