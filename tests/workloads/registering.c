/* A plug-in that says who it is from its constructor, so that nobody asks for a symbol of it.  By hand,
 * on "data": open, 1 read of 51 in the constructor, close; and { open, 3 reads of 52, close } a call. */
#include "known.h"

void register_reader(void (*reader)(void));

static void read_times(int n, size_t bytes)
{
    char data[64];
    int fd = open("data", O_RDONLY);

    MUST(fd >= 0);
    for (int i = 0; i < n; i++)
        MUST(read(fd, data, bytes) == (ssize_t)bytes);
    MUST(close(fd) == 0);
}

static void three_reads(void)
{
    read_times(3, 52);
}

__attribute__((constructor)) static void introduce(void)
{
    read_times(1, 51);
    register_reader(three_reads);
}
