/* Switches the burst buffer on and off, decides about files for the tier, and makes the files in
 * the program's opens. */
#include "burst.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "burst_parts.h"
#include "files.h"

#define BAD_POINTERS 65536    /* as in files.c: the kernel answers EFAULT */
#define PART ".penstock-part" /* ends the names of files written by the save engine and the drain */
#define COPY_BYTES (1u << 20)
/* Less than the second after which the drain assumes that the maker of a file is dead. */
#define MADE_QUICKLY_NS 300000000

HOT struct burst *burst_state;

/* --- on and off ------------------------------------------------------------------------------- */

int burst_start(const char *folder, const char *patterns, uint32_t run)
{
    struct burst *state;
    struct stat found;
    size_t bytes = strlen(folder);

    if (*folder != '/' || bytes >= BURST_FOLDER_BYTES || strlen(patterns) >= PATH_BYTES)
        return -ENAMETOOLONG;
    state = burst_map_private(sizeof *state);
    if (!state)
        return -ENOMEM;
    strcpy(state->folder, folder);
    state->tier_bytes = (size_t)(strrchr(folder, '/') - folder);
    strcat(strcpy(state->data, folder), DATA);
    strcat(strcpy(state->home, folder), HOME);
    state->data_bytes = strlen(state->data);
    strcpy(state->patterns, patterns);
    state->run = run & 0xffffff;
    if (syscall(SYS_newfstatat, AT_FDCWD, state->data, &found, 0) ||
        syscall(SYS_newfstatat, AT_FDCWD, state->home, &found, 0)) {
        int error = -errno;

        syscall(SYS_munmap, state, sizeof *state);
        return error;
    }
    __atomic_store_n(&burst_state, state, __ATOMIC_RELEASE);
    return 0;
}

/* The state stays mapped: a call of another thread may be using the state. */
void burst_stop(void)
{
    __atomic_store_n(&burst_state, NULL, __ATOMIC_RELEASE);
}

const char *burst_folder(void)
{
    return burst_state ? burst_state->folder : "";
}

const char *burst_patterns(void)
{
    return burst_state ? burst_state->patterns : "";
}

uint32_t burst_run(void)
{
    return burst_state ? burst_state->run : 0;
}

/* --- the files -------------------------------------------------------------------------------- */

/* * and ?  as in a shell, but a dot at the beginning is an ordinary letter. */
static bool fits(const char *pattern, const char *pattern_end, const char *text, const char *end)
{
    const char *star = NULL, *retry = NULL;

    while (text < end) {
        if (pattern < pattern_end && *pattern == '*') {
            star = ++pattern;
            retry = text;
        } else if (pattern < pattern_end && (*pattern == '?' || *pattern == *text)) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++retry;
        } else {
            return false;
        }
    }
    while (pattern < pattern_end && *pattern == '*')
        pattern++;
    return pattern == pattern_end;
}

/* Whether a folder on the way fits; the last part is none. */
static bool fits_folder(const char *pattern, const char *pattern_end, const char *path)
{
    const char *slash;

    for (; (slash = strchr(path, '/')); path = slash + 1)
        if (slash > path && fits(pattern, pattern_end, path, slash))
            return true;
    return false;
}

bool burst_is_ours(const char *base)
{
    static const char *const ends[] = {BURST_WAS, BURST_LINK, BURST_NEW, BURST_NEW PART};
    size_t bytes = strlen(base), i;

    for (i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t end = strlen(ends[i]);

        if (*base == '.' && bytes > end && !strcmp(base + bytes - end, ends[i]))
            return true;
    }
    return false;
}

/* Whether the save engine makes the file: the save engine reports the safety and the place of its
 * files. */
static bool is_of_engine(const char *path, const char *base, const char *end)
{
    static const char folder[] = "step-????????.part", draft[] = ".?*" PART;

    return fits(draft, draft + sizeof draft - 1, base, end) ||
           fits_folder(folder, folder + sizeof folder - 1, path);
}

static bool is_wanted(const struct burst *state, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    const char *end = base + strlen(base);
    const char *pattern = state->patterns;

    if (base == end || end - base > MOST_NAME_BYTES || burst_is_ours(base) ||
        is_of_engine(path, base, end))
        return false;
    while (*pattern) {
        const char *after = strchrnul(pattern, ':');
        bool is_folder = after > pattern && after[-1] == '/';

        if (is_folder ? fits_folder(pattern, after - 1, path) : fits(pattern, after, base, end))
            return true;
        pattern = *after ? after + 1 : after;
    }
    return false;
}

static bool makes_file(int flags)
{
    return flags & O_CREAT && (flags & O_ACCMODE) != O_RDONLY && !(flags & (O_PATH | O_DIRECTORY));
}

/* --- opens ------------------------------------------------------------------------------------ */

/* Find the kind of entry at the program's path, and whether an open with the flags empties the
 * file. */
static enum before look(const struct burst *state, struct work *work, int flags)
{
    enum before before = ELSE;

    if (syscall(SYS_newfstatat, work->parent, work->base, &work->found, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? NOTHING : ELSE;
    if (flags & O_EXCL)
        return ELSE;
    if (S_ISLNK(work->found.st_mode) &&
        burst_read_link(state, work->parent, work->base, work->name)) {
        if (syscall(SYS_newfstatat, work->parent, work->base, &work->found, 0)) {
            work->found.st_mode = 0; /* lost with the tier: the new file gets the requested mode */
            return errno == ENOENT ? OUR_LINK : ELSE;
        }
        before = OUR_LINK;
    } else if (S_ISREG(work->found.st_mode) && work->found.st_nlink == 1) {
        before = A_FILE;
    }
    if (!(flags & O_TRUNC) || syscall(SYS_faccessat, work->parent, work->base, W_OK))
        return ELSE;
    return before;
}

/* The earlier file keeps a name until the whole save that replaces the file is home.  An existing
 * file with the kept name belongs to the last complete save, and stays: the drain
 * (save/overwritten/earlier.py) removes all earlier files together. */
enum kept burst_keep_file(int parent, const char *base, const char *was)
{
    char name[BURST_NAME_BYTES];

    if (!syscall(SYS_linkat, parent, base, parent, was, 0))
        return KEPT;
    if (errno != EEXIST)
        return NOT_KEPT;
    if (!burst_read_link(burst_state, parent, was, name))
        return KEPT_BEFORE;
    syscall(SYS_unlinkat, parent, was, 0); /* left by a drain killed while giving a file back */
    return syscall(SYS_linkat, parent, base, parent, was, 0) ? NOT_KEPT : KEPT;
}

bool burst_name_exists(int parent, const char *name)
{
    struct stat found;

    return !syscall(SYS_newfstatat, parent, name, &found, AT_SYMLINK_NOFOLLOW);
}

static bool replace_file(struct work *work)
{
    enum kept kept = burst_keep_file(work->parent, work->base, work->was);

    if (!kept)
        return false;
    if (!syscall(SYS_renameat, work->parent, work->beside, work->parent, work->base))
        return true;
    if (kept == KEPT)
        syscall(SYS_unlinkat, work->parent, work->was, 0);
    return false;
}

/* A file that has just come home becomes the earlier file, if there is none yet. */
static bool set_aside(struct work *work)
{
    if (!syscall(SYS_renameat2, work->parent, work->beside, work->parent, work->was,
                 RENAME_NOREPLACE))
        return true;
    return errno != EEXIST && !burst_name_exists(work->parent, work->was) &&
           !syscall(SYS_renameat, work->parent, work->beside, work->parent, work->was);
}

/* Replace the earlier link at the path by the new link.  The drain may meanwhile have put the file
 * itself in the link's place: the file is kept until the new file counts. */
static bool swap_link(const struct burst *state, struct work *work)
{
    if (syscall(SYS_renameat2, work->parent, work->beside, work->parent, work->base,
                RENAME_EXCHANGE))
        return !syscall(SYS_renameat, work->parent, work->beside, work->parent, work->base);
    burst_read_link(state, work->parent, work->beside,
                    work->older); /* another link after a late call */
    if (syscall(SYS_newfstatat, work->parent, work->beside, &work->found, AT_SYMLINK_NOFOLLOW) ||
        !S_ISREG(work->found.st_mode) || !set_aside(work))
        syscall(SYS_unlinkat, work->parent, work->beside, 0);
    return true;
}

/* Set the link at the program's path atomically; false: there is no link. */
bool burst_set_link(const struct burst *state, struct work *work, enum before before)
{
    if (before == NOTHING)
        return !syscall(SYS_symlinkat, work->data, work->parent, work->base);
    burst_set_beside(work->beside, work->name, BURST_LINK);
    if (syscall(SYS_symlinkat, work->data, work->parent, work->beside))
        return false;
    burst_set_beside(work->was, work->base, BURST_WAS);
    burst_set_is_marked(state, work, work->older, true);
    if (before == OUR_LINK ? swap_link(state, work) : replace_file(work)) {
        burst_set_is_marked(state, work, work->older,
                            true); /* the drain may have seen the link still */
        return true;
    }
    burst_set_is_marked(state, work, work->older, false);
    syscall(SYS_unlinkat, work->parent, work->beside, 0);
    return false;
}

/* The way home is on the tier before the file, and the file before the link: a program killed in
 * between leaves a state different from a checkpoint for the drain.  -1, and errno where the tier
 * is the reason. */
static int make_file(const struct burst *state, struct work *work, int flags, mode_t mode,
                     enum before before)
{
    int fd, error;

    if (syscall(SYS_symlinkat, work->home, AT_FDCWD, work->home_link))
        return -1;
    fd = (int)syscall(SYS_openat, AT_FDCWD, work->data, flags | O_EXCL, mode);
    error = errno;
    if (fd >= 0) {
        if (before != NOTHING && work->found.st_mode)
            syscall(SYS_fchmod, fd, work->found.st_mode & 07777);
        if (burst_set_link(state, work, before)) {
            /* After a long delay, the drain may have considered this process dead and removed the
             * way home.  A clock set back counts as a long delay: the difference is of unsigned
             * numbers. */
            if (clock_ns(CLOCK_REALTIME) - work->made_ns > MADE_QUICKLY_NS)
                syscall(SYS_symlinkat, work->home, AT_FDCWD, work->home_link);
            return fd;
        }
        syscall(SYS_close, fd);
        error = 0;
    }
    if (error != EEXIST) /* O_DIRECT may be refused when the file is made already */
        syscall(SYS_unlinkat, AT_FDCWD, work->data, 0);
    syscall(SYS_unlinkat, AT_FDCWD, work->home_link, 0);
    errno = error;
    return -1;
}

bool burst_is_below_tier(const struct burst *state, const char *path)
{
    return state->tier_bytes && !strncmp(path, state->folder, state->tier_bytes) &&
           path[state->tier_bytes] == '/';
}

bool burst_copy_bytes(int from, int to, int64_t bytes)
{
    char *room = burst_map_private(COPY_BYTES);
    int64_t at = 0;

    while (room && at < bytes) {
        int64_t left = bytes - at;
        long got = syscall(SYS_pread64, from, room, left < COPY_BYTES ? left : COPY_BYTES, at);
        long put = 0, done = 0;

        if (got <= 0)
            break;
        for (; done < got && put >= 0; done += put > 0 ? put : 0)
            put = syscall(SYS_pwrite64, to, room + done, got - done, at + done);
        if (put < 0)
            break;
        at += got;
    }
    if (room)
        syscall(SYS_munmap, room, COPY_BYTES);
    return room && at == bytes;
}

/* A file with two paths has two names on the tier: before a write through a path, the name gets a
 * separate copy of the bytes, as the file will have at home.  Without room for the copy, both names
 * change. */
static void give_own_bytes(struct work *work, int from)
{
    int made;

    strcat(strcpy(work->text, work->data), BURST_NEW);
    syscall(SYS_unlinkat, AT_FDCWD, work->text, 0);
    made = (int)syscall(SYS_openat, AT_FDCWD, work->text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                        work->found.st_mode & 07777);
    if (made < 0)
        return;
    syscall(SYS_fchmod, made, work->found.st_mode & 07777);
    if (!burst_copy_bytes(from, made, work->found.st_size) ||
        syscall(SYS_renameat, AT_FDCWD, work->text, AT_FDCWD, work->data))
        syscall(SYS_unlinkat, AT_FDCWD, work->text, 0);
    syscall(SYS_close, made);
}

void burst_writing(int dirfd, const char *path, bool makes)
{
    const struct burst *state = burst_state;
    char name[BURST_NAME_BYTES];
    struct work *work = NULL;
    int error = errno, from;

    if (state && (uintptr_t)path >= BAD_POINTERS && burst_read_link(state, dirfd, path, name))
        work = burst_work_begin();
    if (work) {
        burst_set_name(state, work, name);
        from = (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_CLOEXEC);
        if (from >= 0 && !syscall(SYS_fstat, from, &work->found) && work->found.st_nlink > 1)
            give_own_bytes(work, from);
        /* The file is lost, and about to be made again on the tier through the link: the file needs
         * a way home. */
        if (from < 0 && errno == ENOENT && makes && burst_find_folder(work, dirfd, path))
            syscall(SYS_symlinkat, work->home, AT_FDCWD, work->home_link);
        if (from >= 0)
            syscall(SYS_close, from);
        burst_work_end(work);
    }
    errno = error;
}

static bool is_full(int error)
{
    return error == ENOSPC || error == EDQUOT;
}

/* -1: make the call.  work->older: the file on the tier emptied by the call. */
static int make_new(const struct burst *state, struct work *work, int flags, mode_t mode)
{
    enum before before = look(state, work, flags);

    strcpy(work->older, before == OUR_LINK ? work->name : "");
    burst_new_name(state, work, before == NOTHING);
    errno = 0;
    return before == ELSE ? -1 : make_file(state, work, flags, mode, before);
}

int burst_open(int dirfd, const char *path, int flags, mode_t mode)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work;
    int fd = -1;

    if (!state || (uintptr_t)path < BAD_POINTERS)
        return -1;
    work = makes_file(flags) && is_wanted(state, path) ? burst_work_begin() : NULL;
    if (work) {
        if (burst_find_folder(work, dirfd, path) && strlen(work->home) <= MOST_HOME_BYTES &&
            !burst_is_below_tier(state, work->home)) {
            fd = make_new(state, work, flags, mode);
            if (fd < 0 && *work->older && is_full(errno) && burst_bring_older(state, work))
                fd = make_new(state, work, flags, mode);
        }
        burst_work_end(work);
    }
    if (fd < 0 && !(flags & O_EXCL))
        burst_writing(dirfd, path, flags & O_CREAT);
    errno = error;
    return fd;
}
