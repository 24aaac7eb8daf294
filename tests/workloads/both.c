/* What differs between processors: slots, the jumps of dlopen and dlsym, vfork, fork.  By hand, on "data":
 * 1 open, 5 preads of 100, fopen + fread of 50 + fclose, reads of 10 and 11 through dlsym, and in a forked child
 * 1 read of 20; a vfork child that ends with status 3. */
#include "known.h"
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>

typedef ssize_t (*read_function)(int, void *, size_t);

int main(void)
{
    char data[100];
    int fd = open("data", O_RDONLY);
    read_function function;
    FILE *file;
    int status;
    pid_t child;

    MUST(fd >= 0);
    for (int i = 0; i < 5; i++)
        MUST(pread(fd, data, 100, i) == 100);
    file = fopen("data", "r");
    MUST(file && fread(data, 1, 50, file) == 50 && fclose(file) == 0);
    function = (read_function)(uintptr_t)dlsym(RTLD_DEFAULT, "read");
    MUST(function(fd, data, 10) == 10);
    function = (read_function)(uintptr_t)dlsym(RTLD_NEXT, "read");
    MUST(function(fd, data, 11) == 11);
    MUST(dlopen("libm.so.6", RTLD_NOW));
    child = vfork();
    if (!child)
        _exit(3);
    MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
    child = fork();
    if (!child) {
        MUST(read(fd, data, 20) == 20);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
