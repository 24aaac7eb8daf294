/* Which file a descriptor or a path is.  The only tables that hooks may touch: no lock, no
 * allocation by libc, gone in a forked child, where descriptors resolve anew through /proc/self/fd.
 */
#ifndef PENSTOCK_FILES_H
#define PENSTOCK_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "log.h"

#pragma GCC visibility push(hidden)

#define FDS_PER_CHUNK 1024
#define FD_CHUNKS 1024 /* the kernel's own limit is 1,048,576 descriptors */

enum slot_flag {
    SLOT_SHARED = 1, /* others may move the position: ask the kernel for it */
    SLOT_APPEND = 2, /* writes go to the end, wherever that is */
    SLOT_SEEKABLE = 4,
    SLOT_CONNECTION = 8 /* connections.h knows it */
};

struct slot_of_fd {
    uint32_t file; /* 0: not known yet */
    uint32_t flags;
    int64_t position;       /* of read() and write() */
    int64_t stdio_position; /* of the FILE on it; -1 not known.  Of a directory: entries read */
    uint64_t forks;         /* log_state->forks when it was opened */
};

struct files;
extern struct files *files_state; /* wiped by fork */
struct files {
    struct slot_of_fd *fds[FD_CHUNKS];
    /* What finding a path needs, and the first levels, are one cache line. */
    uint64_t seed[2]; /* of the hash; 0 in a forked child, which is as good */
    uint64_t folder;  /* file id of the working directory, 0: ask; above it, how often it changed */
    uint32_t last_id;
    uint32_t n_levels; /* those above were never begun */
    struct level *levels[12];
    uint8_t *described[8192]; /* whether the first open of a file was seen */
};

int files_start(bool is_new_log);

/* The file of a descriptor, resolved when it was opened before the recording; NULL: none. */
struct slot_of_fd *files_slot_slowly(int fd);

__attribute__((always_inline)) static inline struct slot_of_fd *files_peek(int fd)
{
    struct slot_of_fd *chunk;

    if (UNLIKELY((unsigned)fd >= FDS_PER_CHUNK * FD_CHUNKS))
        return NULL;
    chunk = __atomic_load_n(&files_state->fds[(unsigned)fd / FDS_PER_CHUNK], __ATOMIC_ACQUIRE);
    return LIKELY(chunk != NULL) ? &chunk[(unsigned)fd % FDS_PER_CHUNK] : NULL;
}

__attribute__((always_inline)) static inline struct slot_of_fd *files_slot(int fd)
{
    struct slot_of_fd *slot = files_peek(fd);

    return LIKELY(slot && slot->file) ? slot : files_slot_slowly(fd);
}

/* The id of a path as a call names it; dirfd as openat's. */
uint32_t files_path(int dirfd, const char *path);

/* The same for its staged copy, or for what went to the fast tier: ids of their own, so that bytes
 * are told apart by where they came from or went. */
uint32_t files_path_on(enum file_place place, int dirfd, const char *path);

/* The id of a loaded object by its path: of a program or library that waits. */
uint32_t files_object(const char *path);

/* Whether an absolute name is known to lead to what it names without links, or to nothing: then it
 * is that file's only spelling.  Folders are learned from names that the kernel resolved. */
bool files_leads_straight(const char *name);
void files_learn_folder(const char *resolved);

/* What /proc/self/fd says of a descriptor, into SCRATCH_BYTES; the bytes, or less than 0 and "". */
long files_link(int fd, char *name);

/* What has no path: "socket:HOST:PORT" is the name of fd from now on.  Returns its id. */
uint32_t files_named(int fd, const char *name);

/* A call opened fd: its file, and what the first open of a file shows. */
void files_opened(int fd, uint32_t file, int flags);
void files_closed(int fd);
void files_closed_range(unsigned first, unsigned last);
void files_copied(int from, int to);
void files_folder_changed(void);
void files_forking(void); /* positions are the child's too from now on */

/* Where a read or write by position begins. */
int64_t files_position(struct slot_of_fd *slot, int fd);
void files_moved(struct slot_of_fd *slot, int64_t bytes);
int64_t files_position_of(int fd);
int64_t files_kernel_position(struct slot_of_fd *slot, int fd); /* -1: it has none */
void files_set_position(int fd, int64_t position);
void files_set_stdio_position(int fd, int64_t position);
void files_set_append(int fd, bool appends);
void files_unsure(int fd); /* ask the kernel for the position from now on */

#pragma GCC visibility pop

#endif
