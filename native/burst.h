/* Checkpoints that a program writes go to a fast tier first (docs/burst.md): a new file whose name
 * fits is made there, and a link to it stands at the program's path at once, so that whatever the
 * program or another one does with that path finds the file.  Another process, the drain
 * (save/burst.py), puts the file itself in the link's place when nobody writes to it any more.
 *
 * Knows no hook and no event; allocates nothing of libc, takes no lock but to move a file from a
 * full tier, keeps no list of what is open: all that is known of a file is what lies on the tier.
 * Where anything is not as it should be, the call is made as the program meant it.
 *
 *   FOLDER/data/ID-NAME   the file
 *   FOLDER/home/ID-NAME   a link that leads to the program's path: where it is to go */
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

/* Of names beside the program's own: the file as it was before it was written anew, until the new
 * one is there; a link, or a file, on its way to its name.  save/burst.py knows the same. */
#define BURST_WAS ".penstock-was"
#define BURST_LINK ".penstock-link"
#define BURST_NEW ".penstock-new"
/* Of the link home: no path leads to the file any more, or soon none will. */
#define BURST_HOME ".penstock-home"

/* NULL: off, and that is all a wrapper asks. */
extern struct burst *burst_state;

__attribute__((always_inline)) static inline bool burst_is_on(void)
{
    return UNLIKELY(__atomic_load_n(&burst_state, __ATOMIC_ACQUIRE) != NULL);
}

/* From now on files that fit `patterns` (separated by colons: * and ?; of the last part of a path,
 * or with a slash at its end of a folder on the way) go to `folder`; their names there say whose
 * they are by 24 bits of `run`.  -errno: they do not. */
int burst_start(const char *folder, const char *patterns, uint32_t run);

/* From now on this process sees our links, and no file of its own goes to the tier. */
void burst_stop(void);

const char *burst_folder(void); /* "": none */
const char *burst_patterns(void);
uint32_t burst_run(void);

/* The descriptor of the file on the fast tier for an open that makes one; -1: make the call. */
int burst_open(int dirfd, const char *path, int flags, mode_t mode);

/* The program knows nothing of our links: what it does about one would be wrong a moment later, as
 * the file is home then.  To be called where it is on.  lstat and statx, which have found a link,
 * tell of the file; -1 and errno: the path is gone. */
int burst_disguise(int dirfd, const char *path, int flags, struct stat *found);
int burst_disguise_x(int dirfd, const char *path, int flags, unsigned mask, struct statx *found);

/* readlink, which has found one, finds none: the error; 0: it is one of the program's own. */
int burst_link_error(int dirfd, const char *path);

/* An open follows where it was told not to: before it, and after one that has found a link.  -1:
 * make the call. */
int burst_follow(int dirfd, const char *path, int flags);

/* Of a path into `real`, of PATH_MAX bytes, where `real` is where its file lies; false: that has
 * come home since: ask again. */
bool burst_disguise_real(const char *path, char *real);

/* Whether a path that led nowhere does lead to a file: the link was another one in between. */
bool burst_was_missed(const char *path);

/* The same for a call that would change the link's mode or time. */
bool burst_is_link(int dirfd, const char *path);

static inline int burst_flags(int dirfd, const char *path, int flags)
{
    return burst_is_on() && flags & AT_SYMLINK_NOFOLLOW && burst_is_link(dirfd, path)
               ? flags & ~AT_SYMLINK_NOFOLLOW
               : flags;
}

/* A path is about to be written to, as it is; or `makes`: made, if nothing is there. */
void burst_writing(int dirfd, const char *path, bool makes);

/* The fast tier is full: what was written so far goes to the program's path, and `fd` with it.
 * True: the call may be made again.  errno is kept. */
bool burst_escape(int fd);

/* Whether a descriptor that could not be written to can be: another thread was moving its file. */
bool burst_was_moved(int fd);

/* Whether the file behind `fd` lies on the tier. */
bool burst_has(int fd);

/* The file behind `fd` is about to be of this size, and perhaps to be mapped: a full tier would end
 * the program then, so it has to be known now. */
void burst_reserve(int fd, int64_t bytes);

/* Whether a call that failed may be made again. */
static inline bool burst_escapes(int fd)
{
    if (!burst_is_on())
        return false;
    return errno == ENOSPC || errno == EDQUOT ? burst_escape(fd)
                                              : errno == EBADF && burst_was_moved(fd);
}

/* A name is about to change: before the call, and after it. */
struct burst_change {
    char name[BURST_NAME_BYTES]; /* on the tier; "": the path is no link to it */
    char over[BURST_NAME_BYTES]; /* the same of the new name, which is its last */
    unsigned flags;              /* of renameat2 */
    bool is_kept;                /* what the new name led to has another one now */
    bool is_aside;               /* and that one only */
};

void burst_removing(struct burst_change *change, int dirfd, const char *path);
void burst_removed(const struct burst_change *change, int dirfd, const char *path,
                   bool has_succeeded);
void burst_renaming(struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                    const char *to);
void burst_renamed(const struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                   const char *to, bool has_succeeded);

/* Another name has been given to what is no link to the tier: a folder, perhaps, with some. */
void burst_moved(int dirfd, const char *path, int to_dirfd, const char *to);

/* Whether it is a name that we give to what lies beside a program's file: who lists a folder is not
 * to see what may be gone when it is asked for. */
bool burst_is_ours(const char *name);

static inline bool burst_hides(const char *name)
{
    return *name == '.' && burst_is_on() && burst_is_ours(name);
}

/* Whether a removal that found nothing was of a name of ours, which has gone since the program
 * listed its folder: it wanted it away, and would take the error for one of its own. */
bool burst_is_gone(const char *path);

/* Whether the removal of a folder may be made again: nothing was left in it but names of ours,
 * which came since the program listed it. */
bool burst_empties(int dirfd, const char *path);

/* A second path for a file on the tier.  0: it has been made; 1: it is none, make the call; -1 and
 * errno: it cannot be made, and a link to our link would lead to what goes with that. */
int burst_linked(int from_dirfd, const char *from, int dirfd, const char *path);

#pragma GCC visibility pop

#endif
