/* 12,000 sleeps of 60 µs, each of which is recorded, and one read of "data": past a budget of one
 * block the sleeps are folded. */
#include "known.h"

#include <time.h>

int main(void)
{
    struct timespec time = {0, 60000};
    int fd = open("data", O_RDONLY);
    char byte;

    MUST(fd >= 0 && read(fd, &byte, 1) == 1);
    for (int i = 0; i < 12000; i++)
        MUST(nanosleep(&time, NULL) == 0);
    return 0;
}
