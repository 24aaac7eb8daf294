/* A call that succeeds leaves errno alone, one that fails leaves its own.  By hand, on "data": 1
 * open, 1,000 preads of 1 with errno 77 before and after, 1 close; a pread of a bad descriptor,
 * EBADF. */
#include "known.h"

int main(void)
{
    char data[1];
    int fd;

    errno = 77;
    fd = open("data", O_RDONLY);
    MUST(fd >= 0 && errno == 77);
    for (int i = 0; i < 1000; i++)
        MUST(pread(fd, data, 1, i) == 1 && errno == 77);
    MUST(close(fd) == 0 && errno == 77);
    MUST(pread(9999, data, 1, 0) == -1 && errno == EBADF);
    return 0;
}
