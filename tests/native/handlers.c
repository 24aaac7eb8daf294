/* A signal handler that reads, under a timer of 10 kHz, interrupts the recorder wherever it is. */
#include "logs.h"

#include <sys/time.h>

static int shared_fd;
static int handled;

static void on_timer(int signal)
{
    int before = errno;

    (void)signal;
    do_preads(shared_fd, 1);
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
    errno = before;
}

static void *reads(void *unused)
{
    (void)unused;
    do_preads(shared_fd, 50000);
    return NULL;
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    pthread_t threads[4];
    char folder[4096];
    struct counted counted;

    shared_fd = new_folder(folder, sizeof folder);
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    MUST(penstock_start(folder, 0) == 0);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 4; i++)
        MUST(pthread_create(&threads[i], NULL, reads, NULL) == 0);
    for (int i = 0; i < 4; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    MUST(penstock_stop() == 0);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished == 4u * 50000u + (unsigned)handled && counted.in_flight == 0);
    remove_folder(folder);
    return 0;
}
