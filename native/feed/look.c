/* Looks up files by their names: a call for thousands of files.  Reads no file. */
#include "feed.h"

#include <string.h>
#include <sys/stat.h>

static bool ns_of(struct timespec time, int64_t *ns)
{
    return !__builtin_mul_overflow(time.tv_sec, 1000000000LL, ns) &&
           !__builtin_add_overflow(*ns, time.tv_nsec, ns);
}

void penstock_feed_look(const char *names, struct feed_seen *seen, uint32_t n)
{
    /* By the whole path: a lookup from an open folder takes as long, where the path is in
     * memory. */
    for (uint32_t i = 0; i < n; i++, names += strlen(names) + 1) {
        struct stat status;
        int64_t mtime_ns, ctime_ns;

        seen[i] = (struct feed_seen){.size_bytes = -1};
        if (!stat(names, &status) && S_ISREG(status.st_mode) && ns_of(status.st_mtim, &mtime_ns) &&
            ns_of(status.st_ctim, &ctime_ns))
            seen[i] = (struct feed_seen){
                .size_bytes = status.st_size,
                .mtime_ns = mtime_ns,
                .ctime_ns = ctime_ns,
                .inode = status.st_ino,
                .device = status.st_dev,
            };
    }
}
