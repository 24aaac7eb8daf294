/* Fills a tier by a.pt, SIZE bytes of a pattern that tells places apart, as others write to it too:
 * `threads` by pwrite, each its own pieces; a child by its copy of the descriptor (`child`); the
 * program itself by memory that it has mapped before (`map`). */
#include "known.h"

#define PIECE 50021 /* a prime, so that calls end anywhere */
#define THREADS 4

static size_t size;
static uint8_t *data;
static int fd;

static void *write_pieces(void *first)
{
    for (size_t at = (uintptr_t)first * PIECE; at < size; at += THREADS * PIECE) {
        size_t from = at, left = size - at < PIECE ? size - at : PIECE;

        while (left) {
            ssize_t put = pwrite(fd, data + from, left, (off_t)from);

            MUST(put > 0);
            from += (size_t)put;
            left -= (size_t)put;
        }
    }
    return NULL;
}

static void by_threads(void)
{
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(!pthread_create(&threads[i], NULL, write_pieces, (void *)i));
    for (int i = 0; i < THREADS; i++)
        MUST(!pthread_join(threads[i], NULL));
}

/* From the first page on, which somebody else writes; where the room ended. */
static size_t fill(void)
{
    size_t at = 4096;
    ssize_t put;

    while (at < size && (put = pwrite(fd, data + at, size - at, (off_t)at)) > 0)
        at += (size_t)put;
    MUST(at == size || errno == ENOSPC);
    return at;
}

static void by_child(void)
{
    int ways[2], status;
    size_t at;
    pid_t child;

    MUST(!pipe(ways));
    child = fork();
    MUST(child >= 0);
    if (!child) {
        char told;

        MUST(read(ways[0], &told, 1) == 1);
        MUST(pwrite(fd, data, 4096, 0) == 4096);
        _exit(0);
    }
    at = fill();
    MUST(write(ways[1], "", 1) == 1);
    MUST(waitpid(child, &status, 0) == child && !status);
    MUST(!ftruncate(fd, (off_t)at));
}

static void by_map(void)
{
    void *memory;
    size_t at;

    MUST(!ftruncate(fd, 4096));
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    at = fill();
    memcpy(memory, data, 4096);
    MUST(!munmap(memory, 4096) && !ftruncate(fd, (off_t)at));
}

int main(int n, char **words)
{
    MUST(n == 3);
    size = (size_t)atol(words[2]);
    data = malloc(size);
    MUST(data);
    for (size_t at = 0; at < size; at++)
        data[at] = (uint8_t)(at * 2654435761u >> 13);
    fd = open("a.pt", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0640);
    MUST(fd >= 0 && write(fd, "\0", 1) == 1);
    if (!strcmp(words[1], "threads"))
        by_threads();
    else if (!strcmp(words[1], "child"))
        by_child();
    else
        by_map();
    MUST(!close(fd));
    return 0;
}
