/* The parts of wrappers of blocking calls. */
#ifndef PENSTOCK_HOOK_WAIT_H
#define PENSTOCK_HOOK_WAIT_H

#include "hook.h"
#include "waits.h"

/* The caller of a library whose waits count as its callers' waits, stored for the next wait: the
 * frame of the next wait is next to the wrapper's.  An entry left behind by an exception does not
 * apply to a later wait. */
struct through {
    const void *caller, *frame;
};

#define THROUGH_BYTES 1024

#pragma GCC visibility push(hidden)
extern _Thread_local struct through hooks_wait_through INITIAL_EXEC;

/* Whether a futex call with the arguments waits; otherwise note the waker for the waiters. */
bool hooks_futex_waits(const long *arguments);
void hooks_futex_wakes(const long *arguments);
#pragma GCC visibility pop

__attribute__((always_inline)) static inline const void *caller_of(const void *returns_to,
                                                                   const void *frame)
{
    struct through through = hooks_wait_through;

    if (LIKELY(!through.caller))
        return returns_to;
    hooks_wait_through.caller = NULL;
    return (uintptr_t)through.frame - (uintptr_t)frame < THROUGH_BYTES ? through.caller
                                                                       : returns_to;
}

/* The caller of the wrapper around the macro. */
#define CALLER                                                                                     \
    caller_of(__builtin_extract_return_addr(__builtin_return_address(0)),                          \
              __builtin_frame_address(0))

/* The real call, as a wait; `error` is computed from `result`, and is 0 after success. */
#define BLOCKING(type, op, address, call, error)                                                   \
    ({                                                                                             \
        struct waiting waiting_;                                                                   \
        type result;                                                                               \
                                                                                                   \
        waits_begin(&waiting_, op, (uint64_t)(uintptr_t)(address),                                 \
                    (address) ? (int64_t)(uintptr_t)(address) : -1, CALLER);                       \
        result = call;                                                                             \
        waits_end(&waiting_, error);                                                               \
        result;                                                                                    \
    })

#endif
