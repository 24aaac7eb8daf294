/* Threads that wait while windows begin and end, and a handler of a signal that sleeps within their
 * waits: no wait stays in flight, none shorter than what is recorded is kept. */
#include "logs.h"

#include <semaphore.h>
#include <sys/time.h>
#include <time.h>

#define PAIRS 4
#define ROUNDS 3000

static struct {
    sem_t ask, answer;
} pairs[PAIRS];

static int shared_fd, is_over;

/* Handlers interrupt a wait for a semaphore with EINTR where they are not restarted. */
static void take(sem_t *semaphore)
{
    while (sem_wait(semaphore))
        MUST(errno == EINTR);
}

static void on_timer(int signal)
{
    struct timespec time = {0, 100000};
    int before = errno;

    (void)signal;
    nanosleep(&time, NULL);
    errno = before;
}

static void *asks(void *number)
{
    do_preads(shared_fd, 1);
    for (int i = 0; i < ROUNDS; i++) {
        MUST(sem_post(&pairs[(long)number].ask) == 0);
        take(&pairs[(long)number].answer);
    }
    return NULL;
}

static void *answers(void *number)
{
    do_preads(shared_fd, 1);
    for (int i = 0; i < ROUNDS; i++) {
        take(&pairs[(long)number].ask);
        MUST(sem_post(&pairs[(long)number].answer) == 0);
    }
    return NULL;
}

static void *run_windows(void *folder)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        MUST(penstock_start(folder, 0) == 0);
        do_preads(shared_fd, 10);
        MUST(penstock_stop() == 0);
    }
    return NULL;
}

static void run_pairs(void)
{
    pthread_t threads[2 * PAIRS];

    for (long i = 0; i < PAIRS; i++) {
        MUST(sem_init(&pairs[i].ask, 0, 0) == 0 && sem_init(&pairs[i].answer, 0, 0) == 0);
        MUST(pthread_create(&threads[2 * i], NULL, asks, (void *)i) == 0);
        MUST(pthread_create(&threads[2 * i + 1], NULL, answers, (void *)i) == 0);
    }
    for (int i = 0; i < 2 * PAIRS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    char folder[4096], whole[4096];
    struct counted counted;
    pthread_t thread;

    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    shared_fd = new_folder(folder, sizeof folder);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    MUST(pthread_create(&thread, NULL, run_windows, folder) == 0);
    run_pairs();
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(penstock_slots() == 0);
    close(shared_fd);
    remove_folder(folder);

    shared_fd = new_folder(whole, sizeof whole);
    MUST(penstock_start(whole, 0) == 0);
    run_pairs();
    MUST(penstock_stop() == 0);
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    counted = count_folder(whole, OP_SEM_WAIT);
    MUST(counted.in_flight == 0 && counted.finished <= 2u * PAIRS * ROUNDS);
    counted = count_folder(whole, OP_PREAD);
    MUST(counted.finished == 2 * PAIRS);
    remove_folder(whole);
    return 0;
}
