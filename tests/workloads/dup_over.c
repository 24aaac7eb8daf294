/* "data" under every number from 3 to 255, whatever was there before.  By hand: 1 open; 252
 * dup2, a pread of 16 through each of the 253 numbers; then "other" is put over every second
 * number by dup3, and read there: 1 open of "other", 127 preads of it; dup and fcntl(F_DUPFD) of
 * "data", a pread through each. "data": 255 preads, "other": 127. */
#include "known.h"

#define FIRST 3
#define LAST 255

int main(void)
{
    char data[16];
    int fd, other, n = 0;

    for (fd = FIRST; fd < 1024; fd++)
        close(fd);
    MUST(open("data", O_RDONLY) == FIRST);
    for (fd = FIRST + 1; fd <= LAST; fd++)
        MUST(dup2(FIRST, fd) == fd);
    for (fd = FIRST; fd <= LAST; fd++)
        MUST(pread(fd, data, sizeof data, 0) == sizeof data);
    other = open("other", O_RDONLY);
    MUST(other == LAST + 1);
    for (fd = FIRST; fd <= LAST; fd += 2, n++) {
        MUST(dup3(other, fd, O_CLOEXEC) == fd);
        MUST(pread(fd, data, sizeof data, 0) == sizeof data);
    }
    MUST(n == 127);
    fd = dup(FIRST + 1);
    MUST(fd > other);
    MUST(pread(fd, data, sizeof data, 0) == sizeof data);
    fd = fcntl(FIRST + 1, F_DUPFD, 300);
    MUST(fd == 300);
    MUST(pread(fd, data, sizeof data, 0) == sizeof data);
    return 0;
}
