/* Opens ./staged in every spelling and prints for each which file it was, by its first byte; then
 * whether what fstat and its spellings say of the descriptor is what stat says of the name.
 * Opens that read: 15; O_DIRECT, openat2 and freopen open the file itself.  stat: 2 on the name;
 * of the descriptor: fstat, fstatat, statx, /proc/self/fd, syscall. */
#include "known.h"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static char first_of(int fd)
{
    char byte = '?';

    MUST(fd >= 0 && pread(fd, &byte, 1, 0) == 1 && close(fd) == 0);
    return byte;
}

static void say(const char *how, char byte)
{
    MUST(printf("%s %c\n", how, byte) > 0);
}

static void open_all(int folder, const char *absolute)
{
    struct open_how how = {.flags = O_RDONLY};
    FILE *file;

    say("open", first_of(open("staged", O_RDONLY)));
    say("open_absolute", first_of(open(absolute, O_RDONLY | O_CLOEXEC)));
    say("open_nofollow", first_of(open(absolute, O_RDONLY | O_NOFOLLOW)));
    say("open_slashes", first_of(open(".//./staged", O_RDONLY)));
    say("openat", first_of(openat(folder, "staged", O_RDONLY)));
    say("openat_cwd", first_of(openat(AT_FDCWD, "staged", O_RDONLY)));
    say("link", first_of(open("link", O_RDONLY)));
#ifdef SYS_open
    say("syscall_open", first_of((int)syscall(SYS_open, "staged", O_RDONLY)));
#else
    say("syscall_open", first_of((int)syscall(SYS_openat, AT_FDCWD, "staged", O_RDONLY)));
#endif
    say("syscall_openat", first_of((int)syscall(SYS_openat, folder, "staged", O_RDONLY)));
    MUST((file = fopen("staged", "r")));
    say("fopen", (char)fgetc(file));
    MUST(!fclose(file) && (file = fopen(absolute, "rbe")));
    say("fopen_absolute", (char)fgetc(file));
    MUST(fcntl(fileno(file), F_GETFD) == FD_CLOEXEC && (file = freopen("staged", "r", file)));
    say("freopen", (char)fgetc(file));
    MUST(!fclose(file));
    say("openat2", first_of((int)syscall(SYS_openat2, folder, "staged", &how, sizeof how)));
}

static void same(const char *how, const struct stat *found, const struct stat *name)
{
    say(how, found->st_dev == name->st_dev && found->st_ino == name->st_ino &&
                     found->st_size == name->st_size && found->st_mode == name->st_mode &&
                     found->st_nlink == name->st_nlink &&
                     found->st_ctim.tv_nsec == name->st_ctim.tv_nsec
                 ? 'y'
                 : 'n');
}

static void tell_all(void)
{
    int fd = open("staged", O_RDONLY);
    struct stat name, found;
    struct statx name_x, found_x;
    char path[64], link[4096] = "";

    MUST(fd >= 0 && !stat("staged", &name) && !fstat(fd, &found));
    same("fstat", &found, &name);
    MUST(!fstatat(fd, "", &found, AT_EMPTY_PATH));
    same("fstatat", &found, &name);
    MUST(!syscall(SYS_fstat, fd, &found));
    same("syscall_fstat", &found, &name);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST(!stat(path, &found));
    same("proc", &found, &name);
    MUST(!statx(AT_FDCWD, "staged", 0, STATX_BASIC_STATS, &name_x) &&
         !statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found_x));
    say("statx", name_x.stx_ino == found_x.stx_ino && name_x.stx_dev_minor == found_x.stx_dev_minor
                     ? 'y'
                     : 'n');
    MUST(readlink(path, link, sizeof link - 1) > 0);
    say("readlink", strstr(link, "/tier/") ? 'n' : 'y');
    MUST(!close(fd));
}

int main(int n, char **arguments)
{
    int folder = open(".", O_RDONLY | O_DIRECTORY);

    MUST(n == 2 && folder >= 0);
    open_all(folder, arguments[1]);
    tell_all();
    return 0;
}
