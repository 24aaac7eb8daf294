/* A thread that is cancelled inside a read.  By hand: 100 times { pipe, a thread that does a
 * pread of 8 of "data" and then a read of the pipe, cancelled there, joined; both ends closed };
 * then, in the same process, 50 preads of 8 by new threads.  150 preads that ended; 100 reads of
 * pipes that did not. */
#include "known.h"

#include <semaphore.h>

static int shared_fd;
static sem_t has_read;

static void pread_once(void)
{
    char data[8];

    MUST(pread(shared_fd, data, sizeof data, 0) == sizeof data);
}

static void *blocks(void *pipe_end)
{
    char data[1];

    pread_once();
    MUST(sem_post(&has_read) == 0);
    (void)!read(*(int *)pipe_end, data, 1); /* the next cancellation point */
    return NULL;
}

static void *reads(void *unused)
{
    (void)unused;
    pread_once();
    return NULL;
}

int main(void)
{
    pthread_t thread;
    void *result;
    int ends[2];

    shared_fd = open("data", O_RDONLY);
    MUST(shared_fd >= 0 && sem_init(&has_read, 0, 0) == 0);
    for (int i = 0; i < 100; i++) {
        MUST(pipe(ends) == 0);
        MUST(pthread_create(&thread, NULL, blocks, &ends[0]) == 0);
        MUST(sem_wait(&has_read) == 0);
        MUST(pthread_cancel(thread) == 0);
        MUST(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
    for (int i = 0; i < 50; i++) {
        MUST(pthread_create(&thread, NULL, reads, NULL) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    return 0;
}
