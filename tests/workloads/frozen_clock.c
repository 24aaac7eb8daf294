/* A library to preload that shows a program one moment for ever, as libfaketime does.  A program
 * that waits for time to pass under it waits for ever, so none here does. */
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    now->tv_sec = 1000;
    now->tv_nsec = 0;
    return 0;
}
