/* The parts of every wrapper.  A wrapper is a HOOK; the linker gathers all hooks into the table.
 * Inside: begin (guard, time), the real call, end (note).  No allocation, no lock, errno kept. */
#ifndef PENSTOCK_HOOK_H
#define PENSTOCK_HOOK_H

#include <errno.h>
#include <fcntl.h>
#include <sys/types.h>

#include "files.h"
#include "log.h"
#include "patch.h"

#define HOOK(type, function, parameters) HOOK_OF(NULL, type, function, parameters)

/* HOOK for a function of a library with a file name beginning with `provider`. */
#define HOOK_OF(provider, type, function, parameters)                                              \
    HOOK_AS(provider, NULL, #function, type, function, parameters)

/* HOOK for a version of a function with several versions; the wrapper has a separate name. */
#define HOOK_AS(provider, version, name, type, function, parameters)                               \
    static type wrap_##function parameters;                                                        \
    static type(*real_##function) parameters;                                                      \
    static const struct hook hook_##function = {name, (void *)wrap_##function,                     \
                                                (void **)&real_##function, provider, version};     \
    static const struct hook *entry_##function __attribute__((section("penstock_hooks"), used)) =  \
        &hook_##function;                                                                          \
    static type wrap_##function parameters

/* A wrapper that begins with `begin`, and ends with only the result's success. */
#define HOOK_STATUS(function, parameters, arguments, begin)                                        \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct call call;                                                                          \
        int result;                                                                                \
                                                                                                   \
        if (!(begin))                                                                              \
            return real_##function arguments;                                                      \
        result = real_##function arguments;                                                        \
        log_end(&call, result < 0 ? errno : 0, 0);                                                 \
        return result;                                                                             \
    }

__attribute__((always_inline)) static inline uint32_t file_of(int fd)
{
    struct slot_of_fd *slot = files_slot(fd);

    return LIKELY(slot != NULL) ? slot->file : 0;
}

__attribute__((always_inline)) static inline bool begin_fd(struct call *call, enum op op, int fd,
                                                           int64_t offset, uint64_t asked)
{
    return log_is_on() && log_begin(call, op, file_of(fd), offset, asked);
}

__attribute__((always_inline)) static inline bool begin_path(struct call *call, enum op op,
                                                             int dirfd, const char *path)
{
    return log_is_on() && log_begin(call, op, files_path(dirfd, path), -1, 0);
}

__attribute__((always_inline)) static inline bool begin_plain(struct call *call, enum op op,
                                                              int64_t offset, uint64_t asked)
{
    return log_is_on() && log_begin(call, op, 0, offset, asked);
}

/* For a call whose data moves later and is not in the arguments: counted, and reported as
 * unseen. */
static inline bool begin_unseen(struct call *call, enum op op, uint32_t file)
{
    if (!log_is_on() || !log_begin(call, op, file, -1, 0))
        return false;
    __atomic_add_fetch(&log_state->header->unseen, 1, __ATOMIC_RELAXED);
    return true;
}

static inline bool is_write(enum op op)
{
    return op == OP_WRITE || op == OP_WRITEV || op == OP_PWRITEV;
}

__attribute__((always_inline)) static inline ssize_t end_bytes(const struct call *call, ssize_t got)
{
    log_end(call, got < 0 ? errno : 0, got < 0 ? 0 : (uint64_t)got);
    return got;
}

#endif
