/* A short wrapper per symbol of the POSIX layer for reading or changing the properties or the name
 * of a file.  Knows libc calls; knows no ELF. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hook_posix.h"

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

/* Memory from libc, for the program to free, may have no room for another path.  True: the file has
 * moved meanwhile, and the call must be made again. */
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

/* A file about to be mapped must have room. */
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

/* These functions return the error itself. */
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
