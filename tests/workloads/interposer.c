/* Another tool's preloaded library: wraps read, and writes how often it was called in a program
 * to "reads-PROGRAM" at its end. */
#include "known.h"

#include <dlfcn.h>

static int calls;

ssize_t read(int fd, void *data, size_t size)
{
    static ssize_t (*original)(int, void *, size_t);

    if (!original)
        original = (ssize_t (*)(int, void *, size_t))(uintptr_t)dlsym(RTLD_NEXT, "read");
    calls++;
    return original(fd, data, size);
}

__attribute__((destructor)) static void write_count(void)
{
    char path[64];
    FILE *file;

    snprintf(path, sizeof path, "reads-%.40s", program_invocation_short_name);
    file = fopen(path, "w");
    MUST(file);
    MUST(fprintf(file, "%d\n", calls) > 0);
    MUST(fclose(file) == 0);
}
