/* Every way to write and every way to name a file.  By hand:
 *   "out": open with O_CREAT, 4 writes of 1,000, pwrite of 10 at 0, writev of 3 + 4, pwritev of
 *   5 at 20, fsync, fdatasync, ftruncate to 100, fallocate of 4,096, close; mkdir "folder";
 *   rename "out" to "folder/out"; link it to "twin"; symlink "way"; readlink "way"; stat "twin",
 *   lstat "way", fstat through a descriptor, access "twin"; fstatat; statx; truncate "twin" to
 *   50; chmod; unlink "way", "twin", and unlinkat "folder/out"; rmdir "folder". */
#include "known.h"

int main(void)
{
    char data[4096] = {1};
    struct iovec two[2] = {{data, 3}, {data, 4}}, one[1] = {{data, 5}};
    struct stat status;
    struct statx extended;
    int fd = open("out", O_CREAT | O_RDWR | O_EXCL, 0644);

    MUST(fd >= 0);
    for (int i = 0; i < 4; i++)
        MUST(write(fd, data, 1000) == 1000);
    MUST(pwrite(fd, data, 10, 0) == 10);
    MUST(writev(fd, two, 2) == 7);
    MUST(pwritev(fd, one, 1, 20) == 5);
    MUST(fsync(fd) == 0);
    MUST(fdatasync(fd) == 0);
    MUST(ftruncate(fd, 100) == 0);
    MUST(posix_fallocate(fd, 0, 4096) == 0);
    MUST(close(fd) == 0);

    MUST(mkdir("folder", 0755) == 0);
    MUST(rename("out", "folder/out") == 0);
    MUST(link("folder/out", "twin") == 0);
    MUST(symlink("twin", "way") == 0);
    MUST(readlink("way", data, sizeof data) == 4);
    MUST(stat("twin", &status) == 0 && status.st_size == 4096);
    MUST(lstat("way", &status) == 0 && S_ISLNK(status.st_mode));
    fd = open("twin", O_RDONLY);
    MUST(fd >= 0);
    MUST(fstat(fd, &status) == 0);
    MUST(close(fd) == 0);
    MUST(access("twin", R_OK) == 0);
    MUST(fstatat(AT_FDCWD, "twin", &status, 0) == 0);
    MUST(statx(AT_FDCWD, "twin", 0, STATX_SIZE, &extended) == 0 && extended.stx_size == 4096);
    MUST(truncate("twin", 50) == 0);
    MUST(chmod("twin", 0600) == 0);
    MUST(unlink("way") == 0);
    MUST(unlink("twin") == 0);
    fd = open("folder", O_RDONLY | O_DIRECTORY);
    MUST(fd >= 0);
    MUST(unlinkat(fd, "out", 0) == 0);
    MUST(close(fd) == 0);
    MUST(rmdir("folder") == 0);
    return 0;
}
