/* vfork, whose child borrows our memory.  By hand: 5 times { open "data", pread of 100, vfork,
 * in the child close of that descriptor and exec of the program in argv[1] with "data" and
 * "copy" as arguments, in the parent waitpid, pread of 100, close }.  The parent: 5 opens, 10
 * preads, 5 closes. A sixth vfork's exec fails, and its child leaves through _exit. */
#include "known.h"

int main(int argc, char **argv)
{
    char *arguments[] = {argv[1], (char *)"data", (char *)"copy", NULL};
    char *nothing[] = {(char *)"/missing/program", NULL};
    char data[100];
    int status;
    pid_t pid;

    MUST(argc == 2);
    for (int i = 0; i < 5; i++) {
        int fd = open("data", O_RDONLY);

        MUST(fd >= 0);
        MUST(pread(fd, data, sizeof data, 0) == sizeof data);
        pid = vfork();
        MUST(pid >= 0);
        if (!pid) {
            close(fd);
            execv(argv[1], arguments);
            _exit(97);
        }
        MUST(waitpid(pid, &status, 0) == pid && status == 0);
        MUST(pread(fd, data, sizeof data, 0) == sizeof data);
        MUST(close(fd) == 0);
    }
    pid = vfork();
    MUST(pid >= 0);
    if (!pid) {
        execv(nothing[0], nothing);
        _exit(96);
    }
    MUST(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 96);
    return 0;
}
