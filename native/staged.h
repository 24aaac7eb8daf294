/* Opens of staged copies: the map of a tier (docs/FORMAT-stage.md), and when a copy may stand for
 * the source.  Knows no hook and no event; allocates nothing, takes no lock.
 *
 * A copy is served only if the source, asked now, is unchanged since the copying (or the slot is
 * frozen), and the copy itself is unchanged.  Otherwise the original is opened: an error here costs
 * time and no correctness. */
#ifndef PENSTOCK_STAGED_H
#define PENSTOCK_STAGED_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "log.h"

#pragma GCC visibility push(hidden)

#define STAGED_MAGIC "PSTKSTG"
#define STAGED_VERSION 1
#define STAGED_BYTE_ORDER 0x01020304u
/* Below the tier: the copies, by their sources' absolute paths; and the map. */
#define STAGED_FOLDER "/staged"
#define STAGED_APART "/url/file" /* before paths below /url, where copies of URLs lie */
#define STAGED_OWN "/.penstock"
#define STAGED_NAME "/staged.map"

struct staged_header {
    char magic[8];
    uint32_t version;
    uint32_t byte_order;
    uint64_t map_bytes;
    uint64_t slots; /* a power of two */
    uint64_t slots_at;
    uint64_t entries;
    uint64_t blob_at, blob_bytes;
    uint64_t tier_at;
    uint32_t tier_bytes;
    uint32_t slot_bytes;
    int64_t made_unix_ns;
    uint32_t retired; /* 1: replaced by a newer map */
    uint8_t reserved[36];
};

/* STAGED_FROZEN: the user promised an unchanging source, and the source was unchanged when the run
 * began: the server is not asked again. */
enum staged_flag { STAGED_COMPARE_INODE = 1, STAGED_FROZEN = 2 };

struct staged_slot {
    uint64_t hash;    /* of the path's bytes */
    uint64_t path_at; /* 0: empty slot */
    uint64_t copy_at;
    uint32_t path_bytes, copy_bytes; /* without their NUL */
    uint64_t size_bytes;
    int64_t mtime_s, ctime_s;
    uint32_t mtime_ns, ctime_ns;
    uint64_t inode, device; /* of the source at the staging */
    uint32_t flags;
    uint8_t is_staged;  /* the copy is there */
    uint8_t is_dropped; /* set here, when the job writes, renames or removes the source */
    uint8_t reserved[10];
};

_Static_assert(sizeof(struct staged_header) == 128, "a map's header is 128 bytes");
_Static_assert(sizeof(struct staged_slot) == 96, "a map's slot is 96 bytes");

/* NULL: nothing is staged.  A wrapper checks nothing else. */
extern struct staged_map *staged_map;

__attribute__((always_inline)) static inline bool staged_is_on(void)
{
    return UNLIKELY(__atomic_load_n(&staged_map, __ATOMIC_ACQUIRE) != NULL);
}

/* Redirect opens by the map from now on.  -EINVAL: an unknown map, or a map outside a tier; -EPERM:
 * the map belongs to another user, able to make the program read anything. */
int staged_start(const char *path);

const char *staged_path(void); /* of the map; "": none */
const char *staged_tier(void); /* the tier's name; "": none */

/* Return the descriptor of the copy for an open for reading only; -1: open the original.  `outcome`
 * has the result, 0: the file is not staged or the call not redirected.  errno is kept. */
int staged_open(int dirfd, const char *path, int flags, enum staged_outcome *outcome);

/* Find the staged file possibly changed by a call: NULL: nothing staged.  For opens, links at the
 * end of a path are followed; renames and removals concern the link. */
struct staged_slot *staged_find(int dirfd, const char *path, bool follows);

/* The job changes a source: the copy is not served any more. */
void staged_drop(struct staged_slot *slot);

/* Whether an open may change the file. */
bool staged_writes(int flags);

/* Return the source of a copy, for a call through /proc/self/fd with writes to the copy; else the
 * given path. */
const char *staged_original(int dirfd, const char *path);

/* Return the source's path, for a path below the tier's copies; NULL: not a copy. */
const char *staged_source(const char *path);

/* Replace the stat of a copy, found by a descriptor or a path through /proc, by the source's own
 * stat. */
void staged_disguise_fd(int fd, struct stat *found);
void staged_disguise_fdx(int fd, struct statx *found);
void staged_disguise_path(int dirfd, const char *path, struct stat *found);
void staged_disguise_pathx(int dirfd, const char *path, struct statx *found);

/* Likewise for the name from readlink. */
ssize_t staged_disguise_link(const char *path, char *name, ssize_t got, size_t size);

#pragma GCC visibility pop

#endif
