/* Four threads read "data" 16 bytes at a time until somebody kills the process.  Each says after each
 * pread how many it has done, in its eight bytes of the file "acknowledged", which is mapped: so the
 * file knows what was done, whenever the end comes.  By hand: at the end the preads that finished
 * are the four numbers' sum, or one more for each thread. */
#include "known.h"

#define THREADS 4

static int shared_fd;
static volatile uint64_t *acknowledged;

static void *reader(void *number)
{
    char data[16];

    for (uint64_t n = 0;; n++) {
        MUST(pread(shared_fd, data, sizeof data, (off_t)(n % 2000) * 16) == sizeof data);
        acknowledged[(uintptr_t)number] = n + 1;
    }
    return NULL;
}

int main(void)
{
    int fd = open("acknowledged", O_CREAT | O_RDWR, 0644);
    pthread_t threads[THREADS];

    shared_fd = open("data", O_RDONLY);
    MUST(fd >= 0 && shared_fd >= 0 && ftruncate(fd, 4096) == 0);
    acknowledged = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(acknowledged != MAP_FAILED);
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, reader, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    return 0;
}
