/* Who wakes whom, among 64 threads that wait and 16 that wake.  By hand: each waiter has a
 * semaphore and waits ROUNDS times; a round's one waker is drawn at random, writes its number
 * beside the semaphore and posts once the waiter sleeps.  After each wait the waiter reads one byte
 * at 1000 + that number of "data"; each waker has read one byte at its number before.
 *
 * Then two threads wait for one condition: the thread at 2001 signals it, one of them returns and
 * reads at 3001; the thread at 2002 wakes the other by a broadcast, which reads at 3002. */
#include "blocked.h"

#include <semaphore.h>

enum { WAITERS = 64, WAKERS = 16, ROUNDS = 20 };

static struct {
    sem_t semaphore;
    int by, round; /* round: how many waits have begun */
    pid_t tid;
    char apart[64];
} waiters[WAITERS];

static int data, returned, is_over;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;

static void read_at(off_t place)
{
    char byte;

    MUST(pread(data, &byte, 1, place) == 1);
}

static void *waits(void *number)
{
    long n = (long)number;

    read_at(100 + n);
    __atomic_store_n(&waiters[n].tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    for (int round = 1; round <= ROUNDS; round++) {
        __atomic_store_n(&waiters[n].round, round, __ATOMIC_RELEASE);
        MUST(sem_wait(&waiters[n].semaphore) == 0);
        read_at(1000 + __atomic_load_n(&waiters[n].by, __ATOMIC_ACQUIRE));
    }
    return NULL;
}

/* Each waiter's round is taken by one waker, which turns the number negative. */
static void *wakes(void *number)
{
    long n = (long)number;
    unsigned seed = (unsigned)n;
    int woken = 1;

    read_at(n);
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        int w = rand_r(&seed) % WAITERS;
        int round = __atomic_load_n(&waiters[w].round, __ATOMIC_ACQUIRE);

        if (round <= 0 || !is_asleep(waiters[w].tid) ||
            !__atomic_compare_exchange_n(&waiters[w].round, &round, -round, 0, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED)) {
            if (!(++woken % 64))
                pause_ms(1);
            continue;
        }
        __atomic_store_n(&waiters[w].by, (int)n, __ATOMIC_RELEASE);
        MUST(sem_post(&waiters[w].semaphore) == 0);
    }
    return NULL;
}

static void *waits_for_condition(void *tid)
{
    read_at(4000);
    __atomic_store_n((pid_t *)tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    MUST(pthread_mutex_lock(&mutex) == 0);
    MUST(pthread_cond_wait(&condition, &mutex) == 0);
    read_at(3000 + ++returned);
    MUST(pthread_mutex_unlock(&mutex) == 0);
    return NULL;
}

static void *signals(void *unused)
{
    read_at(2001);
    MUST(pthread_cond_signal(&condition) == 0);
    return unused;
}

static void *broadcasts(void *unused)
{
    read_at(2002);
    MUST(pthread_cond_broadcast(&condition) == 0);
    return unused;
}

static void run(void *(*body)(void *), void *argument)
{
    pthread_t thread;

    MUST(pthread_create(&thread, NULL, body, argument) == 0);
    MUST(pthread_join(thread, NULL) == 0);
}

static void two_on_one(void)
{
    pthread_t threads[2];
    pid_t tids[2] = {0};

    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, waits_for_condition, &tids[i]) == 0);
    for (int i = 0; i < 2; i++)
        while (!__atomic_load_n(&tids[i], __ATOMIC_ACQUIRE) || !is_asleep(tids[i]))
            pause_ms(1);
    pause_ms(3);
    run(signals, NULL);
    while (!__atomic_load_n(&returned, __ATOMIC_ACQUIRE))
        pause_ms(1);
    run(broadcasts, NULL);
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
}

int main(void)
{
    pthread_t threads[WAITERS + WAKERS];

    data = open("data", O_RDONLY);
    MUST(data >= 0);
    for (long i = 0; i < WAITERS; i++)
        MUST(sem_init(&waiters[i].semaphore, 0, 0) == 0 &&
             pthread_create(&threads[i], NULL, waits, (void *)i) == 0);
    for (long i = 0; i < WAKERS; i++)
        MUST(pthread_create(&threads[WAITERS + i], NULL, wakes, (void *)(i + 1)) == 0);
    for (int i = 0; i < WAITERS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < WAKERS; i++)
        MUST(pthread_join(threads[WAITERS + i], NULL) == 0);
    two_on_one();
    return 0;
}
