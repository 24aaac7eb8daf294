/* Checkpoints of a program go to a fast tier first (docs/burst.md): a new file with a fitting name
 * is made there, and a link to the file stands at the program's path at once, so that every user of
 * the path finds the file.  Another process, the drain (save/burst), replaces the link by the
 * file itself when no process writes to the file any more.
 *
 * Knows no hook and no event; allocates nothing of libc, takes no lock except to move a file from a
 * full tier, keeps no list of open files: the tier holds all state of a file.  In every unexpected
 * state, the call is made as the program requested.
 *
 *   FOLDER/data/ID-NAME   the file
 *   FOLDER/home/ID-NAME   a link to the program's path: the destination of the file */
#ifndef PENSTOCK_BURST_H
#define PENSTOCK_BURST_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "log.h"

#pragma GCC visibility push(hidden)

#define BURST_NAME_BYTES 256
#define BURST_FOLDER_BYTES 1024

/* Endings of names beside the program's own: the file as it was before the rewrite, until the new
 * file is there; a link, or a file, on the way to the final name.  save/burst/file.py has equal
 * names. */
#define BURST_WAS ".penstock-was"
#define BURST_LINK ".penstock-link"
#define BURST_NEW ".penstock-new"
/* Of the link home: no path leads to the file any more, or soon none will. */
#define BURST_HOME ".penstock-home"

/* NULL: off.  A wrapper checks nothing else. */
extern struct burst *burst_state;

__attribute__((always_inline)) static inline bool burst_is_on(void)
{
    return UNLIKELY(__atomic_load_n(&burst_state, __ATOMIC_ACQUIRE) != NULL);
}

/* From now on files that fit `patterns` go to `folder`.  Patterns are separated by colons, with *
 * and ?; a pattern applies to the last part of a path, or, with a slash at the end, to a folder of
 * the path.  24 bits of `run` in the files' names identify the owner.  -errno: files do not go
 * there. */
int burst_start(const char *folder, const char *patterns, uint32_t run);

/* From now on this process sees our links, and no new file of this process goes to the tier. */
void burst_stop(void);

const char *burst_folder(void); /* "": none */
const char *burst_patterns(void);
uint32_t burst_run(void);

/* Return the descriptor of the file on the fast tier for an open that makes a file; -1: make the
 * call. */
int burst_open(int dirfd, const char *path, int flags, mode_t mode);

/* The program knows nothing of our links: an action on a link would be wrong a moment later, with
 * the file home.  Call only where the burst buffer is on.  After lstat and statx have found a link,
 * these functions describe the file instead; -1 and errno: the path is gone. */
int burst_disguise(int dirfd, const char *path, int flags, struct stat *found);
int burst_disguise_x(int dirfd, const char *path, int flags, unsigned mask, struct statx *found);

/* After readlink has found a link: return the error as if there were no link; 0: the link is the
 * program's own. */
int burst_link_error(int dirfd, const char *path);

/* Let an open with O_NOFOLLOW follow our link: before the open, and after an open that has found a
 * link.  -1: make the call. */
int burst_follow(int dirfd, const char *path, int flags);

/* Resolve a path into `real`, of PATH_MAX bytes, where `real` is the place of the path's file;
 * false: the file has come home meanwhile: ask again. */
bool burst_disguise_real(const char *path, char *real);

/* Whether a dangling path now leads to a file: the link changed in between. */
bool burst_was_missed(const char *path);

/* Whether a call would change the mode or time of our link. */
bool burst_is_link(int dirfd, const char *path);

static inline int burst_flags(int dirfd, const char *path, int flags)
{
    return burst_is_on() && flags & AT_SYMLINK_NOFOLLOW && burst_is_link(dirfd, path)
               ? flags & ~AT_SYMLINK_NOFOLLOW
               : flags;
}

/* Call before a write to the existing file at a path; with `makes`, also where the call makes a
 * missing file. */
void burst_writing(int dirfd, const char *path, bool makes);

/* The fast tier is full: move the bytes written so far to the program's path, and `fd` with the
 * file.  True: the call may be made again.  errno is kept. */
bool burst_escape(int fd);

/* Whether a descriptor accepts writes after a refusal: another thread was moving the file. */
bool burst_was_moved(int fd);

/* Whether the file behind `fd` lies on the tier. */
bool burst_has(int fd);

/* The file behind `fd` is about to get this size, and may then be mapped: a full tier would then
 * kill the program, so the space must be checked now. */
void burst_reserve(int fd, int64_t bytes);

/* Whether a failed call may be made again. */
static inline bool burst_escapes(int fd)
{
    if (!burst_is_on())
        return false;
    return errno == ENOSPC || errno == EDQUOT ? burst_escape(fd)
                                              : errno == EBADF && burst_was_moved(fd);
}

/* The state of a name change: between the begin and the end of the call. */
struct burst_change {
    char name[BURST_NAME_BYTES]; /* on the tier; "": the path is not a link to the tier */
    /* likewise for the new name, of a file about to lose its last name */
    char over[BURST_NAME_BYTES];
    unsigned flags; /* of renameat2 */
    bool is_kept;   /* the file at the new name earlier has another name now */
    bool is_aside;  /* and no further name */
};

void burst_removing(struct burst_change *change, int dirfd, const char *path);
void burst_removed(const struct burst_change *change, int dirfd, const char *path,
                   bool has_succeeded);
void burst_renaming(struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                    const char *to);
void burst_renamed(const struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                   const char *to, bool has_succeeded);

/* Another entry than a link to the tier has been renamed: perhaps a folder with links in it. */
void burst_moved(int dirfd, const char *path, int to_dirfd, const char *to);

/* Whether a name beside a program's file is ours: a listing must not show a name that may be gone
 * when the program asks. */
bool burst_is_ours(const char *name);

static inline bool burst_hides(const char *name)
{
    return *name == '.' && burst_is_on() && burst_is_ours(name);
}

/* Whether a failed removal was of a name of ours, gone since the program listed the folder: the
 * program wanted the entry removed, and would take the error for a real failure. */
bool burst_is_gone(const char *path);

/* Whether the removal of a folder may be made again: the folder had only names of ours, new since
 * the program's listing. */
bool burst_empties(int dirfd, const char *path);

/* Make a second path for a file on the tier.  0: made; 1: not a file on the tier, make the call; -1
 * and errno: impossible, and a link to our link would lose its target with our link. */
int burst_linked(int from_dirfd, const char *from, int dirfd, const char *path);

#pragma GCC visibility pop

#endif
