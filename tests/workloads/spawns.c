/* Starts the program of argv[1] on "data" and "copy" in every way there is, each once and one
 * after the other: posix_spawn, posix_spawnp, system, popen, fork + execvp, fork + execve, fork
 * + execl, fork + fexecve. */
#include "known.h"
#include <spawn.h>

extern char **environ;

static void reap(pid_t pid)
{
    int status;

    MUST(pid > 0);
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
    char *arguments[] = {argv[1], (char *)"data", (char *)"copy", NULL};
    char command[4096];
    FILE *pipe;
    pid_t pid;

    MUST(argc == 2);
    snprintf(command, sizeof command, "%s data copy", argv[1]);
    MUST(posix_spawn(&pid, argv[1], NULL, NULL, arguments, environ) == 0);
    reap(pid);
    MUST(posix_spawnp(&pid, argv[1], NULL, NULL, arguments, environ) == 0);
    reap(pid);
    MUST(system(command) == 0);
    pipe = popen(command, "r");
    MUST(pipe && pclose(pipe) == 0);
    if (!(pid = fork())) {
        execvp(argv[1], arguments);
        _exit(97);
    }
    reap(pid);
    if (!(pid = fork())) {
        execve(argv[1], arguments, environ);
        _exit(97);
    }
    reap(pid);
    if (!(pid = fork())) {
        execl(argv[1], argv[1], "data", "copy", (char *)NULL);
        _exit(97);
    }
    reap(pid);
    if (!(pid = fork())) {
        fexecve(open(argv[1], O_RDONLY | O_CLOEXEC), arguments, environ);
        _exit(97);
    }
    reap(pid);
    return 0;
}
