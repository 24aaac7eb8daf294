/* Reads pieces of files into the page cache, several pieces at once.  readahead() requests a piece
 * from the kernel without a copy; a piece refused by readahead() is read.  Every descriptor here is
 * separate from the program's: the program's read-ahead, offsets and advice stay unchanged. */
#include "ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define THREADS 8
#define SMALL_THREADS 16  /* a small file waits for three answers: name, open, bytes */
#define RANDOM_THREADS 2u /* the program's own faults come first there */
/* A call of readahead() reads no more than the device's read-ahead, 128 KiB by default. */
#define STEP_BLOCKS (uint32_t)((128u << 10) / BLOCK_BYTES)
#define SPOTS 256u /* places of a large file to check for residency */
#define RESIDENT_SHARE 0.99
/* A program with a new mapping for each batch has the file unmapped half of the time. */
#define RELEASED_NS 100000000

/* File systems without a device: linux/magic.h. */
bool is_in_memory(long kind)
{
    return kind == 0x01021994 || kind == 0x858458f6 || kind == 0x958458f6 || kind == 0x9fa0 ||
           kind == 0x62656572;
}

uint64_t file_bytes(const struct file *file, uint32_t block, uint32_t end)
{
    uint64_t from = (uint64_t)block * BLOCK_BYTES, to = (uint64_t)end * BLOCK_BYTES;

    if (file->set)
        return set_bytes(file->set, end - block);
    return (to < file->size ? to : file->size) - from;
}

/* --- a file
 * ----------------------------------------------------------------------------------------- */

/* mincore() reports every page as resident to a user who may not write the file. */
bool file_is_told(int fd, const struct stat *status)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return !geteuid() || geteuid() == status->st_uid || !access(path, W_OK);
}

bool file_make_bits(struct file *file)
{
    size_t words = file->n_blocks / 64 + 1;

    free(file->touched);
    free(file->ours);
    file->touched = calloc(words, sizeof *file->touched);
    file->ours = calloc(words, sizeof *file->ours);
    file->n_touched = file->n_runs = file->n_ours = file->n_hits = file->n_jumps = 0;
    file->expected_hits = file->observed_hits = 0;
    return file->touched && file->ours;
}

/* False: no data file, or not for us. */
bool file_open(struct file *file, const char *path)
{
    unsigned char head[4];
    struct statfs system;
    struct stat status;
    int fd;

    fd = open(path, O_RDONLY | O_NOATIME | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    /* another user's file: the kernel decides about the time of access */
    if (fd < 0 && errno == EPERM)
        fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &status) || status.st_ino != file->inode || status.st_dev != file->device ||
        fstatfs(fd, &system) || is_in_memory(system.f_type) ||
        (pread(fd, head, sizeof head, 0) == 4 && !memcmp(head, "\177ELF", 4)))
        goto not_data;
    file->size = (uint64_t)status.st_size;
    file->n_blocks = (uint32_t)((file->size + BLOCK_BYTES - 1) / BLOCK_BYTES);
    if (file->size / BLOCK_BYTES >= UINT32_MAX || !file_make_bits(file))
        goto not_data;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* the kernel reads only the requested pages */
    if (file_is_told(fd, &status)) {
        file->view = mmap(NULL, file->size, PROT_READ, MAP_SHARED, fd, 0);
        if (file->view == MAP_FAILED)
            file->view = NULL;
    }
    if (!file->path)
        file->path = strdup(path);
    file->fd = fd;
    return file->path != NULL;

not_data:
    close(fd);
    return false;
}

void file_close(struct file *file)
{
    if (file->view)
        munmap(file->view, file->size);
    if (file->fd >= 0)
        close(file->fd);
    if (file->lock_fd >= 0)
        close(file->lock_fd);
    file->view = NULL;
    file->fd = file->lock_fd = -1;
    file->n_ours = file->n_hits = 0;
}

/* Whether each of some blocks is in memory as a whole. */
static void residency(const struct file *file, uint32_t first, uint32_t n, bool *is_resident)
{
    unsigned char pages[PIECE_BLOCKS * BLOCK_BYTES / 4096], byte;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), a_block = BLOCK_BYTES / page, i, j;
    size_t bytes = file_bytes(file, first, first + n), n_pages = (bytes + page - 1) / page;
    struct iovec one = {&byte, 1};

    memset(pages, 0, sizeof pages);
    if (file->view && mincore(file->view + (size_t)first * BLOCK_BYTES, bytes, pages))
        memset(pages, 0, sizeof pages);
    for (i = 0; i < n; i++) {
        is_resident[i] = true;
        for (j = i * a_block; file->view && j < (i + 1) * a_block && j < n_pages; j++)
            is_resident[i] &= pages[j] & 1;
        if (!file->view)
            is_resident[i] =
                preadv2(file->fd, &one, 1, (off_t)(first + i) * BLOCK_BYTES, RWF_NOWAIT) == 1;
    }
}

bool file_is_resident(struct file *file)
{
    uint32_t spots = file->n_blocks < SPOTS ? file->n_blocks : SPOTS, i, found = 0;
    bool is_resident;

    for (i = 0; i < spots; i++) {
        residency(file, (uint32_t)((uint64_t)i * file->n_blocks / spots), 1, &is_resident);
        found += is_resident;
    }
    return found >= RESIDENT_SHARE * spots;
}

/* Give back read but untouched pages; pages mapped by any process stay. */
void file_undo(struct file *file)
{
    uint32_t block = 0, end;

    if (file->set) /* the kernel takes such pages first; to open each file would cost more */
        return;
    while (block < file->n_blocks) {
        for (end = block;
             end < file->n_blocks && bit_of(file->ours, end) && !bit_of(file->touched, end);)
            end++;
        if (end > block)
            posix_fadvise(file->fd, (off_t)block * BLOCK_BYTES, (off_t)(end - block) * BLOCK_BYTES,
                          POSIX_FADV_DONTNEED);
        block = end + 1;
    }
}

/* --- pieces
 * ----------------------------------------------------------------------------------------- */

struct piece {
    struct file *file;
    uint32_t first, n;
    bool is_wanted[PIECE_BLOCKS];
};

/* Bytes read, or being read, and not yet touched by the program; under the lock. */
uint64_t ahead_outstanding(const struct ahead *ahead)
{
    const struct file *file;
    uint64_t bytes = lists_outstanding();

    for (file = ahead->files; file; file = file->next_file)
        if (file->set)
            bytes += set_bytes(file->set, file->n_ours - file->n_hits + file->n_in_flight);
        else
            bytes += (file->n_ours - file->n_hits + (uint64_t)file->n_in_flight * PIECE_BLOCKS) *
                     BLOCK_BYTES;
    return bytes;
}

static bool has_work(struct file *file)
{
    bool is_ordered = file->order == ORDER_IN_ORDER || file->order == ORDER_RANDOM;
    bool is_whole = is_ordered && file->until == file->n_blocks;

    /* An ended program needs nothing more. */
    if ((file->fd < 0 && !file->set) || file->is_ignored ||
        (!file->is_mapped && now_ns() - file->mapped_ns > RELEASED_NS))
        return false;
    if (file->next >= file->until && is_whole && !file->is_wrapped && file->first) {
        file->is_wrapped = true;
        file->next = 0;
        file->until = file->first;
    }
    return file->next < file->until &&
           (file->order != ORDER_RANDOM || file->set || file->n_in_flight < RANDOM_THREADS);
}

static bool take_piece(struct ahead *ahead, struct piece *piece, bool is_small)
{
    struct file *file, *best = NULL;
    uint32_t i;

    if (ahead->is_pressed)
        return false;
    for (file = ahead->files; file; file = file->next_file)
        if (is_small == (file->set != NULL) && has_work(file) &&
            (!best || file->order < best->order))
            best = file;
    if (!best || ahead_outstanding(ahead) + PIECE_BLOCKS * BLOCK_BYTES > ahead->room_bytes)
        return false;
    *piece = (struct piece){.file = best, .first = best->next, .n = best->until - best->next};
    if (piece->n > (is_small ? 1 : PIECE_BLOCKS))
        piece->n = is_small ? 1 : PIECE_BLOCKS;
    best->next += piece->n;
    if (is_small && best->order == ORDER_RANDOM)
        piece->first = set_spread(best->set, piece->first);
    for (i = 0; i < piece->n; i++)
        piece->is_wanted[i] = !bit_of(best->ours, piece->first + i) &&
                              !(is_small && bit_of(best->touched, piece->first + i));
    best->n_in_flight++;
    return true;
}

/* False: the file was cut meanwhile, or an error; the program will meet the error too. */
static bool read_block(const struct file *file, uint32_t block, char *scratch)
{
    off_t at = (off_t)block * BLOCK_BYTES;
    size_t bytes = file_bytes(file, block, block + 1);

    while (bytes) {
        ssize_t got = pread(file->fd, scratch, bytes, at);

        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* is_read: for each block, whether the block could be read. */
static void read_run(const struct file *file, uint32_t first, uint32_t end, char *scratch,
                     bool *is_read)
{
    bool is_resident[PIECE_BLOCKS];
    uint32_t block, i;
    bool is_asked = true;
    char byte;

    for (block = first; block < end; block += STEP_BLOCKS) {
        uint32_t stop = block + STEP_BLOCKS < end ? block + STEP_BLOCKS : end;

        is_asked &= !readahead(file->fd, (off_t)block * BLOCK_BYTES, file_bytes(file, block, stop));
    }
    for (block = first; block < end && is_asked; block++) /* waits for the page */
        if (pread(file->fd, &byte, 1,
                  (off_t)block * BLOCK_BYTES + (off_t)file_bytes(file, block, block + 1) - 1) < 1)
            break;
    residency(file, first, end - first, is_resident);
    for (i = 0; i < end - first; i++)
        is_read[i] = (is_asked && is_resident[i]) || read_block(file, first + i, scratch);
}

static void read_piece(struct piece *piece, char *scratch)
{
    bool is_resident[PIECE_BLOCKS];
    uint32_t i, end;

    residency(piece->file, piece->first, piece->n, is_resident);
    for (i = 0; i < piece->n; i++)
        piece->is_wanted[i] &= !is_resident[i];
    for (i = 0; i < piece->n; i = end + 1) {
        for (end = i; end < piece->n && piece->is_wanted[end];)
            end++;
        if (end > i)
            read_run(piece->file, piece->first + i, piece->first + end, scratch,
                     piece->is_wanted + i);
    }
}

static void read_pieces(struct ahead *ahead, bool is_small)
{
    char *scratch = malloc(BLOCK_BYTES);
    struct piece piece;
    uint32_t i;

    pthread_mutex_lock(&ahead->lock);
    while (scratch && !ahead->is_ending) {
        if (!take_piece(ahead, &piece, is_small)) {
            pthread_cond_wait(&ahead->work, &ahead->lock);
            continue;
        }
        pthread_mutex_unlock(&ahead->lock);
        if (is_small) {
            /* A block touched meanwhile needs no reading. */
            if (piece.is_wanted[0])
                piece.is_wanted[0] = set_read(ahead, piece.file, piece.first, scratch);
        } else
            read_piece(&piece, scratch);
        pthread_mutex_lock(&ahead->lock);
        piece.file->n_in_flight--;
        for (i = 0; i < piece.n; i++) {
            uint32_t block = piece.first + i;

            if (!piece.is_wanted[i] || bit_of(piece.file->touched, block))
                continue; /* for a block touched meanwhile, the program itself waited */
            set_bit(piece.file->ours, block);
            piece.file->n_ours++;
            piece.file->read_bytes += file_bytes(piece.file, block, block + 1);
        }
    }
    pthread_mutex_unlock(&ahead->lock);
    free(scratch);
}

static void *read_mapped(void *ahead)
{
    read_pieces(ahead, false);
    return NULL;
}

static void *read_small(void *ahead)
{
    read_pieces(ahead, true);
    return NULL;
}

static int start(struct ahead *ahead, void *(*work)(void *), int n)
{
    pthread_t thread;
    int i, error = 0;

    for (i = 0; i < n && !error; i++)
        error = pthread_create(&thread, NULL, work, ahead);
    return i > 1 ? 0 : -error;
}

int reader_start(struct ahead *ahead)
{
    return start(ahead, read_mapped, THREADS);
}

/* Called with the first set, by only one thread at a time. */
int reader_start_small(struct ahead *ahead)
{
    static bool is_started;

    if (is_started)
        return 0;
    is_started = true;
    return start(ahead, read_small, SMALL_THREADS);
}
