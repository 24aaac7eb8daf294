/* A signal handler forks while a read is under way: the read returns in the child too.  By hand: in the
 * parent a read of 1 byte of a pipe, in the child one that was never begun there. */
#include "known.h"

static pid_t child = -1;

static void fork_now(int signal)
{
    (void)signal;
    child = fork();
}

int main(void)
{
    struct sigaction action = {.sa_handler = fork_now, .sa_flags = SA_RESTART};
    int ends[2], status;
    char byte;

    MUST(pipe(ends) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    if (!fork()) {
        struct timespec pause = {0, 300000000};

        nanosleep(&pause, NULL); /* the alarm comes first, after a tenth of a second */
        MUST(write(ends[1], "xy", 2) == 2);
        _exit(0);
    }
    MUST(ualarm(100000, 0) == 0);
    MUST(read(ends[0], &byte, 1) == 1);
    if (!child)
        _exit(7);
    MUST(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    MUST(WEXITSTATUS(status) == 7);
    return 0;
}
