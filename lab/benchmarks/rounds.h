/* Rounds of a benchmark in C: CPU time a call, without and with a window in turns.
 *
 * PROGRAM CASE CALLS LIBRARY FOLDER PAIRS
 *
 * Prints a line a round: nanoseconds of CPU time a call.  Rounds without and with a window
 * alternate in one process, beginning and ending without. */
#ifndef PENSTOCK_BENCHMARK_ROUNDS_H
#define PENSTOCK_BENCHMARK_ROUNDS_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define BUDGET_BYTES (16ull << 30)
#define CASE 1
#define CALLS 2
#define LIBRARY 3
#define FOLDER 4
#define PAIRS 5
#define ARGUMENTS 6

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double cpu_ns(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return ((double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec) * 1e9 +
           ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) * 1e3;
}

/* round_ns: a round of the case, in nanoseconds a call.  The first round is not printed. */
static void run_rounds(char **argv, double (*round_ns)(void))
{
    void *recorder = dlopen(argv[LIBRARY], RTLD_NOW);
    int (*start)(const char *, uint64_t);
    int (*stop)(void);

    if (!recorder)
        fail(argv[LIBRARY]);
    start = (int (*)(const char *, uint64_t))(uintptr_t)dlsym(recorder, "penstock_start");
    stop = (int (*)(void))(uintptr_t)dlsym(recorder, "penstock_stop");
    round_ns();
    printf("%.3f\n", round_ns());
    for (int pair = 0; pair < atoi(argv[PAIRS]); pair++) {
        double ns;

        if (start(argv[FOLDER], BUDGET_BYTES))
            fail(argv[FOLDER]);
        ns = round_ns();
        if (stop())
            fail("stop");
        printf("%.3f\n%.3f\n", ns, round_ns());
    }
}

#endif
