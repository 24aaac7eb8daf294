/* libc's syscall() in place of its functions, as torch does.  By hand, on "data": openat, 3
 * reads of 100, 2 pread64 of 200, lseek, close; on "out": openat, 2 writes of 50, fsync, close;
 * unlinkat "out"; and 1,000 gettid, which are nobody's I/O. */
#include "known.h"
#include <sys/syscall.h>

int main(void)
{
    char data[256] = {0};
    long fd = syscall(SYS_openat, AT_FDCWD, "data", O_RDONLY);

    MUST(fd >= 0);
    for (int i = 0; i < 3; i++)
        MUST(syscall(SYS_read, fd, data, 100) == 100);
    for (int i = 0; i < 2; i++)
        MUST(syscall(SYS_pread64, fd, data, 200, 1000) == 200);
    MUST(syscall(SYS_lseek, fd, 0, SEEK_SET) == 0);
    MUST(syscall(SYS_close, fd) == 0);
    fd = syscall(SYS_openat, AT_FDCWD, "out", O_CREAT | O_WRONLY, 0644);
    MUST(fd >= 0);
    for (int i = 0; i < 2; i++)
        MUST(syscall(SYS_write, fd, data, 50) == 50);
    MUST(syscall(SYS_fsync, fd) == 0);
    MUST(syscall(SYS_close, fd) == 0);
    MUST(syscall(SYS_unlinkat, AT_FDCWD, "out", 0) == 0);
    for (int i = 0; i < 1000; i++)
        MUST(syscall(SYS_gettid) > 0);
    errno = 0;
    MUST(syscall(SYS_close, 9999) == -1 && errno == EBADF);
    return 0;
}
