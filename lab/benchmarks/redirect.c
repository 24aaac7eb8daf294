/* The cost of redirection for an open, seen from C.
 *
 *   redirect check N                              nanoseconds of the question whether opens are
 *                                                 redirected: the only question when off
 *   redirect opens FOLDER N LIBRARY RUN [MAP]     nanoseconds of open, read, close of FOLDER/0 ...,
 *                                                 in a window, with a tier's map or without */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool is_on; /* stands for redirection_is_on of native/hook_open.h */
static long found;

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double check(long n, int asks)
{
    double start = now_ns();

    for (long i = 0; i < n; i++) {
        if (asks && __builtin_expect(__atomic_load_n(&is_on, __ATOMIC_ACQUIRE), 0))
            found++;
        __asm__ volatile("" : : : "memory");
    }
    return (now_ns() - start) / (double)n;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double opens(const char *folder, long n)
{
    char name[4096], data[4096];
    double start = now_ns();

    for (long i = 0; i < n; i++) {
        int fd;

        snprintf(name, sizeof name, "%s/%ld", folder, i);
        fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, data, sizeof data) != sizeof data || close(fd))
            fail(name);
    }
    return (now_ns() - start) / (double)n;
}

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);

    if (!address)
        fail(name);
    return address;
}

int main(int n, char **words)
{
    if (n == 3 && !strcmp(words[1], "check")) {
        long calls = atol(words[2]);

        check(calls, 1);
        printf("%.3f %.3f\n", check(calls, 0), check(calls, 1));
        return 0;
    }
    if (n >= 6 && !strcmp(words[1], "opens")) {
        void *library = dlopen(words[4], RTLD_NOW);
        int (*start)(const char *, uint64_t), (*staged)(const char *);

        if (!library)
            fail(dlerror());
        *(void **)&start = symbol(library, "penstock_start");
        *(void **)&staged = symbol(library, "penstock_staged");
        if ((n > 6 && staged(words[6])) || start(words[5], 4ull << 30))
            fail("start");
        opens(words[2], atol(words[3])); /* names and caches are known from now on */
        printf("%.1f\n", opens(words[2], atol(words[3])));
        return 0;
    }
    return 2;
}
