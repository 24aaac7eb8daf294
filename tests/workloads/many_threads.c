/* 512 threads that are alive together.  By hand: each opens "data", waits for the others, does
 * 10 preads of 4,096, waits again and closes: 512 opens, 5,120 preads of 20,971,520 bytes, 512
 * closes. */
#include "known.h"

#define THREADS 512

static pthread_barrier_t barrier;

static void *reader(void *unused)
{
    static _Thread_local char data[4096];
    int fd = open("data", O_RDONLY);

    (void)unused;
    MUST(fd >= 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 10; i++)
        MUST(pread(fd, data, sizeof data, i * 4096) == sizeof data);
    pthread_barrier_wait(&barrier);
    MUST(close(fd) == 0);
    return NULL;
}

int main(void)
{
    static pthread_t threads[THREADS];
    pthread_attr_t small;

    MUST(pthread_attr_init(&small) == 0);
    MUST(pthread_attr_setstacksize(&small, 256 << 10) == 0);
    MUST(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], &small, reader, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    return 0;
}
