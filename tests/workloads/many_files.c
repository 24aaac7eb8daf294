/* argv[1] files of 64 bytes in 100 folders, written, then read, then removed.  By hand, a file:
 *   { open, write of 64, close }, { open, read of 64, close }, unlink; and 100 mkdir, 100 rmdir. */
#include "known.h"

int main(int argc, char **argv)
{
    char path[64], data[64] = {0};
    int n = argc == 2 ? atoi(argv[1]) : 0, fd;

    MUST(n > 0);
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "d%02d", i);
        MUST(mkdir(path, 0755) == 0);
    }
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "d%02d/f%07d", i % 100, i);
        fd = open(path, O_CREAT | O_WRONLY, 0644);
        MUST(fd >= 0 && write(fd, data, sizeof data) == sizeof data && close(fd) == 0);
    }
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "d%02d/f%07d", i % 100, i);
        fd = open(path, O_RDONLY);
        MUST(fd >= 0 && read(fd, data, sizeof data) == sizeof data && close(fd) == 0);
        MUST(unlink(path) == 0);
    }
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "d%02d", i);
        MUST(rmdir(path) == 0);
    }
    return 0;
}
