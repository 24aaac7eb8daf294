/* Waits that are left in another way than by returning.  By hand: 20 threads wait for a semaphore,
 * 20 for a condition, 20 poll a pipe, and are cancelled there; a thread that was cancelled before
 * does not take the semaphore that is free.  The main thread jumps out of a sem_wait by a handler
 * of a signal, and then waits once more, for a thread; a handler sleeps within a pthread_cond_wait;
 * one forks within a sem_wait, whose child sleeps once. */
#include "blocked.h"

#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>

static sem_t semaphore, never;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int ends[2], phase, is_set;
static pid_t waiter_tid, main_tid, child;
static pthread_t waiter, main_thread;
static sigjmp_buf out;

static void is_ready(void)
{
    waiter_tid = (pid_t)syscall(SYS_gettid);
    waiter = pthread_self();
    __atomic_add_fetch(&phase, 1, __ATOMIC_RELEASE);
}

static void *waits_for_semaphore(void *unused)
{
    is_ready();
    sem_wait(&never);
    return unused;
}

static void unlock(void *lock)
{
    pthread_mutex_unlock(lock);
}

static void *waits_for_condition(void *unused)
{
    MUST(pthread_mutex_lock(&mutex) == 0);
    is_ready();
    pthread_cleanup_push(unlock, &mutex);
    for (;;)
        pthread_cond_wait(&condition, &mutex);
    pthread_cleanup_pop(1);
    return unused;
}

static void *polls(void *unused)
{
    struct pollfd one = {.fd = ends[0], .events = POLLIN};

    is_ready();
    poll(&one, 1, -1);
    return unused;
}

static void cancel_in(void *(*body)(void *))
{
    pthread_t thread;
    void *result;
    int before = phase;

    MUST(pthread_create(&thread, NULL, body, NULL) == 0);
    while (__atomic_load_n(&phase, __ATOMIC_ACQUIRE) == before || !is_asleep(waiter_tid))
        pause_ms(1);
    pause_ms(2);
    MUST(pthread_cancel(thread) == 0);
    while (pthread_tryjoin_np(thread, &result))
        pause_ms(1);
    MUST(result == PTHREAD_CANCELED);
    MUST(pthread_mutex_trylock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
}

static void *is_cancelled_already(void *unused)
{
    MUST(pthread_cancel(pthread_self()) == 0);
    sem_wait(&semaphore);
    return unused;
}

static void jump(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

static void sleep_within(int number)
{
    struct timespec time = {0, 5000000};

    (void)number;
    MUST(nanosleep(&time, NULL) == 0);
    __atomic_store_n(&is_set, 1, __ATOMIC_RELEASE);
}

static void fork_within(int number)
{
    (void)number;
    child = fork();
    MUST(child >= 0);
}

static void interrupt(void)
{
    MUST(pthread_kill(main_thread, SIGUSR1) == 0);
}

static void post(void)
{
    MUST(sem_post(&semaphore) == 0);
}

static void interrupt_then_signal(void)
{
    interrupt();
    while (!__atomic_load_n(&is_set, __ATOMIC_ACQUIRE))
        pause_ms(1);
    while (!is_asleep(main_tid))
        pause_ms(1);
    MUST(pthread_mutex_lock(&mutex) == 0 && pthread_cond_signal(&condition) == 0 &&
         pthread_mutex_unlock(&mutex) == 0);
}

static pthread_t will(struct act *act, void (*what)(void), void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    pthread_t thread;

    MUST(!handler || sigaction(SIGUSR1, &action, NULL) == 0);
    *act = (struct act){what, &phase, phase + 1, main_tid};
    MUST(pthread_create(&thread, NULL, act_when_asleep, act) == 0);
    __atomic_add_fetch(&phase, 1, __ATOMIC_RELEASE);
    return thread;
}

static void done(pthread_t thread)
{
    while (pthread_tryjoin_np(thread, NULL))
        pause_ms(1);
}

__attribute__((noinline)) static void wait_to_be_jumped(void)
{
    sem_wait(&never);
}

__attribute__((noinline)) static void wait_deeper(int depth)
{
    volatile char room[512];

    room[0] = 0;
    if (depth)
        wait_deeper(depth - 1);
    else
        MUST(sem_wait(&semaphore) == 0);
    room[1] = room[0];
}

int main(void)
{
    struct timespec time = {0, 5000000};
    pthread_t thread;
    struct act act;
    void *result;
    int status, value;

    main_thread = pthread_self();
    main_tid = getpid();
    MUST(sem_init(&semaphore, 0, 1) == 0 && sem_init(&never, 0, 0) == 0 && pipe(ends) == 0);
    for (int i = 0; i < 20; i++) {
        cancel_in(waits_for_semaphore);
        cancel_in(waits_for_condition);
        cancel_in(polls);
    }
    MUST(pthread_create(&thread, NULL, is_cancelled_already, NULL) == 0);
    MUST(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    MUST(sem_getvalue(&semaphore, &value) == 0 && value == 1 && sem_trywait(&semaphore) == 0);

    thread = will(&act, interrupt, jump);
    if (!sigsetjmp(out, 1))
        wait_to_be_jumped();
    done(thread);
    thread = will(&act, post, NULL);
    wait_deeper(4);
    done(thread);

    MUST(pthread_mutex_lock(&mutex) == 0);
    thread = will(&act, interrupt_then_signal, sleep_within);
    while (!is_set)
        MUST(pthread_cond_wait(&condition, &mutex) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
    done(thread);

    thread = will(&act, interrupt, fork_within);
    MUST(sem_wait(&never) == -1 && errno == EINTR);
    if (!child) {
        MUST(nanosleep(&time, NULL) == 0);
        return 0;
    }
    done(thread);
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
