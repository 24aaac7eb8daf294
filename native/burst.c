#include "burst.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "files.h"

#define BAD_POINTERS 65536 /* as in files.c: the kernel answers EFAULT to who names them */
#define PATH_BYTES 4096
#define DATA "/data/"
#define HOME "/home/"
#define DRAFT "/draft/"
#define PART ".penstock-part" /* ends the name of what our save engine and its drain write */
#define DELETED " (deleted)"  /* what /proc/self/fd adds to the name of a removed file */
#define ID_BYTES 26           /* 16 digits of time, 6 of the run, 2 of the process, a dash, 0 */
#define MOST_NAME_BYTES 200   /* of the program's name: ours is longer, and 255 is the end */
#define MOST_HOME_BYTES (PATH_BYTES - 64) /* the same of its path */
#ifndef CIFS_SUPER_MAGIC                  /* as in older headers */
#define CIFS_SUPER_MAGIC 0xff534d42u
#define SMB2_SUPER_MAGIC 0xfe534d42u
#endif
#define COPY_BYTES (1u << 20)
#define TARGET_BYTES (BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16) /* of a link, and a zero */
#define MOST_WRITING_MS 2000 /* that a call may take to write what it has begun to write */
#define MOST_STARTING_MS 100 /* that a process may take from its fork to its exec */
/* Of a question whose answer changes meanwhile; that for a kernel thread's exe does for ever. */
#define MOST_TRIES 8
/* ext4 keeps a link's target in the inode if it has fewer bytes: such a link takes no block, and is
 * made and removed in less time.  XFS, Btrfs and tmpfs keep longer ones there. */
#define INLINE_TARGET_BYTES 60
#define SHORTENED '~' /* begins what is left of a name on the tier */
/* Less than the second after which the drain takes the maker of a file for dead. */
#define MADE_QUICKLY_NS 300000000

struct burst {
    char folder[BURST_FOLDER_BYTES];
    char data[BURST_FOLDER_BYTES + sizeof DATA]; /* with its slash */
    char home[BURST_FOLDER_BYTES + sizeof HOME];
    size_t tier_bytes, data_bytes; /* of the folder above `folder` */
    char patterns[PATH_BYTES];
    uint32_t run; /* whose files they are: 24 bits that another run does not have */
};

HOT struct burst *burst_state;

/* What a call needs besides: mapped for it, as a handler's stack may hold no page. */
struct work {
    char name[BURST_NAME_BYTES]; /* on the tier */
    char data[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16];
    char home_link[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16];
    char beside[BURST_NAME_BYTES + 32]; /* a name in the program's folder */
    char was[BURST_NAME_BYTES + 32];
    char home[2 * PATH_BYTES]; /* the program's path, absolute */
    char text[PATH_BYTES + 16];
    char path[PATH_BYTES];
    char older[BURST_NAME_BYTES];
    char way[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 16];
    char marked[BURST_FOLDER_BYTES + BURST_NAME_BYTES + 32];
    char *base; /* of home: its last part */
    struct stat found;
    uint64_t made_ns; /* the time in a new name */
    int parent;
};

static void *map_private(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* One is kept: to map and unmap it takes as long as a call or two of the file system. */
static struct work *spare;

static struct work *begin_work(void)
{
    struct work *work = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQUIRE);

    if (!work) {
        work = map_private(sizeof *work);
    } else { /* as if it were new: its texts are empty */
        *work->name = *work->data = *work->home_link = *work->beside = *work->was = 0;
        *work->home = *work->text = *work->path = *work->older = *work->way = *work->marked = 0;
        work->base = NULL;
        work->found = (struct stat){0};
    }
    if (work)
        work->parent = -1;
    return work;
}

static void end_work(struct work *work)
{
    struct work *none = NULL;

    if (work->parent >= 0)
        syscall(SYS_close, work->parent);
    if (!__atomic_compare_exchange_n(&spare, &none, work, false, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED))
        syscall(SYS_munmap, work, sizeof *work);
}

/* --- on and off ------------------------------------------------------------------------------- */

int burst_start(const char *folder, const char *patterns, uint32_t run)
{
    struct burst *state;
    struct stat found;
    size_t bytes = strlen(folder);

    if (*folder != '/' || bytes >= BURST_FOLDER_BYTES || strlen(patterns) >= PATH_BYTES)
        return -ENAMETOOLONG;
    state = map_private(sizeof *state);
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

/* What it was stays mapped: a call of another thread may be using it. */
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

/* --- which files ------------------------------------------------------------------------------ */

/* * and ? as a shell has them, but that a dot at the beginning is a letter as any. */
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

/* What our save engine makes: it says itself when its files are safe, and where. */
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

/* --- names ------------------------------------------------------------------------------------ */

/* The name on the tier that a link's target or a descriptor's path leads to; NULL: it is none. */
static const char *name_on_tier(const struct burst *state, const char *path)
{
    const char *name = path + state->data_bytes;

    if (strncmp(path, state->data, state->data_bytes) || !*name || strchr(name, '/') ||
        strlen(name) >= BURST_NAME_BYTES)
        return NULL;
    return name;
}

/* The same of a link at a path, into `name`; false: there is no such link. */
static bool read_link(const struct burst *state, int dirfd, const char *path, char *name)
{
    char target[TARGET_BYTES];
    const char *found;
    long got = syscall(SYS_readlinkat, dirfd, path, target, sizeof target - 1);

    *name = 0;
    if (got <= 0 || got >= (long)sizeof target - 1)
        return false;
    target[got] = 0;
    found = name_on_tier(state, target);
    if (found)
        strcpy(name, found);
    return found;
}

static void set_name(const struct burst *state, struct work *work, const char *name)
{
    if (work->name != name)
        strcpy(work->name, name);
    strcat(strcpy(work->data, state->data), name);
    strcat(strcpy(work->home_link, state->home), name);
}

/* .NAME and what it is for: hidden, and beside the file, as a name can change within a file system
 * only. */
static void set_beside(char *beside, const char *name, const char *end)
{
    strcat(strcat(strcpy(beside, "."), name), end);
}

/* A file on the tier is marked when no path leads to it, or soon none will: before that, as who is
 * killed between the two has to leave what the drain may remove. */
static void set_is_marked(const struct burst *state, struct work *work, const char *name,
                          bool is_marked)
{
    if (!*name)
        return;
    strcat(strcpy(work->way, state->home), name);
    strcat(strcpy(work->marked, work->way), BURST_HOME);
    syscall(SYS_renameat, AT_FDCWD, is_marked ? work->way : work->marked, AT_FDCWD,
            is_marked ? work->marked : work->way);
}

/* A descriptor of the program's folder, and the file's absolute path; false: leave it alone. */
static bool find_folder(struct work *work, int dirfd, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t bytes = slash ? (size_t)(slash - path) + 1 : 1;
    const char *base = slash ? slash + 1 : path;

    if (bytes >= PATH_BYTES || !*base || strlen(base) >= BURST_NAME_BYTES)
        return false;
    memcpy(work->text, slash ? path : ".", bytes);
    work->text[bytes] = 0;
    work->parent = (int)syscall(SYS_openat, dirfd, work->text, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (work->parent < 0 || files_link(work->parent, work->home) <= 0 || *work->home != '/')
        return false;
    work->base = work->home + strlen(work->home);
    if (work->base[-1] != '/')
        *work->base++ = '/';
    strcpy(work->base, base);
    return true;
}

static char *digits(char *at, uint64_t number, int n)
{
    static const char figures[] = "0123456789abcdef";

    while (n-- > 0)
        *at++ = figures[number >> 4 * n & 15];
    return at;
}

/* What the name on the tier says of the program's: all of it, or as much of its end as leaves room
 * for the link's target in the link itself.  A file that replaces another one has all of it: the
 * drain asks by that name for what was there before. */
static void put_base(const struct burst *state, char *at, const char *base, bool is_first)
{
    size_t bytes = strlen(base), before = state->data_bytes + ID_BYTES - 1;
    size_t room = before + 2 < INLINE_TARGET_BYTES ? INLINE_TARGET_BYTES - 2 - before : 0;

    if (is_first && room && before + bytes >= INLINE_TARGET_BYTES) {
        base += bytes - room;
        while ((*base & 0xc0) == 0x80) /* the rest of a letter in UTF-8 */
            base++;
        *at++ = SHORTENED;
    }
    strcpy(at, base);
}

/* One that no other process has, on this node or on another that shares the tier: by the time in
 * ns, the run, and the process with a turn.  Should two meet all the same, the second open goes its
 * usual way.  is_first: nothing is at the program's path. */
static void new_name(const struct burst *state, struct work *work, bool is_first)
{
    static uint32_t turns;
    uint32_t turn = __atomic_add_fetch(&turns, 1, __ATOMIC_RELAXED);
    uint32_t who = ((uint32_t)syscall(SYS_getpid) + turn) & 0xff;
    char *at;

    work->made_ns = clock_ns(CLOCK_REALTIME);
    at = digits(work->name, work->made_ns, 16);
    at = digits(at, state->run << 8 | who, 8);
    *at++ = '-';
    put_base(state, at, work->base, is_first);
    set_name(state, work, work->name);
}

/* --- opens ------------------------------------------------------------------------------------ */

enum before { NOTHING, A_FILE, OUR_LINK, ELSE };

/* What lies at the program's path, and whether an open with these flags begins it anew. */
static enum before look(const struct burst *state, struct work *work, int flags)
{
    enum before before = ELSE;

    if (syscall(SYS_newfstatat, work->parent, work->base, &work->found, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? NOTHING : ELSE;
    if (flags & O_EXCL)
        return ELSE;
    if (S_ISLNK(work->found.st_mode) && read_link(state, work->parent, work->base, work->name)) {
        if (syscall(SYS_newfstatat, work->parent, work->base, &work->found, 0)) {
            work->found.st_mode = 0; /* lost with its tier: the new one's is as asked for */
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

enum kept { NOT_KEPT, KEPT, KEPT_BEFORE };

/* The earlier file keeps a name until the save that replaces it is home as a whole.  One that has
 * it already is of the last save that was, and stays: save/earlier.py lets go of all of them
 * together. */
static enum kept keep_file(int parent, const char *base, const char *was)
{
    char name[BURST_NAME_BYTES];

    if (!syscall(SYS_linkat, parent, base, parent, was, 0))
        return KEPT;
    if (errno != EEXIST)
        return NOT_KEPT;
    if (!read_link(burst_state, parent, was, name))
        return KEPT_BEFORE;
    syscall(SYS_unlinkat, parent, was, 0); /* of a drain that was killed as it gave one back */
    return syscall(SYS_linkat, parent, base, parent, was, 0) ? NOT_KEPT : KEPT;
}

static bool is_there(int parent, const char *name)
{
    struct stat found;

    return !syscall(SYS_newfstatat, parent, name, &found, AT_SYMLINK_NOFOLLOW);
}

static bool replace_file(struct work *work)
{
    enum kept kept = keep_file(work->parent, work->base, work->was);

    if (!kept)
        return false;
    if (!syscall(SYS_renameat, work->parent, work->beside, work->parent, work->base))
        return true;
    if (kept == KEPT)
        syscall(SYS_unlinkat, work->parent, work->was, 0);
    return false;
}

/* What has come home a moment ago is the earlier file now, if there is none yet. */
static bool set_aside(struct work *work)
{
    if (!syscall(SYS_renameat2, work->parent, work->beside, work->parent, work->was,
                 RENAME_NOREPLACE))
        return true;
    return errno != EEXIST && !is_there(work->parent, work->was) &&
           !syscall(SYS_renameat, work->parent, work->beside, work->parent, work->was);
}

/* The new link for the one that was there when we looked.  The drain may have put the file itself
 * in its place since: that is kept, until the new one counts. */
static bool swap_link(const struct burst *state, struct work *work)
{
    if (syscall(SYS_renameat2, work->parent, work->beside, work->parent, work->base,
                RENAME_EXCHANGE))
        return !syscall(SYS_renameat, work->parent, work->beside, work->parent, work->base);
    read_link(state, work->parent, work->beside, work->older); /* another one, if we were late */
    if (syscall(SYS_newfstatat, work->parent, work->beside, &work->found, AT_SYMLINK_NOFOLLOW) ||
        !S_ISREG(work->found.st_mode) || !set_aside(work))
        syscall(SYS_unlinkat, work->parent, work->beside, 0);
    return true;
}

/* The link at the program's path, in one moment; false: there is none. */
static bool set_link(const struct burst *state, struct work *work, enum before before)
{
    if (before == NOTHING)
        return !syscall(SYS_symlinkat, work->data, work->parent, work->base);
    set_beside(work->beside, work->name, BURST_LINK);
    if (syscall(SYS_symlinkat, work->data, work->parent, work->beside))
        return false;
    set_beside(work->was, work->base, BURST_WAS);
    set_is_marked(state, work, work->older, true);
    if (before == OUR_LINK ? swap_link(state, work) : replace_file(work)) {
        set_is_marked(state, work, work->older, true); /* the drain may have seen the link still */
        return true;
    }
    set_is_marked(state, work, work->older, false);
    syscall(SYS_unlinkat, work->parent, work->beside, 0);
    return false;
}

/* The way home is on the tier before the file, and the file before the link: a program that is
 * killed between two of them leaves what the drain can tell from a checkpoint.  -1, and errno where
 * the tier is the reason. */
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
        if (set_link(state, work, before)) {
            /* Held up for long, the drain may have taken us for dead and removed the way home.  A
             * clock that was set back counts as long: the difference is of unsigned numbers. */
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

static bool is_below_tier(const struct burst *state, const char *path)
{
    return state->tier_bytes && !strncmp(path, state->folder, state->tier_bytes) &&
           path[state->tier_bytes] == '/';
}

static bool copy(int from, int to, int64_t bytes)
{
    char *room = map_private(COPY_BYTES);
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

/* A file with two paths has two names on the tier: one of its own gets bytes of its own before it
 * is written to, as it will have at home.  Where there is no room, both change. */
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
    if (!copy(from, made, work->found.st_size) ||
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

    if (state && (uintptr_t)path >= BAD_POINTERS && read_link(state, dirfd, path, name))
        work = begin_work();
    if (work) {
        set_name(state, work, name);
        from = (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_CLOEXEC);
        if (from >= 0 && !syscall(SYS_fstat, from, &work->found) && work->found.st_nlink > 1)
            give_own_bytes(work, from);
        /* Lost, and about to be made anew on the tier, through the link: it needs a way home. */
        if (from < 0 && errno == ENOENT && makes && find_folder(work, dirfd, path))
            syscall(SYS_symlinkat, work->home, AT_FDCWD, work->home_link);
        if (from >= 0)
            syscall(SYS_close, from);
        end_work(work);
    }
    errno = error;
}

static bool is_full(int error)
{
    return error == ENOSPC || error == EDQUOT;
}

/* -1: make the call.  work->older: what it would empty on the tier. */
static int make_new(const struct burst *state, struct work *work, int flags, mode_t mode)
{
    enum before before = look(state, work, flags);

    strcpy(work->older, before == OUR_LINK ? work->name : "");
    new_name(state, work, before == NOTHING);
    errno = 0;
    return before == ELSE ? -1 : make_file(state, work, flags, mode, before);
}

static bool bring_older(const struct burst *state, struct work *work);

int burst_open(int dirfd, const char *path, int flags, mode_t mode)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work;
    int fd = -1;

    if (!state || (uintptr_t)path < BAD_POINTERS)
        return -1;
    work = makes_file(flags) && is_wanted(state, path) ? begin_work() : NULL;
    if (work) {
        if (find_folder(work, dirfd, path) && strlen(work->home) <= MOST_HOME_BYTES &&
            !is_below_tier(state, work->home)) {
            fd = make_new(state, work, flags, mode);
            if (fd < 0 && *work->older && is_full(errno) && bring_older(state, work))
                fd = make_new(state, work, flags, mode);
        }
        end_work(work);
    }
    if (fd < 0 && !(flags & O_EXCL))
        burst_writing(dirfd, path, flags & O_CREAT);
    errno = error;
    return fd;
}

/* --- a full tier ------------------------------------------------------------------------------ */

struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t kind;
    char name[];
};

struct listing {
    int folder;
    char *room; /* PATH_BYTES */
    long got, at;
};

/* NULL: that was the last one. */
static const char *next_name(struct listing *list)
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

static void end_listing(const struct listing *list)
{
    if (list->folder >= 0)
        syscall(SYS_close, list->folder);
}

/* Whether a descriptor, by its link in /proc, leads to the file.  What is not below the tier is not
 * asked for: another process may have it on a file system that does not answer. */
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

/* How many descriptors of a process lead to the file; `that_write`: such that can write to it. */
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
    while ((name = next_name(&list)))
        if (*name != '.' && leads_to_data(state, work, list.folder, name))
            count += !that_write ||
                     (!syscall(SYS_newfstatat, list.folder, name, &link, AT_SYMLINK_NOFOLLOW) &&
                      link.st_mode & S_IWUSR);
    end_listing(&list);
    return count;
}

/* Whether another process may write to the file: as far as it lets us look at it. */
static bool has_other_writer(const struct burst *state, struct work *work)
{
    struct listing list = {.room = work->path};
    char self[16] = "";
    const char *who;
    bool is_found = false;

    list.folder = (int)syscall(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    syscall(SYS_readlinkat, AT_FDCWD, "/proc/self", self, sizeof self - 1);
    while (!is_found && (who = next_name(&list)))
        is_found = *who > '0' && *who <= '9' && strlen(who) < sizeof self && strcmp(who, self) &&
                   descriptors_of(state, work, list.folder, who, true) > 0;
    end_listing(&list);
    return is_found;
}

/* Whether this process has memory that is the file's.  A line has the mode of sharing as the last
 * letter of its second word. */
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

/* Whether what is written to the file by others would be left behind.  A process that another
 * thread is just starting has all our descriptors for a moment. */
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

/* Whether anybody may write to the file, or is doing so, as the kernel has it: it gives no lease
 * then.  False where it gives none at all, or as a server likes.  The signal is one that nobody
 * hears: who comes in between waits for no longer than this takes. */
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

/* What the tier knows of the file behind a descriptor, and that its link still stands; false: it is
 * none of the tier's, or not only this descriptor's. */
static bool find_home(const struct burst *state, struct work *work, int fd)
{
    const char *name;
    size_t bytes;
    long got;

    if (files_link(fd, work->text) <= 0 || !(name = name_on_tier(state, work->text)))
        return false;
    bytes = strlen(name);
    if (bytes >= sizeof DELETED && !strcmp(name + bytes - (sizeof DELETED - 1), DELETED))
        return false;
    set_name(state, work, name);
    got = syscall(SYS_readlinkat, AT_FDCWD, work->home_link, work->path, PATH_BYTES);
    if (got <= 0 || got >= PATH_BYTES)
        return false;
    work->path[got] = 0;
    return find_folder(work, AT_FDCWD, work->path) &&
           read_link(state, work->parent, work->base, work->was) &&
           !strcmp(work->was, work->name) && !syscall(SYS_fstat, fd, &work->found) &&
           descriptors_of(state, work, AT_FDCWD, "/proc/self", false) == 1 &&
           !is_shared(state, work);
}

/* The newest file on the tier that this one has replaced before it was home, into work->older. */
static bool find_older(const struct burst *state, struct work *work)
{
    struct listing list = {.room = work->path};
    size_t end = sizeof BURST_HOME - 1, home_bytes = strlen(work->home);
    const char *name;

    *work->older = 0;
    list.folder =
        (int)syscall(SYS_openat, AT_FDCWD, state->home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while ((name = next_name(&list))) {
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
    end_listing(&list);
    return *work->older;
}

/* What a file has replaced on the tier, which the drain removes when the path no longer leads to
 * there, stays beside the path until the file is whole. */
static void keep_older(const struct burst *state, struct work *work)
{
    struct stat found = {0};
    int from, made;

    set_beside(work->was, work->base, BURST_WAS);
    if (is_there(work->parent, work->was) || !find_older(state, work))
        return;
    strcat(strcpy(work->marked, state->data), work->older);
    set_beside(work->beside, work->name, BURST_LINK);
    from = (int)syscall(SYS_openat, AT_FDCWD, work->marked, O_RDONLY | O_CLOEXEC);
    made = from < 0 ? -1
                    : (int)syscall(SYS_openat, work->parent, work->beside,
                                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (made >= 0) {
        bool is_there = !syscall(SYS_fstat, from, &found) && found.st_size &&
                        copy(from, made, found.st_size) && !syscall(SYS_fsync, made);

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

/* The file as it is, under its own name instead of the link; -1: no room there either, or somebody
 * has begun to write to it, or changed its name. */
static int make_at_home(const struct burst *state, struct work *work, int from, int flags)
{
    int made;

    /* Not the drain's name, which may be reading its copy back at this moment. */
    set_beside(work->beside, work->name, BURST_LINK);
    made =
        (int)syscall(SYS_openat, work->parent, work->beside,
                     (flags & (O_ACCMODE | O_APPEND | O_NONBLOCK)) | O_CREAT | O_EXCL | O_CLOEXEC,
                     work->found.st_mode & 07777);
    if (made < 0)
        return -1;
    syscall(SYS_fchmod, made, work->found.st_mode & 07777);
    /* pwrite of a descriptor that appends would append */
    syscall(SYS_fcntl, made, F_SETFL, (long)(flags & O_NONBLOCK));
    if (copy(from, made, work->found.st_size) && !syscall(SYS_fsync, made) &&
        is_as_found(work, from) && !has_other_writer(state, work) &&
        read_link(state, work->parent, work->base, work->was) && !strcmp(work->was, work->name) &&
        !syscall(SYS_renameat, work->parent, work->beside, work->parent, work->base)) {
        syscall(SYS_fcntl, made, F_SETFL, (long)(flags & (O_APPEND | O_NONBLOCK)));
        return made;
    }
    syscall(SYS_unlinkat, work->parent, work->beside, 0);
    syscall(SYS_close, made);
    return -1;
}

/* The same, and the tier forgets the file.  Until then nothing has changed for the program; from
 * then on the file is where it named it.  What it was before stays beside it, and the drain removes
 * that when the file is whole. */
static int bring(const struct burst *state, struct work *work, int from, int flags)
{
    int made;

    set_is_marked(state, work, work->name, true);
    made = make_at_home(state, work, from, flags);
    if (made >= 0)
        syscall(SYS_unlinkat, AT_FDCWD, work->data, 0);
    set_is_marked(state, work, work->name, false);
    set_beside(work->was, work->base, BURST_WAS);
    if (made >= 0 &&
        syscall(SYS_newfstatat, work->parent, work->was, &work->found, AT_SYMLINK_NOFOLLOW))
        syscall(SYS_unlinkat, AT_FDCWD, work->home_link, 0);
    return made;
}

/* Another descriptor of the file on the tier, as the program has one. */
static int open_again(struct work *work, int from, long flags)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, work->data, (flags & ~O_NONBLOCK) | O_CLOEXEC);

    if (fd < 0 && errno == EACCES) { /* made so that it can be written to by its maker alone */
        syscall(SYS_fchmod, from, (work->found.st_mode & 07777) | S_IRUSR | S_IWUSR);
        fd = (int)syscall(SYS_openat, AT_FDCWD, work->data, (flags & ~O_NONBLOCK) | O_CLOEXEC);
        syscall(SYS_fchmod, from, work->found.st_mode & 07777);
    }
    if (fd >= 0)
        syscall(SYS_fcntl, fd, F_SETFL, flags);
    return fd;
}

/* The program's descriptor leads to another file, at the same position. */
static void turn(int fd, int to)
{
    long kept = syscall(SYS_fcntl, fd, F_GETFD);

    syscall(SYS_lseek, to, syscall(SYS_lseek, fd, 0, SEEK_CUR), SEEK_SET);
    syscall(SYS_dup3, to, fd, kept & FD_CLOEXEC ? O_CLOEXEC : 0);
}

static int n_moves; /* files that this process, or the one that it is a copy of, has moved */

/* Calls of other threads that are under way must not end in what is left behind: meanwhile the
 * program's descriptor can only be read from, until the kernel knows of no writer.  Who writes then
 * waits in burst_was_moved().  The drain sees a writer all the time but for that moment. */
static bool move(const struct burst *state, struct work *work, int fd, long flags)
{
    int from = (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_CLOEXEC);
    int tries = MOST_WRITING_MS, held, made = -1;
    bool is_written;

    if (from < 0)
        return false;
    __atomic_add_fetch(&n_moves, 1, __ATOMIC_RELEASE);
    turn(fd, from);
    while ((is_written = has_writer(from)) && tries--)
        rest_ms(1);
    held = open_again(work, from, flags);
    if (!is_written && !syscall(SYS_fstat, from, &work->found)) {
        keep_older(state, work);
        made = bring(state, work, from, (int)flags);
    }
    if (made >= 0 || held >= 0)
        turn(fd, made >= 0 ? made : held);
    if (made >= 0)
        syscall(SYS_close, made);
    if (held >= 0)
        syscall(SYS_close, held);
    syscall(SYS_close, from);
    return made >= 0;
}

/* A tier that has no room for a new file keeps the one that it is to replace, which is whole: that
 * comes home first, and leaves room.  Else the call would empty it where it is. */
static bool bring_older(const struct burst *state, struct work *work)
{
    int from, made = -1;

    set_name(state, work, work->older);
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

static int mover; /* the number of the thread that moves a file; 0: none */

/* One thread moves at a time, and others wait for it: what they want to write has to go to where
 * the file is then.  It may be gone without an end: a forked child has none of the other threads.
 * False: it is the one that a signal's handler has interrupted. */
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
    struct work *work = begin_work();
    bool is_ours = work && files_link(fd, work->text) > 0 && name_on_tier(state, work->text);

    if (work)
        end_work(work);
    return is_ours;
}

bool burst_escape(int fd)
{
    const struct burst *state = burst_state;
    int error = errno;
    bool has_moved = false;
    bool is_our_turn = state && take_turn();
    struct work *work = is_our_turn ? begin_work() : NULL;
    long flags = syscall(SYS_fcntl, fd, F_GETFL);

    if (work && !is_on_tier(state, fd)) {
        has_moved = n_moves > 0; /* another thread has been quicker */
    } else if (work && flags >= 0) {
        has_moved = find_home(state, work, fd) && move(state, work, fd, flags);
        if (has_moved && files_state)
            files_closed(fd); /* which file it is now is asked when it is used */
    }
    if (work)
        end_work(work);
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
        burst_was_moved(fd); /* it has an end that can be changed then */
    if (state && !syscall(SYS_fstat, fd, &found) && S_ISREG(found.st_mode) &&
        bytes > found.st_size && is_on_tier(state, fd) &&
        syscall(SYS_fallocate, fd, 1 /* the size stays */, 0, bytes) &&
        (errno == ENOSPC || errno == EDQUOT))
        burst_escape(fd);
    errno = error;
}

/* --- names that change ------------------------------------------------------------------------ */

static void find_change(struct burst_change *change, int dirfd, const char *path)
{
    const struct burst *state = burst_state;

    change->name[0] = change->over[0] = 0;
    change->is_kept = change->is_aside = false;
    if (state && (uintptr_t)path >= BAD_POINTERS)
        read_link(state, dirfd, path, change->name);
}

/* The link home and, in work->text, its name when it is marked. */
static void set_marked(const struct burst *state, struct work *work, const char *name)
{
    set_name(state, work, name);
    strcat(strcpy(work->text, work->home_link), BURST_HOME);
}

void burst_removing(struct burst_change *change, int dirfd, const char *path)
{
    int error = errno;
    struct work *work;

    find_change(change, dirfd, path);
    work = *change->name ? begin_work() : NULL;
    if (work) {
        set_is_marked(burst_state, work, change->name, true);
        end_work(work);
    }
    errno = error;
}

/* The program's own path, as the tier knows it, into work->path. */
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

/* Whether a link of that path leads to the file. */
static bool leads_to(const struct burst *state, struct work *work, const char *path)
{
    return read_link(state, AT_FDCWD, path, work->was) && !strcmp(work->was, work->name);
}

/* A program may copy the link.  Where its own path leads to the file still nothing has changed;
 * where that is another one by now, the drain looks whether any does. */
static void remove_file(const struct burst *state, struct work *work, const char *name, int dirfd,
                        const char *path)
{
    if (!find_folder(work, dirfd, path))
        return;
    set_beside(work->was, work->base, BURST_WAS);
    syscall(SYS_unlinkat, work->parent, work->was, 0);
    set_marked(state, work, name);
    if (!find_path(work))
        return;
    if (!strcmp(work->path, work->home)) {
        syscall(SYS_unlinkat, AT_FDCWD, work->data, 0);
        syscall(SYS_unlinkat, AT_FDCWD, work->home_link, 0);
        syscall(SYS_unlinkat, AT_FDCWD, work->text, 0);
    } else if (leads_to(state, work, work->path)) {
        set_is_marked(state, work, name, false);
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

/* How many names of ours are in a folder; -1: others are, too.  One that leads to the tier is of a
 * drain that was killed as it had just put the file here: that has gone since. */
static int names_of_ours(const struct burst *state, struct work *work, int folder, bool is_removing)
{
    struct listing list = {.folder = folder, .room = work->text};
    const char *name;
    int count = 0;

    syscall(SYS_lseek, folder, 0, SEEK_SET);
    while ((name = next_name(&list))) {
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        if (!burst_is_ours(name))
            return -1;
        count++;
        if (!is_removing)
            continue;
        if (read_link(state, folder, name, work->older))
            set_is_marked(state, work, work->older, true);
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

    if (!state || (error != ENOTEMPTY && error != EEXIST) || !(work = begin_work()))
        return false;
    folder = (int)syscall(SYS_openat, dirfd, path,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (folder >= 0) {
        /* The drain may have removed its name itself since. */
        is_empty = names_of_ours(state, work, folder, false) >= 0 &&
                   names_of_ours(state, work, folder, true) >= 0;
        syscall(SYS_close, folder);
    }
    end_work(work);
    errno = error;
    return is_empty;
}

void burst_removed(const struct burst_change *change, int dirfd, const char *path,
                   bool has_succeeded)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = *change->name ? begin_work() : NULL;

    if (work && has_succeeded) {
        remove_file(state, work, change->name, dirfd, path);
    } else if (work) {
        set_is_marked(state, work, change->name, false);
    }
    if (work)
        end_work(work);
    errno = error;
}

static bool gives_no_links(int error)
{
    return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

/* What is on the slow tier already must not go before the new one is there. */
void burst_renaming(struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                    const char *to)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = NULL;

    find_change(change, dirfd, path);
    if (state && (uintptr_t)to >= BAD_POINTERS && read_link(state, to_dirfd, to, change->over) &&
        !strcmp(change->over, change->name))
        change->over[0] = 0;
    if ((*change->name || *change->over) && (uintptr_t)to >= BAD_POINTERS)
        work = begin_work();
    if (work && *change->over) {
        set_is_marked(state, work, change->over, true);
    } else if (work) {
        if (find_folder(work, to_dirfd, to) &&
            !syscall(SYS_newfstatat, work->parent, work->base, &work->found, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(work->found.st_mode)) {
            enum kept kept;

            set_beside(work->was, work->base, BURST_WAS);
            kept = keep_file(work->parent, work->base, work->was);
            change->is_kept = kept == KEPT;
            if (!kept && !change->flags && gives_no_links(errno) &&
                !is_there(work->parent, work->was))
                change->is_kept = change->is_aside =
                    !syscall(SYS_renameat, work->parent, work->base, work->parent, work->was);
        }
    }
    if (work)
        end_work(work);
    errno = error;
}

/* A link on the tier that leads to work->home from now on. */
static void put_link(const struct work *work, int folder, const char *way, char *draft)
{
    strcat(strcpy(draft, way), BURST_LINK);
    syscall(SYS_unlinkat, folder, draft, 0);
    if (!syscall(SYS_symlinkat, work->home, folder, draft))
        syscall(SYS_renameat, folder, draft, folder, way);
}

/* What a file has replaced goes with it, unless there is an earlier file at its new name. */
static void move_was(const struct work *to, int dirfd, const char *path)
{
    struct work *work = begin_work();

    if (work && find_folder(work, dirfd, path)) {
        set_beside(work->was, work->base, BURST_WAS);
        if (is_there(to->parent, to->was))
            syscall(SYS_unlinkat, work->parent, work->was, 0);
        else
            syscall(SYS_renameat, work->parent, work->was, to->parent, to->was);
    }
    if (work)
        end_work(work);
}

static void set_renamed(const struct burst *state, const struct burst_change *change,
                        struct work *work, int dirfd, const char *path, int to_dirfd,
                        const char *to, bool has_succeeded)
{
    set_name(state, work, change->name);
    if (!find_folder(work, to_dirfd, to))
        return;
    set_beside(work->was, work->base, BURST_WAS);
    if (has_succeeded && *change->name) {
        put_link(work, AT_FDCWD, work->home_link, work->text);
        if (!*change->over || !(change->flags & RENAME_EXCHANGE)) /* else each keeps its own */
            move_was(work, dirfd, path);
    } else if (!has_succeeded && change->is_aside) {
        syscall(SYS_renameat2, work->parent, work->was, work->parent, work->base, RENAME_NOREPLACE);
    } else if (has_succeeded ? *change->over : change->is_kept) {
        syscall(SYS_unlinkat, work->parent, work->was, 0);
    }
}

/* What the new name led to: no path leads there now, unless the two were exchanged. */
static void end_over(const struct burst *state, const struct burst_change *change,
                     struct work *work, int dirfd, const char *path, bool has_succeeded)
{
    bool is_there = has_succeeded && read_link(state, dirfd, path, work->older) &&
                    !strcmp(work->older, change->over);

    set_is_marked(state, work, change->over, has_succeeded && !is_there);
    set_name(state, work, change->over);
    if (is_there && find_folder(work, dirfd, path))
        put_link(work, AT_FDCWD, work->home_link, work->text);
    if (work->parent >= 0)
        syscall(SYS_close, work->parent);
    work->parent = -1;
}

/* A link home that leads below the folder of `was` leads below that of `work` now. */
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

/* A folder has another name: so have all in it that the tier's links of this kind lead to. */
static void move_ways(const struct burst *state, struct work *work, const struct work *was,
                      const char *kind)
{
    struct listing list = {.folder = -1, .room = work->text};
    const char *name;

    strcat(strcpy(work->data, state->folder), kind);
    list.folder =
        (int)syscall(SYS_openat, AT_FDCWD, work->data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while ((name = next_name(&list)))
        move_way(work, was, list.folder, name);
    end_listing(&list);
}

void burst_moved(int dirfd, const char *path, int to_dirfd, const char *to)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = NULL, *was = NULL;
    struct stat found;

    if (state && !syscall(SYS_newfstatat, to_dirfd, to, &found, AT_SYMLINK_NOFOLLOW) &&
        S_ISDIR(found.st_mode)) {
        work = begin_work();
        was = begin_work();
    }
    if (work && was && find_folder(was, dirfd, path) && find_folder(work, to_dirfd, to)) {
        move_ways(state, work, was, HOME);
        move_ways(state, work, was, DRAFT);
    }
    if (work)
        end_work(work);
    if (was)
        end_work(was);
    errno = error;
}

void burst_renamed(const struct burst_change *change, int dirfd, const char *path, int to_dirfd,
                   const char *to, bool has_succeeded)
{
    const struct burst *state = burst_state;
    int error = errno;
    struct work *work = begin_work();

    if (work) {
        if (*change->over)
            end_over(state, change, work, dirfd, path, has_succeeded);
        if (has_succeeded || change->is_kept)
            set_renamed(state, change, work, dirfd, path, to_dirfd, to, has_succeeded);
        end_work(work);
    }
    errno = error;
}

/* --- disguise --------------------------------------------------------------------------------- */

/* What stands where a link was found, as the drain and other processes change it meanwhile:
 * OUR_LINK, and the file itself in `target`; ELSE: a link of the program's own, one to what is
 * lost, or a descriptor's in /proc, whose size is another one; A_FILE: no link; NOTHING. */
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
        if (!name_on_tier(state, target))
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

/* Of one of the two calls. */
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
    const char *name = name_on_tier(state, real);
    int error = errno;
    struct work *work = name ? begin_work() : NULL;
    bool is_found = !work;

    if (work) {
        set_name(state, work, name);
        is_found = find_folder(work, AT_FDCWD, path) && leads_to(state, work, work->home);
        if (is_found) {
            strcpy(real, work->home);
        } else { /* by a link of the program's own */
            set_marked(state, work, name);
            is_found = find_path(work) && leads_to(state, work, work->path);
            if (is_found)
                strcpy(real, work->path);
        }
        end_work(work);
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

/* Why a file on the tier gets no second name there.  1: it is not there any more.  Else the path
 * is on another file system than the file: a program copies then, as where it was so before. */
static int no_second(void)
{
    return errno == ENOENT ? 1 : -EXDEV;
}

/* The link at the new path leads to another name of the file on the tier, so that each path has its
 * own, which comes home and goes by itself.  The way home is marked until that link is there.
 * 1: as no_second(); -errno: it is not there. */
static int put_at(const struct burst *state, struct work *work, int dirfd, const char *path)
{
    char from[sizeof work->data];
    const char *slash = strrchr(path, '/');
    int error;

    strcpy(from, work->data);
    errno = strlen(slash ? slash + 1 : path) < BURST_NAME_BYTES ? ENOENT : ENAMETOOLONG;
    if (!find_folder(work, dirfd, path))
        return -errno;
    if (is_below_tier(state, work->home) || strlen(work->base) > MOST_NAME_BYTES ||
        strlen(work->home) > MOST_HOME_BYTES)
        return -EXDEV;
    new_name(state, work, true);
    set_marked(state, work, work->name);
    if (!put_second(work, from)) {
        error = no_second();
    } else if (!set_link(state, work, NOTHING)) {
        error = -errno;
    } else if (!put_second(work, from)) { /* held up for long, the drain has taken us for dead */
        error = no_second();
        if (leads_to(state, work, work->home))
            syscall(SYS_unlinkat, work->parent, work->base, 0);
    } else {
        set_is_marked(state, work, work->name, false);
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
    while (result > 0 && read_link(state, from_dirfd, from, name)) {
        struct work *work = tries-- ? begin_work() : NULL;

        result = tries < 0 ? -ENOENT : -ENOMEM; /* lost with its tier */
        if (work) {
            set_name(state, work, name);
            result = put_at(state, work, dirfd, path);
            end_work(work);
        }
    }
    errno = result < 0 ? -result : error;
    return result < 0 ? -1 : result;
}
