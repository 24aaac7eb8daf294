/* I/O where a thread or the process ends.  By hand, on "data": 200 threads one after another,
 * each with 1 pread of 8 and, in the destructor of a thread-specific value, 1 pread of 16; then
 * 1 pread of 24 in an atexit function and 1 of 32 in a destructor function.  402 preads, 1 open. */
#include "known.h"

static int shared_fd;
static pthread_key_t key;

static void read_bytes(size_t bytes)
{
    char data[64];

    MUST(pread(shared_fd, data, bytes, 0) == (ssize_t)bytes);
}

static void at_thread_end(void *value)
{
    (void)value;
    read_bytes(16);
}

static void *reader(void *unused)
{
    (void)unused;
    MUST(pthread_setspecific(key, &key) == 0);
    read_bytes(8);
    return NULL;
}

static void at_exit(void)
{
    read_bytes(24);
}

__attribute__((destructor)) static void at_unload(void)
{
    read_bytes(32);
}

int main(void)
{
    shared_fd = open("data", O_RDONLY);
    MUST(shared_fd >= 0);
    MUST(atexit(at_exit) == 0);
    MUST(pthread_key_create(&key, at_thread_end) == 0);
    for (int i = 0; i < 200; i++) {
        pthread_t thread;

        MUST(pthread_create(&thread, NULL, reader, NULL) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    return 0;
}
