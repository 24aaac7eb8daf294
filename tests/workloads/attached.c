/* attached MODE: works until SIGTERM and checks all that it does, so that whoever stops it for a
 * moment and lets it go on is found out.  Says "fine N" for N rounds at its end, or what was wrong
 * at once, with exit status 1. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_bool is_over;
static atomic_long rounds;
static volatile sig_atomic_t alarms;

static void wrong(const char *what)
{
    printf("wrong: %s (%s)\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static void end(int number)
{
    (void)number;
    is_over = true;
}

/* Integers, floating point and vectors: what stands in registers is the result. */
static double mix(uint64_t *state)
{
    double sums[8] = {0};
    uint64_t x = 88172645463325252ull;
    int i, j;

    for (i = 0; i < 200000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        for (j = 0; j < 8; j++)
            sums[j] = sums[j] * 0.999 + (double)(x >> (j + 8)) * 1e-18;
    }
    *state = x;
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static void *compute(void *argument)
{
    uint64_t first, again;
    double sum = mix(&first);

    (void)argument;
    for (; !is_over; rounds++)
        if (mix(&again) != sum || again != first)
            wrong("a sum");
    return NULL;
}

static void *allocate(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    unsigned char *kept[64] = {0};
    size_t sizes[64] = {0};

    for (; !is_over; rounds++) {
        int i = rand_r(&seed) % 64;

        if (kept[i] &&
            (kept[i][0] != (unsigned char)i || kept[i][sizes[i] - 1] != (unsigned char)i))
            wrong("memory");
        free(kept[i]);
        sizes[i] = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 500 : 300000);
        kept[i] = malloc(sizes[i]);
        kept[i][0] = kept[i][sizes[i] - 1] = (unsigned char)i;
    }
    return NULL;
}

static void *load(void *argument)
{
    (void)argument;
    for (; !is_over; rounds++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);

        if (!library || !dlsym(library, "cos") || dlclose(library))
            wrong("a library");
        usleep(300);
    }
    return NULL;
}

static void *make_processes(void *argument)
{
    int status;

    (void)argument;
    for (; !is_over; rounds++) {
        pid_t child = fork();

        if (child < 0)
            wrong("fork");
        if (!child) {
            free(malloc(100));
            _exit(7);
        }
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            wrong("a child");
    }
    return NULL;
}

static int ends[2];

static void *say_numbers(void *argument)
{
    uint32_t number;

    (void)argument;
    for (number = 0; !is_over; number++) {
        if (write(ends[1], &number, sizeof number) != sizeof number)
            wrong("write");
        usleep(3000);
    }
    close(ends[1]);
    return NULL;
}

static void *hear_numbers(void *argument)
{
    uint32_t number, wanted;
    ssize_t got;

    (void)argument;
    for (wanted = 0; (got = read(ends[0], &number, sizeof number)); wanted++, rounds++)
        if (got != sizeof number || number != wanted)
            wrong("read");
    return NULL;
}

static void *wait_for_time(void *argument)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;

    (void)argument;
    for (; !is_over; rounds++) {
        struct timespec nap = {0, 20000000};
        struct timeval turn = {0, 20000};

        if (nanosleep(&nap, NULL))
            wrong("nanosleep");
        if (poll(NULL, 0, 20))
            wrong("poll");
        if (select(0, NULL, NULL, NULL, &turn))
            wrong("select");
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 20000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&mutex);
        if (pthread_cond_timedwait(&never, &mutex, &until) != ETIMEDOUT)
            wrong("a condition");
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void count_alarm(int number)
{
    int before = errno;

    (void)number;
    alarms++;
    errno = before;
}

/* Interrupted a thousand times a second; a pause that is never ended would hang. */
static void *hear_alarms(void *argument)
{
    const struct itimerval every = {{0, 1000}, {0, 1000}};
    struct sigaction action = {.sa_handler = count_alarm};
    sigset_t others;

    (void)argument;
    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&others);
    sigaddset(&others, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &others, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (; !is_over; rounds++) {
        long before = alarms;

        if (pause() != -1 || errno != EINTR)
            wrong("pause");
        if (alarms == before && !is_over) /* SIGTERM ends it too */
            wrong("pause ended without an alarm");
    }
    return NULL;
}

static const struct mode {
    const char *name;
    void *(*threads[4])(void *);
} modes[] = {
    {"computes", {compute}},
    {"computes in threads", {compute, compute, compute, wait_for_time}},
    {"allocates", {allocate, allocate, allocate}},
    {"loads", {load, load}},
    {"forks", {make_processes, allocate}},
    {"waits", {say_numbers, hear_numbers, wait_for_time}},
    {"hears alarms", {hear_alarms}},
    {"all at once", {compute, allocate, make_processes, wait_for_time}},
};

int main(int n_words, char **words)
{
    struct sigaction action = {.sa_handler = end, .sa_flags = SA_RESTART};
    pthread_t threads[4];
    sigset_t alarm_only;
    size_t i, n;

    for (i = 0; i < sizeof modes / sizeof *modes; i++)
        if (n_words == 2 && !strcmp(words[1], modes[i].name))
            break;
    if (i == sizeof modes / sizeof *modes || pipe(ends))
        return 2;
    sigaction(SIGTERM, &action, NULL);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    puts("begun");
    fflush(stdout);
    for (n = 1; n < 4 && modes[i].threads[n]; n++)
        if (pthread_create(&threads[n], NULL, modes[i].threads[n], (void *)n))
            wrong("pthread_create");
    modes[i].threads[0](NULL);
    while (n-- > 1)
        pthread_join(threads[n], NULL);
    printf("fine %ld\n", (long)rounds);
    return 0;
}
