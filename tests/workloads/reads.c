/* Every way to read a descriptor, on "data" of 40,960 bytes.  By hand, in order:
 *   open; 10 reads of 4,096; 1 empty read; lseek to 100; read of 7; readv of 128 + 128;
 *   3 preads of 512 at 1,024; preadv of 64 + 64 at 0; preadv2 of 32 at 8; a pread of 4,096 at
 *   40,950 that gets 10; close.  Then openat from the folder, one read of 5, close; an open of
 *   "missing" that fails with ENOENT; a read of "data" opened for writing that fails with EBADF. */
#include "known.h"

static char data[65536];

int main(void)
{
    volatile size_t page = 4096; /* not a constant: a fortified build calls __read_chk */
    struct iovec two[2] = {{data, 128}, {data + 128, 128}};
    struct iovec small[2] = {{data, 64}, {data + 64, 64}};
    struct iovec one[1] = {{data, 32}};
    int fd, folder;

    fd = open("data", O_RDONLY);
    MUST(fd >= 0);
    for (int i = 0; i < 10; i++)
        MUST(read(fd, data, page) == 4096);
    MUST(read(fd, data, page) == 0);
    MUST(lseek(fd, 100, SEEK_SET) == 100);
    MUST(read(fd, data, page - 4089) == 7);
    MUST(readv(fd, two, 2) == 256);
    for (int i = 0; i < 3; i++)
        MUST(pread(fd, data, page - 3584, 1024) == 512);
    MUST(preadv(fd, small, 2, 0) == 128);
    MUST(preadv2(fd, one, 1, 8, 0) == 32);
    MUST(pread(fd, data, page, 40950) == 10);
    MUST(close(fd) == 0);

    folder = open(".", O_RDONLY | O_DIRECTORY);
    MUST(folder >= 0);
    fd = openat(folder, "data", O_RDONLY);
    MUST(fd >= 0);
    MUST(read(fd, data, page - 4091) == 5);
    MUST(close(fd) == 0);
    MUST(close(folder) == 0);

    MUST(open("missing", O_RDONLY) < 0 && errno == ENOENT);
    fd = open("data", O_WRONLY);
    MUST(fd >= 0);
    MUST(read(fd, data, page) < 0 && errno == EBADF);
    MUST(close(fd) == 0);
    return 0;
}
