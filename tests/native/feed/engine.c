/* The engine against a file whose every byte is known: whole ranges, ends of files, many in flight,
 * closed at once.  Under the sanitizers a byte written beside its range, or a race, ends it. */
#include "feed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define SIZE 1000003 /* no multiple of anything */
#define N 200

static unsigned char truth[SIZE];

static unsigned random_state = 1;

static unsigned random_below(unsigned n)
{
    random_state = random_state * 1103515245 + 12345;
    return (random_state >> 8) % n;
}

static void made(char *path, size_t size)
{
    int fd;

    snprintf(path, size, "/tmp/penstock-feed-XXXXXX");
    fd = mkstemp(path);
    MUST(fd >= 0);
    for (size_t i = 0; i < SIZE; i++)
        truth[i] = (unsigned char)(i * 2654435761u >> 13);
    MUST(write(fd, truth, SIZE) == SIZE);
    MUST(fsync(fd) == 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Each request has whole pages of its own, exactly as many as it may touch. */
static struct feed_request *asked(int fd, int direct_fd, unsigned most)
{
    struct feed_request *requests = calloc(N, sizeof *requests);

    MUST(requests);
    for (int i = 0; i < N; i++) {
        struct feed_request *request = &requests[i];
        size_t room;
        char *memory;

        request->length = random_below(most);
        request->offset = random_below(SIZE - (unsigned)request->length);
        room = (request->offset % FEED_PAGE + request->length + FEED_PAGE) / FEED_PAGE * FEED_PAGE;
        memory = aligned_alloc(FEED_PAGE, room);
        MUST(memory);
        request->destination = (uint64_t)(uintptr_t)memory + request->offset % FEED_PAGE;
        request->fd = fd;
        request->direct_fd = direct_fd;
    }
    return requests;
}

static void checked(struct feed_request *requests)
{
    for (int i = 0; i < N; i++) {
        struct feed_request *request = &requests[i];

        MUST(!request->error && request->moved == request->length);
        MUST(request->how != FEED_NOT_DONE);
        MUST(!memcmp((void *)request->destination, truth + request->offset, request->length));
        free((void *)(request->destination & ~(uint64_t)(FEED_PAGE - 1)));
    }
    free(requests);
}

static void reads_what_is_there(int kind, const char *path, unsigned depth, unsigned flags)
{
    int error, fd = open(path, O_RDONLY), direct_fd = open(path, O_RDONLY | O_DIRECT);
    struct feed *feed = penstock_feed_open(kind, 32, &error);
    struct feed_tally tally;

    if (!feed) {
        MUST(kind == FEED_URING);
        fprintf(stderr, "no io_uring here: %s\n", strerror(-error));
        return;
    }
    for (int round = 0; round < 6; round++) {
        struct feed_request *requests = asked(fd, round % 2 ? direct_fd : -1, 30000);

        MUST(!penstock_feed_read(feed, requests, N, depth, flags, &tally));
        MUST(tally.failed == 0 && tally.read + tally.from_memory == N);
        checked(requests);
    }
    MUST(!penstock_feed_read(feed, NULL, 0, depth, flags, &tally));
    penstock_feed_close(feed);
    close(direct_fd);
    close(fd);
}

static void tells_what_is_not_there(int kind, const char *path)
{
    char memory[3][4096];
    struct feed_request requests[] = {
        {(uint64_t)(uintptr_t)memory[0], SIZE - 10, 100, 0, 0, 0, 0, -1, -1, 0, 0},
        {(uint64_t)(uintptr_t)memory[1], SIZE + 5, 1, 0, 0, 0, 0, -1, -1, 0, 0},
        {(uint64_t)(uintptr_t)memory[2], 0, 100, 0, 0, 0, 0, 12345, -1, 0, 0},
    };
    int error, fd = open(path, O_RDONLY);
    struct feed *feed = penstock_feed_open(kind, 8, &error);
    struct feed_tally tally;

    if (!feed)
        return;
    requests[0].fd = requests[1].fd = fd;
    MUST(!penstock_feed_read(feed, requests, 3, 4, FEED_TRY_MEMORY, &tally));
    MUST(tally.failed == 3);
    MUST(requests[0].error == ENODATA && requests[0].moved == 10);
    MUST(requests[1].error == ENODATA);
    MUST(requests[2].error == EBADF);
    MUST(!memcmp(memory[0], truth + SIZE - 10, 10));
    penstock_feed_close(feed);
    close(fd);
}

/* Past the page cache a read gives what is before its range in the page too: that is not ours. */
static void tells_where_a_direct_read_ends(int kind, const char *path)
{
    int error, fd = open(path, O_RDONLY), direct_fd = open(path, O_RDONLY | O_DIRECT);
    struct feed *feed = penstock_feed_open(kind, 8, &error);
    char *memory = aligned_alloc(FEED_PAGE, 2 * FEED_PAGE);
    struct feed_request request = {0};
    struct feed_tally tally;

    MUST(memory);
    request.offset = SIZE - 10;
    request.length = 100;
    request.destination = (uint64_t)(uintptr_t)memory + request.offset % FEED_PAGE;
    request.fd = fd;
    request.direct_fd = direct_fd;
    if (feed) {
        MUST(!penstock_feed_read(feed, &request, 1, 1, 0, &tally));
        MUST(request.error == ENODATA && request.moved == 10 && tally.failed == 1);
    }
    penstock_feed_close(feed);
    free(memory);
    close(direct_fd);
    close(fd);
}

static void reads_named_files(const char *path)
{
    static char memory[SIZE + FEED_PAGE];
    uint64_t address = (uint64_t)(uintptr_t)path, nowhere = (uint64_t)(uintptr_t)"/nowhere";
    uint64_t destination = (uint64_t)(uintptr_t)memory;
    struct stat status;
    MUST(!stat(path, &status));
    int64_t written = status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec;
    struct feed_request requests[4] = {
        {destination, 0, SIZE, 0, 0, address, written, -1, -1, 0, 0},
        {destination, 0, 10, 0, 0, address, written, -1, -1, 0, 0},
        {destination, 0, SIZE, 0, 0, address, written - 1, -1, -1, 0, 0},
        {destination, 0, 1, 0, 0, nowhere, written, -1, -1, 0, 0},
    };
    int error;
    struct feed *feed = penstock_feed_open(FEED_THREADS, 8, &error);
    struct feed_tally tally;

    MUST(feed);
    MUST(!penstock_feed_read(feed, requests, 4, 1, FEED_WHOLE_FILES, &tally));
    MUST(!requests[0].error && !memcmp(memory, truth, SIZE));
    MUST(requests[1].error == ESTALE);
    MUST(requests[2].error == ESTALE);
    MUST(requests[3].error == ENOENT);
    penstock_feed_close(feed);
}

/* A name that is followed, what is no file, what is not there; nothing beside their places. */
static void tells_what_files_are(const char *path)
{
    char link[80], names[256];
    struct feed_seen seen[5] = {[4] = {.size_bytes = 77}};
    struct stat status;
    size_t at = 0;

    snprintf(link, sizeof link, "%s.link", path);
    MUST(!symlink(path, link) && !stat(path, &status));
    for (int i = 0; i < 4; i++) {
        const char *name = (const char *[]){path, "/", "/nowhere/at-all", link}[i];

        memcpy(names + at, name, strlen(name) + 1);
        at += strlen(name) + 1;
    }
    penstock_feed_look(names, seen, 4);
    MUST(seen[0].size_bytes == SIZE && seen[0].inode == status.st_ino);
    MUST(seen[0].device == status.st_dev);
    MUST(seen[0].mtime_ns == status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec);
    MUST(seen[0].ctime_ns == status.st_ctim.tv_sec * 1000000000LL + status.st_ctim.tv_nsec);
    MUST(seen[1].size_bytes == -1 && seen[2].size_bytes == -1 && !seen[2].inode);
    MUST(!memcmp(&seen[3], &seen[0], sizeof seen[0]));
    MUST(seen[4].size_bytes == 77);
    unlink(link);
}

int main(void)
{
    char path[64];

    made(path, sizeof path);
    for (int kind = FEED_THREADS; kind <= FEED_URING; kind++) {
        for (unsigned depth = 1; depth <= 64; depth *= 8) {
            reads_what_is_there(kind, path, depth, 0);
            reads_what_is_there(kind, path, depth, FEED_TRY_MEMORY);
        }
        tells_what_is_not_there(kind, path);
        tells_where_a_direct_read_ends(kind, path);
    }
    reads_named_files(path);
    tells_what_files_are(path);
    unlink(path);
    return 0;
}
