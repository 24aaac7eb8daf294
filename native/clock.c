/* The kernel's clock through libc's own function.  A library loaded before libc (libfaketime) may
 * show the program another time; the recording needs a growing clock, equal in all processes. */
#include "clock.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "account.h"
#include "log_parts.h"

HOT bool clock_is_counter;
uint64_t clock_ticks_per_s;

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

/* Whether the processor's counter can be the clock. */
static bool counter_is_invariant(void)
{
#if defined(__x86_64__)
    uint32_t a = 0x80000000u, b, c = 0, d;
    char source[32] = "";

    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (a < 0x80000007u)
        return false;
    a = 0x80000007u;
    c = 0;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (!(d & 1u << 8))
        return false;
    /* The kernel drops the counter as the system clock when the cores' counters differ. */
    log_read_small("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
                   sizeof source - 1);
    return !strncmp(source, "tsc", 3) || !strncmp(source, "kvm-clock", 9);
#else
    return true;
#endif
}

void clock_choose(uint64_t known_ticks_per_s)
{
    uint64_t ticks, ns, elapsed;

    if (clock_ticks_per_s)
        return;
    clock_is_counter = counter_is_invariant();
    if (!clock_is_counter) {
        clock_ticks_per_s = 1000000000u;
    } else if (known_ticks_per_s) {
        clock_ticks_per_s = known_ticks_per_s;
    } else {
        ns = clock_ns(CLOCK_MONOTONIC);
        ticks = clock_counter();
        do
            elapsed = clock_ns(CLOCK_MONOTONIC) - ns;
        while (elapsed < 1000000);
        clock_ticks_per_s = (uint64_t)((double)(clock_counter() - ticks) * 1e9 / (double)elapsed);
    }
    log_look_ticks = clock_ticks_per_s / (1000000000u / ACCOUNT_NS);
}
