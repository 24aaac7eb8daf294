/* One short wrapper per symbol of the POSIX layer.  Knows libc calls; knows no ELF. */
#include <aio.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hook_open.h"
#include "hook_wait.h"
#include "imports.h"

/* --- open and close -----------------------------------------------------------------------------
 */

static int end_open(const struct call *call, int fd, int flags)
{
    log_end(call, fd < 0 ? errno : 0, 0);
    if (fd >= 0)
        files_opened(fd, call->file, flags);
    imports_look();
    return fd;
}

static bool has_mode(int flags)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}

/* The argument after flags, which is there only for a file that may be made. */
#define MODE_AFTER(flags)                                                                          \
    ({                                                                                             \
        va_list list;                                                                              \
        mode_t mode;                                                                               \
                                                                                                   \
        va_start(list, flags);                                                                     \
        mode = has_mode(flags) ? va_arg(list, mode_t) : 0;                                         \
        va_end(list);                                                                              \
        mode;                                                                                      \
    })

static int end_redirected(struct redirected *open, int fd, int flags)
{
    return opened_redirected(open, fd) ? end_open(&open->call, fd, flags) : fd;
}

/* An open that follows no link has met one.  It may have been ours, and have gone since: then the
 * call is made again; the program's own is still there after so many. */
#define LINK_TRIES 4

static inline bool is_link_seen(int fd)
{
    return fd < 0 && errno == ELOOP && burst_is_on();
}

#define HOOK_OPEN(function, parameters, arguments, dirfd, flags, mode)                             \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct redirected open;                                                                    \
        struct call call;                                                                          \
        int fd;                                                                                    \
                                                                                                   \
        if (redirects()) {                                                                         \
            fd = begin_redirected(&open, OP_OPEN, dirfd, &path, flags, mode);                      \
            if (fd < 0)                                                                            \
                fd = real_##function arguments;                                                    \
            for (int tries = LINK_TRIES; is_link_seen(fd) && tries--;) {                           \
                fd = burst_follow(dirfd, path, flags);                                             \
                if (fd < 0)                                                                        \
                    fd = real_##function arguments;                                                \
            }                                                                                      \
            return end_redirected(&open, fd, flags);                                               \
        }                                                                                          \
        if (!begin_path(&call, OP_OPEN, dirfd, path))                                              \
            return real_##function arguments;                                                      \
        return end_open(&call, real_##function arguments, flags);                                  \
    }

#define HOOK_OPEN_PATH(function)                                                                   \
    HOOK_OPEN(function, (const char *path, int flags, ...), (path, flags, MODE_AFTER(flags)),      \
              AT_FDCWD, flags, MODE_AFTER(flags))
HOOK_OPEN_PATH(open)
HOOK_OPEN_PATH(open64)
HOOK_OPEN_PATH(__open)
HOOK_OPEN_PATH(__open64)
HOOK_OPEN(__open_2, (const char *path, int flags), (path, flags), AT_FDCWD, flags, 0)
HOOK_OPEN(__open64_2, (const char *path, int flags), (path, flags), AT_FDCWD, flags, 0)

#define CREATES (O_CREAT | O_WRONLY | O_TRUNC)
HOOK_OPEN(creat, (const char *path, mode_t mode), (path, mode), AT_FDCWD, CREATES, mode)
HOOK_OPEN(creat64, (const char *path, mode_t mode), (path, mode), AT_FDCWD, CREATES, mode)

#define HOOK_OPEN_AT(function)                                                                     \
    HOOK_OPEN(function, (int dirfd, const char *path, int flags, ...),                             \
              (dirfd, path, flags, MODE_AFTER(flags)), dirfd, flags, MODE_AFTER(flags))
HOOK_OPEN_AT(openat)
HOOK_OPEN_AT(openat64)
HOOK_OPEN(__openat_2, (int dirfd, const char *path, int flags), (dirfd, path, flags), dirfd, flags,
          0)
HOOK_OPEN(__openat64_2, (int dirfd, const char *path, int flags), (dirfd, path, flags), dirfd,
          flags, 0)

/* The name is made inside the call: an event without a file, then the file as its descriptor shows.
 */
static int end_temporary(const struct call *call, int fd)
{
    log_end(call, fd < 0 ? errno : 0, 0);
    if (fd >= 0)
        files_closed(fd); /* whatever that number was: it is looked up when it is used */
    return fd;
}

#define HOOK_TEMPORARY(function, parameters, arguments)                                            \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_plain(&call, OP_OPEN, -1, 0))                                                   \
            return real_##function arguments;                                                      \
        return end_temporary(&call, real_##function arguments);                                    \
    }
HOOK_TEMPORARY(mkstemp, (char *name), (name))
HOOK_TEMPORARY(mkstemp64, (char *name), (name))
HOOK_TEMPORARY(mkostemp, (char *name, int flags), (name, flags))
HOOK_TEMPORARY(mkostemp64, (char *name, int flags), (name, flags))
HOOK_TEMPORARY(mkstemps, (char *name, int suffix), (name, suffix))
HOOK_TEMPORARY(mkstemps64, (char *name, int suffix), (name, suffix))
HOOK_TEMPORARY(mkostemps, (char *name, int suffix, int flags), (name, suffix, flags))
HOOK_TEMPORARY(mkostemps64, (char *name, int suffix, int flags), (name, suffix, flags))
HOOK_TEMPORARY(shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))
HOOK_TEMPORARY(memfd_create, (const char *name, unsigned flags), (name, flags))

static int recorded_close(int (*real)(int), int fd)
{
    struct call call;
    int result;

    if (!begin_fd(&call, OP_CLOSE, fd, -1, 0))
        return real(fd);
    files_closed(
        fd); /* before the call: after it the number may already be another thread's file */
    result = real(fd);
    log_end(&call, result < 0 ? errno : 0, 0);
    return result;
}

HOOK(int, close, (int fd))
{
    return recorded_close(real_close, fd);
}

HOOK(int, __close, (int fd))
{
    return recorded_close(real___close, fd);
}

HOOK(int, close_range, (unsigned first, unsigned last, int flags))
{
    struct call call;
    int result;

    if (!begin_plain(&call, OP_CLOSE, first, 0))
        return real_close_range(first, last, flags);
    if (!(flags & 4 /* CLOSE_RANGE_CLOEXEC only marks them */))
        files_closed_range(first, last);
    result = real_close_range(first, last, flags);
    log_end(&call, result < 0 ? errno : 0, 0);
    return result;
}

HOOK(void, closefrom, (int first))
{
    struct call call;

    if (!begin_plain(&call, OP_CLOSE, first, 0)) {
        real_closefrom(first);
        return;
    }
    files_closed_range((unsigned)(first < 0 ? 0 : first), ~0u);
    real_closefrom(first);
    log_end(&call, 0, 0);
}

static int end_dup(const struct call *call, int from, int to)
{
    if (to >= 0)
        files_copied(from, to);
    log_end_at(call, to < 0 ? errno : 0, to, 0);
    return to;
}

HOOK(int, dup, (int fd))
{
    struct call call;

    return begin_fd(&call, OP_DUP, fd, -1, 0) ? end_dup(&call, fd, real_dup(fd)) : real_dup(fd);
}

HOOK(int, dup2, (int fd, int to))
{
    struct call call;

    if (!begin_fd(&call, OP_DUP, fd, -1, 0))
        return real_dup2(fd, to);
    return end_dup(&call, fd, real_dup2(fd, to));
}

HOOK(int, dup3, (int fd, int to, int flags))
{
    struct call call;

    if (!begin_fd(&call, OP_DUP, fd, -1, 0))
        return real_dup3(fd, to, flags);
    return end_dup(&call, fd, real_dup3(fd, to, flags));
}

static int recorded_fcntl(int (*real)(int, int, ...), int fd, int command, void *argument)
{
    struct call call;
    int result;

    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
        if (!begin_fd(&call, OP_DUP, fd, -1, 0))
            return real(fd, command, argument);
        return end_dup(&call, fd, real(fd, command, argument));
    }
    result = real(fd, command, argument);
    if (command == F_SETFL && recorder_on && result >= 0)
        files_set_append(fd, (long)argument & O_APPEND);
    return result;
}

#define HOOK_FCNTL(function)                                                                       \
    HOOK(int, function, (int fd, int command, ...))                                                \
    {                                                                                              \
        va_list arguments;                                                                         \
        void *argument;                                                                            \
                                                                                                   \
        va_start(arguments, command);                                                              \
        argument = va_arg(arguments, void *);                                                      \
        va_end(arguments);                                                                         \
        return recorded_fcntl(real_##function, fd, command, argument);                             \
    }
HOOK_FCNTL(fcntl)
HOOK_FCNTL(fcntl64)

/* --- a full burst tier: the call again, where there is room
 * ------------------------------------------------------- */

#define ESCAPING(fd, made)                                                                         \
    ({                                                                                             \
        __typeof__(made) result_of_call = made;                                                    \
                                                                                                   \
        if (UNLIKELY(result_of_call < 0) && burst_escapes(fd))                                     \
            result_of_call = made;                                                                 \
        result_of_call;                                                                            \
    })

/* --- read and write by position
 * ------------------------------------------------------------------- */

struct stream {
    struct call call;
    struct slot_of_fd *slot;
    uint32_t file;
};

__attribute__((always_inline)) static inline bool begin_stream(struct stream *stream, enum op op,
                                                               int fd, uint64_t asked)
{
    int64_t position;

    if (!log_is_on())
        return false;
    stream->slot = files_slot(fd);
    stream->file = LIKELY(stream->slot != NULL) ? stream->slot->file : 0;
    position = stream->file ? files_position(stream->slot, fd) : -1;
    return log_begin(&stream->call, op, stream->file, position, asked);
}

__attribute__((always_inline)) static inline ssize_t end_stream(struct stream *stream, int fd,
                                                                ssize_t got)
{
    struct slot_of_fd *slot = stream->slot;

    if (got > 0 && stream->file && slot->file == stream->file) {
        files_moved(slot, got);
        if (UNLIKELY(slot->stdio_position >= 0))
            slot->stdio_position =
                -1; /* the stream's position no longer tells what the stream moved */
        if (UNLIKELY(slot->flags & SLOT_APPEND && is_write(stream->call.op))) {
            int64_t end = files_kernel_position(slot, fd);

            log_end_at(&stream->call, 0, end < 0 ? -1 : end - got, (uint64_t)got);
            return got;
        }
    }
    return end_bytes(&stream->call, got);
}

static uint64_t total(const struct iovec *parts, int n)
{
    uint64_t bytes = 0;
    int i;

    for (i = 0; (uintptr_t)parts >= 65536 && i < n; i++)
        bytes += parts[i].iov_len;
    return bytes;
}

#define HOOK_STREAM(function, op, parameters, arguments, asked)                                    \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct stream stream;                                                                      \
                                                                                                   \
        if (!begin_stream(&stream, op, fd, asked))                                                 \
            return ESCAPING(fd, real_##function arguments);                                        \
        return end_stream(&stream, fd, ESCAPING(fd, real_##function arguments));                   \
    }
HOOK_STREAM(read, OP_READ, (int fd, void *data, size_t size), (fd, data, size), size)
HOOK_STREAM(__read, OP_READ, (int fd, void *data, size_t size), (fd, data, size), size)
HOOK_STREAM(__read_chk, OP_READ, (int fd, void *data, size_t size, size_t room),
            (fd, data, size, room), size)
HOOK_STREAM(write, OP_WRITE, (int fd, const void *data, size_t size), (fd, data, size), size)
HOOK_STREAM(__write, OP_WRITE, (int fd, const void *data, size_t size), (fd, data, size), size)
HOOK_STREAM(readv, OP_READV, (int fd, const struct iovec *parts, int n), (fd, parts, n),
            total(parts, n))
HOOK_STREAM(writev, OP_WRITEV, (int fd, const struct iovec *parts, int n), (fd, parts, n),
            total(parts, n))

/* --- read and write at an offset
 * ------------------------------------------------------------------ */

#define HOOK_AT(function, op, parameters, arguments, asked)                                        \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_fd(&call, op, fd, offset, asked))                                               \
            return ESCAPING(fd, real_##function arguments);                                        \
        return end_bytes(&call, ESCAPING(fd, real_##function arguments));                          \
    }

#define HOOK_PREAD(function)                                                                       \
    HOOK_AT(function, OP_PREAD, (int fd, void *data, size_t size, off_t offset),                   \
            (fd, data, size, offset), size)
HOOK_PREAD(pread)
HOOK_PREAD(pread64)
HOOK_PREAD(__pread64)

#define HOOK_PREAD_CHK(function)                                                                   \
    HOOK_AT(function, OP_PREAD, (int fd, void *data, size_t size, off_t offset, size_t room),      \
            (fd, data, size, offset, room), size)
HOOK_PREAD_CHK(__pread_chk)
HOOK_PREAD_CHK(__pread64_chk)

#define HOOK_PWRITE(function)                                                                      \
    HOOK_AT(function, OP_PWRITE, (int fd, const void *data, size_t size, off_t offset),            \
            (fd, data, size, offset), size)
HOOK_PWRITE(pwrite)
HOOK_PWRITE(pwrite64)
HOOK_PWRITE(__pwrite64)

#define HOOK_PVECTOR(function, op)                                                                 \
    HOOK_AT(function, op, (int fd, const struct iovec *parts, int n, off_t offset),                \
            (fd, parts, n, offset), total(parts, n))
HOOK_PVECTOR(preadv, OP_PREADV)
HOOK_PVECTOR(preadv64, OP_PREADV)
HOOK_PVECTOR(pwritev, OP_PWRITEV)
HOOK_PVECTOR(pwritev64, OP_PWRITEV)

/* With offset -1 these move the position as readv and writev do. */
#define HOOK_PVECTOR2(function, op)                                                                \
    HOOK(ssize_t, function, (int fd, const struct iovec *parts, int n, off_t offset, int flags))   \
    {                                                                                              \
        struct stream stream;                                                                      \
        struct call call;                                                                          \
                                                                                                   \
        if (offset == -1) {                                                                        \
            if (!begin_stream(&stream, op, fd, total(parts, n)))                                   \
                return ESCAPING(fd, real_##function(fd, parts, n, offset, flags));                 \
            return end_stream(&stream, fd,                                                         \
                              ESCAPING(fd, real_##function(fd, parts, n, offset, flags)));         \
        }                                                                                          \
        if (!begin_fd(&call, op, fd, offset, total(parts, n)))                                     \
            return ESCAPING(fd, real_##function(fd, parts, n, offset, flags));                     \
        return end_bytes(&call, ESCAPING(fd, real_##function(fd, parts, n, offset, flags)));       \
    }
HOOK_PVECTOR2(preadv2, OP_PREADV)
HOOK_PVECTOR2(preadv64v2, OP_PREADV)
HOOK_PVECTOR2(pwritev2, OP_PWRITEV)
HOOK_PVECTOR2(pwritev64v2, OP_PWRITEV)

static off_t recorded_lseek(off_t (*real)(int, off_t, int), int fd, off_t offset, int whence)
{
    struct call call;
    off_t result;

    if (!begin_fd(&call, OP_LSEEK, fd, -1, 0))
        return real(fd, offset, whence);
    result = real(fd, offset, whence);
    if (result >= 0)
        files_set_position(fd, result);
    log_end_at(&call, result < 0 ? errno : 0, result, 0);
    return result;
}

HOOK(off_t, lseek, (int fd, off_t offset, int whence))
{
    return recorded_lseek(real_lseek, fd, offset, whence);
}

HOOK(off_t, lseek64, (int fd, off_t offset, int whence))
{
    return recorded_lseek(real_lseek64, fd, offset, whence);
}

/* --- metadata
 * --------------------------------------------------------------------------------------- */

#define HOOK_STAT(function)                                                                        \
    HOOK_TELLS(function, (const char *path, void *found), (path, found),                           \
               begin_path(&call, OP_STAT, AT_FDCWD, path), disguise_at(AT_FDCWD, path, 0, found))
HOOK_STAT(stat)
HOOK_STAT(stat64)

#define HOOK_LSTAT(function)                                                                       \
    HOOK_TELLS(function, (const char *path, void *found), (path, found),                           \
               begin_path(&call, OP_LSTAT, AT_FDCWD, path),                                        \
               disguise_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, found))
HOOK_LSTAT(lstat)
HOOK_LSTAT(lstat64)

#define HOOK_FSTAT(function)                                                                       \
    HOOK_TELLS(function, (int fd, void *found), (fd, found), begin_fd(&call, OP_FSTAT, fd, -1, 0), \
               disguise_fd(fd, found))
HOOK_FSTAT(fstat)
HOOK_FSTAT(fstat64)

static bool begin_stat_at(struct call *call, int dirfd, const char *path, int flags)
{
    if (flags & AT_EMPTY_PATH && (!path || !*path))
        return begin_fd(call, OP_FSTAT, dirfd, -1, 0);
    return begin_path(call, flags & AT_SYMLINK_NOFOLLOW ? OP_LSTAT : OP_STAT, dirfd, path);
}

#define HOOK_FSTATAT(function)                                                                     \
    HOOK_TELLS(function, (int dirfd, const char *path, void *found, int flags),                    \
               (dirfd, path, found, flags), begin_stat_at(&call, dirfd, path, flags),              \
               disguise_at(dirfd, path, flags, found))
HOOK_FSTATAT(fstatat)
HOOK_FSTATAT(fstatat64)
HOOK_TELLS(statx, (int dirfd, const char *path, int flags, unsigned mask, void *found),
           (dirfd, path, flags, mask, found), begin_stat_at(&call, dirfd, path, flags),
           disguise_at_x(dirfd, path, flags, mask, found))

#define HOOK_XSTAT(function)                                                                       \
    HOOK_TELLS(function, (int version, const char *path, void *found), (version, path, found),     \
               begin_path(&call, OP_STAT, AT_FDCWD, path), disguise_at(AT_FDCWD, path, 0, found))
HOOK_XSTAT(__xstat)
HOOK_XSTAT(__xstat64)

#define HOOK_LXSTAT(function)                                                                      \
    HOOK_TELLS(function, (int version, const char *path, void *found), (version, path, found),     \
               begin_path(&call, OP_LSTAT, AT_FDCWD, path),                                        \
               disguise_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, found))
HOOK_LXSTAT(__lxstat)
HOOK_LXSTAT(__lxstat64)

#define HOOK_FXSTAT(function)                                                                      \
    HOOK_TELLS(function, (int version, int fd, void *found), (version, fd, found),                 \
               begin_fd(&call, OP_FSTAT, fd, -1, 0), disguise_fd(fd, found))
HOOK_FXSTAT(__fxstat)
HOOK_FXSTAT(__fxstat64)

#define HOOK_FXSTATAT(function)                                                                    \
    HOOK_TELLS(function, (int version, int dirfd, const char *path, void *found, int flags),       \
               (version, dirfd, path, found, flags), begin_stat_at(&call, dirfd, path, flags),     \
               disguise_at(dirfd, path, flags, found))
HOOK_FXSTATAT(__fxstatat)
HOOK_FXSTATAT(__fxstatat64)

HOOK_STATUS(access, (const char *path, int mode), (path, mode),
            begin_path(&call, OP_ACCESS, AT_FDCWD, path))
HOOK_STATUS(euidaccess, (const char *path, int mode), (path, mode),
            begin_path(&call, OP_ACCESS, AT_FDCWD, path))
HOOK_STATUS(eaccess, (const char *path, int mode), (path, mode),
            begin_path(&call, OP_ACCESS, AT_FDCWD, path))
HOOK_STATUS(faccessat, (int dirfd, const char *path, int mode, int flags),
            (dirfd, path, mode, flags), begin_path(&call, OP_ACCESS, dirfd, path))

#define HOOK_READLINK(function, parameters, arguments, dirfd)                                      \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct call call;                                                                          \
        bool is_recorded = begin_path(&call, OP_READLINK, dirfd, path);                            \
        ssize_t got;                                                                               \
                                                                                                   \
        if (!is_recorded && !redirects())                                                          \
            return real_##function arguments;                                                      \
        got = disguise_link(dirfd, path, real_##function arguments);                               \
        if (staged_is_on())                                                                        \
            got = staged_disguise_link(path, name, got, size);                                     \
        if (is_recorded)                                                                           \
            log_end(&call, got < 0 ? errno : 0, 0);                                                \
        return got;                                                                                \
    }
HOOK_READLINK(readlink, (const char *path, char *name, size_t size), (path, name, size), AT_FDCWD)
HOOK_READLINK(readlinkat, (int dirfd, const char *path, char *name, size_t size),
              (dirfd, path, name, size), dirfd)
HOOK_READLINK(__readlink_chk, (const char *path, char *name, size_t size, size_t room),
              (path, name, size, room), AT_FDCWD)
HOOK_READLINK(__readlinkat_chk, (int dirfd, const char *path, char *name, size_t size, size_t room),
              (dirfd, path, name, size, room), dirfd)

/* What libc has allocated, for the program to free, may have no room for another path.  True: the
 * file is elsewhere by now, and it is to be asked again. */
static bool disguise_real(const char *path, char **result, const char *given)
{
    char real[PATH_MAX], *made;

    if (!*result)
        return burst_was_missed(path);
    if (strlen(*result) >= sizeof real)
        return false;
    if (!burst_disguise_real(path, strcpy(real, *result))) {
        if (!given)
            free(*result);
        return true;
    }
    if (!strcmp(real, *result))
        return false;
    if (given) {
        strcpy(*result, real);
    } else if ((made = strdup(real))) {
        free(*result);
        *result = made;
    }
    return false;
}

#define HOOK_REALPATH(function, parameters, arguments, given)                                      \
    HOOK(char *, function, parameters)                                                             \
    {                                                                                              \
        struct call call;                                                                          \
        bool is_recorded = begin_path(&call, OP_READLINK, AT_FDCWD, path);                         \
        char *result;                                                                              \
        int tries = 8;                                                                             \
                                                                                                   \
        if (!is_recorded && !burst_is_on())                                                        \
            return real_##function arguments;                                                      \
        do                                                                                         \
            result = real_##function arguments;                                                    \
        while (burst_is_on() && --tries && disguise_real(path, &result, given));                   \
        if (is_recorded)                                                                           \
            log_end(&call, result ? 0 : errno, 0);                                                 \
        return result;                                                                             \
    }
HOOK_REALPATH(realpath, (const char *path, char *name), (path, name), name)
HOOK_REALPATH(__realpath_chk, (const char *path, char *name, size_t room), (path, name, room), name)
HOOK_REALPATH(canonicalize_file_name, (const char *path), (path), NULL)

#define HOOK_SYNC(function, op)                                                                    \
    HOOK_STATUS(function, (int fd), (fd), begin_fd(&call, op, fd, -1, 0))
HOOK_SYNC(fsync, OP_FSYNC)
HOOK_SYNC(fdatasync, OP_FDATASYNC)
HOOK_SYNC(syncfs, OP_SYNCFS)
HOOK_STATUS(sync_file_range, (int fd, off_t offset, off_t size, unsigned flags),
            (fd, offset, size, flags), begin_fd(&call, OP_SYNC_RANGE, fd, offset, (uint64_t)size))

/* What may be mapped next has to have room. */
static bool begin_truncate(struct call *call, int fd, off_t size)
{
    if (burst_is_on())
        burst_reserve(fd, size);
    return begin_fd(call, OP_TRUNCATE, fd, size, 0);
}

#define HOOK_FTRUNCATE(function)                                                                   \
    HOOK_STATUS(function, (int fd, off_t size), (fd, size), begin_truncate(&call, fd, size))
HOOK_FTRUNCATE(ftruncate)
HOOK_FTRUNCATE(ftruncate64)

#define HOOK_TRUNCATE(function)                                                                    \
    HOOK_CHANGE(function, (const char *path, off_t size), (path, size),                            \
                begin_path(&call, OP_TRUNCATE, AT_FDCWD, path), true, AT_FDCWD, path, 0, NULL)
HOOK_TRUNCATE(truncate)
HOOK_TRUNCATE(truncate64)

static bool begin_allocate(struct call *call, int fd, off_t offset, off_t size)
{
    if (burst_is_on() && offset >= 0 && size > 0 && offset <= INT64_MAX - size)
        burst_reserve(fd, offset + size);
    return begin_fd(call, OP_FALLOCATE, fd, offset, (uint64_t)size);
}

#define HOOK_FALLOCATE(function)                                                                   \
    HOOK_STATUS(function, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size),  \
                begin_allocate(&call, fd, offset, size))
HOOK_FALLOCATE(fallocate)
HOOK_FALLOCATE(fallocate64)

/* These return the error itself. */
#define HOOK_POSIX_RANGE(function, begin, parameters, arguments)                                   \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
        int error;                                                                                 \
                                                                                                   \
        if (!(begin))                                                                              \
            return real_##function arguments;                                                      \
        error = real_##function arguments;                                                         \
        log_end(&call, error, 0);                                                                  \
        return error;                                                                              \
    }
HOOK_POSIX_RANGE(posix_fallocate, begin_allocate(&call, fd, offset, size),
                 (int fd, off_t offset, off_t size), (fd, offset, size))
HOOK_POSIX_RANGE(posix_fallocate64, begin_allocate(&call, fd, offset, size),
                 (int fd, off_t offset, off_t size), (fd, offset, size))
HOOK_POSIX_RANGE(posix_fadvise, begin_fd(&call, OP_FADVISE, fd, offset, (uint64_t)size),
                 (int fd, off_t offset, off_t size, int advice), (fd, offset, size, advice))
HOOK_POSIX_RANGE(posix_fadvise64, begin_fd(&call, OP_FADVISE, fd, offset, (uint64_t)size),
                 (int fd, off_t offset, off_t size, int advice), (fd, offset, size, advice))

HOOK(ssize_t, readahead, (int fd, off_t offset, size_t size))
{
    struct call call;
    ssize_t result;

    if (!begin_fd(&call, OP_READAHEAD, fd, offset, size))
        return real_readahead(fd, offset, size);
    result = real_readahead(fd, offset, size);
    log_end(&call, result < 0 ? errno : 0, 0);
    return result;
}

HOOK_STATUS(fchmod, (int fd, mode_t mode), (fd, mode), begin_fd(&call, OP_CHMOD, fd, -1, 0))
HOOK_STATUS(chmod, (const char *path, mode_t mode), (path, mode),
            begin_path(&call, OP_CHMOD, AT_FDCWD, path))
HOOK_STATUS(fchmodat, (int dirfd, const char *path, mode_t mode, int flags),
            (dirfd, path, mode, burst_flags(dirfd, path, flags)),
            begin_path(&call, OP_CHMOD, dirfd, path))
HOOK(int, utimensat, (int dirfd, const char *path, const struct timespec *times, int flags))
{
    return real_utimensat(dirfd, path, times, burst_flags(dirfd, path, flags));
}

/* --- names
 * ------------------------------------------------------------------------------------------ */

static bool begin_two_paths(struct call *call, enum op op, int from_dirfd, const char *from,
                            int to_dirfd, const char *to)
{
    return log_is_on() &&
           log_begin(call, op, files_path(from_dirfd, from), files_path(to_dirfd, to), 0);
}

HOOK_CHANGE(rename, (const char *from, const char *to), (from, to),
            begin_two_paths(&call, OP_RENAME, AT_FDCWD, from, AT_FDCWD, to), false, AT_FDCWD, from,
            AT_FDCWD, to)
HOOK_CHANGE(renameat, (int from_dirfd, const char *from, int to_dirfd, const char *to),
            (from_dirfd, from, to_dirfd, to),
            begin_two_paths(&call, OP_RENAME, from_dirfd, from, to_dirfd, to), false, from_dirfd,
            from, to_dirfd, to)
HOOK_CHANGE_BY(renameat2,
               (int from_dirfd, const char *from, int to_dirfd, const char *to, unsigned flags),
               (from_dirfd, from, to_dirfd, to, flags),
               begin_two_paths(&call, OP_RENAME, from_dirfd, from, to_dirfd, to), false, from_dirfd,
               from, to_dirfd, to, flags)
HOOK_LINK(link, (const char *from, const char *to), (from, to),
          begin_two_paths(&call, OP_LINK, AT_FDCWD, from, AT_FDCWD, to),
          burst_linked(AT_FDCWD, from, AT_FDCWD, to))
HOOK_LINK(linkat, (int from_dirfd, const char *from, int to_dirfd, const char *to, int flags),
          (from_dirfd, from, to_dirfd, to, flags),
          begin_two_paths(&call, OP_LINK, from_dirfd, from, to_dirfd, to),
          burst_linked(from_dirfd, from, to_dirfd, to))
HOOK_STATUS(symlink, (const char *target, const char *path), (target, path),
            begin_path(&call, OP_SYMLINK, AT_FDCWD, path))
HOOK_STATUS(symlinkat, (const char *target, int dirfd, const char *path), (target, dirfd, path),
            begin_path(&call, OP_SYMLINK, dirfd, path))
HOOK_CHANGE(unlink, (const char *path), (path), begin_path(&call, OP_UNLINK, AT_FDCWD, path), false,
            AT_FDCWD, path, 0, NULL)
HOOK_CHANGE(remove, (const char *path), (path), begin_path(&call, OP_UNLINK, AT_FDCWD, path), false,
            AT_FDCWD, path, 0, NULL)
HOOK_CHANGE(unlinkat, (int dirfd, const char *path, int flags), (dirfd, path, flags),
            begin_path(&call, (flags & AT_REMOVEDIR) ? OP_RMDIR : OP_UNLINK, dirfd, path), false,
            dirfd, path, 0, NULL)
HOOK_STATUS(shm_unlink, (const char *name), (name), begin_plain(&call, OP_UNLINK, -1, 0))
HOOK_CHANGE(rmdir, (const char *path), (path), begin_path(&call, OP_RMDIR, AT_FDCWD, path), false,
            AT_FDCWD, path, 0, NULL)
HOOK_STATUS(mkdir, (const char *path, mode_t mode), (path, mode),
            begin_path(&call, OP_MKDIR, AT_FDCWD, path))
HOOK_STATUS(mkdirat, (int dirfd, const char *path, mode_t mode), (dirfd, path, mode),
            begin_path(&call, OP_MKDIR, dirfd, path))

#define HOOK_CHDIR(function, parameters, arguments)                                                \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        int result = real_##function arguments;                                                    \
                                                                                                   \
        if (recorder_on && !result && !log_is_borrowed())                                          \
            files_folder_changed();                                                                \
        return result;                                                                             \
    }
HOOK_CHDIR(chdir, (const char *path), (path))
HOOK_CHDIR(fchdir, (int fd), (fd))

/* --- memory
 * ----------------------------------------------------------------------------------------- */

static void *recorded_mmap(void *(*real)(void *, size_t, int, int, int, off_t), void *address,
                           size_t size, int protection, int flags, int fd, off_t offset)
{
    struct call call;
    void *memory;

    if (fd < 0 || flags & MAP_ANONYMOUS || !begin_fd(&call, OP_MMAP, fd, offset, size))
        return real(address, size, protection, flags, fd, offset);
    memory = real(address, size, protection, flags, fd, offset);
    log_end(&call, memory == MAP_FAILED ? errno : 0, memory == MAP_FAILED ? 0 : (uintptr_t)memory);
    return memory;
}

HOOK(void *, mmap, (void *address, size_t size, int protection, int flags, int fd, off_t offset))
{
    return recorded_mmap(real_mmap, address, size, protection, flags, fd, offset);
}

HOOK(void *, mmap64, (void *address, size_t size, int protection, int flags, int fd, off_t offset))
{
    return recorded_mmap(real_mmap64, address, size, protection, flags, fd, offset);
}

#define HOOK_MAPPED(function, op, parameters, arguments)                                           \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
        int result;                                                                                \
                                                                                                   \
        if (!begin_plain(&call, op, -1, size))                                                     \
            return real_##function arguments;                                                      \
        result = real_##function arguments;                                                        \
        log_end(&call, result < 0 ? errno : 0, (uintptr_t)address);                                \
        return result;                                                                             \
    }
HOOK_MAPPED(munmap, OP_MUNMAP, (void *address, size_t size), (address, size))
HOOK_MAPPED(msync, OP_MSYNC, (void *address, size_t size, int flags), (address, size, flags))

/* --- from file to file
 * -------------------------------------------------------------------------------- */

static bool begin_two_fds(struct call *call, enum op op, int from, int to, uint64_t asked)
{
    return log_is_on() && log_begin(call, op, file_of(from), file_of(to), asked);
}

/* Both positions moved, unless an offset was given; asking the kernel next time is exact. */
static ssize_t end_copy(const struct call *call, int from, int to, ssize_t got)
{
    end_bytes(call, got);
    files_unsure(from);
    files_unsure(to);
    return got;
}

#define HOOK_SENDFILE(function)                                                                    \
    HOOK(ssize_t, function, (int to, int from, off_t *offset, size_t size))                        \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_two_fds(&call, OP_SENDFILE, from, to, size))                                    \
            return ESCAPING(to, real_##function(to, from, offset, size));                          \
        return end_copy(&call, from, to, ESCAPING(to, real_##function(to, from, offset, size)));   \
    }
HOOK_SENDFILE(sendfile)
HOOK_SENDFILE(sendfile64)

#define HOOK_COPY(function, op)                                                                    \
    HOOK(ssize_t, function,                                                                        \
         (int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags))    \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_two_fds(&call, op, from, to, size))                                             \
            return ESCAPING(to, real_##function(from, from_offset, to, to_offset, size, flags));   \
        return end_copy(                                                                           \
            &call, from, to,                                                                       \
            ESCAPING(to, real_##function(from, from_offset, to, to_offset, size, flags)));         \
    }
HOOK_COPY(copy_file_range, OP_COPY_RANGE)
HOOK_COPY(splice, OP_SPLICE)

/* --- asynchronous
 * ------------------------------------------------------------------------------------- */

#define HOOK_AIO(function, op)                                                                     \
    HOOK_STATUS(function, (struct aiocb * block), (block),                                         \
                begin_fd(&call, op, block->aio_fildes, block->aio_offset, block->aio_nbytes))
HOOK_AIO(aio_read, OP_AIO_READ)
HOOK_AIO(aio_read64, OP_AIO_READ)
HOOK_AIO(aio_write, OP_AIO_WRITE)
HOOK_AIO(aio_write64, OP_AIO_WRITE)

#define HOOK_AIO_FSYNC(function)                                                                   \
    HOOK_STATUS(function, (int op, struct aiocb *block), (op, block),                              \
                begin_fd(&call, OP_FSYNC, block->aio_fildes, -1, 0))
HOOK_AIO_FSYNC(aio_fsync)
HOOK_AIO_FSYNC(aio_fsync64)

#define HOOK_AIO_RETURN(function)                                                                  \
    HOOK(ssize_t, function, (struct aiocb * block))                                                \
    {                                                                                              \
        enum op op = block->aio_lio_opcode == LIO_WRITE ? OP_AIO_WRITE_DONE : OP_AIO_READ_DONE;    \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_fd(&call, op, block->aio_fildes, block->aio_offset, block->aio_nbytes))         \
            return real_##function(block);                                                         \
        return end_bytes(&call, real_##function(block));                                           \
    }
HOOK_AIO_RETURN(aio_return)
HOOK_AIO_RETURN(aio_return64)

static void note_list(struct aiocb *const blocks[], int n)
{
    struct call call;
    int i;

    for (i = 0; i < n; i++) {
        const struct aiocb *block = blocks[i];
        enum op op = block && block->aio_lio_opcode == LIO_WRITE ? OP_AIO_WRITE : OP_AIO_READ;

        if (block && block->aio_lio_opcode != LIO_NOP &&
            begin_fd(&call, op, block->aio_fildes, block->aio_offset, block->aio_nbytes))
            log_end(&call, 0, 0);
    }
}

#define HOOK_LIO(function)                                                                         \
    HOOK(int, function, (int mode, struct aiocb *const blocks[], int n, void *event))              \
    {                                                                                              \
        note_list(blocks, n);                                                                      \
        return real_##function(mode, blocks, n, event);                                            \
    }
HOOK_LIO(lio_listio)
HOOK_LIO(lio_listio64)

static bool begin_ring(struct call *call)
{
    return begin_unseen(call, OP_IO_URING, 0);
}

HOOK_STATUS(io_uring_enter, (unsigned fd, unsigned n, unsigned min, unsigned flags, void *signals),
            (fd, n, min, flags, signals), begin_ring(&call))
HOOK_STATUS(io_uring_submit, (void *ring), (ring), begin_ring(&call))
HOOK_STATUS(io_uring_submit_and_wait, (void *ring, unsigned n), (ring, n), begin_ring(&call))
HOOK_STATUS(io_submit, (void *context, long n, void *blocks), (context, n, blocks),
            begin_ring(&call))

/* --- syscall(): the same calls by number
 * -------------------------------------------------------------- */

static bool begin_at_position(struct call *call, enum op op, int fd, uint64_t asked)
{
    return begin_fd(call, op, fd, files_position_of(fd), asked);
}

static bool begin_data_call(struct call *call, long number, const long *a)
{
    int fd = (int)a[0];
    uint64_t size = (uint64_t)a[2];
    uint64_t vector =
        number == SYS_readv || number == SYS_writev || number == SYS_preadv || number == SYS_pwritev
            ? total((const struct iovec *)a[1], (int)a[2])
            : 0;

    switch (number) {
    case SYS_read: return begin_at_position(call, OP_READ, fd, size);
    case SYS_write: return begin_at_position(call, OP_WRITE, fd, size);
    case SYS_readv: return begin_at_position(call, OP_READV, fd, vector);
    case SYS_writev: return begin_at_position(call, OP_WRITEV, fd, vector);
    case SYS_pread64: return begin_fd(call, OP_PREAD, fd, a[3], size);
    case SYS_pwrite64: return begin_fd(call, OP_PWRITE, fd, a[3], size);
    case SYS_preadv: return begin_fd(call, OP_PREADV, fd, a[3], vector);
    case SYS_pwritev: return begin_fd(call, OP_PWRITEV, fd, a[3], vector);
    case SYS_copy_file_range:
        return begin_two_fds(call, OP_COPY_RANGE, fd, (int)a[2], (uint64_t)a[4]);
    case SYS_readahead: return begin_fd(call, OP_READAHEAD, fd, a[1], size);
    case SYS_fallocate: return begin_fd(call, OP_FALLOCATE, fd, a[2], (uint64_t)a[3]);
    case SYS_ftruncate: return begin_fd(call, OP_TRUNCATE, fd, a[1], 0);
    case SYS_preadv2: return begin_fd(call, OP_PREADV, fd, a[3], vector);
    case SYS_pwritev2: return begin_fd(call, OP_PWRITEV, fd, a[3], vector);
    case SYS_dup:
    case SYS_dup3: return begin_fd(call, OP_DUP, fd, -1, 0);
    case SYS_close_range: return begin_plain(call, OP_CLOSE, a[0], 0);
    case SYS_getdents64: return begin_fd(call, OP_READDIR, fd, -1, 0);
    case SYS_close: return begin_fd(call, OP_CLOSE, fd, -1, 0);
#ifdef SYS_dup2
    case SYS_dup2: return begin_fd(call, OP_DUP, fd, -1, 0);
#endif
    case SYS_fstat: return begin_fd(call, OP_FSTAT, fd, -1, 0);
    case SYS_lseek: return begin_fd(call, OP_LSEEK, fd, -1, 0);
    case SYS_fsync: return begin_fd(call, OP_FSYNC, fd, -1, 0);
    case SYS_fdatasync: return begin_fd(call, OP_FDATASYNC, fd, -1, 0);
    default: return false;
    }
}

static bool begin_call(struct call *call, long number, const long *a)
{
    const char *first = (const char *)a[0];
    const char *second = (const char *)a[1];
    int dirfd = (int)a[0];

    switch (number) {
    case SYS_openat:
    case SYS_openat2: return begin_path(call, OP_OPEN, dirfd, second);
    case SYS_statx: return begin_stat_at(call, dirfd, second, (int)a[2]);
    case SYS_newfstatat: return begin_stat_at(call, dirfd, second, (int)a[3]);
    case SYS_unlinkat:
        return begin_path(call, (a[2] & AT_REMOVEDIR) ? OP_RMDIR : OP_UNLINK, dirfd, second);
    case SYS_renameat2:
        return begin_two_paths(call, OP_RENAME, dirfd, second, (int)a[2], (const char *)a[3]);
    case SYS_mkdirat: return begin_path(call, OP_MKDIR, dirfd, second);
    case SYS_readlinkat: return begin_path(call, OP_READLINK, dirfd, second);
    case SYS_io_uring_enter: return begin_ring(call);
#ifdef SYS_open
    case SYS_open: return begin_path(call, OP_OPEN, AT_FDCWD, first);
    case SYS_stat: return begin_path(call, OP_STAT, AT_FDCWD, first);
    case SYS_lstat: return begin_path(call, OP_LSTAT, AT_FDCWD, first);
    case SYS_unlink: return begin_path(call, OP_UNLINK, AT_FDCWD, first);
    case SYS_rename: return begin_two_paths(call, OP_RENAME, AT_FDCWD, first, AT_FDCWD, second);
#endif
    default: (void)first; return begin_data_call(call, number, a);
    }
}

static long open_flags(long number, const long *a)
{
#ifdef SYS_open
    if (number == SYS_open)
        return a[1];
#endif
    return number == SYS_openat2 ? *(const long *)a[2] : a[2];
}

static void end_call(const struct call *call, long number, const long *a, long result)
{
    bool moves = call->op >= OP_READ && call->op <= OP_PWRITEV;

    if (call->op == OP_OPEN) {
        end_open(call, (int)result, result < 0 ? 0 : (int)open_flags(number, a));
        return;
    }
    if (call->op == OP_DUP) {
        end_dup(call, (int)a[0], (int)result);
        return;
    }
    if (moves || call->op == OP_LSEEK || call->op == OP_COPY_RANGE)
        files_unsure((int)a[0]);
    if (call->op == OP_COPY_RANGE)
        files_unsure((int)a[2]);
    moves |= call->op == OP_COPY_RANGE;
    if (call->op == OP_LSEEK)
        log_end_at(call, result < 0 ? errno : 0, result, 0);
    else
        log_end(call, result < 0 ? errno : 0, moves && result > 0 ? (uint64_t)result : 0);
}

/* Where the path of an open that may be redirected stands among its arguments; -1: it is none.
 * Not openat2: what it forbids on the way to a file cannot be asked of a copy. */
static int place_of_path(long number)
{
    switch (number) {
    case SYS_openat: return 1;
#ifdef SYS_open
    case SYS_open: return 0;
#endif
    default: return -1;
    }
}

static long (*real_syscall)(long number, ...);

static long redirected_call(long number, long *a, int place)
{
    struct redirected open;
    const char *path = (const char *)a[place];
    int dirfd = place ? (int)a[0] : AT_FDCWD;
    int flags = (int)a[place + 1];
    int fd = begin_redirected(&open, OP_OPEN, dirfd, &path, flags, (mode_t)a[place + 2]);

    a[place] = (long)path;
    if (fd < 0)
        fd = (int)real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    for (int tries = LINK_TRIES; is_link_seen(fd) && tries--;) {
        fd = burst_follow(dirfd, path, flags);
        if (fd < 0)
            fd = (int)real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    return end_redirected(&open, fd, flags);
}

/* What a call by number is about to change. */
static void find_changed(long number, const long *a, struct staged_slot **slots)
{
    const char *second = (const char *)a[1];

    switch (number) {
    case SYS_unlinkat: slots[0] = staged_find((int)a[0], second, false); break;
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
        slots[0] = staged_find((int)a[0], second, false);
        slots[1] = staged_find((int)a[2], (const char *)a[3], false);
        break;
    case SYS_truncate: slots[0] = staged_find(AT_FDCWD, (const char *)a[0], true); break;
#ifdef SYS_open
    case SYS_unlink: slots[0] = staged_find(AT_FDCWD, (const char *)a[0], false); break;
    case SYS_rename:
        slots[0] = staged_find(AT_FDCWD, (const char *)a[0], false);
        slots[1] = staged_find(AT_FDCWD, second, false);
        break;
    case SYS_creat: slots[0] = staged_find(AT_FDCWD, (const char *)a[0], true); break;
#endif
    default: break;
    }
}

/* A call by number that went well, while files are redirected: what the program is told of it. */
static long end_redirected_call(long number, const long *a, struct staged_slot *const *slots,
                                long result)
{
    const char *second = (const char *)a[1];
    struct staged_slot *written = NULL;

    switch (number) {
    case SYS_fstat: return disguise_fd((int)a[0], (struct stat *)a[1]);
    case SYS_newfstatat: return disguise_at((int)a[0], second, (int)a[3], (struct stat *)a[2]);
    case SYS_statx:
        return disguise_at_x((int)a[0], second, (int)a[2], (unsigned)a[3], (struct statx *)a[4]);
    case SYS_readlinkat: return disguise_link((int)a[0], second, result);
#ifdef SYS_open
    case SYS_stat: return disguise_at(AT_FDCWD, (const char *)a[0], 0, (struct stat *)a[1]);
    case SYS_lstat:
        return disguise_at(AT_FDCWD, (const char *)a[0], AT_SYMLINK_NOFOLLOW, (struct stat *)a[1]);
    case SYS_readlink: return disguise_link(AT_FDCWD, (const char *)a[0], result);
#endif
    case SYS_openat2:
        if (staged_writes((int)open_flags(number, a)))
            written = staged_find((int)a[0], second, true);
        break;
    default: break;
    }
    if (written)
        staged_drop(written);
    if (slots[0])
        staged_drop(slots[0]);
    if (slots[1])
        staged_drop(slots[1]);
    return result;
}

/* OpenMP's pools, Rust's locks and C++'s atomic waits come this way. */
static long futex_call(const long *a, const void *caller)
{
    struct waiting waiting;
    long result;

    if (!hooks_futex_waits(a)) {
        hooks_futex_wakes(a);
        return real_syscall(SYS_futex, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    waits_begin(&waiting, OP_FUTEX, (uint64_t)a[0], a[0], caller);
    result = real_syscall(SYS_futex, a[0], a[1], a[2], a[3], a[4], a[5]);
    waits_end(&waiting, result < 0 ? errno : 0);
    return result;
}

HOOK(long, syscall, (long number, ...))
{
    struct staged_slot *slots[2] = {NULL, NULL};
    bool is_recorded;
    struct call call;
    va_list list;
    long a[6];
    long result;
    int i;

    va_start(list, number);
    for (i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && recorder_on)
        return futex_call(a, CALLER);
    if (redirects()) {
        int place = place_of_path(number);

        if (place >= 0)
            return redirected_call(number, a, place);
        find_changed(number, a, slots);
    }
    is_recorded = begin_call(&call, number, a);
    if (!is_recorded && !redirects())
        return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (is_recorded && number == SYS_close)
        files_closed((int)a[0]);
    if (is_recorded && number == SYS_close_range && !(a[2] & 4))
        files_closed_range((unsigned)a[0], (unsigned)a[1]);
    result = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result >= 0 && redirects())
        result = end_redirected_call(number, a, slots, result);
    if (is_recorded)
        end_call(&call, number, a, result);
    return result;
}
