/* A slow tier: calls on files whose path holds SLOW_UNDER take longer.  Preloaded by tests.
 *
 * SLOW_OPEN_US, SLOW_READ_US, SLOW_WRITE_US: what an open, a read, a write takes longer.  The wait is
 * a sleep, so it takes no processor; whoever looks at the call from outside sees a slow one.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { N_DESCRIPTORS = 4096 };

static char is_slow[N_DESCRIPTORS];
static long open_us, read_us, write_us;
static const char *under;
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_close)(int);
static ssize_t (*real_writev)(int, const void *, int);

static long number(const char *name)
{
    const char *value = getenv(name);

    return value ? atol(value) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    under = getenv("SLOW_UNDER");
    open_us = number("SLOW_OPEN_US");
    read_us = number("SLOW_READ_US");
    write_us = number("SLOW_WRITE_US");
    real_open = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    real_openat = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    real_read = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    real_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    real_close = (int (*)(int))dlsym(RTLD_NEXT, "close");
    real_writev = (ssize_t (*)(int, const void *, int))dlsym(RTLD_NEXT, "writev");
}

static void wait_us(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};

    if (us)
        nanosleep(&left, NULL);
}

static int opened(int fd, const char *path)
{
    if (fd >= 0 && fd < N_DESCRIPTORS) {
        is_slow[fd] = under && path && strstr(path, under);
        if (is_slow[fd])
            wait_us(open_us);
    }
    return fd;
}

static long of_call(int fd, long us)
{
    return fd >= 0 && fd < N_DESCRIPTORS && is_slow[fd] ? us : 0;
}

int open(const char *path, int flags, ...)
{
    va_list rest;

    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return opened(real_open(path, flags, mode), path);
}

int open64(const char *path, int flags, ...)
{
    va_list rest;

    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return opened(real_open(path, flags, mode), path);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return opened(real_openat(folder, path, flags, mode), path);
}

int close(int fd)
{
    if (fd >= 0 && fd < N_DESCRIPTORS)
        is_slow[fd] = 0; /* the number may come back as a socket */
    return real_close(fd);
}

ssize_t read(int fd, void *data, size_t size)
{
    wait_us(of_call(fd, read_us));
    return real_read(fd, data, size);
}

ssize_t write(int fd, const void *data, size_t size)
{
    wait_us(of_call(fd, write_us));
    return real_write(fd, data, size);
}

ssize_t writev(int fd, const void *pieces, int n)
{
    wait_us(of_call(fd, write_us));
    return real_writev(fd, pieces, n);
}
