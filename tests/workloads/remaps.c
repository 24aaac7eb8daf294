/* Maps two files over one another, and memory into a hole of the first, and touches pages of each.
 *   remaps OLD NEW    both of 64 pages */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is written to becomes a page of its own: one fault a page, none brings its neighbours. */
static void touch(char *memory, int page)
{
    ((volatile char *)memory)[page * sysconf(_SC_PAGESIZE)] = 1;
}

int main(int argc, char **argv)
{
    long size = sysconf(_SC_PAGESIZE);
    int older = open(argv[1], O_RDONLY), newer = argc > 2 ? open(argv[2], O_RDONLY) : -1;
    char *memory = mmap(NULL, 64 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE, older, 0);
    int page;

    if (newer < 0 || memory == MAP_FAILED)
        return 1;
    touch(memory, 0);
    touch(memory, 1);
    /* Pages 20 to 23 become pages 3 to 6 of the other file, 30 to 33 memory without one. */
    if (mmap(memory + 20 * size, 4 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, newer,
             3 * size) == MAP_FAILED ||
        mmap(memory + 30 * size, 4 * size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        return 1;
    for (page = 20; page < 24; page++)
        touch(memory, page);
    for (page = 30; page < 34; page++)
        touch(memory, page);
    touch(memory, 40);
    touch(memory, 63);
    return 0;
}
