/* Reading folders.  A folder of 100,000 names is 100,000 calls, of which few ask the kernel: calls
 * are gathered into an event at each call that asks, with the number of entries since. */
#include <dirent.h>
#include <ftw.h>
#include <glob.h>
#include <unistd.h>

#include "burst.h"
#include "hook.h"
#include "imports.h"

static DIR *end_opendir(const struct call *call, DIR *folder)
{
    log_end(call, folder ? 0 : errno, 0);
    if (folder) {
        files_opened(dirfd(folder), call->file, O_RDONLY | O_DIRECTORY);
        files_set_stdio_position(dirfd(folder), 0);
    }
    imports_look();
    return folder;
}

HOOK(DIR *, opendir, (const char *path))
{
    struct call call;

    if (!begin_path(&call, OP_OPENDIR, AT_FDCWD, path))
        return real_opendir(path);
    return end_opendir(&call, real_opendir(path));
}

HOOK(DIR *, fdopendir, (int fd))
{
    struct call call;
    DIR *folder;

    if (!begin_fd(&call, OP_OPENDIR, fd, -1, 0))
        return real_fdopendir(fd);
    folder = real_fdopendir(fd);
    log_end(&call, folder ? 0 : errno, 0);
    files_set_stdio_position(fd, 0);
    return folder;
}

HOOK(int, closedir, (DIR * folder))
{
    struct call call;
    int fd = folder ? dirfd(folder) : -1;
    int result;

    if (!begin_fd(&call, OP_CLOSEDIR, fd, -1, 0))
        return real_closedir(folder);
    files_closed(fd);
    result = real_closedir(folder);
    log_end(&call, result ? errno : 0, 0);
    return result;
}

/* 2 µs: an entry from the buffer takes about 20 ns, the smallest getdents several hundred, and a
 * page of entries more; a shorter call adds the entry to the next event. */
static bool has_asked_kernel(uint64_t ticks)
{
    return ticks > clock_ticks_per_s / 500000;
}

static void note_entry(int fd, uint64_t start, bool is_last)
{
    struct slot_of_fd *slot = files_slot(fd);
    uint64_t ticks = clock_ticks() - start;
    uint64_t entries;
    int error = errno;
    struct call call;

    if (!slot)
        return;
    entries = (uint64_t)(slot->stdio_position < 0 ? 0 : slot->stdio_position) + !is_last;
    if (!is_last && !has_asked_kernel(ticks)) {
        slot->stdio_position = (int64_t)entries;
        return;
    }
    slot->stdio_position = 0;
    if (log_begin(&call, OP_READDIR, slot->file, -1, 0)) {
        log_began_earlier(&call, start);
        log_end(&call, 0, entries);
    }
    errno = error;
}

/* A link during the listing may be the file itself when the program uses the name: the type is
 * unknown, so that the program asks then. */
#define HOOK_READDIR(function, type)                                                               \
    HOOK(type *, function, (DIR * folder))                                                         \
    {                                                                                              \
        uint64_t start;                                                                            \
        type *entry;                                                                               \
                                                                                                   \
        if (!folder || !(log_is_on() || burst_is_on()))                                            \
            return real_##function(folder);                                                        \
        start = clock_ticks();                                                                     \
        do                                                                                         \
            entry = real_##function(folder);                                                       \
        while (entry && burst_hides(entry->d_name));                                               \
        if (entry && entry->d_type == DT_LNK && burst_is_on())                                     \
            entry->d_type = DT_UNKNOWN;                                                            \
        if (log_is_on())                                                                           \
            note_entry(dirfd(folder), start, !entry);                                              \
        return entry;                                                                              \
    }
HOOK_READDIR(readdir, struct dirent)
HOOK_READDIR(readdir64, struct dirent64)

/* libc walks inside: a single event for the whole walk, with the number of names if known. */
static int end_list(const struct call *call, int n)
{
    log_end(call, n < 0 ? errno : 0, n < 0 ? 0 : (uint64_t)n);
    return n;
}

#define HOOK_SCANDIR(function, parameters, arguments, dirfd, path)                                 \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_path(&call, OP_LIST, dirfd, path))                                              \
            return real_##function arguments;                                                      \
        return end_list(&call, real_##function arguments);                                         \
    }
HOOK_SCANDIR(scandir, (const char *path, void *names, void *filter, void *order),
             (path, names, filter, order), AT_FDCWD, path)
HOOK_SCANDIR(scandir64, (const char *path, void *names, void *filter, void *order),
             (path, names, filter, order), AT_FDCWD, path)
HOOK_SCANDIR(scandirat, (int at, const char *path, void *names, void *filter, void *order),
             (at, path, names, filter, order), at, path)
HOOK_SCANDIR(ftw, (const char *path, void *visit, int n), (path, visit, n), AT_FDCWD, path)
HOOK_SCANDIR(ftw64, (const char *path, void *visit, int n), (path, visit, n), AT_FDCWD, path)
HOOK_SCANDIR(nftw, (const char *path, void *visit, int n, int flags), (path, visit, n, flags),
             AT_FDCWD, path)
HOOK_SCANDIR(nftw64, (const char *path, void *visit, int n, int flags), (path, visit, n, flags),
             AT_FDCWD, path)

#define HOOK_GLOB(function)                                                                        \
    HOOK(int, function, (const char *pattern, int flags, void *on_error, glob_t *found))           \
    {                                                                                              \
        struct call call;                                                                          \
        int result;                                                                                \
                                                                                                   \
        if (!begin_path(&call, OP_LIST, AT_FDCWD, pattern))                                        \
            return real_##function(pattern, flags, on_error, found);                               \
        result = real_##function(pattern, flags, on_error, found);                                 \
        log_end(&call, 0, result ? 0 : found->gl_pathc);                                           \
        return result;                                                                             \
    }
HOOK_GLOB(glob)
HOOK_GLOB(glob64)
