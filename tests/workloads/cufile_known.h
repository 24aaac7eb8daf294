/* What of cufile.h the known program and the known library agree on. */
#include <sys/types.h>

struct error {
    int code, cuda;
};
struct descriptor {
    int type;
    union {
        int fd;
        void *handle;
    } of;
    const void *operations;
};

struct error cuFileHandleRegister(void **handle, struct descriptor *descriptor);
void cuFileHandleDeregister(void *handle);
ssize_t cuFileRead(void *handle, void *memory, size_t size, off_t offset, off_t from);
ssize_t cuFileWrite(void *handle, const void *memory, size_t size, off_t offset, off_t from);
struct error cuFileReadAsync(void *handle, void *memory, size_t *size, off_t *offset, off_t *from,
                             ssize_t *moved, void *stream);
struct error cuFileWriteAsync(void *handle, void *memory, size_t *size, off_t *offset, off_t *from,
                              ssize_t *moved, void *stream);
struct error cuFileBatchIOSubmit(void *batch, unsigned n, void *blocks, unsigned flags);
