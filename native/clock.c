/* The kernel's clock through libc's own function.  A library that comes before libc (libfaketime)
 * may show the program another time; the recording needs one that grows, equal in all processes. */
#include "clock.h"

#include <dlfcn.h>
#include <stddef.h>

static int find_clock(clockid_t clock, struct timespec *now);

/* Found by the first reading: at the start of a recording, in no wrapper. */
HOT clock_reader *clock_read = find_clock;

static int find_clock(clockid_t clock, struct timespec *now)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    clock_reader *found = NULL;

    if (libc) {
        *(void **)&found = dlsym(libc, "clock_gettime");
        dlclose(libc);
    }
    __atomic_store_n(&clock_read, found ? found : clock_gettime, __ATOMIC_RELAXED);
    return clock_read(clock, now);
}
