/* Threads read while windows begin and end; then, in one window, every call of theirs is there. */
#include "logs.h"

#define THREADS 8
#define CALLS 20000

static int shared_fd, is_over;

static void *read_until_over(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
        do_preads(shared_fd, 10);
    return NULL;
}

static void *read_known(void *unused)
{
    (void)unused;
    do_preads(shared_fd, CALLS);
    return NULL;
}

static void run_threads(void *(*body)(void *), int windows, const char *folder)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, body, NULL) == 0);
    for (int i = 0; i < windows; i++) {
        MUST(penstock_start(folder, 0) == 0);
        do_preads(shared_fd, 100);
        MUST(penstock_stop() == 0);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
}

int main(void)
{
    char folder[4096], whole[4096];
    struct counted counted;

    shared_fd = new_folder(folder, sizeof folder);
    run_threads(read_until_over, 50, folder);
    MUST(penstock_slots() == 0);
    counted = count_folder(folder, OP_PREAD);
    MUST(counted.finished >= 50 * 100);
    close(shared_fd);
    remove_folder(folder);

    shared_fd = new_folder(whole, sizeof whole);
    MUST(penstock_start(whole, 0) == 0);
    run_threads(read_known, 0, whole);
    MUST(penstock_stop() == 0);
    counted = count_folder(whole, OP_PREAD);
    MUST(counted.finished == THREADS * CALLS && counted.in_flight == 0);
    remove_folder(whole);
    return 0;
}
