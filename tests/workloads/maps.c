/* Memory as a file.  By hand: "data" opened and mapped (40,960 bytes at 0, and 4,096 at 8,192),
 * read through memory, both unmapped, closed; "out" opened, ftruncate to 8,192, mapped shared,
 * written, msync, munmap, close. No read and no write call at all. */
#include "known.h"

int main(void)
{
    int fd = open("data", O_RDONLY);
    volatile char sum = 0;
    char *all, *some;

    MUST(fd >= 0);
    all = mmap(NULL, 40960, PROT_READ, MAP_SHARED, fd, 0);
    some = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 8192);
    MUST(all != MAP_FAILED && some != MAP_FAILED);
    for (int i = 0; i < 40960; i += 4096)
        sum = (char)(sum + all[i]);
    MUST(munmap(all, 40960) == 0);
    MUST(munmap(some, 4096) == 0);
    MUST(close(fd) == 0);

    fd = open("out", O_CREAT | O_RDWR, 0644);
    MUST(fd >= 0);
    MUST(ftruncate(fd, 8192) == 0);
    all = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(all != MAP_FAILED);
    memset(all, 7, 8192);
    MUST(msync(all, 8192, MS_SYNC) == 0);
    MUST(munmap(all, 8192) == 0);
    MUST(close(fd) == 0);
    return 0;
}
