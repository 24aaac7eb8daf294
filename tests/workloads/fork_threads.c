/* Four threads read while the main thread forks.  By hand, on "data" of 40,960 bytes, opened once:
 *   4 threads x 500 preads of 64; 8 children x 50 preads of 64, each leaving through _exit.
 * In all 1 open, 2,400 preads, 9 processes. */
#include "known.h"

static int shared_fd;

static void *reader(void *unused)
{
    char data[64];

    (void)unused;
    for (int i = 0; i < 500; i++)
        MUST(pread(shared_fd, data, sizeof data, i * 64) == sizeof data);
    return NULL;
}

static void child(void)
{
    char data[64];

    for (int i = 0; i < 50; i++)
        MUST(pread(shared_fd, data, sizeof data, i * 64) == sizeof data);
    _exit(0);
}

int main(void)
{
    pthread_t threads[4];
    pid_t pids[8];
    int status;

    shared_fd = open("data", O_RDONLY);
    MUST(shared_fd >= 0);
    for (int i = 0; i < 4; i++)
        MUST(pthread_create(&threads[i], NULL, reader, NULL) == 0);
    for (int i = 0; i < 8; i++) {
        pids[i] = fork();
        MUST(pids[i] >= 0);
        if (!pids[i])
            child();
    }
    for (int i = 0; i < 8; i++)
        MUST(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    for (int i = 0; i < 4; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    return 0;
}
