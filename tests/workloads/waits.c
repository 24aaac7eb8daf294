/* Every call that blocks, once where it does and, of some, 100 times where it does not.  By hand,
 * the waits of the main thread in order (WAIT: another thread ends it; TIME: its time is up):
 *
 * sem_wait WAIT, sem_timedwait WAIT, sem_clockwait TIME, pthread_cond_wait WAIT (signal),
 * pthread_cond_timedwait WAIT (broadcast), pthread_cond_clockwait TIME, futex WAIT, futex TIME,
 * poll of a pipe WAIT, ppoll of a socket TIME, select of an eventfd WAIT, epoll_wait WAIT, pselect
 * of nothing TIME, poll of nothing TIME, nanosleep, clock_nanosleep, usleep, waitpid, waitid,
 * wait4, pthread_join, pthread_mutex_lock, pthread_rwlock_wrlock, pthread_barrier_wait, recv,
 * accept, sigtimedwait TIME, and interrupted by a signal: sem_wait, poll, nanosleep.
 *
 * Joining the threads that act is no wait of its own: they have ended, or the join is short. */
#include "blocked.h"

#include <linux/futex.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/un.h>

static sem_t semaphore;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static int is_set, phase, ends[2], pair[2], counter, polled, listener;
static uint32_t word;
static pthread_t main_thread;
static pid_t main_tid;

static struct act acts[64];
static pthread_t helpers[64];

/* The next wait of the main thread is ended by this. */
static void will(void (*act)(void))
{
    int n = __atomic_load_n(&phase, __ATOMIC_RELAXED) + 1;

    acts[n] = (struct act){act, &phase, n, main_tid};
    MUST(pthread_create(&helpers[n], NULL, act_when_asleep, &acts[n]) == 0);
    __atomic_store_n(&phase, n, __ATOMIC_RELEASE);
}

/* It has acted; that it ends is awaited without a call that blocks. */
static void has_acted(void)
{
    while (pthread_tryjoin_np(helpers[phase], NULL))
        pause_ms(1);
}

static void post(void)
{
    MUST(sem_post(&semaphore) == 0);
}

static void set(void)
{
    MUST(pthread_mutex_lock(&mutex) == 0);
    is_set = 1;
    MUST(pthread_cond_signal(&condition) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
}

static void set_for_all(void)
{
    MUST(pthread_mutex_lock(&mutex) == 0);
    is_set = 1;
    MUST(pthread_cond_broadcast(&condition) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
}

static void wake(void)
{
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    MUST(syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 1);
}

static void fill_pipe(void)
{
    MUST(write(ends[1], "x", 1) == 1);
}

static void count_up(void)
{
    MUST(eventfd_write(counter, 1) == 0);
}

static void send_one(void)
{
    MUST(send(pair[1], "x", 1, 0) == 1);
}

static void arrive(void)
{
    int result = pthread_barrier_wait(&barrier);

    MUST(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void call_in(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "listener"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    MUST(fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
}

static void interrupt(void)
{
    MUST(pthread_kill(main_thread, SIGUSR1) == 0);
}

static struct timespec in_ms(clockid_t clock, long ms)
{
    struct timespec time;

    MUST(clock_gettime(clock, &time) == 0);
    time.tv_nsec += ms * 1000000;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static void wait_for_semaphores(void)
{
    struct timespec until = in_ms(CLOCK_REALTIME, 100000);

    for (int i = 0; i < 100; i++)
        MUST(sem_post(&semaphore) == 0 && sem_wait(&semaphore) == 0 && sem_post(&semaphore) == 0 &&
             sem_timedwait(&semaphore, &until) == 0);
    will(post);
    MUST(sem_wait(&semaphore) == 0);
    has_acted();
    will(post);
    MUST(sem_timedwait(&semaphore, &until) == 0);
    has_acted();
    until = in_ms(CLOCK_MONOTONIC, 5);
    MUST(sem_clockwait(&semaphore, CLOCK_MONOTONIC, &until) == -1 && errno == ETIMEDOUT);
    until.tv_nsec = -1;
    MUST(sem_timedwait(&semaphore, &until) == -1 && errno == EINVAL);
}

static void wait_for_conditions(void)
{
    struct timespec until = in_ms(CLOCK_REALTIME, 100000);

    MUST(pthread_mutex_lock(&mutex) == 0);
    will(set);
    while (!is_set)
        MUST(pthread_cond_wait(&condition, &mutex) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
    has_acted();
    MUST(pthread_mutex_lock(&mutex) == 0);
    is_set = 0;
    will(set_for_all);
    while (!is_set)
        MUST(pthread_cond_timedwait(&condition, &mutex, &until) == 0);
    until = in_ms(CLOCK_MONOTONIC, 5);
    MUST(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
    MUST(pthread_mutex_unlock(&mutex) == 0);
    has_acted();
}

static void wait_for_futexes(void)
{
    struct timespec time = {0, 5000000};

    for (int i = 0; i < 100; i++)
        MUST(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 7, NULL, NULL, 0) == -1 &&
             errno == EAGAIN);
    will(wake);
    MUST(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == 0);
    has_acted();
    MUST(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &time, NULL, 0) == -1 &&
         errno == ETIMEDOUT);
}

static void wait_for_descriptors(void)
{
    struct pollfd one = {.fd = ends[0], .events = POLLIN},
                  socket = {.fd = pair[0], .events = POLLIN};
    struct timespec time = {0, 5000000};
    struct epoll_event event = {.events = EPOLLIN};
    eventfd_t count;
    fd_set set, writes;
    char data[1];

    will(fill_pipe);
    MUST(poll(&one, 1, -1) == 1 && one.revents == POLLIN);
    has_acted();
    for (int i = 0; i < 100; i++)
        MUST(poll(&one, 1, -1) == 1 && poll(&socket, 1, 0) == 0);
    MUST(read(ends[0], data, 1) == 1);
    MUST(ppoll(&socket, 1, &time, NULL) == 0);
    FD_ZERO(&set);
    FD_SET(counter, &set);
    will(count_up);
    MUST(select(counter + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(counter, &set));
    has_acted();
    FD_ZERO(&writes);
    FD_SET(ends[1], &writes);
    FD_SET(pair[0], &set);
    for (int i = 0; i < 100; i++) {
        FD_SET(pair[0], &set);
        MUST(select(FD_SETSIZE, &set, &writes, NULL, NULL) == 2);
        MUST(FD_ISSET(counter, &set) && !FD_ISSET(pair[0], &set) && FD_ISSET(ends[1], &writes));
    }
    MUST(eventfd_read(counter, &count) == 0);
    MUST(epoll_ctl(polled, EPOLL_CTL_ADD, ends[0], &event) == 0);
    will(fill_pipe);
    MUST(epoll_wait(polled, &event, 1, -1) == 1);
    has_acted();
    for (int i = 0; i < 100; i++)
        MUST(epoll_wait(polled, &event, 1, -1) == 1);
    MUST(read(ends[0], data, 1) == 1);
}

static void wait_for_time(void)
{
    struct timespec time = {0, 5000000};

    MUST(pselect(0, NULL, NULL, NULL, &time, NULL) == 0);
    MUST(poll(NULL, 0, 5) == 0);
    MUST(nanosleep(&time, NULL) == 0);
    MUST(clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL) == 0);
    MUST(usleep(5000) == 0);
}

static pid_t child_that_ends(void)
{
    pid_t pid = fork();

    MUST(pid >= 0);
    if (!pid) {
        pause_ms(20);
        _exit(3);
    }
    return pid;
}

static void wait_for_children(void)
{
    siginfo_t info;
    int status;
    pid_t pid;

    pid = child_that_ends();
    MUST(waitpid(pid, &status, WNOHANG) == 0);
    MUST(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
    pid = child_that_ends();
    MUST(waitid(P_PID, (id_t)pid, &info, WEXITED) == 0 && info.si_status == 3);
    pid = child_that_ends();
    MUST(wait4(pid, &status, 0, NULL) == pid);
    MUST(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
}

static void *hold_both(void *unused)
{
    MUST(pthread_mutex_lock(&mutex) == 0 && pthread_rwlock_rdlock(&lock) == 0);
    post();
    acts[0] = (struct act){post, &phase, phase + 1, main_tid};
    act_when_asleep(&acts[0]); /* a post that nobody waits for yet */
    MUST(pthread_mutex_unlock(&mutex) == 0);
    acts[0].wanted++;
    act_when_asleep(&acts[0]);
    MUST(pthread_rwlock_unlock(&lock) == 0);
    return unused;
}

static void *read_and_end(void *unused)
{
    acts[0] = (struct act){post, &phase, phase, main_tid};
    act_when_asleep(&acts[0]);
    return unused;
}

static void wait_for_threads(void)
{
    pthread_t thread;

    phase++;
    MUST(pthread_create(&thread, NULL, read_and_end, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0 && sem_trywait(&semaphore) == 0);
    for (int i = 0; i < 100; i++)
        MUST(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    MUST(pthread_create(&thread, NULL, hold_both, NULL) == 0);
    while (sem_trywait(&semaphore))
        pause_ms(1);
    __atomic_add_fetch(&phase, 1, __ATOMIC_RELEASE);
    MUST(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    __atomic_add_fetch(&phase, 1, __ATOMIC_RELEASE);
    MUST(pthread_rwlock_wrlock(&lock) == 0 && pthread_rwlock_unlock(&lock) == 0);
    while (pthread_tryjoin_np(thread, NULL))
        pause_ms(1);
    MUST(sem_trywait(&semaphore) == 0 && sem_trywait(&semaphore) == 0);
    will(arrive);
    arrive();
    has_acted();
}

static void wait_for_sockets(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "listener"};
    struct timespec time = {0, 5000000};
    sigset_t set;
    char data[1];

    will(send_one);
    MUST(recv(pair[0], data, 1, 0) == 1);
    has_acted();
    MUST(recv(pair[0], data, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(listener >= 0 && bind(listener, (struct sockaddr *)&name, sizeof name) == 0 &&
         listen(listener, 1) == 0);
    will(call_in);
    MUST(accept(listener, NULL, NULL) >= 0);
    has_acted();
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    MUST(sigtimedwait(&set, NULL, &time) == -1 && errno == EAGAIN);
}

static void on_signal(int number)
{
    (void)number;
}

static void wait_until_interrupted(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct pollfd one = {.fd = ends[0], .events = POLLIN};
    struct timespec time = {1000, 0}, rest;

    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    will(interrupt);
    MUST(sem_wait(&semaphore) == -1 && errno == EINTR);
    has_acted();
    will(interrupt);
    MUST(poll(&one, 1, -1) == -1 && errno == EINTR);
    has_acted();
    will(interrupt);
    MUST(nanosleep(&time, &rest) == -1 && errno == EINTR && rest.tv_sec >= 900);
    has_acted();
}

int main(void)
{
    main_thread = pthread_self();
    main_tid = getpid();
    counter = eventfd(0, 0);
    polled = epoll_create1(0);
    MUST(sem_init(&semaphore, 0, 0) == 0 && pthread_barrier_init(&barrier, NULL, 2) == 0);
    MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    wait_for_semaphores();
    wait_for_conditions();
    wait_for_futexes();
    wait_for_descriptors();
    wait_for_time();
    wait_for_children();
    wait_for_threads();
    wait_for_sockets();
    wait_until_interrupted();
    return 0;
}
