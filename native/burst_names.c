/* Changes of names around links of the burst buffer, and answers about links. */
#include "burst_parts.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "files.h"

#define BAD_POINTERS 65536 /* as in files.c: the kernel answers EFAULT */
#define DRAFT "/draft/"
/* For a question with a changing answer; the answer for a kernel thread's exe changes for ever. */
#define MOST_TRIES 8

/* --- changes of names ------------------------------------------------------------------------- */

static void find_change(struct burst_change *change, int dirfd, const char *path)
{
    const struct burst *state = burst_state;

    change->name[0] = change->over[0] = 0;
    change->is_kept = change->is_aside = false;
    if (state && (uintptr_t)path >= BAD_POINTERS)
        burst_read_link(state, dirfd, path, change->name);
}

/* Put the name of the link home into work->home_link, and the marked name into work->text. */
static void set_marked(const struct burst *state, struct work *work, const char *name)
{
    burst_set_name(state, work, name);
    strcat(strcpy(work->text, work->home_link), BURST_HOME);
}

void burst_removing(struct burst_change *change, int dirfd, const char *path)
{
    int error = errno;
    struct work *work;

    find_change(change, dirfd, path);
    work = *change->name ? burst_work_begin() : NULL;
    if (work) {
        burst_set_is_marked(burst_state, work, change->name, true);
        burst_work_end(work);
    }
    errno = error;
}

/* Read the program's own path, as the tier knows the path, into work->path. */
static bool find_path(struct work *work)
{
    long got = syscall(SYS_readlinkat, AT_FDCWD, work->text, work->path, PATH_BYTES);

    if (got <= 0)
        got = syscall(SYS_readlinkat, AT_FDCWD, work->home_link, work->path, PATH_BYTES);
    if (got <= 0 || got >= PATH_BYTES)
        return false;
    work->path[got] = 0;
    return true;
}

/* Whether a link at this path refers to the file. */
static bool leads_to(const struct burst *state, struct work *work, const char *path)
{
    return burst_read_link(state, AT_FDCWD, path, work->was) && !strcmp(work->was, work->name);
}

/* A program may copy the link.  Where the file's own path still refers to the file, nothing has
 * changed; where the own path is different by now, the drain looks for other paths of the file. */
static void remove_file(const struct burst *state, struct work *work, const char *name, int dirfd,
                        const char *path)
{
    if (!burst_find_folder(work, dirfd, path))
        return;
    burst_set_beside(work->was, work->base, BURST_WAS);
    syscall(SYS_unlinkat, work->parent, work->was, 0);
    set_marked(state, work, name);
    if (!find_path(work))
        return;
    if (!strcmp(work->path, work->home)) {
        syscall(SYS_unlinkat, AT_FDCWD, work->data, 0);
        syscall(SYS_unlinkat, AT_FDCWD, work->home_link, 0);
        syscall(SYS_unlinkat, AT_FDCWD, work->text, 0);
    } else if (leads_to(state, work, work->path)) {
        burst_set_is_marked(state, work, name, false);
    }
}

bool burst_is_gone(const char *path)
{
    const char *slash;

    if (!burst_state || errno != ENOENT || (uintptr_t)path < BAD_POINTERS)
        return false;
    slash = strrchr(path, '/');
    return burst_is_ours(slash ? slash + 1 : path);
}

/* Count the names of ours in a folder; -1: there are other names too.  A name of ours with a link
 * to the tier is from a drain killed just after putting the file here: the file has gone since. */
static int names_of_ours(const struct burst *state, struct work *work, int folder, bool is_removing)
{
    struct listing list = {.folder = folder, .room = work->text};
    const char *name;
    int count = 0;

    syscall(SYS_lseek, folder, 0, SEEK_SET);
    while ((name = burst_next_name(&list))) {
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        if (!burst_is_ours(name))
            return -1;
        count++;
        if (!is_removing)
            continue;
        if (burst_read_link(state, folder, name, work->older))
            burst_set_is_marked(state, work, work->older, true);
        syscall(SYS_unlinkat, folder, name, 0);
    }
    return count;
}

bool burst_empties(int dirfd, const char *path)
{
    const struct burst *state = burst_state;
    int error = errno, folder;
    bool is_empty = false;
    struct work *work;

    if (!state || (error != ENOTEMPTY && error != EEXIST) || !(work = burst_work_begin()))
        return false;
    folder = (int)syscall(SYS_openat, dirfd, path,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (folder >= 0) {
        /* The drain may have removed the name itself meanwhile. */
        is_empty = names_of_ours(state, work, folder, false) >= 0 &&
                   names_of_ours(state, work, folder, true) >= 0;
        syscall(SYS_close, folder);
    }
    burst_work_end(work);
    errno = error;
    return is_empty;
}

void burst_removed(const struct burst_change *change, int dirfd, const char *path,
                   bool has_succeeded)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = *change->name ? burst_work_begin() : NULL;

    if (work && has_succeeded) {
        remove_file(state, work, change->name, dirfd, path);
    } else if (work) {
        burst_set_is_marked(state, work, change->name, false);
    }
    if (work)
        burst_work_end(work);
    errno = error;
}

static bool gives_no_links(int error)
{
    return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

/* A file already on the slow tier must not go before the new file is there. */
void burst_renaming(struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                    const char *to)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = NULL;

    find_change(change, dirfd, path);
    if (state && (uintptr_t)to >= BAD_POINTERS &&
        burst_read_link(state, to_dirfd, to, change->over) && !strcmp(change->over, change->name))
        change->over[0] = 0;
    if ((*change->name || *change->over) && (uintptr_t)to >= BAD_POINTERS)
        work = burst_work_begin();
    if (work && *change->over) {
        burst_set_is_marked(state, work, change->over, true);
    } else if (work) {
        if (burst_find_folder(work, to_dirfd, to) &&
            !syscall(SYS_newfstatat, work->parent, work->base, &work->found, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(work->found.st_mode)) {
            enum kept kept;

            burst_set_beside(work->was, work->base, BURST_WAS);
            kept = burst_keep_file(work->parent, work->base, work->was);
            change->is_kept = kept == KEPT;
            if (!kept && !change->flags && gives_no_links(errno) &&
                !burst_name_exists(work->parent, work->was))
                change->is_kept = change->is_aside =
                    !syscall(SYS_renameat, work->parent, work->base, work->parent, work->was);
        }
    }
    if (work)
        burst_work_end(work);
    errno = error;
}

/* Make a link on the tier point to work->home. */
static void put_link(const struct work *work, int folder, const char *way, char *draft)
{
    strcat(strcpy(draft, way), BURST_LINK);
    syscall(SYS_unlinkat, folder, draft, 0);
    if (!syscall(SYS_symlinkat, work->home, folder, draft))
        syscall(SYS_renameat, folder, draft, folder, way);
}

/* A replaced file moves with the new file, unless there is an earlier file at the new name. */
static void move_was(const struct work *to, int dirfd, const char *path)
{
    struct work *work = burst_work_begin();

    if (work && burst_find_folder(work, dirfd, path)) {
        burst_set_beside(work->was, work->base, BURST_WAS);
        if (burst_name_exists(to->parent, to->was))
            syscall(SYS_unlinkat, work->parent, work->was, 0);
        else
            syscall(SYS_renameat, work->parent, work->was, to->parent, to->was);
    }
    if (work)
        burst_work_end(work);
}

static void set_renamed(const struct burst *state, const struct burst_change *change,
                        struct work *work, int dirfd, const char *path, int to_dirfd,
                        const char *to, bool has_succeeded)
{
    burst_set_name(state, work, change->name);
    if (!burst_find_folder(work, to_dirfd, to))
        return;
    burst_set_beside(work->was, work->base, BURST_WAS);
    if (has_succeeded && *change->name) {
        put_link(work, AT_FDCWD, work->home_link, work->text);
        /* otherwise each file keeps its own earlier file */
        if (!*change->over || !(change->flags & RENAME_EXCHANGE))
            move_was(work, dirfd, path);
    } else if (!has_succeeded && change->is_aside) {
        syscall(SYS_renameat2, work->parent, work->was, work->parent, work->base, RENAME_NOREPLACE);
    } else if (has_succeeded ? *change->over : change->is_kept) {
        syscall(SYS_unlinkat, work->parent, work->was, 0);
    }
}

/* The file formerly at the new name: no path refers to the file now, unless the two were
 * exchanged. */
static void end_over(const struct burst *state, const struct burst_change *change,
                     struct work *work, int dirfd, const char *path, bool has_succeeded)
{
    bool is_there = has_succeeded && burst_read_link(state, dirfd, path, work->older) &&
                    !strcmp(work->older, change->over);

    burst_set_is_marked(state, work, change->over, has_succeeded && !is_there);
    burst_set_name(state, work, change->over);
    if (is_there && burst_find_folder(work, dirfd, path))
        put_link(work, AT_FDCWD, work->home_link, work->text);
    if (work->parent >= 0)
        syscall(SYS_close, work->parent);
    work->parent = -1;
}

/* Move the target of a link home from below the folder of `was` to below the folder of `work`. */
static void move_way(struct work *work, const struct work *was, int folder, const char *name)
{
    size_t bytes = strlen(was->home), name_bytes = strlen(name), end = sizeof BURST_LINK - 1;
    size_t folder_bytes = strlen(work->home);
    long got = syscall(SYS_readlinkat, folder, name, work->path, PATH_BYTES);

    if (got <= (long)bytes || got >= PATH_BYTES || memcmp(work->path, was->home, bytes) ||
        work->path[bytes] != '/' || folder_bytes + (size_t)got - bytes >= PATH_BYTES ||
        name_bytes + end >= sizeof work->beside ||
        (name_bytes > end && !strcmp(name + name_bytes - end, BURST_LINK)))
        return;
    work->path[got] = 0;
    strcpy(work->home + folder_bytes, work->path + bytes);
    put_link(work, folder, name, work->beside);
    work->home[folder_bytes] = 0;
}

/* A folder has another name: rewrite all links of a kind on the tier with targets in the folder. */
static void move_ways(const struct burst *state, struct work *work, const struct work *was,
                      const char *kind)
{
    struct listing list = {.folder = -1, .room = work->text};
    const char *name;

    strcat(strcpy(work->data, state->folder), kind);
    list.folder =
        (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while ((name = burst_next_name(&list)))
        move_way(work, was, list.folder, name);
    burst_end_listing(&list);
}

void burst_moved(int dirfd, const char *path, int to_dirfd, const char *to)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = NULL, *was = NULL;
    struct stat found;

    if (state && !syscall(SYS_newfstatat, to_dirfd, to, &found, AT_SYMLINK_NOFOLLOW) &&
        S_ISDIR(found.st_mode)) {
        work = burst_work_begin();
        was = burst_work_begin();
    }
    if (work && was && burst_find_folder(was, dirfd, path) &&
        burst_find_folder(work, to_dirfd, to)) {
        move_ways(state, work, was, HOME);
        move_ways(state, work, was, DRAFT);
    }
    if (work)
        burst_work_end(work);
    if (was)
        burst_work_end(was);
    errno = error;
}

void burst_renamed(const struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                   const char *to, bool has_succeeded)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = burst_work_begin();

    if (work) {
        if (*change->over)
            end_over(state, change, work, dirfd, path, has_succeeded);
        if (has_succeeded || change->is_kept)
            set_renamed(state, change, work, dirfd, path, to_dirfd, to, has_succeeded);
        burst_work_end(work);
    }
    errno = error;
}

/* --- disguise --------------------------------------------------------------------------------- */

/* Return the present entry where a link was found, as the drain and other processes change the
 * entry meanwhile: OUR_LINK, and the file itself in `target`; ELSE: a link of the program's own, a
 * link to a lost file, or a descriptor's link in /proc, with another size; A_FILE: no link;
 * NOTHING. */
static enum before stands_at(const struct burst *state, int dirfd, const char *path, char *target)
{
    struct stat found;
    int tries;
    long got;

    for (tries = 0; tries < MOST_TRIES; tries++) {
        got = syscall(SYS_readlinkat, dirfd, path, target, TARGET_BYTES);
        if (got < 0)
            return errno == EINVAL ? A_FILE : errno == ENOENT ? NOTHING : ELSE;
        if (got == TARGET_BYTES)
            return ELSE;
        target[got] = 0;
        if (!burst_name_on_tier(state, target))
            return ELSE;
        if (syscall(SYS_newfstatat, dirfd, path, &found, AT_SYMLINK_NOFOLLOW))
            return errno == ENOENT ? NOTHING : ELSE;
        if (!S_ISLNK(found.st_mode))
            return A_FILE;
        if ((found.st_mode & 0777) == 0777 && found.st_size == got &&
            !syscall(SYS_newfstatat, AT_FDCWD, target, &found, 0))
            return OUR_LINK;
    }
    return ELSE;
}

int burst_link_error(int dirfd, const char *path)
{
    char target[TARGET_BYTES];
    int error = errno;
    enum before before = stands_at(burst_state, dirfd, path, target);

    errno = error;
    return before == ELSE ? 0 : before == NOTHING ? ENOENT : EINVAL;
}

bool burst_is_link(int dirfd, const char *path)
{
    char target[TARGET_BYTES];
    int error = errno;
    bool is_ours =
        (uintptr_t)path >= BAD_POINTERS && stands_at(burst_state, dirfd, path, target) == OUR_LINK;

    errno = error;
    return is_ours;
}

/* Of stat or of statx. */
struct answer {
    struct stat *stat;
    struct statx *statx;
    unsigned mask;
};

static int ask(const struct answer *answer, int dirfd, const char *path, int flags)
{
    if (answer->stat)
        return (int)syscall(SYS_newfstatat, dirfd, path, answer->stat, flags);
    return (int)syscall(SYS_statx, dirfd, path, flags, answer->mask, answer->statx);
}

static int disguise(const struct answer *answer, int dirfd, const char *path, int flags)
{
    char target[TARGET_BYTES];
    int error = errno, result = 0, tries = MOST_TRIES;
    enum before before;

    while (!result && tries-- &&
           S_ISLNK(answer->stat ? answer->stat->st_mode : answer->statx->stx_mode)) {
        before = stands_at(burst_state, dirfd, path, target);
        if (before == ELSE || (before == OUR_LINK && !ask(answer, AT_FDCWD, target, flags)))
            break;
        result = ask(answer, dirfd, path, flags);
    }
    if (!result)
        errno = error;
    return result;
}

int burst_disguise(int dirfd, const char *path, int flags, struct stat *found)
{
    return disguise(&(struct answer){.stat = found}, dirfd, path, flags);
}

int burst_disguise_x(int dirfd, const char *path, int flags, unsigned mask, struct statx *found)
{
    return disguise(&(struct answer){.statx = found, .mask = mask}, dirfd, path, flags);
}

int burst_follow(int dirfd, const char *path, int flags)
{
    const struct burst *state = burst_state;
    int error = errno, fd = -1, tries = MOST_TRIES;
    char target[TARGET_BYTES];

    if (!state || !(flags & O_NOFOLLOW) || flags & O_EXCL || (uintptr_t)path < BAD_POINTERS)
        return -1;
    while (tries-- && stands_at(state, dirfd, path, target) == OUR_LINK) {
        fd = (int)syscall(SYS_openat, AT_FDCWD, target, flags & ~(O_NOFOLLOW | O_CREAT));
        if (fd >= 0 || errno != ENOENT)
            break;
    }
    errno = error;
    return fd;
}

bool burst_was_missed(const char *path)
{
    int error = errno;
    bool is_there = error == ENOENT && !syscall(SYS_faccessat, AT_FDCWD, path, F_OK);

    errno = error;
    return is_there;
}

bool burst_disguise_real(const char *path, char *real)
{
    const struct burst *state = burst_state;
    const char *name = burst_name_on_tier(state, real);
    int error = errno;
    struct work *work = name ? burst_work_begin() : NULL;
    bool is_found = !work;

    if (work) {
        burst_set_name(state, work, name);
        is_found = burst_find_folder(work, AT_FDCWD, path) && leads_to(state, work, work->home);
        if (is_found) {
            strcpy(real, work->home);
        } else { /* by a link of the program's own */
            set_marked(state, work, name);
            is_found = find_path(work) && leads_to(state, work, work->path);
            if (is_found)
                strcpy(real, work->path);
        }
        burst_work_end(work);
    }
    errno = error;
    return is_found;
}

/* --- second paths ----------------------------------------------------------------------------- */

static bool put_second(struct work *work, const char *from)
{
    return (!syscall(SYS_symlinkat, work->home, AT_FDCWD, work->text) || errno == EEXIST) &&
           (!syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, work->data, 0) || errno == EEXIST);
}

/* Why a file on the tier gets no second name there.  1: the file is not there any more.  Otherwise
 * the path is on another file system than the file: a program then copies, as without the burst
 * buffer. */
static int no_second(void)
{
    return errno == ENOENT ? 1 : -EXDEV;
}

/* Make the link at the new path refer to another name of the file on the tier, so that each path
 * has a separate name, for separate moves and removals.  The way home is marked until the link is
 * there.  1: as no_second(); -errno: the link was not made. */
static int put_at(const struct burst *state, struct work *work, int dirfd, const char *path)
{
    char from[sizeof work->data];
    const char *slash = strrchr(path, '/');
    int error;

    strcpy(from, work->data);
    errno = strlen(slash ? slash + 1 : path) < BURST_NAME_BYTES ? ENOENT : ENAMETOOLONG;
    if (!burst_find_folder(work, dirfd, path))
        return -errno;
    if (burst_is_below_tier(state, work->home) || strlen(work->base) > MOST_NAME_BYTES ||
        strlen(work->home) > MOST_HOME_BYTES)
        return -EXDEV;
    burst_new_name(state, work, true);
    set_marked(state, work, work->name);
    if (!put_second(work, from)) {
        error = no_second();
    } else if (!burst_set_link(state, work, NOTHING)) {
        error = -errno;
    } else if (!put_second(work, from)) { /* held up for long, the drain has taken us for dead */
        error = no_second();
        if (leads_to(state, work, work->home))
            syscall(SYS_unlinkat, work->parent, work->base, 0);
    } else {
        burst_set_is_marked(state, work, work->name, false);
        return 0;
    }
    syscall(SYS_unlinkat, AT_FDCWD, work->data, 0);
    syscall(SYS_unlinkat, AT_FDCWD, work->text, 0);
    return error;
}

int burst_linked(int from_dirfd, const char *from, int dirfd, const char *path)
{
    const struct burst *state = burst_state;
    char name[BURST_NAME_BYTES];
    int error = errno, result = 1, tries = MOST_TRIES;

    if (!state || (uintptr_t)from < BAD_POINTERS || (uintptr_t)path < BAD_POINTERS)
        return 1;
    while (result > 0 && burst_read_link(state, from_dirfd, from, name)) {
        struct work *work = tries-- ? burst_work_begin() : NULL;

        result = tries < 0 ? -ENOENT : -ENOMEM; /* lost with the tier */
        if (work) {
            burst_set_name(state, work, name);
            result = put_at(state, work, dirfd, path);
            burst_work_end(work);
        }
    }
    errno = result < 0 ? -result : error;
    return result < 0 ? -1 : result;
}
