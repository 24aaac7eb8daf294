/* Every way in which a program comes by the address of read.  By hand, on "data": { open, 3
 * reads of 10, close } directly, through a table of constant pointers and through
 * dlsym(RTLD_DEFAULT): 9 reads; then the plug-in of libplugin_loader.so is loaded, called (5
 * reads of 40) and unloaded, three times: 15 reads.  In all 6 opens, 24 reads, 6 closes.  On
 * "other", the same through dlsym(RTLD_NEXT) and through dlvsym. */
#include "known.h"
#include <dlfcn.h>

/* The version that libc gives its oldest symbols. */
#if defined(__x86_64__)
#define LIBC_VERSION "GLIBC_2.2.5"
#else
#define LIBC_VERSION "GLIBC_2.17"
#endif

typedef ssize_t (*read_function)(int, void *, size_t);

static const struct {
    read_function read;
    int (*close)(int);
} table[] = {{read, close}};

int load_and_read(void);

static void three_reads(const char *path, read_function function)
{
    char data[10];
    int fd = open(path, O_RDONLY);

    MUST(fd >= 0);
    MUST(function);
    for (int i = 0; i < 3; i++)
        MUST(function(fd, data, sizeof data) == sizeof data);
    MUST(table[0].close(fd) == 0);
}

static void three_direct_reads(void)
{
    char data[10];
    int fd = open("data", O_RDONLY);

    MUST(fd >= 0);
    for (int i = 0; i < 3; i++)
        MUST(read(fd, data, sizeof data) == sizeof data);
    MUST(close(fd) == 0);
}

int main(void)
{
    three_direct_reads();
    three_reads("data", table[0].read);
    three_reads("data", (read_function)(uintptr_t)dlsym(RTLD_DEFAULT, "read"));
    three_reads("other", (read_function)(uintptr_t)dlsym(RTLD_NEXT, "read"));
    three_reads("other", (read_function)(uintptr_t)dlvsym(RTLD_DEFAULT, "read", LIBC_VERSION));
    for (int i = 0; i < 3; i++)
        MUST(load_and_read() == 5);
    return 0;
}
