/* Ranges of mapped files in which samples are: where a range is, whether the range is in memory,
 * and whether the job has touched the range.  The page tables of the job show the touch.  Numbers
 * from a loader and from a file may be wrong: each is bounded by the size of the file. */
#include "ahead.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STEP_BYTES (128u << 10) /* of a call of readahead(): see reader.c */
#define MOST_RANGE_BYTES (64u << 20)
#define MOST_WIDTH (1u << 20)
#define PAGE_PRESENT (1ull << 63)

struct source {
    char *path;
    pthread_mutex_t lock; /* of the opening: storage may answer late */
    bool is_tried;
    int fd;
    struct stat status;
    unsigned char *view; /* for mincore, never touched; NULL: the kernel would not tell */
};

struct source *source_new(const char *text, size_t length)
{
    struct source *source = calloc(1, sizeof *source);

    if (!source)
        return NULL;
    source->fd = -1;
    source->path = strndup(text, length);
    if (!source->path || pthread_mutex_init(&source->lock, NULL)) {
        free(source->path);
        free(source);
        return NULL;
    }
    return source;
}

static bool is_open(const struct source *source)
{
    return __atomic_load_n(&source->fd, __ATOMIC_ACQUIRE) >= 0;
}

uint64_t source_bytes(const struct source *source)
{
    return is_open(source) ? (uint64_t)source->status.st_size : 0;
}

bool source_is(const struct source *source, const struct file *file)
{
    return is_open(source) && source->status.st_ino == file->inode &&
           source->status.st_dev == file->device;
}

/* False: no data file of a size that is worth reading ahead, or on a file system in memory. */
bool source_open(struct source *source)
{
    struct statfs system;
    void *view;
    int fd;

    pthread_mutex_lock(&source->lock);
    if (!source->is_tried) {
        source->is_tried = true;
        fd = small_open(source->path, &source->status);
        if (fd >= 0 && (!S_ISREG(source->status.st_mode) ||
                        (uint64_t)source->status.st_size < LEAST_FILE_BYTES ||
                        fstatfs(fd, &system) || is_in_memory(system.f_type))) {
            close(fd);
            fd = -1;
        }
        if (fd >= 0) {
            posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* only the requested pages */
            view = MAP_FAILED;
            if (file_is_told(fd, &source->status))
                view = mmap(NULL, (size_t)source->status.st_size, PROT_READ, MAP_SHARED, fd, 0);
            source->view = view == MAP_FAILED ? NULL : view;
        }
        __atomic_store_n(&source->fd, fd, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&source->lock);
    return source->fd >= 0;
}

static bool is_inside(const struct source *source, uint64_t offset, uint64_t bytes)
{
    uint64_t size = (uint64_t)source->status.st_size;

    return offset <= size && bytes <= size - offset;
}

static bool read_number(const struct source *source, uint64_t at, bool is_long, uint64_t *number)
{
    unsigned char text[8] = {0};
    size_t size = is_long ? 8 : 4;

    if (!is_inside(source, at, size) || pread(source->fd, text, size, (off_t)at) != (ssize_t)size)
        return false;
    memcpy(number, text, sizeof text); /* both are little-endian: Arrow's only order here */
    return true;
}

/* Find the bytes of a range.  OFFSETS: two numbers of the file, of items of `width` bytes after
 * `offset`, as Arrow keeps values of variable length; `bytes` is the length of all items. */
bool range_resolve(const struct source *source, struct range *range)
{
    bool is_long = range->kind == RANGE_OFFSETS64;
    uint64_t first, end;

    if (range->kind == RANGE_OFFSETS32 || is_long) {
        if (range->at > INT64_MAX - 8 || !range->width || range->width > MOST_WIDTH ||
            !read_number(source, range->at, is_long, &first) ||
            !read_number(source, range->at + (is_long ? 8 : 4), is_long, &end) || end < first ||
            !is_inside(source, range->offset, range->bytes) || end > range->bytes / range->width)
            return false;
        range->offset += first * range->width;
        range->bytes = (end - first) * range->width;
        range->kind = RANGE_BYTES;
    }
    if (range->kind != RANGE_BYTES || !is_inside(source, range->offset, range->bytes))
        return false;
    if (range->bytes > MOST_RANGE_BYTES)
        range->bytes = MOST_RANGE_BYTES;
    return true;
}

static bool is_page_there(const struct source *source, uint64_t at)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char there = 0;
    char byte;
    struct iovec part = {&byte, 1};

    if (source->view)
        return !mincore(source->view + at / page * page, 1, &there) && there & 1;
    return preadv2(source->fd, &part, 1, (off_t)at, RWF_NOWAIT) == 1;
}

/* Looks at the ends and at each 64 KiB between. */
bool range_is_there(const struct source *source, const struct range *range)
{
    uint64_t at, end = range->offset + range->bytes;

    for (at = range->offset; at < end; at += BLOCK_BYTES)
        if (!is_page_there(source, at))
            return false;
    return !range->bytes || is_page_there(source, end - 1);
}

/* False: the file was cut meanwhile, or an error. */
bool range_read(const struct source *source, const struct range *range, char *scratch)
{
    uint64_t at = range->offset, end = at + range->bytes, step = at;

    for (; range->bytes > BLOCK_BYTES && step < end; step += STEP_BYTES)
        if (readahead(source->fd, (off_t)step, end - step < STEP_BYTES ? end - step : STEP_BYTES))
            break;
    while (at < end) {
        size_t wanted = end - at < BLOCK_BYTES ? end - at : BLOCK_BYTES;
        ssize_t got = pread(source->fd, scratch, wanted, (off_t)at);

        if (got <= 0)
            return false;
        at += (uint64_t)got;
    }
    return true;
}

/* Whether a process of the job has touched the middle of a range; only in the main thread, which
 * alone knows the processes. */
enum range_use range_touch(const struct ahead *ahead, const struct source *source,
                           const struct range *range)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), at = range->offset + range->bytes / 2, entry;
    const struct process *process;
    bool is_mapped = false;
    uint32_t i;

    for (process = ahead->processes; process; process = process->next_process)
        for (i = 0; i < process->n_mappings && process->pagemap_fd >= 0; i++) {
            const struct mapping *mapping = &process->mappings[i];

            if (at < mapping->offset || at - mapping->offset >= mapping->length ||
                !source_is(source, mapping->file))
                continue;
            is_mapped = true;
            if (pread(process->pagemap_fd, &entry, sizeof entry,
                      (off_t)((mapping->start + at - mapping->offset) / page * sizeof entry)) ==
                    sizeof entry &&
                entry & PAGE_PRESENT)
                return TOUCHED;
        }
    return is_mapped ? UNTOUCHED : UNMAPPED;
}
