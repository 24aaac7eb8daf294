/* Four threads pread one byte of "data" for ever, at offsets that number their calls (thread << 40 | call),
 * and tell in "told" how many have returned.  For being killed at any moment. */
#include "known.h"

#include <sys/mman.h>

static volatile uint64_t *told;
static int fd;

static void *read_on(void *number)
{
    uint64_t thread = (uintptr_t)number;
    char byte;

    for (uint64_t i = 0;; i++) {
        (void)!pread(fd, &byte, 1, (off_t)(thread << 40 | i));
        told[thread * 8] = i + 1;
    }
    return NULL;
}

int main(void)
{
    int counts = open("told", O_RDWR);
    pthread_t thread;

    fd = open("data", O_RDONLY);
    MUST(fd >= 0 && counts >= 0);
    told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, counts, 0);
    MUST(told != MAP_FAILED);
    for (uintptr_t i = 0; i < 4; i++)
        MUST(pthread_create(&thread, NULL, read_on, (void *)i) == 0);
    pause();
    return 0;
}
