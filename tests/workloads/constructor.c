/* I/O before main.  By hand, on "data": the program's constructor does { open, read of 21, close
 * } and main does { open, read of 22, close }. */
#include "known.h"

static void read_bytes(size_t bytes)
{
    char data[64];
    int fd = open("data", O_RDONLY);

    MUST(fd >= 0);
    MUST(read(fd, data, bytes) == (ssize_t)bytes);
    MUST(close(fd) == 0);
}

__attribute__((constructor)) static void before_main(void)
{
    read_bytes(21);
}

int main(void)
{
    read_bytes(22);
    return 0;
}
