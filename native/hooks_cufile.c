/* GPU direct storage: files read into an accelerator's memory and written from there by libcufile.
 * libcufile's own calls, on the way to the device or without a direct way, are skipped (by
 * patch.c): only the program's calls are counted, once.  Knows cufile.h's layouts. */
#include "hook.h"

struct cufile_error {
    int code, cuda;
}; /* CUfileError_t: passed by value */

struct cufile_descriptor {
    int type;
    union {
        int fd;
        void *handle;
    } of;
    const void *operations;
}; /* CUfileDescr_t */

enum { OPAQUE_FD = 1, HANDLES = 1024, TRIES = 16 };

/* The file of a handle.  A handle without a place in TRIES places has an unknown file. */
static struct {
    void *handle;
    uint32_t file;
} known[HANDLES];

static char taken; /* the address marks a place being filled */

static size_t place_of(const void *handle, size_t try)
{
    return (((uintptr_t)handle >> 4) * 2654435761u + try) % HANDLES;
}

static void remember(void *handle, uint32_t file)
{
    size_t try;

    for (try = 0; try < TRIES; try++) {
        size_t at = place_of(handle, try);
        void *none = NULL;

        if (!__atomic_compare_exchange_n(&known[at].handle, &none, &taken, false, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        known[at].file = file;
        __atomic_store_n(&known[at].handle, handle, __ATOMIC_RELEASE);
        return;
    }
}

static uint32_t file_behind(void *handle, bool is_last)
{
    size_t try;

    for (try = 0; try < TRIES; try++) {
        size_t at = place_of(handle, try);
        uint32_t file;

        if (__atomic_load_n(&known[at].handle, __ATOMIC_ACQUIRE) != handle)
            continue;
        file = known[at].file;
        if (is_last)
            __atomic_store_n(&known[at].handle, NULL, __ATOMIC_RELEASE);
        return file;
    }
    return 0;
}

HOOK_OF("libcufile", struct cufile_error, cuFileHandleRegister,
        (void **handle, struct cufile_descriptor *descriptor))
{
    struct cufile_error error = real_cuFileHandleRegister(handle, descriptor);

    if (!error.code && log_is_on() && descriptor->type == OPAQUE_FD)
        remember(*handle, file_of(descriptor->of.fd));
    return error;
}

HOOK_OF("libcufile", void, cuFileHandleDeregister, (void *handle))
{
    file_behind(handle, true);
    real_cuFileHandleDeregister(handle);
}

/* -1 comes with errno; lower values are errors of cuFile or CUDA. */
static ssize_t ended(const struct call *call, ssize_t got)
{
    log_end(call, got >= 0 ? 0 : got == -1 ? errno : EIO, got < 0 ? 0 : (uint64_t)got);
    return got;
}

#define HOOK_CUFILE(function, op, type)                                                            \
    HOOK_OF("libcufile", ssize_t, function,                                                        \
            (void *handle, type memory, size_t size, off_t offset, off_t from))                    \
    {                                                                                              \
        struct call call;                                                                          \
                                                                                                   \
        if (!log_is_on() || !log_begin(&call, op, file_behind(handle, false), offset, size))       \
            return real_##function(handle, memory, size, offset, from);                            \
        return ended(&call, real_##function(handle, memory, size, offset, from));                  \
    }
HOOK_CUFILE(cuFileRead, OP_CUFILE_READ, void *)
HOOK_CUFILE(cuFileWrite, OP_CUFILE_WRITE, const void *)

/* A request on a stream is read and written later, by sizes subject to change until then; a batch's
 * parts end separately.  The recorder learns of neither end. */
#define HOOK_SUBMIT(function, parameters, arguments, file)                                         \
    HOOK_OF("libcufile", struct cufile_error, function, parameters)                                \
    {                                                                                              \
        struct cufile_error error;                                                                 \
        struct call call;                                                                          \
                                                                                                   \
        if (!begin_unseen(&call, OP_CUFILE_SUBMIT, file))                                          \
            return real_##function arguments;                                                      \
        error = real_##function arguments;                                                         \
        log_end(&call, error.code ? EIO : 0, 0);                                                   \
        return error;                                                                              \
    }
#define HOOK_STREAM(function)                                                                      \
    HOOK_SUBMIT(function,                                                                          \
                (void *handle, void *memory, size_t *size, off_t *offset, off_t *from,             \
                 ssize_t *moved, void *stream),                                                    \
                (handle, memory, size, offset, from, moved, stream), file_behind(handle, false))
HOOK_STREAM(cuFileReadAsync)
HOOK_STREAM(cuFileWriteAsync)
HOOK_SUBMIT(cuFileBatchIOSubmit, (void *batch, unsigned n, void *blocks, unsigned flags),
            (batch, n, blocks, flags), 0)
