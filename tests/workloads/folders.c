/* Listing.  By hand, "folder" holds 10 files: opendir, readdir until it ends (12 entries, one
 * empty call), closedir; scandir once; glob of "folder/" and a star once; nftw once; chdir into
 * it and a relative open, read of 5, close. */
#include "known.h"
#include <dirent.h>
#include <ftw.h>
#include <glob.h>

static int visited;

static int visit(const char *path, const struct stat *status, int flag, struct FTW *where)
{
    (void)path, (void)status, (void)flag, (void)where;
    visited++;
    return 0;
}

int main(void)
{
    struct dirent **list;
    glob_t found;
    char data[5];
    int n = 0, fd;
    DIR *folder = opendir("folder");

    MUST(folder);
    while (readdir(folder))
        n++;
    MUST(n == 12);
    MUST(closedir(folder) == 0);
    MUST(scandir("folder", &list, NULL, alphasort) == 12);
    MUST(glob("folder/*", 0, NULL, &found) == 0 && found.gl_pathc == 10);
    MUST(nftw("folder", visit, 8, 0) == 0 && visited == 11);
    MUST(chdir("folder") == 0);
    fd = open("file0", O_RDONLY);
    MUST(fd >= 0 && read(fd, data, sizeof data) == sizeof data && close(fd) == 0);
    return 0;
}
