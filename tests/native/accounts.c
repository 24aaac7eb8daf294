/* What a thread did in a call that took long: bytes copied from memory take CPU time, a pipe that
 * nobody writes to takes none; in a forked child as in its parent. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "logs.h"

enum { BYTES = 64 << 20, CALLS = 5 };

static char *room;
static int memory;

static void copy_long(void)
{
    for (int i = 0; i < CALLS; i++)
        MUST(pread(memory, room, BYTES, 0) == BYTES);
}

static void *write_late(void *pipe)
{
    struct timespec pause = {0, 50000000};

    nanosleep(&pause, NULL);
    MUST(write(*(int *)pipe, "x", 1) == 1);
    return NULL;
}

static void *idle(void *pipe)
{
    char byte;

    MUST(read(*(int *)pipe, &byte, 1) == 1);
    return NULL;
}

int main(void)
{
    char folder[4096], byte;
    int pipes[2], ends[2], status, tries;
    pthread_t writer, other;
    int fd = new_folder(folder, sizeof folder);
    int64_t before;
    pid_t child;

    room = malloc(BYTES);
    memory = memfd_create("long", 0);
    MUST(room && memory >= 0 && ftruncate(memory, BYTES) == 0);
    memset(room, 1, BYTES);
    MUST(pwrite(memory, room, BYTES, 0) == BYTES);
    MUST(pipe(pipes) == 0 && pipe(ends) == 0);
    MUST(penstock_run_delays(PENSTOCK_AFTER) == -1); /* not before the first window */
    MUST(penstock_start(folder, 0) == 0);
    copy_long();
    MUST(count_folder(folder, OP_ACCOUNT).finished == CALLS);

    /* 50 ms asleep: an account only if the machine took more than 7 ms to run us again. */
    MUST(pthread_create(&writer, NULL, write_late, &pipes[1]) == 0);
    MUST(read(pipes[0], &byte, 1) == 1);
    MUST(pthread_join(writer, NULL) == 0);
    MUST(count_folder(folder, OP_ACCOUNT).finished <= CALLS + 1);

    child = fork();
    if (!child) {
        MUST(penstock_run_delays(PENSTOCK_AFTER) == 0); /* of threads that are new to it */
        copy_long();
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    MUST(count_folder(folder, OP_ACCOUNT).finished >= 2 * CALLS);

    MUST(penstock_run_delays(PENSTOCK_AFTER) == 0);
    MUST(pthread_create(&other, NULL, idle, &ends[0]) == 0);
    before = penstock_run_delays(PENSTOCK_AFTER);
    MUST(before >= 0);
    for (tries = 0; penstock_run_delays(PENSTOCK_BEFORE) != -1; tries++) /* asked a moment ago */
        MUST(tries < 1000);
    MUST(write(ends[1], "x", 1) == 1);
    MUST(pthread_join(other, NULL) == 0);
    MUST(penstock_run_delays(PENSTOCK_AFTER) >= before); /* one has ended: nothing is taken back */
    MUST(penstock_run_delay() >= 0);
    MUST(penstock_stop() == 0);
    close(fd);
    remove_folder(folder);
    return 0;
}
