/* Reads inside the handler of a timer that fires 1,000 times a second, while four threads read
 * too. The number of handler calls is the machine's affair: the program writes "PREADS OPENS" of
 * "data" to the file "counts" at its end, and every handler call is { open, pread of 32, close
 * }.  Each thread does 20,000 preads of 32. */
#include "known.h"
#include <sys/time.h>

static int shared_fd;
static volatile sig_atomic_t handled;

static void on_timer(int signal)
{
    int before = errno;
    char data[32];
    int fd = open("data", O_RDONLY);

    (void)signal;
    MUST(fd >= 0);
    MUST(pread(fd, data, sizeof data, 0) == sizeof data);
    MUST(close(fd) == 0);
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
    errno = before;
}

static void *reader(void *unused)
{
    char data[32];

    (void)unused;
    for (int i = 0; i < 20000; i++)
        MUST(pread(shared_fd, data, sizeof data, (i % 1000) * 32) == sizeof data);
    return NULL;
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    pthread_t threads[4];
    FILE *counts;

    shared_fd = open("data", O_RDONLY);
    MUST(shared_fd >= 0);
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 4; i++)
        MUST(pthread_create(&threads[i], NULL, reader, NULL) == 0);
    for (int i = 0; i < 4; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    while (handled < 50) /* a fast machine is through before the timer is */
        pause();
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    counts = fopen("counts", "w");
    MUST(counts);
    MUST(fprintf(counts, "%d %d\n", 4 * 20000 + (int)handled, 1 + (int)handled) > 0);
    MUST(fclose(counts) == 0);
    return 0;
}
