/* The file of a descriptor or a path.  The only tables for hooks: no lock, no allocation by libc,
 * gone in a forked child, where descriptors resolve again through /proc/self/fd. */
#ifndef PENSTOCK_FILES_H
#define PENSTOCK_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "log.h"

#pragma GCC visibility push(hidden)

#define FDS_PER_CHUNK 1024
#define FD_CHUNKS 1024 /* the kernel's own limit is 1,048,576 descriptors */

enum slot_flag {
    SLOT_SHARED = 1, /* others may move the position: ask the kernel */
    SLOT_APPEND = 2, /* writes go to the present end */
    SLOT_SEEKABLE = 4,
    SLOT_CONNECTION = 8 /* a connection of connections.h */
};

struct slot_of_fd {
    uint32_t file; /* 0: not known yet */
    uint32_t flags;
    int64_t position;       /* of read() and write() */
    int64_t stdio_position; /* of the FILE; -1 not known.  Of a directory: entries read */
    uint64_t forks;         /* log_state->forks at the open */
};

struct files;
extern struct files *files_state; /* wiped by fork */
struct files {
    struct slot_of_fd *fds[FD_CHUNKS];
    /* The fields for finding a path, and the first levels, are in a single cache line. */
    uint64_t seed[2]; /* of the hash; 0 in a forked child, equally good */
    uint64_t folder;  /* file id of the working directory, 0: ask; upper bits: number of changes */
    uint32_t last_id;
    uint32_t n_levels; /* higher levels were never begun */
    struct level *levels[12];
    uint8_t *described[8192]; /* whether the first open of a file was seen */
};

int files_start(bool is_new_log);

/* Return the file of a descriptor, resolved now if the open was before the recording; NULL:
 * none. */
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

/* Return the id of a path in a call; dirfd as for openat. */
uint32_t files_path(int dirfd, const char *path);

/* Likewise for the staged copy, or for a file on the fast tier: separate ids, so that bytes are
 * distinguished by source or destination. */
uint32_t files_path_on(enum file_place place, int dirfd, const char *path);

/* Return the id of a loaded object by path: of a waiting program or library. */
uint32_t files_object(const char *path);

/* Whether an absolute name is known to lead to a file, or to nothing, without links: then the name
 * is the file's only spelling.  Folders are learned from names resolved by the kernel. */
bool files_leads_straight(const char *name);
void files_learn_folder(const char *resolved);

/* Read the target of a descriptor in /proc/self/fd into SCRATCH_BYTES; the bytes, or less than 0
 * and "". */
long files_link(int fd, char *name);

/* For descriptors without a path: "socket:HOST:PORT" is the name of fd from now on.  Return the
 * id. */
uint32_t files_named(int fd, const char *name);

/* A call opened fd: note its file, and the facts from the first open of a file. */
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
int64_t files_kernel_position(struct slot_of_fd *slot, int fd); /* -1: there is none */
void files_set_position(int fd, int64_t position);
void files_set_stdio_position(int fd, int64_t position);
void files_set_append(int fd, bool appends);
void files_unsure(int fd); /* ask the kernel for the position from now on */

#pragma GCC visibility pop

#endif
