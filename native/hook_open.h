/* Wrappers of calls by name while copies are staged: an open that reads may be given the copy, a
 * call that changes a source drops its copy.  Recorded or not: a pause ends no redirection. */
#ifndef PENSTOCK_HOOK_OPEN_H
#define PENSTOCK_HOOK_OPEN_H

#include "hook.h"
#include "staged.h"

struct redirected {
    struct call call;
    bool is_recorded;
    struct staged_slot *written; /* to be dropped when the call succeeds */
};

/* Which file the event is about, as soon as that is decided: until then it has none. */
static inline void name_redirected(struct redirected *open, int dirfd, const char *path,
                                   bool is_copy)
{
    if (open->is_recorded)
        log_turned_to(&open->call, is_copy ? files_staged(dirfd, path) : files_path(dirfd, path));
}

/* The copy's descriptor; -1: make the call, with *path. */
static inline int begin_redirected(struct redirected *open, enum op op, int dirfd,
                                   const char **path, int flags)
{
    enum staged_outcome outcome;
    int fd = -1;

    open->written = NULL;
    open->is_recorded = begin_plain(&open->call, op, -1, 0);
    if (staged_writes(flags)) {
        *path = staged_original(dirfd, *path);
        open->written = staged_find(dirfd, *path, !(flags & O_NOFOLLOW));
    } else {
        fd = staged_open(dirfd, *path, flags, &outcome);
    }
    name_redirected(open, dirfd, *path, fd >= 0);
    return fd;
}

/* True: to be ended as recorded. */
static inline bool opened_redirected(struct redirected *open, int fd)
{
    if (fd >= 0 && open->written)
        staged_drop(open->written);
    return open->is_recorded;
}

/* As HOOK_STATUS, for a call that changes what a name, or two, mean; NULL: there is no second. */
#define HOOK_CHANGE(function, parameters, arguments, begin, follows, dirfd, path, dirfd2, path2)   \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct staged_slot *slot = NULL, *slot2 = NULL;                                            \
        bool is_staged = staged_is_on();                                                           \
        bool is_recorded;                                                                          \
        struct call call;                                                                          \
        int result;                                                                                \
                                                                                                   \
        if (is_staged) {                                                                           \
            slot = staged_find(dirfd, path, follows);                                              \
            slot2 = staged_find(dirfd2, path2, follows);                                           \
        }                                                                                          \
        is_recorded = begin;                                                                       \
        if (!is_recorded && !slot && !slot2)                                                       \
            return real_##function arguments;                                                      \
        result = real_##function arguments;                                                        \
        if (result >= 0 && slot)                                                                   \
            staged_drop(slot);                                                                     \
        if (result >= 0 && slot2)                                                                  \
            staged_drop(slot2);                                                                    \
        if (is_recorded)                                                                           \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
        return result;                                                                             \
    }

/* As HOOK_STATUS, for a call that tells what a file is; `disguised` runs where it did. */
#define HOOK_TELLS(function, parameters, arguments, begin, disguised)                              \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
        bool is_recorded = begin;                                                                  \
        int result;                                                                                \
                                                                                                   \
        if (LIKELY(is_recorded) && !staged_is_on()) {                                              \
            result = real_##function arguments;                                                    \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
            return result;                                                                         \
        }                                                                                          \
        result = real_##function arguments;                                                        \
        if (!result && staged_is_on())                                                             \
            disguised;                                                                             \
        if (is_recorded)                                                                           \
            log_end(&call, result < 0 ? errno : 0, 0);                                             \
        return result;                                                                             \
    }

static inline void disguise_at(int dirfd, const char *path, int flags, struct stat *found)
{
    if (flags & AT_EMPTY_PATH && (!path || !*path))
        staged_disguise_fd(dirfd, found);
    else
        staged_disguise_path(dirfd, path, found);
}

static inline void disguise_at_x(int dirfd, const char *path, int flags, struct statx *found)
{
    if (flags & AT_EMPTY_PATH && (!path || !*path))
        staged_disguise_fdx(dirfd, found);
    else
        staged_disguise_pathx(dirfd, path, found);
}

#endif
