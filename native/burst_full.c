/* A full tier: the file moves to its home while the program has the file open. */
#include "burst_parts.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include "files.h"

#define DELETED " (deleted)" /* suffix of a removed file's name in /proc/self/fd */
#define MOST_WRITING_MS 2000 /* for a call to finish a begun write */
#define MOST_STARTING_MS 100 /* for a process from fork to exec */

/* --- a full tier ------------------------------------------------------------------------------ */

struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t kind;
    char name[];
};

/* NULL: there are no more names. */
const char *burst_next_name(struct listing *list)
{
    struct entry *entry;

    if (list->folder < 0)
        return NULL;
    if (list->at >= list->got) {
        list->got = syscall(SYS_getdents64, list->folder, list->room, PATH_BYTES);
        list->at = 0;
    }
    if (list->got <= 0)
        return NULL;
    entry = (struct entry *)(list->room + list->at);
    list->at += entry->bytes;
    return entry->name;
}

void burst_end_listing(const struct listing *list)
{
    if (list->folder >= 0)
        syscall(SYS_close, list->folder);
}

/* Whether a descriptor, by its link in /proc, refers to the file.  A target outside the tier is not
 * examined: another process may have the target on a file system that does not answer. */
static bool leads_to_data(const struct burst *state, const struct work *work, int folder,
                          const char *name)
{
    char target[TARGET_BYTES];
    struct stat found;
    long got = syscall(SYS_readlinkat, folder, name, target, sizeof target - 1);
    const char *base;

    if (got <= 0)
        return false;
    target[got] = 0;
    base = strrchr(target, '/');
    if (base &&
        !strcmp(base + 1, work->name)) /* in another's namespace the tier may be elsewhere */
        return true;
    return !strncmp(target, state->data, state->data_bytes) &&
           !syscall(SYS_newfstatat, folder, name, &found, 0) &&
           found.st_dev == work->found.st_dev && found.st_ino == work->found.st_ino;
}

/* Count the descriptors of the file in a process; `that_write`: only writable descriptors. */
static int descriptors_of(const struct burst *state, struct work *work, int proc, const char *who,
                          bool that_write)
{
    char path[32];
    struct listing list = {.room = work->text};
    struct stat link;
    const char *name;
    int count = 0;

    strcat(strcpy(path, who), "/fd");
    list.folder =
        (int)syscall(SYS_openat, proc, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    while ((name = burst_next_name(&list)))
        if (*name != '.' && leads_to_data(state, work, list.folder, name))
            count += !that_write ||
                     (!syscall(SYS_newfstatat, list.folder, name, &link, AT_SYMLINK_NOFOLLOW) &&
                      link.st_mode & S_IWUSR);
    burst_end_listing(&list);
    return count;
}

/* Whether another process may write to the file, as far as the process can be examined. */
static bool has_other_writer(const struct burst *state, struct work *work)
{
    struct listing list = {.room = work->path};
    char self[16] = "";
    const char *who;
    bool is_found = false;

    list.folder = (int)syscall(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    syscall(SYS_readlinkat, AT_FDCWD, "/proc/self", self, sizeof self - 1);
    while (!is_found && (who = burst_next_name(&list)))
        is_found = *who > '0' && *who <= '9' && strlen(who) < sizeof self && strcmp(who, self) &&
                   descriptors_of(state, work, list.folder, who, true) > 0;
    burst_end_listing(&list);
    return is_found;
}

/* Whether this process has a shared mapping of the file.  In a line, the mode of sharing is the
 * last letter of the second word. */
static bool is_mapped(struct work *work)
{
    int maps = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    bool is_found = false;
    char *line, *end;
    long got;

    while (!is_found && (got = syscall(SYS_read, maps, work->text, PATH_BYTES)) > 0) {
        work->text[got] = 0;
        for (line = work->text; (end = strchr(line, '\n')); line = end + 1) {
            char *rights = strchr(line, ' '), *path = strchr(line, '/');

            *end = 0;
            is_found |= rights && path && rights[4] == 's' && !strcmp(path, work->data);
        }
    }
    if (maps >= 0)
        syscall(SYS_close, maps);
    return is_found;
}

static void rest_ms(long ms)
{
    syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Whether writes of others to the file would be left behind.  A process just being started by
 * another thread has all our descriptors for a moment. */
static bool is_shared(const struct burst *state, struct work *work)
{
    int tries = MOST_STARTING_MS / 5;

    while (has_other_writer(state, work)) {
        if (!tries--)
            return true;
        rest_ms(5);
    }
    return is_mapped(work);
}

/* Whether any process may write to the file, or is writing, according to the kernel: the kernel
 * then refuses a lease.  False where the file system has no leases, or a server decides.  The
 * signal has no handler or effect: a process that opens the file meanwhile waits no longer than the
 * function takes. */
static bool has_writer(int from)
{
    struct statfs on;
    bool is_refused;

    if (syscall(SYS_fstatfs, from, &on) || (unsigned)on.f_type == NFS_SUPER_MAGIC ||
        (unsigned)on.f_type == CIFS_SUPER_MAGIC || (unsigned)on.f_type == SMB2_SUPER_MAGIC)
        return false;
    syscall(SYS_fcntl, from, F_SETSIG, (long)SIGURG);
    is_refused = syscall(SYS_fcntl, from, F_SETLEASE, (long)F_RDLCK) && errno == EAGAIN;
    syscall(SYS_fcntl, from, F_SETLEASE, (long)F_UNLCK);
    return is_refused;
}

/* Find the tier's names of the file behind a descriptor, and check that its link still stands;
 * false: the file is not on the tier, or other descriptors refer to the file too. */
static bool find_home(const struct burst *state, struct work *work, int fd)
{
    const char *name;
    size_t bytes;
    long got;

    if (files_link(fd, work->text) <= 0 || !(name = burst_name_on_tier(state, work->text)))
        return false;
    bytes = strlen(name);
    if (bytes >= sizeof DELETED && !strcmp(name + bytes - (sizeof DELETED - 1), DELETED))
        return false;
    burst_set_name(state, work, name);
    got = syscall(SYS_readlinkat, AT_FDCWD, work->home_link, work->path, PATH_BYTES);
    if (got <= 0 || got >= PATH_BYTES)
        return false;
    work->path[got] = 0;
    return burst_find_folder(work, AT_FDCWD, work->path) &&
           burst_read_link(state, work->parent, work->base, work->was) &&
           !strcmp(work->was, work->name) && !syscall(SYS_fstat, fd, &work->found) &&
           descriptors_of(state, work, AT_FDCWD, "/proc/self", false) == 1 &&
           !is_shared(state, work);
}

/* Find the newest file on the tier that this file replaced before the older file was home; into
 * work->older. */
static bool find_older(const struct burst *state, struct work *work)
{
    struct listing list = {.room = work->path};
    size_t end = sizeof BURST_HOME - 1, home_bytes = strlen(work->home);
    const char *name;

    *work->older = 0;
    list.folder =
        (int)syscall(SYS_openat, AT_FDCWD, state->home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while ((name = burst_next_name(&list))) {
        size_t bytes = strlen(name);
        long got;

        if (bytes <= end || bytes - end >= BURST_NAME_BYTES ||
            strcmp(name + bytes - end, BURST_HOME))
            continue;
        got = syscall(SYS_readlinkat, list.folder, name, work->text, PATH_BYTES);
        if (got != (long)home_bytes || memcmp(work->text, work->home, home_bytes) ||
            strncmp(name, work->older, bytes - end) <= 0 ||
            strncmp(name, work->name, bytes - end) >= 0)
            continue;
        memcpy(work->older, name, bytes - end);
        work->older[bytes - end] = 0;
    }
    burst_end_listing(&list);
    return *work->older;
}

/* A replaced file on the tier stays beside the path until the new file is complete: the drain
 * removes a file on the tier once the path no longer points there. */
static void keep_older(const struct burst *state, struct work *work)
{
    struct stat found = {0};
    int from, made;

    burst_set_beside(work->was, work->base, BURST_WAS);
    if (burst_name_exists(work->parent, work->was) || !find_older(state, work))
        return;
    strcat(strcpy(work->marked, state->data), work->older);
    burst_set_beside(work->beside, work->name, BURST_LINK);
    from = (int)syscall(SYS_openat, AT_FDCWD, work->marked, O_RDONLY | O_CLOEXEC);
    made = from < 0 ? -1
                    : (int)syscall(SYS_openat, work->parent, work->beside,
                                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (made >= 0) {
        bool is_there = !syscall(SYS_fstat, from, &found) && found.st_size &&
                        burst_copy_bytes(from, made, found.st_size) && !syscall(SYS_fsync, made);

        syscall(SYS_fchmod, made, found.st_mode & 07777);
        if (!is_there || syscall(SYS_renameat, work->parent, work->beside, work->parent, work->was))
            syscall(SYS_unlinkat, work->parent, work->beside, 0);
        syscall(SYS_close, made);
    }
    if (from >= 0)
        syscall(SYS_close, from);
}

static bool is_as_found(const struct work *work, int from)
{
    struct stat found;

    return !syscall(SYS_fstat, from, &found) && found.st_size == work->found.st_size &&
           found.st_mtim.tv_sec == work->found.st_mtim.tv_sec &&
           found.st_mtim.tv_nsec == work->found.st_mtim.tv_nsec;
}

/* Copy the file to its own path, instead of the link; -1: no room there either, or a process has
 * begun to write to the file, or changed its name. */
static int make_at_home(const struct burst *state, struct work *work, int from, int flags)
{
    int made;

    /* Not the drain's name: the drain may just be reading the copy back. */
    burst_set_beside(work->beside, work->name, BURST_LINK);
    made =
        (int)syscall(SYS_openat, work->parent, work->beside,
                     (flags & (O_ACCMODE | O_APPEND | O_NONBLOCK)) | O_CREAT | O_EXCL | O_CLOEXEC,
                     work->found.st_mode & 07777);
    if (made < 0)
        return -1;
    syscall(SYS_fchmod, made, work->found.st_mode & 07777);
    /* pwrite to a descriptor in append mode would append */
    syscall(SYS_fcntl, made, F_SETFL, (long)(flags & O_NONBLOCK));
    if (burst_copy_bytes(from, made, work->found.st_size) && !syscall(SYS_fsync, made) &&
        is_as_found(work, from) && !has_other_writer(state, work) &&
        burst_read_link(state, work->parent, work->base, work->was) &&
        !strcmp(work->was, work->name) &&
        !syscall(SYS_renameat, work->parent, work->beside, work->parent, work->base)) {
        syscall(SYS_fcntl, made, F_SETFL, (long)(flags & (O_APPEND | O_NONBLOCK)));
        return made;
    }
    syscall(SYS_unlinkat, work->parent, work->beside, 0);
    syscall(SYS_close, made);
    return -1;
}

/* Bring the file home, and let the tier forget the file.  Until then nothing has changed for the
 * program; afterwards the file is at the program's path.  The replaced file stays beside the path,
 * and the drain removes the replaced file when the new file is complete. */
static int bring(const struct burst *state, struct work *work, int from, int flags)
{
    int made;

    burst_set_is_marked(state, work, work->name, true);
    made = make_at_home(state, work, from, flags);
    if (made >= 0)
        syscall(SYS_unlinkat, AT_FDCWD, work->data, 0);
    burst_set_is_marked(state, work, work->name, false);
    burst_set_beside(work->was, work->base, BURST_WAS);
    if (made >= 0 &&
        syscall(SYS_newfstatat, work->parent, work->was, &work->found, AT_SYMLINK_NOFOLLOW))
        syscall(SYS_unlinkat, AT_FDCWD, work->home_link, 0);
    return made;
}

/* Open the file on the tier again, with the flags of the program's descriptor. */
static int open_again(struct work *work, int from, long flags)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, work->data, (flags & ~O_NONBLOCK) | O_CLOEXEC);

    if (fd < 0 && errno == EACCES) { /* the mode permits writes only to the maker */
        syscall(SYS_fchmod, from, (work->found.st_mode & 07777) | S_IRUSR | S_IWUSR);
        fd = (int)syscall(SYS_openat, AT_FDCWD, work->data, (flags & ~O_NONBLOCK) | O_CLOEXEC);
        syscall(SYS_fchmod, from, work->found.st_mode & 07777);
    }
    if (fd >= 0)
        syscall(SYS_fcntl, fd, F_SETFL, flags);
    return fd;
}

/* The program's descriptor leads to another file, at the same position. */
void burst_turn_fd(int fd, int to)
{
    long kept = syscall(SYS_fcntl, fd, F_GETFD);

    syscall(SYS_lseek, to, syscall(SYS_lseek, fd, 0, SEEK_CUR), SEEK_SET);
    syscall(SYS_dup3, to, fd, kept & FD_CLOEXEC ? O_CLOEXEC : 0);
}

static int n_moves; /* files moved by the process, or before its fork */

/* Calls of other threads under way must not end in the abandoned file: meanwhile the program's
 * descriptor is read-only, until the kernel knows of no writer.  A writing thread then waits in
 * burst_was_moved().  The drain sees a writer at every other time. */
static bool move(const struct burst *state, struct work *work, int fd, long flags)
{
    int from = (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_CLOEXEC);
    int tries = MOST_WRITING_MS, held, made = -1;
    bool is_written;

    if (from < 0)
        return false;
    __atomic_add_fetch(&n_moves, 1, __ATOMIC_RELEASE);
    burst_turn_fd(fd, from);
    while ((is_written = has_writer(from)) && tries--)
        rest_ms(1);
    held = open_again(work, from, flags);
    if (!is_written && !syscall(SYS_fstat, from, &work->found)) {
        keep_older(state, work);
        made = bring(state, work, from, (int)flags);
    }
    if (made >= 0 || held >= 0)
        burst_turn_fd(fd, made >= 0 ? made : held);
    if (made >= 0)
        syscall(SYS_close, made);
    if (held >= 0)
        syscall(SYS_close, held);
    syscall(SYS_close, from);
    return made >= 0;
}

/* A tier without room for a new file keeps the file to be replaced, which is complete: the older
 * file comes home first, and so leaves room.  Otherwise the call would empty the older file on the
 * tier. */
bool burst_bring_older(const struct burst *state, struct work *work)
{
    int from, made = -1;

    burst_set_name(state, work, work->older);
    from = (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        return false;
    if (!syscall(SYS_fstat, from, &work->found) && !has_writer(from) && !is_shared(state, work)) {
        struct timespec times[] = {work->found.st_atim, work->found.st_mtim};

        made = bring(state, work, from, O_WRONLY);
        if (made >= 0)
            syscall(SYS_utimensat, made, NULL, times, 0);
    }
    syscall(SYS_close, from);
    if (made >= 0)
        syscall(SYS_close, made);
    return made >= 0;
}

static int mover; /* the number of the moving thread; 0: none */

/* Only a single thread moves a file at a time, and other threads wait: their writes must go to the
 * file's new place.  The holder may vanish without an end: a forked child has none of the other
 * threads.  False: a signal handler has interrupted the holder itself. */
static bool take_turn(void)
{
    int self = (int)syscall(SYS_gettid), holder = 0;

    while (!__atomic_compare_exchange_n(&mover, &holder, self, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
        if (holder == self)
            return false;
        if (!syscall(SYS_tgkill, syscall(SYS_getpid), holder, 0) || errno != ESRCH) {
            rest_ms(1);
            holder = 0;
        }
    }
    return true;
}

static void end_turn(void)
{
    __atomic_store_n(&mover, 0, __ATOMIC_RELEASE);
}

static bool is_on_tier(const struct burst *state, int fd)
{
    struct work *work = burst_work_begin();
    bool is_ours = work && files_link(fd, work->text) > 0 && burst_name_on_tier(state, work->text);

    if (work)
        burst_work_end(work);
    return is_ours;
}

bool burst_escape(int fd)
{
    const struct burst *state = burst_state;
    int error = errno;
    bool has_moved = false;
    bool is_our_turn = state && take_turn();
    struct work *work = is_our_turn ? burst_work_begin() : NULL;
    long flags = syscall(SYS_fcntl, fd, F_GETFL);

    if (work && !is_on_tier(state, fd)) {
        has_moved = n_moves > 0; /* another thread has been quicker */
    } else if (work && flags >= 0) {
        has_moved = find_home(state, work, fd) && move(state, work, fd, flags);
        if (has_moved && files_state)
            files_closed(fd); /* the next use of the descriptor looks up the file */
    }
    if (work)
        burst_work_end(work);
    if (is_our_turn)
        end_turn();
    errno = error;
    return has_moved;
}

bool burst_was_moved(int fd)
{
    int error = errno;
    long flags = -1;

    if (__atomic_load_n(&n_moves, __ATOMIC_ACQUIRE) && take_turn()) {
        flags = syscall(SYS_fcntl, fd, F_GETFL);
        end_turn();
    }
    errno = error;
    return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

bool burst_has(int fd)
{
    const struct burst *state = burst_state;

    return state && is_on_tier(state, fd);
}

void burst_reserve(int fd, int64_t bytes)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct stat found;

    if (__atomic_load_n(&mover, __ATOMIC_ACQUIRE))
        burst_was_moved(fd); /* the file's end can then be changed */
    if (state && !syscall(SYS_fstat, fd, &found) && S_ISREG(found.st_mode) &&
        bytes > found.st_size && is_on_tier(state, fd) &&
        syscall(SYS_fallocate, fd, 1 /* the size stays */, 0, bytes) &&
        (errno == ENOSPC || errno == EDQUOT))
        burst_escape(fd);
    errno = error;
}
