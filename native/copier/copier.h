/* Copies many small files of a fast tier to a program's folder: a call for hundreds of files.
 *
 * Each step treats each file separately: a failure of a file keeps no other file.  The caller
 * (save/small/copier.py) syncs between the steps and decides about failures; save/burst/home.py
 * defines the names and links.  All names are relative to open folders, and no link is followed.
 *
 * The library makes system calls directly, so that a recorder in the process neither records nor
 * redirects the calls.  Knows no hook and no Python.  Different threads may treat different
 * files. */
#ifndef PENSTOCK_COPIER_H
#define PENSTOCK_COPIER_H

#include <stdint.h>
#include <time.h>

#define COPIER_API __attribute__((visibility("default")))

#define COPIER_LARGEST (1 << 20) /* bytes of a file: SMALL_BYTES of save/small/batch.py */
#define COPIER_HOME_BYTES 4096   /* of a program's path, with the final zero */

enum copier_state {
    COPIER_NEW = 0,
    COPIER_READ = 1,    /* the bytes are in memory */
    COPIER_WRITTEN = 2, /* to the hidden name beside the program's path; not durable */
    COPIER_PLACED = 3,  /* verified, and at the program's path */
    COPIER_DROPPED = 4, /* removed from the tier */
    /* Not copied, and no error. */
    COPIER_BUSY = 5,         /* a process writes to the file, or the file is gone */
    COPIER_LARGE = 6,        /* larger than COPIER_LARGEST, or no regular file */
    COPIER_LATE = 7,         /* the program's path leads elsewhere by now */
    COPIER_CHANGED = 8,      /* the file has changed since the read */
    COPIER_DIFFERS = 9,      /* the copy reads back other bytes */
    COPIER_NO_EXCHANGE = 10, /* the file system cannot exchange two names */
    COPIER_KEPT = 11,        /* placed, but the file may not be removed from the tier */
    COPIER_FAILED = 12,      /* see `error` */
    COPIER_OPEN = 15, /* in memory, not written: the first bytes leave open whether the file lacks
                         its end.  The caller sets COPIER_READ and COPIER_IS_CLEARED if not. */
    /* penstock_copier_place stops at such a file: the caller acts, then closes `descriptor`. */
    COPIER_TAKEN = 13, /* the exchange brought another file than the link; `descriptor`: the copy */
    COPIER_WANTED = 14 /* placed, and a process waits to write to the file, until `descriptor`, of
                          the file on the tier, is closed */
};

enum copier_flags { /* all from the caller */
                    COPIER_IS_JUDGED =
                        1, /* a file of this name may lack its end, whatever its first bytes */
                    COPIER_IS_TORCH = 2,  /* named as a file of torch */
                    COPIER_IS_CLEARED = 4 /* the file has its end */
};

/* A file.  The first part is of the file on the tier before the copy. */
struct copier_file {
    int64_t size_bytes, mtime_ns, atime_ns, ctime_ns;
    uint64_t device, inode;
    uint64_t new_device, new_inode; /* of the copy */
    uint32_t mode, n_links;
    int32_t folder; /* in: the index of the folder with the program's path */
    int32_t state;  /* enum copier_state */
    int32_t error;  /* errno */
    int32_t descriptor;
    uint32_t flags;
    uint32_t is_sparse; /* the file occupies less than its size */
};
_Static_assert(sizeof(struct copier_file) == 96, "save/small/copier.py is alike");

/* A file on the tier, with a link to the program's path. */
struct copier_seen {
    int64_t size_bytes; /* -1: no file; -2: ask again, for the error */
    int64_t mtime_ns;
};
_Static_assert(sizeof(struct copier_seen) == 16, "save/small/copier.py is alike");

struct copier;

/* names: for each of n files the name on the tier and the name in the program's folder, each with a
 * zero.  data_path: the folder of the files on the tier, as links spell the folder; data, home:
 * open.  All arguments but the names and the path stay the caller's, and must stay valid.
 * settle_s: on a file system without leases, a file counts as written for so long after its last
 * change.  NULL: no memory. */
COPIER_API struct copier *penstock_copier_open(const char *names, uint32_t n,
                                               struct copier_file *files, const int32_t *folders,
                                               const char *data_path, int32_t data, int32_t home,
                                               double settle_s);
COPIER_API void penstock_copier_close(struct copier *copier);

/* Each of the following functions treats files [start, end) in the state left by the step
 * before. */

/* Read NEW files into memory; write the new and the READ files to hidden names in the program's
 * folder. */
COPIER_API void penstock_copier_copy(struct copier *copier, uint32_t start, uint32_t end);

/* Read the durable copies back and put the copies at the program's paths; the hidden name is then
 * the link from the path.  Returns the first untreated file: after COPIER_TAKEN or COPIER_WANTED,
 * the next file. */
COPIER_API uint32_t penstock_copier_place(struct copier *copier, uint32_t start, uint32_t end);

/* Remove the hidden names of PLACED files. */
COPIER_API void penstock_copier_clear(struct copier *copier, uint32_t start, uint32_t end);

/* Remove files with durable copies at the program's paths from the tier. */
COPIER_API void penstock_copier_drop(struct copier *copier, uint32_t start, uint32_t end);

/* Look at n files on the tier by the names of their links in `home`, marked or not.  homes:
 * receives the target of each link, with a zero; empty: the link cannot be read.  room: at least n
 * * COPIER_HOME_BYTES.  Returns the bytes in `homes`. */
COPIER_API uint64_t penstock_copier_look(int32_t data, int32_t home, const char *names, uint32_t n,
                                         struct copier_seen *seen, char *homes);

/* --- the files of a checkpoint, into the folder of an unfinished copy (part.c) ---------------- */

struct copier_part_file {
    int64_t size_bytes, mtime_ns; /* in: the size of the list; out: the time of the opened file */
    /* in: of the file's bytes in memory, with room for another byte */
    int64_t offset;
    struct timespec times[2];   /* of the last read and write, for the copy */
    int32_t from, to;           /* in: the open folders of the source and of the copy */
    int32_t state, error, copy; /* enum copier_state; errno; a descriptor within a call */
    uint32_t mode;              /* in: the mode bits allowed for the copy; out: of the copy */
    uint32_t is_sparse;         /* the file occupies less than its size */
    uint32_t is_cut;            /* the file ends in a hole: its last bytes were never written */
};
_Static_assert(sizeof(struct copier_part_file) == 88, "save/small/partfiles.py is alike");

/* names: for each file the name in the source's folder, of the draft and of the copy, each with a
 * zero.  Read: NEW files become READ, or CHANGED where the size is not the list's, or FAILED, a
 * link too.  Write: READ files to drafts, not durable.  Place: read the durable drafts back and
 * rename each to its name; DIFFERS where other bytes come back. */
COPIER_API void penstock_copier_part_read(const char *names, struct copier_part_file *files,
                                          uint32_t n, char *bytes);
COPIER_API void penstock_copier_part_write(const char *names, struct copier_part_file *files,
                                           uint32_t n, const char *bytes);
COPIER_API void penstock_copier_part_place(const char *names, struct copier_part_file *files,
                                           uint32_t n, const char *bytes);

/* Read files for a check; each has only the name in the source's folder.  NEW files become READ, or
 * CHANGED where the size is not the list's, or FAILED, a link too.  is_from_device: first drop the
 * pages, which must be written out. */
COPIER_API void penstock_copier_part_look(const char *names, struct copier_part_file *files,
                                          uint32_t n, char *bytes, uint32_t is_from_device);

/* Whether the link at each of n paths has the target behind the path. */
COPIER_API void penstock_copier_lead(const char *paths_and_targets, uint32_t n, uint8_t *leads);

#endif
