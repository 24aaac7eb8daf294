/* The FILE * layer.  libc's own reads and writes behind a stream pass no import slot, so the calls
 * are a separate layer, never added to the POSIX layer.  Streams without a descriptor are memory,
 * not I/O. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <wchar.h>

#include "hook_open.h"
#include "imports.h"

struct stdio {
    struct call call;
    struct slot_of_fd *slot;
    uint32_t file;
    int64_t position; /* before the call; -1: not known */
};

/* Streams of the burst buffer.  libc's writes there pass no import slot, and after ENOSPC the
 * stream's buffer is lost: so the tier must have room before a write to the stream, or the file
 * moves. */
#define STREAMS 16
#define ROOM_BYTES (8 << 20) /* reserved at once: a call of the system for so many bytes */
/* libc may write so many bytes more than known: a format's length is unknown before the write, and
 * macros fill the buffer without a call. */
#define BUFFER_BYTES (1 << 20)

static struct burst_stream {
    FILE *file; /* NULL: free */
    uint64_t reserved;
} burst_streams[STREAMS];
static uint32_t n_burst_streams;

static struct burst_stream *burst_stream_of(const FILE *file)
{
    for (int i = 0; i < STREAMS; i++)
        if (__atomic_load_n(&burst_streams[i].file, __ATOMIC_ACQUIRE) == file)
            return &burst_streams[i];
    return NULL;
}

static void forget_stream(struct burst_stream *stream)
{
    __atomic_store_n(&stream->file, NULL, __ATOMIC_RELEASE);
    __atomic_sub_fetch(&n_burst_streams, 1, __ATOMIC_RELAXED);
}

/* Where libc says the stream is: exact where macros moved bytes without a call (getc, putc
 * inlined). */
static int64_t tell(FILE *file)
{
    int error = errno;
    int64_t position = ftello(file);

    errno = error;
    return position;
}

/* For so many bytes more than the stream has by now, written out or not. */
static void make_room(FILE *file, uint64_t more)
{
    struct burst_stream *stream = file ? burst_stream_of(file) : NULL;
    int error = errno, fd;
    uint64_t need, wanted;

    if (!stream)
        return;
    need = (uint64_t)tell(file) + more;
    if (need <= stream->reserved || need > INT64_MAX - ROOM_BYTES)
        return;
    wanted = need + ROOM_BYTES;
    fd = fileno_unlocked(file);
    if (!syscall(SYS_fallocate, fd, 1 /* the size stays */, 0, wanted))
        stream->reserved = wanted;
    else if ((errno != ENOSPC && errno != EDQUOT) || burst_escape(fd))
        forget_stream(stream);
    else
        stream->reserved = need; /* the file cannot move either: no second such request */
    errno = error;
}

/* False: too many streams are open; the stream goes the usual way. */
static bool remember_stream(FILE *file)
{
    for (int i = 0; i < STREAMS; i++) {
        FILE *expected = NULL;

        if (__atomic_compare_exchange_n(&burst_streams[i].file, &expected, file, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            burst_streams[i].reserved = 0;
            __atomic_add_fetch(&n_burst_streams, 1, __ATOMIC_RELAXED);
            return true;
        }
    }
    return false;
}

/* Watch an opened stream, if the stream can write to a file on the tier. */
static void watch_stream(FILE *file, const char *mode)
{
    int error = errno;

    if (burst_has(fileno_unlocked(file)) && (*mode != 'r' || strchr(mode, '+')) &&
        !remember_stream(file))
        burst_escape(fileno_unlocked(file)); /* the file moves home unchanged */
    errno = error;
}

/* Before the close: libc then writes only the bytes held by now. */
static void end_stream(FILE *file)
{
    struct burst_stream *stream;

    make_room(file, 0);
    stream = file ? burst_stream_of(file) : NULL;
    if (stream)
        forget_stream(stream);
}

static inline bool begin_stdio(struct stdio *io, enum op op, FILE *file, uint64_t asked)
{
    int error = errno;
    int fd = file ? fileno_unlocked(file) : -1;

    errno = error;
    if (UNLIKELY(n_burst_streams) && op != OP_FREAD)
        make_room(file, op == OP_FFLUSH ? 0 : asked + BUFFER_BYTES);
    if (fd < 0 || !log_is_on())
        return false;
    io->slot = files_slot(fd);
    if (UNLIKELY(!io->slot))
        return false;
    io->file = io->slot->file;
    io->position = io->slot->stdio_position;
    return log_begin(&io->call, op, io->file, io->position, asked);
}

static inline void end_stdio(struct stdio *io, bool has_failed, uint64_t moved)
{
    if (io->position >= 0 && io->slot->file == io->file)
        io->slot->stdio_position = io->position + (int64_t)moved;
    log_end(&io->call, has_failed ? errno : 0, moved);
}

/* Bytes moved between the last recorded call and the real call, by the stream's position. */
static uint64_t moved_to(const struct stdio *io, int64_t position)
{
    return io->position >= 0 && position > io->position ? (uint64_t)(position - io->position) : 0;
}

/* --- open and close
 * ----------------------------------------------------------------------------------- */

static FILE *end_fopen(const struct call *call, FILE *file, const char *mode)
{
    log_end(call, file ? 0 : errno, 0);
    if (file) {
        int fd = fileno_unlocked(file);
        bool appends = mode && *mode == 'a';

        files_opened(fd, call->file, appends ? O_APPEND : 0);
        files_set_stdio_position(fd, appends ? tell(file) : 0);
    }
    imports_look();
    return file;
}

HOOK(FILE *, fdopen, (int fd, const char *mode))
{
    struct call call;
    bool is_recorded = begin_fd(&call, OP_FDOPEN, fd, -1, 0);
    FILE *file = real_fdopen(fd, mode);

    if (is_recorded)
        log_end(&call, file ? 0 : errno, 0);
    if (file && burst_is_on())
        watch_stream(file, mode);
    if (is_recorded && file)
        files_set_stdio_position(fd, tell(file));
    return file;
}

/* The flags with which fopen would open.  fdopen knows no conversion (",ccs="): the mode is left
 * alone. */
static int flags_of(const char *mode)
{
    if ((uintptr_t)mode < 65536 || strchr(mode, ','))
        return O_PATH;
    if (*mode != 'r' || strchr(mode, '+'))
        return *mode == 'w' ? O_RDWR | O_TRUNC : O_RDWR;
    return O_RDONLY | (strchr(mode, 'e') ? O_CLOEXEC : 0);
}

/* The flags with which fopen would make a file; 0: fopen makes no file. */
static int making_flags_of(const char *mode)
{
    int flags = flags_of(mode);

    if (flags & O_PATH || (*mode != 'w' && *mode != 'a'))
        return 0;
    return O_CREAT | (*mode == 'w' ? O_TRUNC : O_APPEND) | (strchr(mode, '+') ? O_RDWR : O_WRONLY) |
           (strchr(mode, 'x') ? O_EXCL : 0) | (strchr(mode, 'e') ? O_CLOEXEC : 0);
}

static FILE *redirected_fopen(FILE *(*real)(const char *, const char *), const char *path,
                              const char *mode)
{
    struct redirected open;
    int making = making_flags_of(mode);
    int fd =
        begin_redirected(&open, OP_FOPEN, AT_FDCWD, &path, making ? making : flags_of(mode), 0666);
    FILE *file = fd >= 0 ? real_fdopen(fd, mode) : NULL;

    if (fd >= 0 && !file) {
        syscall(SYS_close, fd);
        name_redirected(&open, AT_FDCWD, path, AT_ITS_PATH);
    }
    if (!file)
        file = real(path, mode);
    if (file && burst_is_on())
        watch_stream(file, mode);
    if (!opened_redirected(&open, file ? fileno_unlocked(file) : -1))
        return file;
    return end_fopen(&open.call, file, mode);
}

#define HOOK_FOPEN(function)                                                                       \
    HOOK(FILE *, function, (const char *path, const char *mode))                                   \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (redirects())                                                                           \
            return redirected_fopen(real_##function, path, mode);                                  \
        if (!begin_path(&call, OP_FOPEN, AT_FDCWD, path))                                          \
            return real_##function(path, mode);                                                    \
        return end_fopen(&call, real_##function(path, mode), mode);                                \
    }
HOOK_FOPEN(fopen)
HOOK_FOPEN(fopen64)

/* Before the call: the result would come too late. */
static void drop_staged(const char *path)
{
    struct staged_slot *slot = staged_find(AT_FDCWD, path, true);

    if (slot)
        staged_drop(slot);
}

/* Where there is a burst buffer. */
static FILE *reopened(FILE *(*real)(const char *, const char *, FILE *), const char *path,
                      const char *mode, FILE *file)
{
    int flags = path ? flags_of(mode) : O_RDONLY;
    int making = path ? making_flags_of(mode) : 0;
    struct call call;
    bool is_recorded;
    int fd = -1;

    if (path && staged_is_on() && staged_writes(flags))
        drop_staged(path);
    if (file)
        end_stream(file);
    /* The file is made first, for libc to open by path. */
    if (path && staged_writes(flags) && !(making & O_EXCL))
        fd = burst_open(AT_FDCWD, path, (making ? making : flags) | O_CLOEXEC, 0666);
    is_recorded = path && begin_path(&call, OP_FREOPEN, AT_FDCWD, path);
    if (is_recorded && file && fileno_unlocked(file) >= 0)
        files_closed(fileno_unlocked(file));
    file = real(path, mode, file);
    if (fd >= 0)
        syscall(SYS_close, fd);
    if (file)
        watch_stream(file, mode);
    return is_recorded ? end_fopen(&call, file, mode) : file;
}

#define HOOK_FREOPEN(function)                                                                     \
    HOOK(FILE *, function, (const char *path, const char *mode, FILE *file))                       \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (burst_is_on())                                                                         \
            return reopened(real_##function, path, mode, file);                                    \
        if (path && staged_is_on() && staged_writes(flags_of(mode)))                               \
            drop_staged(path);                                                                     \
        if (!path || !begin_path(&call, OP_FREOPEN, AT_FDCWD, path))                               \
            return real_##function(path, mode, file);                                              \
        if (file && fileno_unlocked(file) >= 0)                                                    \
            files_closed(fileno_unlocked(file));                                                   \
        return end_fopen(&call, real_##function(path, mode, file), mode);                          \
    }
HOOK_FREOPEN(freopen)
HOOK_FREOPEN(freopen64)

#define HOOK_TMPFILE(function)                                                                     \
    HOOK(FILE *, function, (void))                                                                 \
    {                                                                                              \
        struct call call;                                                                          \
        FILE *file;                                                                                \
                                                                                                   \
        if (!begin_plain(&call, OP_FOPEN, -1, 0))                                                  \
            return real_##function();                                                              \
        file = real_##function();                                                                  \
        log_end(&call, file ? 0 : errno, 0);                                                       \
        return file;                                                                               \
    }
HOOK_TMPFILE(tmpfile)
HOOK_TMPFILE(tmpfile64)

HOOK(int, fclose, (FILE * file))
{
    struct stdio io;
    uint64_t moved;
    int result;

    if (UNLIKELY(n_burst_streams))
        end_stream(file);
    if (!begin_stdio(&io, OP_FCLOSE, file, 0))
        return real_fclose(file);
    moved = io.position >= 0 ? moved_to(&io, tell(file)) : 0;
    files_closed(fileno_unlocked(file));
    result = real_fclose(file);
    log_end(&io.call, result ? errno : 0, moved);
    return result;
}

#define HOOK_FFLUSH(function)                                                                      \
    HOOK(int, function, (FILE * file))                                                             \
    {                                                                                              \
        struct stdio io;                                                                           \
        uint64_t moved;                                                                            \
        int result;                                                                                \
                                                                                                   \
        if (!begin_stdio(&io, OP_FFLUSH, file, 0))                                                 \
            return real_##function(file);                                                          \
        moved = io.position >= 0 ? moved_to(&io, tell(file)) : 0;                                  \
        result = real_##function(file);                                                            \
        end_stdio(&io, result, moved);                                                             \
        return result;                                                                             \
    }
HOOK_FFLUSH(fflush)
HOOK_FFLUSH(fflush_unlocked)

/* --- blocks
 * ------------------------------------------------------------------------------------------- */

/* A short count hides the bytes of a last, incomplete item. */
static size_t end_items(struct stdio *io, FILE *file, size_t size, size_t n, size_t got)
{
    uint64_t moved = (uint64_t)size * got;

    if (UNLIKELY(got < n && size > 1 && io->position >= 0)) {
        int64_t position = tell(file);

        if (position >= 0)
            moved = moved_to(io, position);
    }
    end_stdio(io, false, moved);
    return got;
}

#define HOOK_FREAD(function)                                                                       \
    HOOK(size_t, function, (void *data, size_t size, size_t n, FILE *file))                        \
    {                                                                                              \
        struct stdio io;                                                                           \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, (uint64_t)size * n))                                 \
            return real_##function(data, size, n, file);                                           \
        return end_items(&io, file, size, n, real_##function(data, size, n, file));                \
    }
HOOK_FREAD(fread)
HOOK_FREAD(fread_unlocked)

#define HOOK_FREAD_CHK(function)                                                                   \
    HOOK(size_t, function, (void *data, size_t room, size_t size, size_t n, FILE *file))           \
    {                                                                                              \
        struct stdio io;                                                                           \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, (uint64_t)size * n))                                 \
            return real_##function(data, room, size, n, file);                                     \
        return end_items(&io, file, size, n, real_##function(data, room, size, n, file));          \
    }
HOOK_FREAD_CHK(__fread_chk)
HOOK_FREAD_CHK(__fread_unlocked_chk)

#define HOOK_FWRITE(function)                                                                      \
    HOOK(size_t, function, (const void *data, size_t size, size_t n, FILE *file))                  \
    {                                                                                              \
        struct stdio io;                                                                           \
        size_t put;                                                                                \
                                                                                                   \
        if (!begin_stdio(&io, OP_FWRITE, file, (uint64_t)size * n))                                \
            return real_##function(data, size, n, file);                                           \
        put = real_##function(data, size, n, file);                                                \
        end_stdio(&io, put < n, (uint64_t)size * put);                                             \
        return put;                                                                                \
    }
HOOK_FWRITE(fwrite)
HOOK_FWRITE(fwrite_unlocked)

/* --- lines, characters, formats
 * ------------------------------------------------------------------------- */

/* A line with NUL bytes looks shorter than its true length; the stream's position shows the
 * length. */
static char *end_line(struct stdio *io, FILE *file, char *line, uint64_t room)
{
    uint64_t moved = line ? strlen(line) : 0;

    if (line && moved + 1 < room && (!moved || line[moved - 1] != '\n') && io->position >= 0) {
        int64_t position = tell(file);

        if (position >= 0)
            moved = moved_to(io, position);
    }
    end_stdio(io, false, moved);
    return line;
}

#define HOOK_FGETS(function)                                                                       \
    HOOK(char *, function, (char *line, int room, FILE *file))                                     \
    {                                                                                              \
        struct stdio io;                                                                           \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, (uint64_t)room))                                     \
            return real_##function(line, room, file);                                              \
        return end_line(&io, file, real_##function(line, room, file), (uint64_t)room);             \
    }
HOOK_FGETS(fgets)
HOOK_FGETS(fgets_unlocked)

#define HOOK_FGETS_CHK(function)                                                                   \
    HOOK(char *, function, (char *line, size_t size, int room, FILE *file))                        \
    {                                                                                              \
        struct stdio io;                                                                           \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, (uint64_t)room))                                     \
            return real_##function(line, size, room, file);                                        \
        return end_line(&io, file, real_##function(line, size, room, file), (uint64_t)room);       \
    }
HOOK_FGETS_CHK(__fgets_chk)
HOOK_FGETS_CHK(__fgets_unlocked_chk)

#define HOOK_GETC(function, parameters, arguments, file)                                           \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct stdio io;                                                                           \
        int got;                                                                                   \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, 1))                                                  \
            return real_##function arguments;                                                      \
        got = real_##function arguments;                                                           \
        end_stdio(&io, false, got != EOF);                                                         \
        return got;                                                                                \
    }
HOOK_GETC(fgetc, (FILE * file), (file), file)
HOOK_GETC(fgetc_unlocked, (FILE * file), (file), file)
HOOK_GETC(getc, (FILE * file), (file), file)
HOOK_GETC(getc_unlocked, (FILE * file), (file), file)
HOOK_GETC(_IO_getc, (FILE * file), (file), file)
HOOK_GETC(getchar, (void), (), stdin)
HOOK_GETC(getchar_unlocked, (void), (), stdin)

/* The inlined getc and putc call here when the buffer ends: the position shows the bytes since. */
#define HOOK_UNDERFLOW(function)                                                                   \
    HOOK(int, function, (FILE * file))                                                             \
    {                                                                                              \
        struct stdio io;                                                                           \
        int got;                                                                                   \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, 1))                                                  \
            return real_##function(file);                                                          \
        got = real_##function(file);                                                               \
        end_stdio(&io, false, io.position >= 0 ? moved_to(&io, tell(file)) : got != EOF);          \
        return got;                                                                                \
    }
HOOK_UNDERFLOW(__uflow)
HOOK_UNDERFLOW(__underflow)

HOOK(int, __overflow, (FILE * file, int c))
{
    struct stdio io;
    int put;

    if (!begin_stdio(&io, OP_FWRITE, file, 1))
        return real___overflow(file, c);
    put = real___overflow(file, c);
    end_stdio(&io, put == EOF, io.position >= 0 ? moved_to(&io, tell(file)) : put != EOF);
    return put;
}

#define HOOK_PUTC(function, parameters, arguments, file)                                           \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct stdio io;                                                                           \
        int put;                                                                                   \
                                                                                                   \
        if (!begin_stdio(&io, OP_FWRITE, file, 1))                                                 \
            return real_##function arguments;                                                      \
        put = real_##function arguments;                                                           \
        end_stdio(&io, put == EOF, put != EOF);                                                    \
        return put;                                                                                \
    }
HOOK_PUTC(fputc, (int c, FILE *file), (c, file), file)
HOOK_PUTC(fputc_unlocked, (int c, FILE *file), (c, file), file)
HOOK_PUTC(putc, (int c, FILE *file), (c, file), file)
HOOK_PUTC(putc_unlocked, (int c, FILE *file), (c, file), file)
HOOK_PUTC(_IO_putc, (int c, FILE *file), (c, file), file)
HOOK_PUTC(putchar, (int c), (c), stdout)
HOOK_PUTC(putchar_unlocked, (int c), (c), stdout)

#define HOOK_FPUTS(function, parameters, arguments, file, more)                                    \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        uint64_t bytes = strlen(text) + more;                                                      \
        struct stdio io;                                                                           \
        int put;                                                                                   \
                                                                                                   \
        if (!begin_stdio(&io, OP_FWRITE, file, bytes))                                             \
            return real_##function arguments;                                                      \
        put = real_##function arguments;                                                           \
        end_stdio(&io, put == EOF, put == EOF ? 0 : bytes);                                        \
        return put;                                                                                \
    }
HOOK_FPUTS(fputs, (const char *text, FILE *file), (text, file), file, 0)
HOOK_FPUTS(fputs_unlocked, (const char *text, FILE *file), (text, file), file, 0)
HOOK_FPUTS(puts, (const char *text), (text), stdout, 1)

#define HOOK_GETLINE(function, parameters, arguments)                                              \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct stdio io;                                                                           \
        ssize_t got;                                                                               \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, 0))                                                  \
            return real_##function arguments;                                                      \
        got = real_##function arguments;                                                           \
        end_stdio(&io, false, got < 0 ? 0 : (uint64_t)got);                                        \
        return got;                                                                                \
    }
HOOK_GETLINE(getline, (char **line, size_t *room, FILE *file), (line, room, file))
HOOK_GETLINE(getdelim, (char **line, size_t *room, int end, FILE *file), (line, room, end, file))
HOOK_GETLINE(__getdelim, (char **line, size_t *room, int end, FILE *file), (line, room, end, file))

static int end_format(struct stdio *io, int put)
{
    end_stdio(io, put < 0, put < 0 ? 0 : (uint64_t)put);
    return put;
}

static int recorded_vfprintf(FILE *file, const char *format, va_list list);
static int recorded_vfprintf_chk(FILE *file, int flag, const char *format, va_list list);

HOOK(int, vfprintf, (FILE * file, const char *format, va_list list))
{
    return recorded_vfprintf(file, format, list);
}

static int recorded_vfprintf(FILE *file, const char *format, va_list list)
{
    struct stdio io;

    if (!begin_stdio(&io, OP_FWRITE, file, 0))
        return real_vfprintf(file, format, list);
    return end_format(&io, real_vfprintf(file, format, list));
}

HOOK(int, __vfprintf_chk, (FILE * file, int flag, const char *format, va_list list))
{
    return recorded_vfprintf_chk(file, flag, format, list);
}

static int recorded_vfprintf_chk(FILE *file, int flag, const char *format, va_list list)
{
    struct stdio io;

    if (!begin_stdio(&io, OP_FWRITE, file, 0))
        return real___vfprintf_chk(file, flag, format, list);
    return end_format(&io, real___vfprintf_chk(file, flag, format, list));
}

#define HOOK_FORMAT(function, parameters, last, call)                                              \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        va_list list;                                                                              \
        int put;                                                                                   \
                                                                                                   \
        (void)real_##function;                                                                     \
        va_start(list, last);                                                                      \
        put = call;                                                                                \
        va_end(list);                                                                              \
        return put;                                                                                \
    }
HOOK_FORMAT(fprintf, (FILE * file, const char *format, ...), format,
            recorded_vfprintf(file, format, list))
HOOK_FORMAT(printf, (const char *format, ...), format, recorded_vfprintf(stdout, format, list))
HOOK_FORMAT(__fprintf_chk, (FILE * file, int flag, const char *format, ...), format,
            recorded_vfprintf_chk(file, flag, format, list))
HOOK_FORMAT(__printf_chk, (int flag, const char *format, ...), format,
            recorded_vfprintf_chk(stdout, flag, format, list))

HOOK(int, vprintf, (const char *format, va_list list))
{
    (void)real_vprintf;
    return recorded_vfprintf(stdout, format, list);
}

HOOK(int, __vprintf_chk, (int flag, const char *format, va_list list))
{
    (void)real___vprintf_chk;
    return recorded_vfprintf_chk(stdout, flag, format, list);
}

/* How much a scan read is only in the stream's position. */
static int end_scan(struct stdio *io, FILE *file, int found)
{
    int64_t position = io->position >= 0 ? tell(file) : -1;

    end_stdio(io, false, position >= 0 ? moved_to(io, position) : 0);
    return found;
}

#define HOOK_SCAN(function, plain)                                                                 \
    HOOK(int, function, (FILE * file, const char *format, va_list list))                           \
    {                                                                                              \
        struct stdio io;                                                                           \
                                                                                                   \
        if (!begin_stdio(&io, OP_FREAD, file, 0))                                                  \
            return real_##function(file, format, list);                                            \
        return end_scan(&io, file, real_##function(file, format, list));                           \
    }                                                                                              \
    HOOK(int, plain, (FILE * file, const char *format, ...))                                       \
    {                                                                                              \
        va_list list;                                                                              \
        int found;                                                                                 \
                                                                                                   \
        (void)real_##plain;                                                                        \
        va_start(list, format);                                                                    \
        found = wrap_##function(file, format, list);                                               \
        va_end(list);                                                                              \
        return found;                                                                              \
    }
HOOK_SCAN(vfscanf, fscanf)
HOOK_SCAN(__isoc99_vfscanf, __isoc99_fscanf)
HOOK_SCAN(__isoc23_vfscanf, __isoc23_fscanf)

/* --- position
 * ------------------------------------------------------------------------------------------- */

/* Bytes moved by macros before the seek belong to the seek's event too: no other event counts the
 * bytes. */
static int end_seek(struct stdio *io, FILE *file, int64_t before, int result)
{
    int64_t position = tell(file);

    if (io->slot->file == io->file)
        io->slot->stdio_position = position;
    log_end_at(&io->call, result ? errno : 0, position, moved_to(io, before));
    return result;
}

#define HOOK_SEEK(function, parameters, arguments)                                                 \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct stdio io;                                                                           \
        int64_t before;                                                                            \
                                                                                                   \
        if (!begin_stdio(&io, OP_FSEEK, file, 0))                                                  \
            return real_##function arguments;                                                      \
        before = io.position >= 0 ? tell(file) : -1;                                               \
        return end_seek(&io, file, before, real_##function arguments);                             \
    }
HOOK_SEEK(fseek, (FILE * file, long offset, int whence), (file, offset, whence))
HOOK_SEEK(fseeko, (FILE * file, off_t offset, int whence), (file, offset, whence))
HOOK_SEEK(fseeko64, (FILE * file, off_t offset, int whence), (file, offset, whence))
HOOK_SEEK(fsetpos, (FILE * file, const fpos_t *place), (file, place))
HOOK_SEEK(fsetpos64, (FILE * file, const fpos_t *place), (file, place))

HOOK(void, rewind, (FILE * file))
{
    struct stdio io;
    int64_t before;

    if (!begin_stdio(&io, OP_FSEEK, file, 0)) {
        real_rewind(file);
        return;
    }
    before = io.position >= 0 ? tell(file) : -1;
    real_rewind(file);
    end_seek(&io, file, before, 0);
}
