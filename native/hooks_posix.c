/* A short wrapper per symbol of the POSIX layer for opening, moving bytes or mapping.  Knows libc
 * calls; knows no ELF. */
#include <aio.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "connections.h"
#include "hook_posix.h"

/* --- open and close -----------------------------------------------------------------------------
 */

static bool has_mode(int flags)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}

/* The argument after flags, present only for an open with O_CREAT or O_TMPFILE. */
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

/* The name is made inside the call: an event without a file, then the file of the descriptor. */
static int end_temporary(const struct call *call, int fd)
{
    log_end(call, fd < 0 ? errno : 0, 0);
    if (fd >= 0)
        files_closed(fd); /* the next use looks up the number's file */
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
    files_closed(fd); /* before the call: afterwards the number may be another thread's file */
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
    if (!(flags & 4 /* CLOSE_RANGE_CLOEXEC only marks */))
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
    if (UNLIKELY(stream->file && stream->slot->flags & SLOT_CONNECTION))
        position = connections_offset(fd, is_write(op));
    else
        position = stream->file ? files_position(stream->slot, fd) : -1;
    return log_begin(&stream->call, op, stream->file, position, asked);
}

__attribute__((always_inline)) static inline ssize_t end_stream(struct stream *stream, int fd,
                                                                ssize_t got)
{
    struct slot_of_fd *slot = stream->slot;

    if (UNLIKELY(stream->file && slot->flags & SLOT_CONNECTION)) {
        end_bytes(&stream->call, got);
        connections_moved(&stream->call, fd, got, is_write(stream->call.op));
        return got;
    }
    if (got > 0 && stream->file && slot->file == stream->file) {
        files_moved(slot, got);
        if (UNLIKELY(slot->stdio_position >= 0))
            slot->stdio_position =
                -1; /* the stream's position no longer shows the bytes moved by the stream */
        if (UNLIKELY(slot->flags & SLOT_APPEND && is_write(stream->call.op))) {
            int64_t end = files_kernel_position(slot, fd);

            log_end_at(&stream->call, 0, end < 0 ? -1 : end - got, (uint64_t)got);
            return got;
        }
    }
    return end_bytes(&stream->call, got);
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

__attribute__((always_inline)) static inline ssize_t end_sending(struct stream *stream, int fd,
                                                                 struct iovec first, ssize_t got)
{
    struct connection *connection;

    got = end_stream(stream, fd, got);
    if (UNLIKELY(stream->file && stream->slot->flags & SLOT_CONNECTION) && got > 0) {
        connection = connections_peek(fd);
        if (connection && connection->greeting)
            connections_greeted(connection, fd, first, (size_t)got);
    }
    return got;
}

static inline struct iovec first_of(const struct iovec *parts, int n)
{
    return (uintptr_t)parts >= 65536 && n > 0 ? parts[0] : (struct iovec){NULL, 0};
}

/* first: the bytes, or the first part. */
#define HOOK_SENDING(function, op, parameters, arguments, asked, first)                            \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct stream stream;                                                                      \
                                                                                                   \
        if (!begin_stream(&stream, op, fd, asked))                                                 \
            return ESCAPING(fd, real_##function arguments);                                        \
        return end_sending(&stream, fd, first, ESCAPING(fd, real_##function arguments));           \
    }
HOOK_SENDING(write, OP_WRITE, (int fd, const void *data, size_t size), (fd, data, size), size,
             ((struct iovec){(void *)data, size}))
HOOK_SENDING(__write, OP_WRITE, (int fd, const void *data, size_t size), (fd, data, size), size,
             ((struct iovec){(void *)data, size}))
HOOK_STREAM(readv, OP_READV, (int fd, const struct iovec *parts, int n), (fd, parts, n),
            total(parts, n))
HOOK_SENDING(writev, OP_WRITEV, (int fd, const struct iovec *parts, int n), (fd, parts, n),
             total(parts, n), first_of(parts, n))

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

/* With offset -1 the calls move the position as readv and writev do. */
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

/* Both positions moved, unless an offset was given; asking the kernel next time is exact. */
static ssize_t end_copy(const struct call *call, int from, int to, ssize_t got)
{
    end_bytes(call, got);
    if (connections_peek(to))
        connections_moved(call, to, got, true);
    if (connections_peek(from))
        connections_moved(call, from, got, false);
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

HOOK_STATUS(io_uring_enter, (unsigned fd, unsigned n, unsigned min, unsigned flags, void *signals),
            (fd, n, min, flags, signals), begin_ring(&call))
HOOK_STATUS(io_uring_submit, (void *ring), (ring), begin_ring(&call))
HOOK_STATUS(io_uring_submit_and_wait, (void *ring, unsigned n), (ring, n), begin_ring(&call))
HOOK_STATUS(io_submit, (void *context, long n, void *blocks), (context, n, blocks),
            begin_ring(&call))
