/* Nothing is flushed, nothing is finalised.  By hand: opens "data", does 25,000 preads of 8,
 * then as argv[1] says: "kill" ends itself by SIGKILL, "segv" by a wild write, "abort", "_exit";
 * "hang" blocks in a read of a pipe after telling so on stdout with one byte, to be killed from
 * outside. */
#include "known.h"

int main(int argc, char **argv)
{
    char data[8];
    int fd = open("data", O_RDONLY), ends[2];

    MUST(argc == 2 && fd >= 0);
    for (int i = 0; i < 25000; i++)
        MUST(pread(fd, data, sizeof data, (i % 1000) * 8) == sizeof data);
    if (!strcmp(argv[1], "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(argv[1], "segv"))
        *(volatile int *)(uintptr_t)(argc - 2) = 1;
    else if (!strcmp(argv[1], "abort"))
        abort();
    else if (!strcmp(argv[1], "hang")) {
        MUST(pipe(ends) == 0);
        MUST(write(STDOUT_FILENO, "!", 1) == 1);
        MUST(read(ends[0], data, 1) == 1);
    }
    _exit(0);
}
