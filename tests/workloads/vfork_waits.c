/* A thread whose vfork child waits before it goes on, as told by lines of standard input:
 *   read    the thread opens "data", preads 100 and closes; preads 100 of "kept", open all the time
 *   vfork   the thread vforks, its child waits
 *   exec, missing or leave   the child goes to "/", opens "etc/passwd" and puts it at the number of
 *           "kept", in its own table; then it execs /bin/true, or a program that is not there and
 *           ends by _exit, or ends by _exit; the thread has waited for it.
 * Each is answered by "done". */
#include "known.h"

static int turns[2], answers[2], gate[2], kept;

static void turn(char c)
{
    MUST(write(turns[1], &c, 1) == 1);
}

static void answer(void)
{
    MUST(write(answers[1], "d", 1) == 1);
}

static void read_data(void)
{
    char data[100];
    int fd = open("data", O_RDONLY);

    MUST(fd >= 0);
    MUST(pread(fd, data, sizeof data, 0) == sizeof data);
    MUST(close(fd) == 0);
    MUST(pread(kept, data, sizeof data, 0) == sizeof data);
}

static void child(void)
{
    char *arguments[] = {(char *)"true", NULL};
    char how;

    answer();
    MUST(read(gate[0], &how, 1) == 1);
    MUST(chdir("/") == 0);
    MUST(dup2(open("etc/passwd", O_RDONLY), kept) == kept);
    if (how == 'e')
        execv("/bin/true", arguments);
    if (how == 'm')
        execv("/missing/program", arguments);
    _exit(how == 'e' ? 97 : 0);
}

static void *work(void *unused)
{
    int status;
    char what;

    while (read(turns[0], &what, 1) == 1) {
        if (what == 'r') {
            read_data();
        } else {
            pid_t pid = vfork();

            MUST(pid >= 0);
            if (!pid)
                child();
            MUST(waitpid(pid, &status, 0) == pid && status == 0);
        }
        answer();
    }
    return unused;
}

int main(void)
{
    char line[32], c;
    pthread_t thread;

    MUST(!pipe(turns) && !pipe(answers) && !pipe(gate));
    kept = open("kept", O_RDONLY);
    MUST(kept >= 0);
    MUST(!pthread_create(&thread, NULL, work, NULL));
    while (fgets(line, sizeof line, stdin)) {
        if (*line == 'r' || *line == 'v')
            turn(*line);
        else
            MUST(write(gate[1], line, 1) == 1);
        MUST(read(answers[0], &c, 1) == 1);
        MUST(printf("done\n") > 0 && !fflush(stdout));
    }
    return 0;
}
