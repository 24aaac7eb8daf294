/* The cost of a page fault, with and without a sampler.
 *   faults FILE ROUNDS    ns a fault, of ROUNDS passes over the file's pages
 *   forks N               ns for a fork, an exit and a wait */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double fault_ns(const char *path, int rounds)
{
    long page = sysconf(_SC_PAGESIZE);
    int fd = open(path, O_RDONLY);
    struct stat found;
    double spent = 0;
    char *memory;
    long at;
    int i;

    if (fd < 0 || fstat(fd, &found))
        exit(1);
    memory = mmap(NULL, (size_t)found.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (memory == MAP_FAILED)
        exit(1);
    for (i = 0; i < rounds; i++) {
        double start = now_ns();

        for (at = 0; at < found.st_size; at += page)
            ((volatile char *)memory)[at] = 1;
        spent += now_ns() - start;
        madvise(memory, (size_t)found.st_size, MADV_DONTNEED);
    }
    return spent / rounds / (double)(found.st_size / page);
}

static double fork_ns(int n)
{
    double start = now_ns();
    int i;

    for (i = 0; i < n; i++) {
        pid_t pid = fork();

        if (!pid)
            _exit(0);
        waitpid(pid, NULL, 0);
    }
    return (now_ns() - start) / n;
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "forks"))
        printf("%.1f\n", fork_ns(atoi(argv[2])));
    else if (argc > 2)
        printf("%.1f\n", fault_ns(argv[1], atoi(argv[2])));
    return argc > 2 ? 0 : 2;
}
