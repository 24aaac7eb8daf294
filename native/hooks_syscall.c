/* syscall(): the calls of the POSIX layer by number. Knows the kernel's numbers; knows no ELF. */
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook_posix.h"
#include "hook_wait.h"

static bool begin_at_position(struct call *call, enum op op, int fd, uint64_t asked)
{
    return begin_fd(call, op, fd, files_position_of(fd), asked);
}

/* Calls on a descriptor without moving bytes. */
static bool begin_fd_call(struct call *call, long number, const long *a)
{
    int fd = (int)a[0];

    switch (number) {
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
    default: return begin_fd_call(call, number, a);
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

/* The position of the path among the arguments of a redirectable open; -1: another call.  Not
 * openat2: the restrictions of openat2 on the way to a file cannot be applied to a copy. */
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

/* Find the files about to be changed by a call by number. */
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

/* Adjust the result of a successful call by number, while files are redirected. */
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

/* OpenMP's pools, Rust's locks and C++'s atomic waits use the call. */
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
