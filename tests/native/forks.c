/* Children forked beside reading threads: each has a log of its own, and no call is in two of
 * them. */
#include "logs.h"

#define THREADS 4
#define CHILDREN 20

static int shared_fd;

static void *reads(void *unused)
{
    (void)unused;
    do_preads(shared_fd, 5000);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    pid_t children[CHILDREN];
    char folder[4096];
    struct counted counted;
    int status;

    shared_fd = new_folder(folder, sizeof folder);
    MUST(penstock_start(folder, 0) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, reads, NULL) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        MUST(children[i] >= 0);
        if (!children[i]) {
            do_preads(shared_fd, 100);
            _exit(0);
        }
    }
    for (int i = 0; i < CHILDREN; i++)
        MUST(waitpid(children[i], &status, 0) == children[i] && status == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    MUST(penstock_stop() == 0);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished == THREADS * 5000 + CHILDREN * 100);
    MUST(counted.logs == 1 + CHILDREN);
    remove_folder(folder);
    return 0;
}
