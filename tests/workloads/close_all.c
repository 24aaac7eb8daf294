/* A daemon's habit: close every descriptor there may be, three times over.  By hand, on "data":
 *   { open, read of 10 } before; close in a loop of 1,021 numbers; { open, read of 11 } before;
 *   closefrom(3); { open, read of 12 } before; close_range(3, ~0); { open, read of 13, close }
 *   after.
 * 4 opens, 4 reads; of the closes only the first loop's and the last one are calls that name the
 * file. */
#include "known.h"

#include <sys/syscall.h>

#if !__GLIBC_PREREQ(2, 34)
static int close_range(unsigned int first, unsigned int last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}

static void closefrom(int first)
{
    MUST(close_range((unsigned int)first, ~0u, 0) == 0);
}
#endif

static int begin(size_t bytes)
{
    char data[64];
    int fd = open("data", O_RDONLY);

    MUST(fd == 3);
    MUST(read(fd, data, bytes) == (ssize_t)bytes);
    return fd;
}

int main(void)
{
    for (int fd = 3; fd < 1024; fd++) /* what the caller left open would move our descriptor */
        close(fd);
    begin(10);
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    begin(11);
    closefrom(3);
    begin(12);
    MUST(close_range(3, ~0u, 0) == 0);
    MUST(close(begin(13)) == 0);
    return 0;
}
