/* Counts what the logs of a folder hold, by the definitions of events.h alone, so that the
 * recorder is tested without Python.  Knows nothing of paths, times or texts. */
#ifndef LOGS_H
#define LOGS_H

#include "../workloads/known.h"

#include <dirent.h>
#include <stdbool.h>

#include "events.h"
#include "recorder.h"

struct counted {
    uint64_t finished;  /* single events that have a duration */
    uint64_t in_flight; /* single events that have none */
    uint64_t folded;    /* calls in counters */
    uint64_t failed;    /* of the finished ones, those with an errno */
    uint64_t moved;     /* bytes, or what the op says, of single events */
    uint64_t lost;      /* calls of any op that are left as a count */
    int logs;
};

/* The units of the log that is being counted. */
struct units {
    const char *bytes;
    size_t n;
};

static enum op op_in(const struct event *event)
{
    return (enum op)(event->begun >> 16 & 0xff);
}

static const struct block *event_block(struct units units, size_t i)
{
    const struct block *block = (const void *)(units.bytes + i * LOG_UNIT_BYTES);

    return i < units.n && block->magic == BLOCK_MAGIC &&
                   (block->kind == BLOCK_EVENTS || block->kind == BLOCK_CLOSED)
               ? block
               : NULL;
}

/* What did not fit an event; NULL: all did. */
static const struct event_rest *rest_of(const struct block *block, const struct event *event)
{
    const struct event_rest *rest = (const void *)(event + 1);
    bool is_inside = (size_t)((const char *)(rest + 1) - (const char *)block) <= block->texts;

    return is_inside && op_in(event + 1) == OP_REST ? rest : NULL;
}

static uint64_t start_of(const struct block *block, const struct event *event)
{
    const struct event_rest *rest = rest_of(block, event);

    return rest ? rest->start : block->first + (event->begun >> 24);
}

/* A call in flight stays in a full block, and goes on at the front of a later one. */
static bool goes_on(struct units units, const struct block *block, const struct event *event)
{
    for (size_t i = 0; i < units.n; i++) {
        const struct block *later = event_block(units, i);
        const struct event *events = (const void *)(later + 1);

        if (!later || later->thread != block->thread || later->first <= block->first)
            continue;
        for (uint32_t j = 0; j < later->carried; j++)
            if (op_in(&events[j]) == op_in(event) &&
                start_of(later, &events[j]) == start_of(block, event))
                return true;
    }
    return false;
}

static void count_event(struct units units, const struct block *block, const struct event *event,
                        struct counted *counted)
{
    const struct event_rest *rest = rest_of(block, event);

    if (event->done >> 24)
        counted->finished++;
    else if (!goes_on(units, block, event))
        counted->in_flight++;
    if (event->done >> 16 & 0xff)
        counted->failed++;
    counted->moved += rest ? rest->moved : event->moved;
}

static void count_block(struct units units, const struct block *block, enum op op,
                        struct counted *counted)
{
    const char *content = (const char *)(block + 1);

    for (uint32_t i = 0; i < block->used; i++) {
        const struct event *event = (const struct event *)(const void *)content + i;
        const struct calls_counter *calls = (const void *)content;
        const struct access_counter *access = (const void *)content;

        if (block->kind == BLOCK_CALLS)
            counted->folded += calls[i].op == op ? calls[i].calls : 0;
        else if (block->kind == BLOCK_ACCESS)
            counted->folded += access[i].op == op ? access[i].calls : 0;
        else if ((block->kind == BLOCK_CLOSED || i < block->limit) && op_in(event) == op &&
                 (const char *)(event + 1) <= (const char *)block + block->texts)
            count_event(units, block, event, counted);
    }
}

/* A block and its written chunk may both be there after a kill: the fuller one counts, else the
 * first. */
static bool has_better_twin(struct units units, size_t i)
{
    const struct block *block = event_block(units, i);

    for (size_t j = 0; block && j < units.n; j++) {
        const struct block *other = event_block(units, j);

        if (j == i || !other || other->round != block->round)
            continue;
        if (other->used > block->used || (other->used == block->used && j < i))
            return true;
    }
    return false;
}

static void count_units(struct units units, enum op op, struct counted *counted)
{
    for (size_t i = 0; i < units.n; i++) {
        const struct block *block = (const void *)(units.bytes + i * LOG_UNIT_BYTES);

        if (block->magic == BLOCK_MAGIC && !has_better_twin(units, i))
            count_block(units, block, op, counted);
    }
}

static void count_log(const char *path, enum op op, struct counted *counted)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    const struct log_header *header;
    struct units units;
    char *log;

    MUST(fd >= 0 && fstat(fd, &status) == 0 && status.st_size >= LOG_HEADER_BYTES);
    log = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    MUST(log != MAP_FAILED);
    header = (const void *)log;
    MUST(!memcmp(header->magic, LOG_MAGIC, 8) && header->version == LOG_VERSION);
    units.bytes = log + LOG_HEADER_BYTES;
    units.n = ((size_t)status.st_size - LOG_HEADER_BYTES) / LOG_UNIT_BYTES;
    count_units(units, op, counted);
    counted->lost += header->lost;
    counted->logs++;
    MUST(munmap(log, (size_t)status.st_size) == 0);
    MUST(close(fd) == 0);
}

/* Valid until the next call. */
static const char *path_in(const char *folder, const char *name)
{
    static char path[8192];
    int size = snprintf(path, sizeof path, "%s/%s", folder, name);

    MUST(size > 0 && size < (int)sizeof path);
    return path;
}

/* Call it when no window is open: what it reads is not part of what it counts. */
__attribute__((unused)) static struct counted count_folder(const char *folder, enum op op)
{
    struct counted counted = {0};
    struct dirent *entry;
    DIR *listing = opendir(folder);

    MUST(listing);
    while ((entry = readdir(listing))) {
        size_t length = strlen(entry->d_name);

        if (length < 7 || strcmp(entry->d_name + length - 7, ".events"))
            continue;
        count_log(path_in(folder, entry->d_name), op, &counted);
    }
    closedir(listing);
    return counted;
}

/* A fresh folder for a log, and in it "data" of 40,960 bytes, opened. */
__attribute__((unused)) static int new_folder(char *folder, size_t size)
{
    static char zeros[40960];
    int fd;

    snprintf(folder, size, "/tmp/penstock-native-XXXXXX");
    MUST(mkdtemp(folder));
    fd = open(path_in(folder, "data"), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    MUST(fd >= 0 && write(fd, zeros, sizeof zeros) == sizeof zeros);
    return fd;
}

__attribute__((unused)) static void remove_folder(const char *folder)
{
    struct dirent *entry;
    DIR *listing = opendir(folder);

    MUST(listing);
    while ((entry = readdir(listing))) {
        if (entry->d_name[0] != '.')
            MUST(unlink(path_in(folder, entry->d_name)) == 0);
    }
    closedir(listing);
    MUST(rmdir(folder) == 0);
}

__attribute__((unused)) static void do_preads(int fd, int n)
{
    char data[64];

    for (int i = 0; i < n; i++)
        MUST(pread(fd, data, sizeof data, (i % 600) * 64) == sizeof data);
}

#endif
