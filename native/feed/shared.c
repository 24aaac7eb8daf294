/* Words that processes share, and what the page cache holds or is asked to hold.  Knows the
 * kernel's calls; knows no request. */
#include "feed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NR_CACHESTAT 451 /* the same number on every processor that has it; Linux 6.5 */

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

int penstock_feed_held(int fd, const int64_t *offsets, const int64_t *lengths, uint8_t *held,
                       uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t range[2] = {(uint64_t)offsets[i], (uint64_t)lengths[i]};
        uint64_t seen[5] = {0}; /* cached, dirty, in writeback, evicted, recently evicted */
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        uint64_t pages = lengths[i] ? (range[0] + range[1] - 1) / page - range[0] / page + 1 : 0;

        held[i] = 1;
        if (!pages) /* a length of 0 means to the end of the file */
            continue;
        if (syscall(NR_CACHESTAT, fd, range, seen, 0))
            return -errno;
        held[i] = seen[0] >= pages;
    }
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
