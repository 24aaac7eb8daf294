/* The cost of a recorded call, seen from C: the work is nothing but the calls.
 *
 *   overhead pread FILE CALLS THREADS [LIBRARY FOLDER PAIRS]    preads of 4 KiB on one descriptor
 *   overhead small FOLDER FILES 1     [LIBRARY FOLDER PAIRS]    open, read, close of FOLDER/0 ...
 *
 * Prints a line a round: nanoseconds of a core a call.  With the recorder's library, rounds without
 * and with a window alternate in the process, beginning and ending without; else there is a single
 * round. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define BUDGET_BYTES (16ull << 30) /* every event is kept */

static int is_pread, shared_fd;
static const char *path;
static long blocks, n, threads;
static pthread_barrier_t barrier;

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void pread_all(long block)
{
    static _Thread_local char data[BLOCK];

    for (long i = 0; i < n / threads; i++) {
        if (pread(shared_fd, data, BLOCK, block * BLOCK) != BLOCK)
            fail("pread");
        if (++block == blocks)
            block = 0;
    }
}

static void read_small(void)
{
    char name[4096], data[BLOCK];

    for (long i = 0; i < n; i++) {
        int fd;

        snprintf(name, sizeof name, "%s/%ld", path, i);
        fd = open(name, O_RDONLY);
        if (fd < 0 || read(fd, data, BLOCK) != BLOCK || close(fd))
            fail(name);
    }
}

/* Lives over all rounds, as a loader's thread would. */
static void *worker(void *number)
{
    for (;;) {
        pthread_barrier_wait(&barrier);
        if (is_pread)
            pread_all((long)number * blocks / threads);
        else
            read_small();
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static double round_ns(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN), busy = threads < cores ? threads : cores;
    long calls = is_pread ? n / threads * threads : 3 * n;
    double start_s;

    pthread_barrier_wait(&barrier);
    start_s = now_s();
    pthread_barrier_wait(&barrier);
    return (now_s() - start_s) * 1e9 * (double)busy / (double)calls;
}

static void print_pairs(const char *library, const char *folder, int pairs)
{
    void *recorder = dlopen(library, RTLD_NOW);
    int (*start)(const char *, uint64_t);
    int (*stop)(void);

    if (!recorder)
        fail(library);
    start = (int (*)(const char *, uint64_t))(uintptr_t)dlsym(recorder, "penstock_start");
    stop = (int (*)(void))(uintptr_t)dlsym(recorder, "penstock_stop");
    round_ns(); /* fills the caches, for equal conditions in all rounds */
    printf("%.3f\n", round_ns());
    for (int i = 0; i < pairs; i++) {
        double ns;

        if (start(folder, BUDGET_BYTES))
            fail(folder);
        ns = round_ns();
        if (stop())
            fail("stop");
        printf("%.3f\n%.3f\n", ns, round_ns());
    }
}

int main(int argc, char **argv)
{
    struct stat status;

    if (argc != 5 && argc != 8)
        return 2;
    is_pread = !strcmp(argv[1], "pread");
    path = argv[2];
    n = atol(argv[3]);
    threads = atol(argv[4]);
    shared_fd = open(path, O_RDONLY);
    if (shared_fd < 0 || fstat(shared_fd, &status))
        fail(path);
    blocks = status.st_size / BLOCK;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;

        if (pthread_create(&thread, NULL, worker, (void *)i))
            fail("thread");
    }
    if (argc == 8)
        print_pairs(argv[5], argv[6], atoi(argv[7]));
    else
        printf("%.3f\n", round_ns());
    return 0;
}
