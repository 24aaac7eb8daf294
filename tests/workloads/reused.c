/* Numbers of descriptors that come back as other files without open().  By hand: 77 bytes written to a
 * memfd after close_range by syscall, 100 to a mkstemp file where a popen pipe was, 5 of "data" read
 * through a number that dup3 by syscall laid over another file; none of them on /etc/passwd. */
#include "known.h"

#include <sys/mman.h>
#include <sys/syscall.h>

int main(void)
{
    char data[100] = {0}, name[] = "temporary-XXXXXX";
    int fd = open("/etc/passwd", O_RDONLY), other;
    FILE *pipe;

    MUST(fd >= 0 && read(fd, data, 10) == 10);
    MUST(syscall(SYS_close_range, fd, ~0u, 0) == 0);
    fd = memfd_create("x", 0);
    MUST(fd >= 0 && write(fd, data, 77) == 77 && close(fd) == 0);
    pipe = popen("true", "r");
    MUST(pipe && fread(data, 1, 1, pipe) == 0 && pclose(pipe) == 0);
    fd = mkstemp(name);
    MUST(fd >= 0 && write(fd, data, 100) == 100);
    fd = open("/etc/passwd", O_RDONLY);
    other = open("data", O_RDONLY);
    MUST(syscall(SYS_dup3, other, fd, 0) == fd && read(fd, data, 5) == 5);
    return 0;
}
