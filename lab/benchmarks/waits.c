/* CPU time of calls that could block, seen from C: the work is nothing but the calls. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "rounds.h"

static sem_t semaphore, other;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int ready[2], polled;
static uint32_t word;
static long n_calls;

/* --- calls without blocking ------------------------------------------------------------------- */

static void take_semaphore(void)
{
    if (sem_post(&semaphore) || sem_wait(&semaphore))
        fail("semaphore");
}

static void signal_nobody(void)
{
    pthread_cond_signal(&condition);
}

static void lock_mutex(void)
{
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void poll_ready(void)
{
    struct pollfd one = {.fd = ready[0], .events = POLLIN};

    if (poll(&one, 1, -1) != 1)
        fail("poll");
}

static void select_ready(void)
{
    fd_set set;

    FD_ZERO(&set);
    FD_SET(ready[0], &set);
    if (select(ready[0] + 1, &set, NULL, NULL, NULL) != 1)
        fail("select");
}

static void epoll_ready(void)
{
    struct epoll_event event;

    if (epoll_wait(polled, &event, 1, -1) != 1)
        fail("epoll");
}

static void wake_nobody(void)
{
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void wait_in_vain(void)
{
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
}

/* --- blocking calls --------------------------------------------------------------------------- */

static pthread_barrier_t barrier;
static const char *kind;

static void answer_semaphores(void)
{
    if (sem_wait(&semaphore) || sem_post(&other))
        fail("semaphore");
}

static void ask_semaphores(void)
{
    if (sem_post(&semaphore) || sem_wait(&other))
        fail("semaphore");
}

static int turn;

static void change_turn(int mine)
{
    pthread_mutex_lock(&mutex);
    while (turn != mine)
        pthread_cond_wait(&condition, &mutex);
    turn = !mine;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
}

static void sleep_shortly(void)
{
    struct timespec time = {0, 60000}; /* longer than the shortest recorded wait */

    nanosleep(&time, NULL);
}

static void *answer(void *unused)
{
    for (;;) {
        pthread_barrier_wait(&barrier);
        for (long i = 0; i < n_calls; i++)
            if (*kind == 's')
                answer_semaphores();
            else
                change_turn(1);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}

static void ask_condition(void)
{
    change_turn(0);
}

static const struct {
    const char *name;
    void (*call)(void);
    int has_other;
} cases[] = {
    {"semaphore", take_semaphore, 0}, {"signal", signal_nobody, 0},
    {"mutex", lock_mutex, 0},         {"poll", poll_ready, 0},
    {"select", select_ready, 0},      {"epoll", epoll_ready, 0},
    {"futex-wake", wake_nobody, 0},   {"futex-wait", wait_in_vain, 0},
    {"sleep", sleep_shortly, 0},      {"semaphores", ask_semaphores, 1},
    {"conditions", ask_condition, 1},
};

static size_t chosen;

static double round_ns(void)
{
    double start_ns;

    if (cases[chosen].has_other)
        pthread_barrier_wait(&barrier);
    start_ns = cpu_ns();
    for (long i = 0; i < n_calls; i++)
        cases[chosen].call();
    if (cases[chosen].has_other)
        pthread_barrier_wait(&barrier);
    return (cpu_ns() - start_ns) / (double)n_calls;
}

int main(int argc, char **argv)
{
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t thread;

    if (argc != ARGUMENTS)
        return 2;
    n_calls = atol(argv[CALLS]);
    kind = argv[CASE];
    for (chosen = 0; chosen < sizeof cases / sizeof *cases && strcmp(cases[chosen].name, kind);
         chosen++)
        ;
    if (chosen == sizeof cases / sizeof *cases)
        return 2;
    sem_init(&semaphore, 0, 0);
    sem_init(&other, 0, 0);
    polled = epoll_create1(0);
    if (pipe(ready) || write(ready[1], "", 1) != 1 ||
        epoll_ctl(polled, EPOLL_CTL_ADD, ready[0], &event))
        fail("pipe");
    pthread_barrier_init(&barrier, NULL, 2);
    if (cases[chosen].has_other)
        pthread_create(&thread, NULL, answer, NULL);
    run_rounds(argv, round_ns);
    return 0;
}
