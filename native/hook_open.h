/* Wrappers of calls by name while files are redirected.  Staged copies: an open for reading may
 * receive the copy, a change of a source drops the copy.  A burst buffer: an open that makes a
 * checkpoint makes the file on the fast tier.  Recorded or not: a pause ends no redirection. */
#ifndef PENSTOCK_HOOK_OPEN_H
#define PENSTOCK_HOOK_OPEN_H

#include "burst.h"
#include "hook.h"
#include "staged.h"

struct redirected {
    struct call call;
    bool is_recorded;
    struct staged_slot *written; /* to be dropped when the call succeeds */
};

/* Whether there is a map of copies or a burst buffer: a single load, as each open checks.  Set by
 * recorder.c before a window is open, and never cleared. */
#pragma GCC visibility push(hidden)
extern bool redirection_is_on;
#pragma GCC visibility pop

__attribute__((always_inline)) static inline bool redirects(void)
{
    return UNLIKELY(__atomic_load_n(&redirection_is_on, __ATOMIC_ACQUIRE));
}

/* Name the event's file as soon as the file is decided: until then the event has no file. */
static inline void name_redirected(struct redirected *open, int dirfd, const char *path,
                                   enum file_place place)
{
    if (open->is_recorded)
        log_turned_to(&open->call, files_path_on(place, dirfd, path));
}

/* The descriptor of a copy, or of a file on the fast tier; -1: make the call, with *path. */
static inline int begin_redirected(struct redirected *open, enum op op, int dirfd,
                                   const char **path, int flags, mode_t mode)
{
    enum staged_outcome outcome;
    enum file_place place;
    int fd;

    open->written = NULL;
    open->is_recorded = begin_plain(&open->call, op, -1, 0);
    if (staged_writes(flags)) {
        *path = staged_original(dirfd, *path);
        open->written = staged_find(dirfd, *path, !(flags & O_NOFOLLOW));
        fd = burst_open(dirfd, *path, flags, mode);
        place = ON_BURST_TIER;
    } else {
        fd = staged_open(dirfd, *path, flags, &outcome);
        place = STAGED_COPY;
    }
    name_redirected(open, dirfd, *path, fd >= 0 ? place : AT_ITS_PATH);
    return fd >= 0 ? fd : burst_follow(dirfd, *path, flags);
}

/* True: to be ended as recorded. */
static inline bool opened_redirected(struct redirected *open, int fd)
{
    if (fd >= 0 && open->written)
        staged_drop(open->written);
    return open->is_recorded;
}

/* Prepare the burst buffer for a change of names; `follows`: the call concerns no name. */
static inline void begin_change(struct burst_change *change, bool follows, int dirfd,
                                const char *path, int dirfd2, const char *path2, unsigned flags)
{
    change->name[0] = change->over[0] = 0;
    change->flags = flags;
    if (!burst_is_on())
        return;
    if (follows)
        burst_writing(dirfd, path, false);
    else if (path2)
        burst_renaming(change, dirfd, path, dirfd2, path2);
    else
        burst_removing(change, dirfd, path);
}

static inline void end_change(const struct burst_change *change, bool has_succeeded, int dirfd,
                              const char *path, int dirfd2, const char *path2)
{
    if (!*change->name && !*change->over) {
        if (path2 && has_succeeded)
            burst_moved(dirfd, path, dirfd2, path2);
        return;
    }
    if (path2)
        burst_renamed(change, dirfd, path, dirfd2, path2, has_succeeded);
    else
        burst_removed(change, dirfd, path, has_succeeded);
}

/* Whether the removal of a folder, or of the folder replaced by a rename, may be made again. */
static inline bool empties(int dirfd, const char *path, int dirfd2, const char *path2)
{
    if (path2)
        return errno == ENOTEMPTY && burst_empties(dirfd2, path2);
    return burst_empties(dirfd, path);
}

/* As HOOK_STATUS, for a call that changes a name, or two; NULL: no second name. */
#define HOOK_CHANGE(function, parameters, arguments, begin, follows, dirfd, path, dirfd2, path2)   \
    HOOK_CHANGE_BY(function, parameters, arguments, begin, follows, dirfd, path, dirfd2, path2, 0)

#define HOOK_CHANGE_BY(function, parameters, arguments, begin, follows, dirfd, path, dirfd2,       \
                       path2, how)                                                                 \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct staged_slot *slot = NULL, *slot2 = NULL;                                            \
        bool is_redirecting = redirects();                                                         \
        struct burst_change change;                                                                \
        bool is_recorded;                                                                          \
        struct call call;                                                                          \
        int result, tries = 64;                                                                    \
                                                                                                   \
        if (is_redirecting) {                                                                      \
            slot = staged_find(dirfd, path, follows);                                              \
            slot2 = staged_find(dirfd2, path2, follows);                                           \
            begin_change(&change, follows, dirfd, path, dirfd2, path2, how);                       \
        }                                                                                          \
        is_recorded = begin;                                                                       \
        if (!is_recorded && !is_redirecting)                                                       \
            return real_##function arguments;                                                      \
        result = real_##function arguments;                                                        \
        if (result < 0 && is_redirecting && !(follows)) {                                          \
            while (result < 0 && tries-- && empties(dirfd, path, dirfd2, path2))                   \
                result = real_##function arguments;                                                \
            if (result < 0 && !(path2) && burst_is_gone(path))                                     \
                result = 0;                                                                        \
        }                                                                                          \
        if (result >= 0 && slot)                                                                   \
            staged_drop(slot);                                                                     \
        if (result >= 0 && slot2)                                                                  \
            staged_drop(slot2);                                                                    \
        if (is_redirecting)                                                                        \
            end_change(&change, result >= 0, dirfd, path, dirfd2, path2);                          \
        if (is_recorded)                                                                           \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
        return result;                                                                             \
    }

/* As HOOK_STATUS, for a call that makes a link; `linked`: burst_linked(). */
#define HOOK_LINK(function, parameters, arguments, begin, linked)                                  \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
        bool is_recorded = begin;                                                                  \
        int result;                                                                                \
                                                                                                   \
        if (!is_recorded && !burst_is_on())                                                        \
            return real_##function arguments;                                                      \
        result = burst_is_on() ? linked : 1;                                                       \
        if (result > 0)                                                                            \
            result = real_##function arguments;                                                    \
        if (is_recorded)                                                                           \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
        return result;                                                                             \
    }

/* As HOOK_STATUS, for a call that describes a file; `disguised` runs after success, and gives the
 * result. */
#define HOOK_TELLS(function, parameters, arguments, begin, disguised)                              \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
        bool is_recorded = begin;                                                                  \
        int result;                                                                                \
                                                                                                   \
        if (LIKELY(is_recorded) && !redirects()) {                                                 \
            result = real_##function arguments;                                                    \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
            return result;                                                                         \
        }                                                                                          \
        result = real_##function arguments;                                                        \
        if (!result && redirects())                                                                \
            result = disguised;                                                                    \
        if (is_recorded)                                                                           \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
        return result;                                                                             \
    }

static inline int disguise_fd(int fd, struct stat *found)
{
    staged_disguise_fd(fd, found);
    return 0;
}

static inline int disguise_at(int dirfd, const char *path, int flags, struct stat *found)
{
    if (flags & AT_EMPTY_PATH && (!path || !*path))
        return disguise_fd(dirfd, found);
    if (flags & AT_SYMLINK_NOFOLLOW && burst_is_on() &&
        burst_disguise(dirfd, path, flags, found) < 0)
        return -1;
    staged_disguise_path(dirfd, path, found);
    return 0;
}

static inline int disguise_at_x(int dirfd, const char *path, int flags, unsigned mask,
                                struct statx *found)
{
    if (flags & AT_EMPTY_PATH && (!path || !*path)) {
        staged_disguise_fdx(dirfd, found);
        return 0;
    }
    if (flags & AT_SYMLINK_NOFOLLOW && burst_is_on() &&
        burst_disguise_x(dirfd, path, flags, mask, found) < 0)
        return -1;
    staged_disguise_pathx(dirfd, path, found);
    return 0;
}

/* Disguise the result of readlink. */
static inline ssize_t disguise_link(int dirfd, const char *path, ssize_t got)
{
    int error = got > 0 && burst_is_on() ? burst_link_error(dirfd, path) : 0;

    if (!error)
        return got;
    errno = error;
    return -1;
}

#endif
