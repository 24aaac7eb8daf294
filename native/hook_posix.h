/* Shared beginnings and endings of wrappers of the POSIX layer, by name and by number. */
#ifndef PENSTOCK_HOOK_POSIX_H
#define PENSTOCK_HOOK_POSIX_H

#include <sys/uio.h>

#include "hook_open.h"
#include "imports.h"

static inline int end_open(const struct call *call, int fd, int flags)
{
    log_end(call, fd < 0 ? errno : 0, 0);
    if (fd >= 0)
        files_opened(fd, call->file, flags);
    imports_look();
    return fd;
}

static inline int end_redirected(struct redirected *open, int fd, int flags)
{
    return opened_redirected(open, fd) ? end_open(&open->call, fd, flags) : fd;
}

/* An open with O_NOFOLLOW has met a link.  A link of the burst buffer may have gone since: the call
 * is made again; the program's own link is still there after so many tries. */
#define LINK_TRIES 4

static inline bool is_link_seen(int fd)
{
    return fd < 0 && errno == ELOOP && burst_is_on();
}

static inline int end_dup(const struct call *call, int from, int to)
{
    if (to >= 0)
        files_copied(from, to);
    log_end_at(call, to < 0 ? errno : 0, to, 0);
    return to;
}

static inline uint64_t total(const struct iovec *parts, int n)
{
    uint64_t bytes = 0;
    int i;

    for (i = 0; (uintptr_t)parts >= 65536 && i < n; i++)
        bytes += parts[i].iov_len;
    return bytes;
}

static inline bool begin_stat_at(struct call *call, int dirfd, const char *path, int flags)
{
    if (flags & AT_EMPTY_PATH && (!path || !*path))
        return begin_fd(call, OP_FSTAT, dirfd, -1, 0);
    return begin_path(call, flags & AT_SYMLINK_NOFOLLOW ? OP_LSTAT : OP_STAT, dirfd, path);
}

static inline bool begin_two_fds(struct call *call, enum op op, int from, int to, uint64_t asked)
{
    return log_is_on() && log_begin(call, op, file_of(from), file_of(to), asked);
}

static inline bool begin_two_paths(struct call *call, enum op op, int from_dirfd, const char *from,
                                   int to_dirfd, const char *to)
{
    return log_is_on() &&
           log_begin(call, op, files_path(from_dirfd, from), files_path(to_dirfd, to), 0);
}

static inline bool begin_ring(struct call *call)
{
    return begin_unseen(call, OP_IO_URING, 0);
}

#endif
