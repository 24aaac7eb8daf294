/* Copies argv[1] to argv[2] in pieces of 4,096 bytes: opens both, reads to the end, writes,
 * closes both. On 40,960 bytes: 1 open, 11 reads (the last one empty), 1 close; 1 open, 10
 * writes, 1 close. */
#include "known.h"

int main(int argc, char **argv)
{
    char data[4096];
    ssize_t got;
    int from, to;

    MUST(argc == 3);
    from = open(argv[1], O_RDONLY);
    to = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    MUST(from >= 0 && to >= 0);
    while ((got = read(from, data, sizeof data)) > 0)
        MUST(write(to, data, (size_t)got) == got);
    MUST(got == 0);
    MUST(close(from) == 0);
    MUST(close(to) == 0);
    return 0;
}
