/* A short wrapper for each blocking libc call: begin, the real call, end.  Where libc has a
 * non-blocking variant, the wrapper tries the variant first, so a call without blocking gets no
 * event.  Knows libc calls; knows no ELF. */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hook.h"
#include "hook_wait.h"

#if defined(__x86_64__)
#define COND_VERSION "GLIBC_2.3.2" /* earlier versions have another layout and are left alone */
#else
#define COND_VERSION NULL
#endif

_Thread_local struct through hooks_wait_through INITIAL_EXEC;

/* --- semaphores -------------------------------------------------------------------------------
 */

/* A cancellation point, whether or not the call blocks; errno stays unless the call fails. */
static bool is_taken(sem_t *semaphore)
{
    int error = errno;

    pthread_testcancel();
    if (!sem_trywait(semaphore))
        return true;
    errno = error;
    return false;
}

#define IS_TIME(time) ((time)->tv_nsec >= 0 && (time)->tv_nsec < 1000000000)

#define HOOK_SEM_WAIT(function, parameters, arguments, is_valid)                                   \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        if (!recorder_on || !(is_valid))                                                           \
            return real_##function arguments;                                                      \
        if (is_taken(semaphore))                                                                   \
            return 0;                                                                              \
        return BLOCKING(int, OP_SEM_WAIT, semaphore, real_##function arguments,                    \
                        result < 0 ? errno : 0);                                                   \
    }
HOOK_SEM_WAIT(sem_wait, (sem_t * semaphore), (semaphore), true)
HOOK_SEM_WAIT(sem_timedwait, (sem_t * semaphore, const struct timespec *until), (semaphore, until),
              IS_TIME(until))
HOOK_SEM_WAIT(sem_clockwait, (sem_t * semaphore, clockid_t clock, const struct timespec *until),
              (semaphore, clock, until),
              IS_TIME(until) && (clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC))

HOOK(int, sem_post, (sem_t * semaphore))
{
    if (waits_at(semaphore)) {
        int value = 0;

        /* With a positive value, the earlier post wakes the waiter, not the present call. */
        if (sem_getvalue(semaphore, &value) || value <= 0)
            waits_wake_slowly((uint64_t)(uintptr_t)semaphore, 1, true);
    }
    return real_sem_post(semaphore);
}

/* --- condition variables ------------------------------------------------------------------------
 */

#define HOOK_COND_WAIT(version, function, parameters, arguments)                                   \
    HOOK_AS(NULL, version, #function, int, function, parameters)                                   \
    {                                                                                              \
        if (!recorder_on)                                                                          \
            return real_##function arguments;                                                      \
        return BLOCKING(int, OP_COND_WAIT, condition, real_##function arguments, result);          \
    }
HOOK_COND_WAIT(COND_VERSION, pthread_cond_wait,
               (pthread_cond_t * condition, pthread_mutex_t *mutex), (condition, mutex))
HOOK_COND_WAIT(COND_VERSION, pthread_cond_timedwait,
               (pthread_cond_t * condition, pthread_mutex_t *mutex, const struct timespec *until),
               (condition, mutex, until))
HOOK_COND_WAIT(NULL, pthread_cond_clockwait,
               (pthread_cond_t * condition, pthread_mutex_t *mutex, clockid_t clock,
                const struct timespec *until),
               (condition, mutex, clock, until))

HOOK_AS(NULL, COND_VERSION, "pthread_cond_signal", int, pthread_cond_signal,
        (pthread_cond_t * condition))
{
    if (waits_at(condition))
        waits_wake_slowly((uint64_t)(uintptr_t)condition, 1, false);
    return real_pthread_cond_signal(condition);
}

HOOK_AS(NULL, COND_VERSION, "pthread_cond_broadcast", int, pthread_cond_broadcast,
        (pthread_cond_t * condition))
{
    if (waits_at(condition))
        waits_wake_slowly((uint64_t)(uintptr_t)condition, ~0u, false);
    return real_pthread_cond_broadcast(condition);
}

/* --- descriptors --------------------------------------------------------------------------------
 */

/* The file of a descriptor, where known at once. */
static int64_t known_file(int fd)
{
    struct slot_of_fd *slot = files_peek(fd);

    return slot && slot->file ? (int64_t)slot->file : -1;
}

static int64_t known_of(const struct pollfd *polled, nfds_t n)
{
    return n ? known_file(polled[0].fd) : -1;
}

static int first_ready(const struct pollfd *polled, nfds_t n)
{
    nfds_t i;

    for (i = 0; i < n; i++)
        if (polled[i].revents)
            return polled[i].fd;
    return n ? polled[0].fd : -1;
}

/* The error of a call returning the number of ready descriptors: none ready within the time is a
 * timeout. */
#define READY(result) ((result) < 0 ? errno : (result) ? 0 : ETIMEDOUT)

/* Descriptors ready at once are found without an event; for many descriptors, two questions would
 * cost more than an event. */
#define ASKED_FIRST 4

#define HOOK_POLL(function, parameters, arguments, at_once, is_at_once)                            \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct waiting waiting;                                                                    \
        int result;                                                                                \
                                                                                                   \
        if (!recorder_on || (is_at_once))                                                          \
            return real_##function arguments;                                                      \
        if (n && n <= ASKED_FIRST) {                                                               \
            result = real_##function at_once;                                                      \
            if (result)                                                                            \
                return result;                                                                     \
        }                                                                                          \
        waits_begin(&waiting, n ? OP_POLL : OP_SLEEP, 0, known_of(polled, n), CALLER);             \
        result = real_##function arguments;                                                        \
        waits_end_fd(&waiting,                                                                     \
                     n            ? READY(result)                                                  \
                     : result < 0 ? errno                                                          \
                                  : 0,                                                             \
                     first_ready(polled, n));                                                      \
        return result;                                                                             \
    }

static const struct timespec no_time;

HOOK_POLL(poll, (struct pollfd * polled, nfds_t n, int timeout_ms), (polled, n, timeout_ms),
          (polled, n, 0), !timeout_ms)
HOOK_POLL(__poll, (struct pollfd * polled, nfds_t n, int timeout_ms), (polled, n, timeout_ms),
          (polled, n, 0), !timeout_ms)
HOOK_POLL(__poll_chk, (struct pollfd * polled, nfds_t n, int timeout_ms, size_t size),
          (polled, n, timeout_ms, size), (polled, n, 0, size), !timeout_ms)
#define IS_NO_TIME(time) ((time) && !(time)->tv_sec && !(time)->tv_nsec)
HOOK_POLL(ppoll,
          (struct pollfd * polled, nfds_t n, const struct timespec *timeout, const sigset_t *mask),
          (polled, n, timeout, mask), (polled, n, &no_time, mask),
          IS_NO_TIME(timeout) || (timeout && !IS_TIME(timeout)))
HOOK_POLL(__ppoll_chk,
          (struct pollfd * polled, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
           size_t size),
          (polled, n, timeout, mask, size), (polled, n, &no_time, mask, size),
          IS_NO_TIME(timeout) || (timeout && !IS_TIME(timeout)))

/* The only descriptor of a set, or the lowest of several: -1 none. */
static int first_in(int n, const fd_set *set)
{
    int fd;

    for (fd = 0; set && fd < n && fd < FD_SETSIZE; fd++)
        if (FD_ISSET(fd, set))
            return fd;
    return -1;
}

static int first_of_sets(int n, const fd_set *reads, const fd_set *writes, const fd_set *others)
{
    int fd = first_in(n, reads);

    fd = fd < 0 ? first_in(n, writes) : fd;
    return fd < 0 ? first_in(n, others) : fd;
}

/* select writes the answer over the question: the question without time to wait is asked on copies,
 * and the answer is put where the program looks. */
struct sets {
    fd_set reads, writes, others;
};

static void copy_set(fd_set *to, const fd_set *from, int n)
{
    if (from)
        memcpy(to, from, ((size_t)n + 63) / 64 * 8); /* the words read and written by the kernel */
}

static void copy_sets(struct sets *sets, int n, const fd_set *reads, const fd_set *writes,
                      const fd_set *others)
{
    copy_set(&sets->reads, reads, n);
    copy_set(&sets->writes, writes, n);
    copy_set(&sets->others, others, n);
}

static void put_sets(const struct sets *sets, int n, fd_set *reads, fd_set *writes, fd_set *others)
{
    if (reads)
        copy_set(reads, &sets->reads, n);
    if (writes)
        copy_set(writes, &sets->writes, n);
    if (others)
        copy_set(others, &sets->others, n);
}

#define COPY_OF(set) (set) ? &sets.set : NULL
#define HOOK_SELECT(function, parameters, arguments, at_once, is_at_once)                          \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct waiting waiting;                                                                    \
        struct sets sets;                                                                          \
        int fd, result;                                                                            \
                                                                                                   \
        if (!recorder_on || n < 0 || n > FD_SETSIZE || (is_at_once))                               \
            return real_##function arguments;                                                      \
        fd = first_of_sets(n, reads, writes, others);                                              \
        if (fd >= 0) {                                                                             \
            copy_sets(&sets, n, reads, writes, others);                                            \
            result = real_##function at_once;                                                      \
            if (result > 0)                                                                        \
                put_sets(&sets, n, reads, writes, others);                                         \
            if (result)                                                                            \
                return result;                                                                     \
        }                                                                                          \
        waits_begin(&waiting, fd < 0 ? OP_SLEEP : OP_SELECT, 0, fd < 0 ? -1 : known_file(fd),      \
                    CALLER);                                                                       \
        result = real_##function arguments;                                                        \
        if (result > 0)                                                                            \
            fd = first_of_sets(n, reads, writes, others);                                          \
        waits_end_fd(&waiting, fd < 0 && !result ? 0 : READY(result), fd);                         \
        return result;                                                                             \
    }
#define IS_AT_ONCE(time)                                                                           \
    ((time) && ((time)->tv_sec < 0 || (time)->tv_usec < 0 || (!(time)->tv_sec && !(time)->tv_usec)))
#define SELECT_TYPES int n, fd_set *reads, fd_set *writes, fd_set *others
#define AT_ONCE n, COPY_OF(reads), COPY_OF(writes), COPY_OF(others)
HOOK_SELECT(select, (SELECT_TYPES, struct timeval *timeout), (n, reads, writes, others, timeout),
            (AT_ONCE, &(struct timeval){0, 0}), IS_AT_ONCE(timeout))
HOOK_SELECT(__select, (SELECT_TYPES, struct timeval *timeout), (n, reads, writes, others, timeout),
            (AT_ONCE, &(struct timeval){0, 0}), IS_AT_ONCE(timeout))
HOOK_SELECT(pselect, (SELECT_TYPES, const struct timespec *timeout, const sigset_t *mask),
            (n, reads, writes, others, timeout, mask), (AT_ONCE, &no_time, mask),
            IS_NO_TIME(timeout) || (timeout && !IS_TIME(timeout)))

#define HOOK_EPOLL(function, parameters, arguments, at_once, is_at_once)                           \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        int ready;                                                                                 \
                                                                                                   \
        if (!recorder_on || (is_at_once))                                                          \
            return real_##function arguments;                                                      \
        ready = real_##function at_once;                                                           \
        if (ready)                                                                                 \
            return ready;                                                                          \
        return BLOCKING(int, OP_EPOLL, NULL, real_##function arguments, READY(result));            \
    }
#define EPOLL_TYPES int fd, struct epoll_event *events, int n
HOOK_EPOLL(epoll_wait, (EPOLL_TYPES, int timeout_ms), (fd, events, n, timeout_ms),
           (fd, events, n, 0), !timeout_ms)
HOOK_EPOLL(epoll_pwait, (EPOLL_TYPES, int timeout_ms, const sigset_t *mask),
           (fd, events, n, timeout_ms, mask), (fd, events, n, 0, mask), !timeout_ms)
HOOK_EPOLL(epoll_pwait2, (EPOLL_TYPES, const struct timespec *timeout, const sigset_t *mask),
           (fd, events, n, timeout, mask), (fd, events, n, &no_time, mask),
           IS_NO_TIME(timeout) || (timeout && !IS_TIME(timeout)))

/* --- time, processes, threads, signals ----------------------------------------------------------
 */

#define HOOK_BLOCKING(type, function, parameters, arguments, op, address, is_at_once, error)       \
    HOOK(type, function, parameters)                                                               \
    {                                                                                              \
        if (!recorder_on || (is_at_once))                                                          \
            return real_##function arguments;                                                      \
        return BLOCKING(type, op, address, real_##function arguments, error);                      \
    }
#define HOOK_SLEEP(type, function, parameters, arguments, error)                                   \
    HOOK_BLOCKING(type, function, parameters, arguments, OP_SLEEP, NULL, false, error)
HOOK_SLEEP(int, nanosleep, (const struct timespec *time, struct timespec *rest), (time, rest),
           result < 0 ? errno : 0)
HOOK_SLEEP(int, __nanosleep, (const struct timespec *time, struct timespec *rest), (time, rest),
           result < 0 ? errno : 0)
HOOK_SLEEP(int, clock_nanosleep,
           (clockid_t clock, int flags, const struct timespec *time, struct timespec *rest),
           (clock, flags, time, rest), result)
HOOK_SLEEP(int, usleep, (useconds_t us), (us), result < 0 ? errno : 0)
HOOK_SLEEP(unsigned, sleep, (unsigned s), (s), result ? EINTR : 0)

#define HOOK_CHILD(function, parameters, arguments, is_at_once)                                    \
    HOOK_BLOCKING(pid_t, function, parameters, arguments, OP_WAITPID, NULL, is_at_once,            \
                  result < 0 ? errno : 0)
HOOK_CHILD(wait, (int *status), (status), false)
HOOK_CHILD(__wait, (int *status), (status), false)
HOOK_CHILD(waitpid, (pid_t pid, int *status, int how), (pid, status, how), how &WNOHANG)
HOOK_CHILD(__waitpid, (pid_t pid, int *status, int how), (pid, status, how), how &WNOHANG)
HOOK_CHILD(wait3, (int *status, int how, struct rusage *usage), (status, how, usage), how &WNOHANG)
HOOK_CHILD(wait4, (pid_t pid, int *status, int how, struct rusage *usage),
           (pid, status, how, usage), how &WNOHANG)
HOOK_BLOCKING(int, waitid, (idtype_t kind, id_t id, siginfo_t *info, int how),
              (kind, id, info, how), OP_WAITPID, NULL, how &WNOHANG, result < 0 ? errno : 0)

#define HOOK_JOIN(function, parameters, arguments)                                                 \
    HOOK_BLOCKING(int, function, parameters, arguments, OP_JOIN, (void *)thread, false, result)
HOOK_JOIN(pthread_join, (pthread_t thread, void **result_), (thread, result_))
HOOK_JOIN(pthread_timedjoin_np, (pthread_t thread, void **result_, const struct timespec *until),
          (thread, result_, until))
HOOK_JOIN(pthread_clockjoin_np,
          (pthread_t thread, void **result_, clockid_t clock, const struct timespec *until),
          (thread, result_, clock, until))

HOOK_BLOCKING(int, pthread_barrier_wait, (pthread_barrier_t * barrier), (barrier), OP_BARRIER,
              barrier, false, 0)

#define HOOK_SIGNAL(function, parameters, arguments, error)                                        \
    HOOK_BLOCKING(int, function, parameters, arguments, OP_SIGNAL, NULL, false, error)
HOOK_SIGNAL(pause, (void), (), 0)
HOOK_SIGNAL(sigsuspend, (const sigset_t *mask), (mask), 0)
HOOK_SIGNAL(sigwait, (const sigset_t *set, int *number), (set, number), result)
HOOK_SIGNAL(sigwaitinfo, (const sigset_t *set, siginfo_t *info), (set, info),
            result < 0 ? errno : 0)
HOOK_SIGNAL(sigtimedwait, (const sigset_t *set, siginfo_t *info, const struct timespec *timeout),
            (set, info, timeout), result < 0 ? errno == EAGAIN ? ETIMEDOUT : errno : 0)

/* --- locks --------------------------------------------------------------------------------------
 */

/* Locking a free mutex takes 5 ns, so the wrapper only looks at the mutex word.  Where another
 * thread takes the mutex in between, the wait is not recorded.  trylock finds a mutex locked again
 * by the owner. */
#define IS_FREE(mutex) (!__atomic_load_n(&(mutex)->__data.__lock, __ATOMIC_RELAXED))

#define HOOK_LOCK(function, try, is_free, parameters, arguments)                                   \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        int tried;                                                                                 \
                                                                                                   \
        if (!recorder_on || LIKELY(is_free))                                                       \
            return real_##function arguments;                                                      \
        tried = try(lock);                                                                         \
        if (tried != EBUSY)                                                                        \
            return tried;                                                                          \
        return BLOCKING(int, OP_MUTEX, lock, real_##function arguments, result);                   \
    }
HOOK_LOCK(pthread_mutex_lock, pthread_mutex_trylock, IS_FREE(lock), (pthread_mutex_t * lock),
          (lock))
HOOK_LOCK(pthread_mutex_timedlock, pthread_mutex_trylock, IS_FREE(lock),
          (pthread_mutex_t * lock, const struct timespec *until), (lock, until))
HOOK_LOCK(pthread_mutex_clocklock, pthread_mutex_trylock, IS_FREE(lock),
          (pthread_mutex_t * lock, clockid_t clock, const struct timespec *until),
          (lock, clock, until))
HOOK_LOCK(pthread_rwlock_rdlock, pthread_rwlock_tryrdlock, false, (pthread_rwlock_t * lock), (lock))
HOOK_LOCK(pthread_rwlock_wrlock, pthread_rwlock_trywrlock, false, (pthread_rwlock_t * lock), (lock))

/* --- futexes, by syscall() ----------------------------------------------------------------------
 */

#define FUTEX_COMMAND 127 /* without the flags for a private futex and for the clock */
enum {
    FUTEX_WAIT = 0,
    FUTEX_WAKE = 1,
    FUTEX_REQUEUE = 3,
    FUTEX_CMP_REQUEUE = 4,
    FUTEX_WAKE_OP = 5,
    FUTEX_LOCK_PI = 6,
    FUTEX_WAIT_BITSET = 9,
    FUTEX_WAKE_BITSET = 10,
    FUTEX_WAIT_REQUEUE_PI = 11,
    FUTEX_CMP_REQUEUE_PI = 12,
    FUTEX_LOCK_PI2 = 13
};

/* A futex with a changed word is not waited on. */
bool hooks_futex_waits(const long *a)
{
    long command = a[1] & FUTEX_COMMAND;

    if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET)
        return __atomic_load_n((const uint32_t *)a[0], __ATOMIC_RELAXED) == (uint32_t)a[2];
    return command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2 ||
           command == FUTEX_WAIT_REQUEUE_PI;
}

void hooks_futex_wakes(const long *a)
{
    long command = a[1] & FUTEX_COMMAND;
    uint64_t address = (uint64_t)a[0];

    if (!waits_at((const void *)a[0]))
        return;
    if (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET || command == FUTEX_WAKE_OP)
        waits_wake_slowly(address, (uint32_t)a[2], false);
    else if (command == FUTEX_REQUEUE || command == FUTEX_CMP_REQUEUE ||
             command == FUTEX_CMP_REQUEUE_PI)
        waits_move(address);
}
