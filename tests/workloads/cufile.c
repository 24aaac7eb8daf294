/* Calls to libcufile on "data" of 40,960 bytes and on "out".  By hand, in order: open and register
 * data; 10 cuFileReads of 4,096 at 0, 4,096, ...; one at 40,960 that gets nothing; one that fails
 * with an error of cuFile's own; open and register out; 3 cuFileWrites of 1,000; one read of out,
 * opened for writing, that fails with EBADF; 2 reads of data and one write of out on a stream; a
 * batch, and an empty one that fails; deregister and close both. */
#include "cufile_known.h"
#include "known.h"

static char memory[65536];

int main(void)
{
    struct descriptor in = {.type = 1}, out = {.type = 1}, bad = {.type = 1};
    void *reader, *writer;
    size_t size = 4096;
    off_t offset = 0, from = 0;
    ssize_t moved;
    int i;

    in.of.fd = open("data", O_RDONLY);
    MUST(in.of.fd >= 0);
    MUST(cuFileHandleRegister(&reader, &in).code == 0);
    for (i = 0; i < 10; i++)
        MUST(cuFileRead(reader, memory, 4096, i * 4096, 4096) == 4096);
    MUST(cuFileRead(reader, memory, 4096, 40960, 0) == 0);
    MUST(cuFileRead(reader, NULL, 4096, 0, 0) == -5027);
    bad.of.fd = -1;
    MUST(cuFileHandleRegister(&writer, &bad).code == 5011);
    out.of.fd = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    MUST(out.of.fd >= 0);
    MUST(cuFileHandleRegister(&writer, &out).code == 0);
    for (i = 0; i < 3; i++)
        MUST(cuFileWrite(writer, memory, 1000, i * 1000, 0) == 1000);
    errno = 0;
    MUST(cuFileRead(writer, memory, 10, 0, 0) == -1 && errno == EBADF);
    for (i = 0; i < 2; i++)
        MUST(cuFileReadAsync(reader, memory, &size, &offset, &from, &moved, NULL).code == 0 &&
             moved == 4096);
    MUST(cuFileWriteAsync(writer, memory, &size, &offset, &from, &moved, NULL).code == 0);
    MUST(cuFileBatchIOSubmit(NULL, 3, NULL, 0).code == 0);
    MUST(cuFileBatchIOSubmit(NULL, 0, NULL, 0).code == 5022);
    cuFileHandleDeregister(reader);
    cuFileHandleDeregister(writer);
    close(in.of.fd);
    close(out.of.fd);
    return 0;
}
