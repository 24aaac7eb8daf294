/* Opens that find the staged copy of their file: the map of a tier (docs/FORMAT-stage.md), and when
 * a copy may stand for its source.  Knows no hook and no event; allocates nothing, takes no lock.
 *
 * A copy is served only if the source, asked now, is what was copied (or its slot is frozen), and
 * the copy is as it was made.  All else opens the original: what is wrong here
 * costs time and no correctness. */
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
    uint32_t retired; /* 1: a newer map is in its place */
    uint8_t reserved[36];
};

/* STAGED_FROZEN: the user said that the source does not change, and it had not when the run began:
 * its server is not asked again. */
enum staged_flag { STAGED_COMPARE_INODE = 1, STAGED_FROZEN = 2 };

struct staged_slot {
    uint64_t hash;    /* of the path's bytes */
    uint64_t path_at; /* 0: empty slot */
    uint64_t copy_at;
    uint32_t path_bytes, copy_bytes; /* without their NUL */
    uint64_t size_bytes;
    int64_t mtime_s, ctime_s;
    uint32_t mtime_ns, ctime_ns;
    uint64_t inode, device; /* of the source when it was staged */
    uint32_t flags;
    uint8_t is_staged;  /* the copy is there */
    uint8_t is_dropped; /* set here, when the job writes, renames or removes the source */
    uint8_t reserved[10];
};

_Static_assert(sizeof(struct staged_header) == 128, "a map's header is 128 bytes");
_Static_assert(sizeof(struct staged_slot) == 96, "a map's slot is 96 bytes");

/* NULL: nothing is staged, and that is all a wrapper asks. */
extern struct staged_map *staged_map;

__attribute__((always_inline)) static inline bool staged_is_on(void)
{
    return UNLIKELY(__atomic_load_n(&staged_map, __ATOMIC_ACQUIRE) != NULL);
}

/* Opens are redirected by this map from now on.  -EINVAL: it is none that is known here, or does
 * not lie in a tier; -EPERM: it belongs to another user, who could make the program read anything.
 */
int staged_start(const char *path);

const char *staged_path(void); /* of the map; "": none */
const char *staged_tier(void); /* its name; "": none */

/* The descriptor of the copy for an open that only reads; -1: open the original.  `outcome` says
 * what came of it, 0: the file is not staged or the call not one to redirect.  errno is kept. */
int staged_open(int dirfd, const char *path, int flags, enum staged_outcome *outcome);

/* What a call that may change a file is about to change: NULL: nothing staged.  For opens, links at
 * the end of a path are followed; renames and removals concern the link. */
struct staged_slot *staged_find(int dirfd, const char *path, bool follows);

/* The job changes a source: its copy is not to be served any more. */
void staged_drop(struct staged_slot *slot);

/* Whether an open may change its file. */
bool staged_writes(int flags);

/* A call through /proc/self/fd that would write to a copy, for its source; else the same path. */
const char *staged_original(int dirfd, const char *path);

/* The source's path, for a path below the tier's copies; NULL: it is none of them. */
const char *staged_source(const char *path);

/* What was found of a descriptor, or of a path through /proc, that leads to a copy becomes what the
 * source's own stat says. */
void staged_disguise_fd(int fd, struct stat *found);
void staged_disguise_fdx(int fd, struct statx *found);
void staged_disguise_path(int dirfd, const char *path, struct stat *found);
void staged_disguise_pathx(int dirfd, const char *path, struct statx *found);

/* The same for the name that readlink found. */
ssize_t staged_disguise_link(const char *path, char *name, ssize_t got, size_t size);

#pragma GCC visibility pop

#endif
