/* For programs whose waits are known: another thread acts only when the main thread is asleep in
 * the call that is to be seen, and so long after that it counts as a wait. */
#ifndef BLOCKED_H
#define BLOCKED_H

#include "known.h"

#include <sys/syscall.h>
#include <time.h>

static inline void pause_ms(long ms)
{
    struct timespec time = {0, ms * 1000000};

    MUST(syscall(SYS_nanosleep, &time, NULL) == 0); /* no slot of libc's: not recorded */
}

/* 0 also of a thread that has ended. */
static inline int is_asleep(pid_t tid)
{
    char path[64], text[512];
    const char *state;
    int fd;
    ssize_t got;

    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    fd = open(path, O_RDONLY);
    if (fd < 0)
        return 0;
    got = read(fd, text, sizeof text - 1);
    MUST(close(fd) == 0);
    text[got > 0 ? got : 0] = 0;
    state = strrchr(text, ')');
    return state && state[2] == 'S';
}

/* What the other thread does, once a thread sleeps in its `phase`-th wait. */
struct act {
    void (*act)(void);
    int *phase;
    int wanted;
    pid_t tid;
};

__attribute__((unused)) static void *act_when_asleep(void *argument)
{
    struct act *act = argument;

    while (__atomic_load_n(act->phase, __ATOMIC_ACQUIRE) != act->wanted || !is_asleep(act->tid))
        pause_ms(1);
    pause_ms(3);
    act->act();
    return NULL;
}

#endif
