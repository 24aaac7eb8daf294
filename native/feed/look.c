/* What files are, asked for by their names: a call for thousands.  Reads no file. */
#include "feed.h"

#include <string.h>
#include <sys/stat.h>

static int64_t ns_of(struct timespec time)
{
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void penstock_feed_look(const char *names, struct feed_seen *seen, uint32_t n)
{
    /* By the whole path: from an open folder it takes as long, where the way is in memory. */
    for (uint32_t i = 0; i < n; i++, names += strlen(names) + 1) {
        struct stat status;

        seen[i] = (struct feed_seen){.size_bytes = -1};
        if (!stat(names, &status) && S_ISREG(status.st_mode))
            seen[i] = (struct feed_seen){
                .size_bytes = status.st_size,
                .mtime_ns = ns_of(status.st_mtim),
                .ctime_ns = ns_of(status.st_ctim),
                .inode = status.st_ino,
                .device = status.st_dev,
            };
    }
}
