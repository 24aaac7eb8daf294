#include "copier.h"
#include "write.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXCHANGE 2 /* RENAME_EXCHANGE of linux/fs.h */
#define NAME_BYTES 320
#define TARGET_BYTES 4096
/* As in native/burst.h and save/burst/file.py. */
#define NEW ".penstock-new"
#define HOME ".penstock-home"

/* The library's private data of a file. */
struct own {
    const char *name, *base; /* on the tier; in the program's folder */
    char *bytes;             /* during the copy: the file's bytes, with room for another byte */
    int copy;                /* descriptor: the copy, opened to be read back; -1: none */
};

struct copier {
    struct copier_file *files;
    struct own *owns;
    const int32_t *folders;
    char *names, *data_path;
    size_t data_path_bytes;
    uint32_t n;
    int data, home;
    double settle_s;
};

struct copier *penstock_copier_open(const char *names, uint32_t n, struct copier_file *files,
                                    const int32_t *folders, const char *data_path, int32_t data,
                                    int32_t home, double settle_s)
{
    struct copier *copier = calloc(1, sizeof *copier);
    const char *end = names;
    uint32_t i;

    if (!copier)
        return NULL;
    for (i = 0; i < 2 * n; i++)
        end += strlen(end) + 1;
    *copier = (struct copier){
        .files = files,
        .owns = calloc(n ? n : 1, sizeof *copier->owns),
        .folders = folders,
        .names = malloc((size_t)(end - names) + 1),
        .data_path = strdup(data_path),
        .data_path_bytes = strlen(data_path),
        .n = n,
        .data = data,
        .home = home,
        .settle_s = settle_s,
    };
    if (!copier->owns || !copier->names || !copier->data_path) {
        copier->n = 0;
        penstock_copier_close(copier);
        return NULL;
    }
    memcpy(copier->names, names, (size_t)(end - names));
    end = copier->names;
    for (i = 0; i < n; i++) {
        copier->owns[i].name = end;
        copier->owns[i].base = end + strlen(end) + 1;
        copier->owns[i].copy = -1;
        end = copier->owns[i].base + strlen(copier->owns[i].base) + 1;
    }
    return copier;
}

static void end_copy(struct own *own)
{
    free(own->bytes);
    own->bytes = NULL;
    if (own->copy >= 0)
        syscall(SYS_close, own->copy);
    own->copy = -1;
}

void penstock_copier_close(struct copier *copier)
{
    for (uint32_t i = 0; i < copier->n; i++)
        end_copy(&copier->owns[i]);
    free(copier->owns);
    free(copier->names);
    free(copier->data_path);
    free(copier);
}

/* --- a file ----------------------------------------------------------------------------------- */

static int64_t ns_of(struct timespec time)
{
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static struct timespec time_of(int64_t ns)
{
    int64_t rest = ns % INT64_C(1000000000);

    rest += rest < 0 ? INT64_C(1000000000) : 0;
    return (struct timespec){.tv_sec = (ns - rest) / INT64_C(1000000000), .tv_nsec = rest};
}

static void fail(struct copier_file *file, struct own *own)
{
    file->error = errno;
    file->state = COPIER_FAILED;
    end_copy(own);
}

static void end_as(struct copier_file *file, struct own *own, enum copier_state state)
{
    file->state = state;
    end_copy(own);
}

/* .NAMEend; false: refused by the kernel. */
static bool set_name(char *to, const char *before, const char *name, const char *end)
{
    if (strlen(before) + strlen(name) + strlen(end) >= NAME_BYTES) {
        errno = ENAMETOOLONG;
        return false;
    }
    strcat(strcat(strcpy(to, before), name), end);
    return true;
}

static int open_source(const struct copier *copier, const struct own *own)
{
    return (int)syscall(SYS_openat, copier->data, own->name,
                        O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/* Whether no process has the file open for writing, as in small/lease.py.  The lease, if the file
 * system has leases, ends with the descriptor: until then a writer waits in open.  The kernel
 * signals a writer by SIGURG; the signal is ignored. */
static bool is_free(const struct copier *copier, int fd, bool *is_leased)
{
    struct timespec now;
    struct stat found;

    *is_leased = !syscall(SYS_fcntl, fd, F_SETSIG, (long)SIGURG) &&
                 !syscall(SYS_fcntl, fd, F_SETLEASE, (long)F_RDLCK);
    if (*is_leased)
        return true;
    if (errno == EAGAIN || clock_gettime(CLOCK_REALTIME, &now) || syscall(SYS_fstat, fd, &found))
        return false;
    return (double)(ns_of(now) - ns_of(found.st_mtim)) / 1e9 > copier->settle_s;
}

/* Whether no process has written to the file.  A second path, or the end of a path, changes only
 * the ctime. */
static bool is_as_before(const struct copier_file *file, const struct stat *now)
{
    return now->st_size == file->size_bytes && ns_of(now->st_mtim) == file->mtime_ns &&
           (now->st_nlink != file->n_links || ns_of(now->st_ctim) == file->ctime_ns);
}

static bool leads_to_source(const struct copier *copier, const struct own *own, int folder,
                            const char *base)
{
    char target[TARGET_BYTES];
    size_t before = copier->data_path_bytes;
    long got = syscall(SYS_readlinkat, folder, base, target, sizeof target - 1);

    if (got <= (long)before || got >= (long)sizeof target - 1)
        return false;
    target[got] = 0;
    return !memcmp(target, copier->data_path, before) && target[before] == '/' &&
           !strcmp(target + before + 1, own->name);
}

/* --- copy --------------------------------------------------------------------------- */

/* As may_be_torn() of burst/file.py: whether the file may be torn, judged by the first bytes. */
static bool may_be_torn(const struct copier_file *file, const char *bytes)
{
    static const char *const heads[] = {"PK\3\4", "\x89HDF", "\x93NUMPY", "GGUF"};
    size_t size = (size_t)file->size_bytes, i;

    if (!size || file->flags & COPIER_IS_JUDGED)
        return true;
    for (i = 0; i < sizeof heads / sizeof *heads; i++)
        if (size >= strlen(heads[i]) && !memcmp(bytes, heads[i], strlen(heads[i])))
            return true;
    return file->flags & COPIER_IS_TORCH && *bytes == '\x80';
}

static void set_found(struct copier_file *file, const struct stat *found)
{
    file->size_bytes = found->st_size;
    file->mtime_ns = ns_of(found->st_mtim);
    file->atime_ns = ns_of(found->st_atim);
    file->ctime_ns = ns_of(found->st_ctim);
    file->device = found->st_dev;
    file->inode = found->st_ino;
    file->mode = found->st_mode;
    file->n_links = (uint32_t)found->st_nlink;
    file->is_sparse = copier_is_sparse(found);
}

static void read_opened(const struct copier *copier, struct copier_file *file, struct own *own,
                        int source)
{
    struct stat found;
    bool is_leased;
    long got;

    if (!is_free(copier, source, &is_leased)) {
        file->state = COPIER_BUSY;
        return;
    }
    /* After the lease, so that no process writes before the reading. */
    if (syscall(SYS_fstat, source, &found)) {
        fail(file, own);
        return;
    }
    set_found(file, &found);
    if (!S_ISREG(found.st_mode) || found.st_size > COPIER_LARGEST) {
        file->state = COPIER_LARGE;
        return;
    }
    own->bytes = malloc((size_t)found.st_size + 1);
    got = own->bytes ? syscall(SYS_pread64, source, own->bytes, found.st_size + 1, 0L) : -1;
    if (got < 0)
        fail(file, own);
    else if (got != found.st_size)
        end_as(file, own, COPIER_CHANGED);
    else
        file->state = COPIER_READ;
}

/* The draft of a killed drain gives way; the draft is ours alone, as the name shows. */
static int make_copy(int folder, const char *new, mode_t mode)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int copy = (int)syscall(SYS_openat, folder, new, flags, mode);

    if (copy < 0 && errno == EEXIST && !syscall(SYS_unlinkat, folder, new, 0))
        copy = (int)syscall(SYS_openat, folder, new, flags, mode);
    return copy;
}

static bool write_opened(struct copier_file *file, const struct own *own, int copy)
{
    struct timespec times[] = {time_of(file->atime_ns), time_of(file->mtime_ns)};
    struct stat made;

    if (!copier_write(copy, own->bytes, (size_t)file->size_bytes, file->is_sparse) ||
        syscall(SYS_fstat, copy, &made))
        return false;
    file->new_device = made.st_dev;
    file->new_inode = made.st_ino;
    if ((made.st_mode & 07777) != (file->mode & 07777) && /* the umask has taken bits */
        syscall(SYS_fchmod, copy, file->mode & 07777))
        return false;
    return !syscall(SYS_utimensat, copy, NULL, times, 0);
}

/* Write the bytes in memory; after a failure they stay there, so that the caller may try again. */
static void write_copy(const struct copier *copier, struct copier_file *file, struct own *own)
{
    int folder = copier->folders[file->folder], copy = -1;
    char new[NAME_BYTES];

    if (set_name(new, ".", own->name, NEW))
        copy = make_copy(folder, new, file->mode & 0777);
    if (copy >= 0 && write_opened(file, own, copy)) {
        file->state = COPIER_WRITTEN;
    } else {
        file->error = errno;
        file->state = COPIER_FAILED;
        if (copy >= 0)
            syscall(SYS_unlinkat, folder, new, 0);
    }
    if (copy >= 0)
        syscall(SYS_close, copy);
}

void penstock_copier_copy(struct copier *copier, uint32_t start, uint32_t end)
{
    for (uint32_t i = start; i < end; i++) {
        struct copier_file *file = &copier->files[i];
        struct own *own = &copier->owns[i];

        if (file->state == COPIER_NEW) {
            int source = open_source(copier, own);

            if (source >= 0) {
                read_opened(copier, file, own, source);
                syscall(SYS_close, source);
            } else if (errno == ENOENT) {
                file->state = COPIER_BUSY;
            } else {
                fail(file, own);
            }
        }
        if (file->state != COPIER_READ)
            continue;
        if (!(file->flags & COPIER_IS_CLEARED) && may_be_torn(file, own->bytes))
            file->state = COPIER_OPEN;
        else
            write_copy(copier, file, own);
    }
}

/* --- place ------------------------------------------------------------------------------------ */

/* Drop the copy's pages and begin to read them from the device again. */
static void open_copy(const struct copier *copier, struct copier_file *file, struct own *own)
{
    char new[NAME_BYTES];

    set_name(new, ".", own->name, NEW);
    own->copy = (int)syscall(SYS_openat, copier->folders[file->folder], new,
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (own->copy < 0) {
        fail(file, own);
        return;
    }
    syscall(SYS_fadvise64, own->copy, 0L, 0L, (long)POSIX_FADV_DONTNEED);
    syscall(SYS_fadvise64, own->copy, 0L, 0L, (long)POSIX_FADV_WILLNEED);
}

/* Whether the copy was read and has the file's bytes; else the file's state says why. */
static bool reads_back(struct copier_file *file, struct own *own, char *room)
{
    long got = room ? syscall(SYS_pread64, own->copy, room, (size_t)file->size_bytes + 1, 0L) : -1;

    if (got < 0) {
        fail(file, own);
        return false;
    }
    if (got == file->size_bytes && !memcmp(room, own->bytes, (size_t)got))
        return true;
    end_as(file, own, COPIER_DIFFERS);
    return false;
}

static bool is_copy(const struct copier_file *file, int folder, const char *name)
{
    struct stat found;

    return !syscall(SYS_newfstatat, folder, name, &found, AT_SYMLINK_NOFOLLOW) &&
           found.st_dev == file->new_device && found.st_ino == file->new_inode;
}

/* Exchange the copy and the link atomically.  If the program has changed the path just before, the
 * entry from there goes back at once. */
static enum copier_state exchange(const struct copier *copier, const struct copier_file *file,
                                  const struct own *own, int folder, const char *new)
{
    if (!leads_to_source(copier, own, folder, own->base))
        return COPIER_LATE;
    if (syscall(SYS_renameat2, folder, new, folder, own->base, EXCHANGE)) {
        if (errno == ENOENT)
            return COPIER_LATE;
        return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? COPIER_NO_EXCHANGE
                                                                         : COPIER_FAILED;
    }
    if (leads_to_source(copier, own, folder, new))
        return COPIER_PLACED;
    if (!syscall(SYS_renameat2, folder, new, folder, own->base, EXCHANGE)) {
        if (is_copy(file, folder, new))
            return COPIER_LATE;
        /* The program was quicker again: the caller starts from the first exchange. */
        syscall(SYS_renameat2, folder, new, folder, own->base, EXCHANGE);
    }
    return COPIER_TAKEN;
}

/* Returns false if the caller has to act before the next file. */
static bool place_verified(const struct copier *copier, struct copier_file *file, struct own *own)
{
    int folder = copier->folders[file->folder];
    int source = open_source(copier, own);
    enum copier_state state;
    bool is_leased;
    struct stat now;
    char new[NAME_BYTES];

    if (source < 0) {
        fail(file, own);
        return true;
    }
    set_name(new, ".", own->name, NEW);
    /* The lease before the last look: from then on a writer waits. */
    if (!is_free(copier, source, &is_leased) || syscall(SYS_fstat, source, &now) ||
        !is_as_before(file, &now))
        state = COPIER_CHANGED;
    else
        state = exchange(copier, file, own, folder, new);
    file->error = errno;
    if (state == COPIER_PLACED && is_leased && syscall(SYS_fcntl, source, F_GETLEASE) == F_UNLCK) {
        state = COPIER_WANTED;
        file->descriptor = source;
        source = -1;
    } else if (state == COPIER_TAKEN) {
        file->descriptor = own->copy;
        own->copy = -1;
    }
    end_as(file, own, state);
    if (source >= 0)
        syscall(SYS_close, source);
    return state != COPIER_TAKEN && state != COPIER_WANTED;
}

uint32_t penstock_copier_place(struct copier *copier, uint32_t start, uint32_t end)
{
    char *room = malloc(COPIER_LARGEST + 1);
    uint32_t i;

    for (i = start; i < end; i++)
        if (copier->files[i].state == COPIER_WRITTEN && copier->owns[i].copy < 0)
            open_copy(copier, &copier->files[i], &copier->owns[i]);
    for (i = start; i < end; i++) {
        struct copier_file *file = &copier->files[i];
        struct own *own = &copier->owns[i];

        if (file->state != COPIER_WRITTEN)
            continue;
        if (reads_back(file, own, room) && !place_verified(copier, file, own)) {
            i++;
            break;
        }
    }
    free(room);
    return i;
}

void penstock_copier_clear(struct copier *copier, uint32_t start, uint32_t end)
{
    for (uint32_t i = start; i < end; i++) {
        char new[NAME_BYTES];

        if (copier->files[i].state == COPIER_PLACED &&
            set_name(new, ".", copier->owns[i].name, NEW))
            syscall(SYS_unlinkat, copier->folders[copier->files[i].folder], new, 0);
    }
}

/* --- drop ------------------------------------------------------------------------------------- */

/* First the file, then the links to the program's path, as drop() of save/burst/file.py. */
static void drop_opened(const struct copier *copier, struct copier_file *file,
                        const struct own *own, int source)
{
    char marked[NAME_BYTES];
    struct stat now;
    bool is_leased;

    if (!is_free(copier, source, &is_leased) || syscall(SYS_fstat, source, &now) ||
        !is_as_before(file, &now))
        return;
    syscall(SYS_unlinkat, copier->data, own->name, 0);
    if (syscall(SYS_unlinkat, copier->home, own->name, 0) && set_name(marked, "", own->name, HOME))
        syscall(SYS_unlinkat, copier->home, marked, 0);
    file->state = COPIER_DROPPED;
}

void penstock_copier_drop(struct copier *copier, uint32_t start, uint32_t end)
{
    char target[8];

    for (uint32_t i = start; i < end; i++) {
        struct copier_file *file = &copier->files[i];
        struct own *own = &copier->owns[i];
        int source;

        if (file->state != COPIER_PLACED)
            continue;
        file->state = COPIER_KEPT;
        /* A link belongs to a newer file, possibly torn: then this file is the earlier file. */
        if (syscall(SYS_readlinkat, copier->folders[file->folder], own->base, target,
                    sizeof target) >= 0)
            continue;
        source = open_source(copier, own);
        if (source < 0)
            continue;
        drop_opened(copier, file, own, source);
        syscall(SYS_close, source);
    }
}

/* --- looks ------------------------------------------------------------------------------------ */

uint64_t penstock_copier_look(int32_t data, int32_t home, const char *names, uint32_t n,
                              struct copier_seen *seen, char *homes)
{
    size_t mark = sizeof HOME - 1;
    char *at = homes;

    for (uint32_t i = 0; i < n; i++, names += strlen(names) + 1) {
        size_t bytes = strlen(names);
        char name[NAME_BYTES] = "";
        struct stat found;
        long got = syscall(SYS_readlinkat, home, names, at, COPIER_HOME_BYTES - 1);

        at += got > 0 ? got : 0;
        *at++ = 0;
        if (bytes >= mark && !strcmp(names + bytes - mark, HOME))
            bytes -= mark;
        seen[i] = (struct copier_seen){.size_bytes = -2};
        if (bytes >= sizeof name)
            continue;
        memcpy(name, names, bytes);
        if (!syscall(SYS_newfstatat, data, name, &found, 0))
            seen[i] = (struct copier_seen){found.st_size, ns_of(found.st_mtim)};
        else if (errno == ENOENT)
            seen[i].size_bytes = -1;
    }
    return (uint64_t)(at - homes);
}

void penstock_copier_lead(const char *paths_and_targets, uint32_t n, uint8_t *leads)
{
    char found[TARGET_BYTES];

    for (uint32_t i = 0; i < n; i++) {
        const char *path = paths_and_targets, *target = path + strlen(path) + 1;
        long got = syscall(SYS_readlinkat, AT_FDCWD, path, found, sizeof found - 1);

        leads[i] = got > 0 && (size_t)got == strlen(target) && !memcmp(found, target, (size_t)got);
        paths_and_targets = target + strlen(target) + 1;
    }
}
