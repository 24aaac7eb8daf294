#include "staged.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "files.h"
#include "guard.h"

#define BAD_POINTERS 65536 /* as in files.c: the kernel answers EFAULT */
#define PATH_BYTES 4096
#define HASH_BASIS 0xcbf29ce484222325u /* FNV-1a */
#define HASH_PRIME 0x100000001b3u
#ifndef SYS_faccessat2
#define SYS_faccessat2 439 /* Linux 5.8, the same number everywhere */
#endif
#define DELETED " (deleted)" /* suffix of a removed file's name in /proc/self/fd */

/* A mapped map, with its constant parts: checked once. */
struct staged_map {
    char *bytes;
    uint64_t size;
    struct staged_slot *slots;
    uint64_t mask;
    const char *tier; /* the name */
    uint64_t device;  /* of the copies, now */
    bool is_last;     /* a newer map was looked for and is missing */
    size_t copies_bytes;
    char copies[PATH_BYTES + sizeof STAGED_FOLDER]; /* the folder of the copies */
};

HOT struct staged_map *staged_map;

static char map_path[PATH_BYTES];

/* --- the map ---------------------------------------------------------------------------------- */

/* Whether bytes and a NUL behind the bytes lie in the map. */
static bool is_text(const struct staged_map *map, uint64_t at, uint64_t bytes)
{
    return at && at < map->size && bytes < map->size - at && !map->bytes[at + bytes];
}

static bool is_known(const struct staged_header *header, uint64_t size)
{
    return !memcmp(header->magic, STAGED_MAGIC, sizeof header->magic) &&
           header->version == STAGED_VERSION && header->byte_order == STAGED_BYTE_ORDER &&
           header->slot_bytes == sizeof(struct staged_slot) && header->map_bytes <= size &&
           header->map_bytes >= sizeof *header && header->slots &&
           !(header->slots & (header->slots - 1)) && header->slots_at % 8 == 0 &&
           header->slots_at <= header->map_bytes &&
           header->slots <= (header->map_bytes - header->slots_at) / sizeof(struct staged_slot);
}

/* Map a file so that drops reach other programs; for a file without the right to write, drops reach
 * only this process and its children. */
static char *map_file(int fd, uint64_t size, bool is_writable)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
                                   is_writable ? MAP_SHARED : MAP_PRIVATE, fd, 0L);

    return memory == MAP_FAILED ? NULL : memory;
}

/* The copies lie beside the map's own folder, by whatever name the map was opened. */
static int find_copies(struct staged_map *map, int fd)
{
    char *end;

    if (files_link(fd, map->copies) < 0)
        return -errno;
    end = strrchr(map->copies, '/');
    if (!end || end - map->copies < (ptrdiff_t)sizeof STAGED_OWN - 1)
        return -EINVAL;
    end -= sizeof STAGED_OWN - 1;
    if (strcmp(end, STAGED_OWN STAGED_NAME))
        return -EINVAL;
    strcpy(end, STAGED_FOLDER);
    map->copies_bytes = strlen(map->copies);
    return 0;
}

static int check(struct staged_map *map)
{
    const struct staged_header *header = (const void *)map->bytes;

    if (map->size < sizeof *header || !is_known(header, map->size))
        return -EINVAL;
    map->size = header->map_bytes;
    if (!is_text(map, header->tier_at, header->tier_bytes))
        return -EINVAL;
    map->tier = map->bytes + header->tier_at;
    map->slots = (struct staged_slot *)(map->bytes + header->slots_at);
    map->mask = header->slots - 1;
    map->is_last = header->retired; /* a retired map has no successor yet */
    return 0;
}

static int open_map(int fd, bool is_writable, struct staged_map *map)
{
    struct stat found;
    int error;

    if (syscall(SYS_fstat, fd, &found))
        return -errno;
    if (!S_ISREG(found.st_mode) || !found.st_size)
        return -EINVAL;
    if (found.st_uid != 0 && found.st_uid != (uid_t)syscall(SYS_geteuid))
        return -EPERM;
    map->size = (uint64_t)found.st_size;
    map->device = found.st_dev; /* a file's: overlayfs gives folders another */
    map->bytes = map_file(fd, map->size, is_writable);
    if (!map->bytes)
        return -ENOMEM;
    error = check(map);
    if (!error)
        error = find_copies(map, fd);
    if (error)
        syscall(SYS_munmap, map->bytes, (uint64_t)found.st_size);
    return error;
}

static struct staged_map *new_map(const char *path, int *error)
{
    struct staged_map *map;
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    bool is_writable = fd >= 0;

    if (fd < 0)
        fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    *error = fd < 0 ? -errno : 0;
    if (fd < 0)
        return NULL;
    /* Not on the stack: a signal handler's may hold no page. */
    map = (struct staged_map *)syscall(SYS_mmap, NULL, sizeof *map, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    *error = map == MAP_FAILED ? -ENOMEM : open_map((int)fd, is_writable, map);
    syscall(SYS_close, fd);
    if (*error && map != MAP_FAILED)
        syscall(SYS_munmap, map, sizeof *map);
    return *error ? NULL : map;
}

/* In place of `before`, unless another thread was first. */
static int publish(const char *path, struct staged_map *before)
{
    int error;
    struct staged_map *map = new_map(path, &error);

    /* In a cut map, nothing is staged. */
    if (map)
        guard_add(GUARD_FAMILY, map->bytes, map->size, NULL);
    if (map && !__atomic_compare_exchange_n(&staged_map, &before, map, false, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE)) {
        guard_remove(map->bytes);
        syscall(SYS_munmap, map->bytes, map->size);
        syscall(SYS_munmap, map, sizeof *map);
    } else if (map && before) {
        guard_remove(before->bytes); /* the map has no name any more */
    }
    return error;
}

int staged_start(const char *path)
{
    int error;

    if (strlen(path) >= sizeof map_path)
        return -ENAMETOOLONG;
    error = publish(path, staged_map);
    if (!error)
        strcpy(map_path, path);
    return error;
}

const char *staged_path(void)
{
    return staged_map ? map_path : "";
}

const char *staged_tier(void)
{
    return staged_map ? staged_map->tier : "";
}

/* Return the newest map.  A replaced map stays mapped: another thread may be reading the map. */
static struct staged_map *current(void)
{
    struct staged_map *map = __atomic_load_n(&staged_map, __ATOMIC_ACQUIRE);
    const struct staged_header *header;

    if (!map)
        return NULL;
    header = (const void *)map->bytes;
    if (UNLIKELY(__atomic_load_n(&header->retired, __ATOMIC_ACQUIRE) && !map->is_last)) {
        if (publish(map_path, map))
            map->is_last = true;
        map = __atomic_load_n(&staged_map, __ATOMIC_ACQUIRE);
    }
    return map;
}

static struct staged_slot *find(const struct staged_map *map, const char *path)
{
    size_t bytes = strnlen(path, PATH_BYTES);
    uint64_t hash = HASH_BASIS;
    uint64_t i, n;

    for (i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)path[i]) * HASH_PRIME;
    i = hash ^ hash >> 32;
    for (n = 0; n <= map->mask; n++, i++) {
        struct staged_slot *slot = &map->slots[i & map->mask];
        uint64_t at = __atomic_load_n(&slot->path_at, __ATOMIC_ACQUIRE);

        if (!at)
            return NULL;
        if (slot->hash == hash && slot->path_bytes == bytes && is_text(map, at, bytes) &&
            !memcmp(map->bytes + at, path, bytes) && is_text(map, slot->copy_at, slot->copy_bytes))
            return slot;
    }
    return NULL;
}

/* --- names ------------------------------------------------------------------------------------ */

/* Return the source's path of a copy; NULL: the path is not below the copies' folder. */
static const char *below_copies(const struct staged_map *map, const char *path)
{
    if (strncmp(path, map->copies, map->copies_bytes) || path[map->copies_bytes] != '/')
        return NULL;
    path += map->copies_bytes;
    return path +
           (strncmp(path, STAGED_APART "/", sizeof STAGED_APART) ? 0 : sizeof STAGED_APART - 1);
}

const char *staged_source(const char *path)
{
    const struct staged_map *map = __atomic_load_n(&staged_map, __ATOMIC_ACQUIRE);

    return map ? below_copies(map, path) : NULL;
}

enum link_kind { OF_SOURCE, OF_COPY };

/* Return the slot of a descriptor's file: a source, or a source's copy. */
static struct staged_slot *slot_behind(const struct staged_map *map, int fd, enum link_kind kind)
{
    struct staged_slot *slot = NULL;
    const char *path = NULL;
    sigset_t signals;
    size_t bytes;
    char *name;

    signals_block(&signals);
    name = log_scratch();
    if (name && files_link(fd, name) > 0) {
        bytes = strlen(name);
        if (kind == OF_COPY && bytes >= sizeof DELETED &&
            !strcmp(name + bytes - (sizeof DELETED - 1), DELETED))
            name[bytes - (sizeof DELETED - 1)] = 0;
        path = kind == OF_COPY ? below_copies(map, name) : name;
        if (kind == OF_SOURCE)
            files_learn_folder(name);
    }
    slot = path ? find(map, path) : NULL;
    signals_restore(&signals);
    return slot;
}

/* Open the place of a path, without opening the file there. */
static int open_place(int dirfd, const char *path, bool follows)
{
    return (int)syscall(SYS_openat, dirfd, path, O_PATH | O_CLOEXEC | (follows ? 0 : O_NOFOLLOW));
}

static bool is_path(const char *path)
{
    return (uintptr_t)path >= BAD_POINTERS;
}

/* Make a name relative to the working directory absolute; false: too long. */
static bool spell(const char *path, char *name)
{
    long folder = syscall(SYS_getcwd, name, SCRATCH_BYTES); /* with a NUL */
    size_t bytes;

    while (path[0] == '.' && path[1] == '/')
        path += 2;
    bytes = strnlen(path, PATH_BYTES);
    if (folder < 2 || name[0] != '/' || (size_t)folder + bytes >= SCRATCH_BYTES)
        return false;
    if (folder == 2) /* "/" */
        folder = 1;
    name[folder - 1] = '/';
    memcpy(name + folder, path, bytes + 1);
    return true;
}

/* Return the slot of a path spelled as in the map.  *is_sure: no other spelling leads to the file,
 * so the file is not staged. */
static struct staged_slot *spelled(const struct staged_map *map, int dirfd, const char *path,
                                   bool *is_sure)
{
    struct staged_slot *slot = NULL;
    sigset_t signals;
    char *name;

    *is_sure = false;
    if (*path == '/') {
        slot = find(map, path);
        *is_sure = !slot && files_leads_straight(path);
    } else if (dirfd == AT_FDCWD) {
        signals_block(&signals);
        name = log_scratch();
        if (name && spell(path, name)) {
            slot = find(map, name);
            *is_sure = !slot && files_leads_straight(name);
        }
        signals_restore(&signals);
    }
    return slot;
}

static bool is_frozen(const struct staged_slot *slot)
{
    return __atomic_load_n(&slot->flags, __ATOMIC_RELAXED) & STAGED_FROZEN;
}

/* Ask the server for a file's present state: another machine may have changed the file since the
 * attributes were last read.  Local file systems answer unchanged. */
static bool ask(int dirfd, const char *path, int flags, struct stat *found)
{
    struct statx now;

    if (syscall(SYS_statx, dirfd, path, flags | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &now)) {
        if (errno != ENOSYS && errno != EPERM)
            return false;
        /* A kernel before 4.11, or a sandbox without the call. */
        return !syscall(SYS_newfstatat, dirfd, path, found, flags);
    }
    found->st_mode = now.stx_mode;
    found->st_uid = now.stx_uid;
    found->st_ino = now.stx_ino;
    found->st_size = (off_t)now.stx_size;
    found->st_mtim = (struct timespec){now.stx_mtime.tv_sec, now.stx_mtime.tv_nsec};
    found->st_ctim = (struct timespec){now.stx_ctime.tv_sec, now.stx_ctime.tv_nsec};
    return true;
}

/* Return the slot of a path however spelled, with the present state of the file for `is_unchanged`
 * and `may_read`.  slot, is_sure: from `spelled`. */
static struct staged_slot *resolve_from(const struct staged_map *map, struct staged_slot *slot,
                                        bool is_sure, int dirfd, const char *path, bool follows,
                                        struct stat *found)
{
    int fd;

    if (slot && !ask(dirfd, path, follows ? 0 : AT_SYMLINK_NOFOLLOW, found))
        return NULL;
    if (slot || is_sure)
        return slot;
    fd = open_place(dirfd, path, follows);
    if (fd < 0)
        return NULL;
    /* The kernel knows the target by itself; only for a source is the server asked. */
    slot = slot_behind(map, fd, OF_SOURCE);
    if (slot && (!ask(fd, "", AT_EMPTY_PATH, found) || !S_ISREG(found->st_mode)))
        slot = NULL;
    syscall(SYS_close, fd);
    return slot;
}

static struct staged_slot *resolve(const struct staged_map *map, int dirfd, const char *path,
                                   bool follows, struct stat *found)
{
    bool is_sure;
    struct staged_slot *slot = spelled(map, dirfd, path, &is_sure);

    return resolve_from(map, slot, is_sure, dirfd, path, follows, found);
}

/* /proc/self/fd/7 and its other names are the file itself, possibly a copy. */
static bool is_by_descriptor(const char *path)
{
    return is_path(path) && (!strncmp(path, "/proc/", 6) || !strncmp(path, "/dev/", 5));
}

/* Return the slot of the copy behind a path of a descriptor. */
static struct staged_slot *copy_behind(const struct staged_map *map, int dirfd, const char *path)
{
    struct staged_slot *slot = NULL;
    int fd = is_by_descriptor(path) ? open_place(dirfd, path, true) : -1;

    if (fd >= 0) {
        slot = slot_behind(map, fd, OF_COPY);
        syscall(SYS_close, fd);
    }
    return slot;
}

const char *staged_original(int dirfd, const char *path)
{
    int error = errno;
    const struct staged_map *map = current();
    struct staged_slot *slot = map ? copy_behind(map, dirfd, path) : NULL;

    errno = error;
    return slot ? map->bytes + slot->path_at : path;
}

/* --- opens ------------------------------------------------------------------------------------ */

static bool is_of_size_and_time(const struct staged_slot *slot, const struct stat *found)
{
    return S_ISREG(found->st_mode) && (uint64_t)found->st_size == slot->size_bytes &&
           found->st_mtim.tv_sec == slot->mtime_s && found->st_mtim.tv_nsec == (long)slot->mtime_ns;
}

static bool is_unchanged(const struct staged_slot *slot, const struct stat *found)
{
    return is_of_size_and_time(slot, found) && found->st_ctim.tv_sec == slot->ctime_s &&
           found->st_ctim.tv_nsec == (long)slot->ctime_ns &&
           (!(slot->flags & STAGED_COMPARE_INODE) || found->st_ino == slot->inode);
}

/* The copy gives no right beyond the source's rights. */
static bool may_read(int dirfd, const char *path, const struct stat *found)
{
    long result;

    if (found->st_uid == (uid_t)syscall(SYS_geteuid))
        return found->st_mode & S_IRUSR || !found->st_uid;
    result = syscall(SYS_faccessat2, dirfd, path, R_OK, AT_EACCESS);
    if (result < 0 && errno != EACCES) /* an older kernel, or a sandbox without the call */
        result = syscall(SYS_faccessat, dirfd, path, R_OK);
    return !result;
}

static int open_copy(const struct staged_map *map, const struct staged_slot *slot, int flags,
                     enum staged_outcome *outcome)
{
    struct stat found;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, map->bytes + slot->copy_at, flags);

    *outcome = STAGED_GONE;
    if (fd < 0)
        return -1;
    *outcome = STAGED_SERVED;
    if (!syscall(SYS_fstat, fd, &found) && is_of_size_and_time(slot, &found))
        return fd;
    *outcome = STAGED_DAMAGED;
    syscall(SYS_close, fd);
    return -1;
}

static void count(enum staged_outcome outcome)
{
    struct log_header *header = log_state ? log_state->header : NULL;

    if (header && !log_is_borrowed())
        __atomic_add_fetch(&header->opens[outcome], 1, __ATOMIC_RELAXED);
}

/* Whether the tier alone answers an open: the source's file system gets no call. */
static bool is_served_unasked(const struct staged_slot *slot, int flags)
{
    return is_frozen(slot) && !(flags & (O_NOFOLLOW | O_DIRECT)) &&
           __atomic_load_n(&slot->is_staged, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&slot->is_dropped, __ATOMIC_ACQUIRE);
}

static int open_staged(const struct staged_map *map, int dirfd, const char *path, int flags,
                       enum staged_outcome *outcome)
{
    struct stat found;
    bool is_sure;
    struct staged_slot *slot = spelled(map, dirfd, path, &is_sure);

    if (slot && is_served_unasked(slot, flags))
        return open_copy(map, slot, flags, outcome);
    slot = resolve_from(map, slot, is_sure, dirfd, path, !(flags & O_NOFOLLOW), &found);
    if (!slot)
        return -1;
    *outcome = __atomic_load_n(&slot->is_dropped, __ATOMIC_ACQUIRE)   ? STAGED_DROPPED
               : !__atomic_load_n(&slot->is_staged, __ATOMIC_ACQUIRE) ? STAGED_ABSENT
               : flags & O_DIRECT                                     ? STAGED_DIRECT
               : !is_unchanged(slot, &found)                          ? STAGED_CHANGED
               : !may_read(dirfd, path, &found)                       ? STAGED_DENIED
                                                                      : STAGED_SERVED;
    return *outcome == STAGED_SERVED ? open_copy(map, slot, flags, outcome) : -1;
}

bool staged_writes(int flags)
{
    return !(flags & O_PATH) && ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC);
}

int staged_open(int dirfd, const char *path, int flags, enum staged_outcome *outcome)
{
    int error = errno;
    const struct staged_map *map = current();
    int fd = -1;

    *outcome = STAGED_NOT;
    if (map && is_path(path) && !staged_writes(flags) &&
        !(flags & (O_CREAT | O_PATH | O_DIRECTORY | O_TMPFILE)))
        fd = open_staged(map, dirfd, path, flags, outcome);
    if (*outcome)
        count(*outcome);
    errno = error;
    return fd;
}

/* --- changes ---------------------------------------------------------------------------------- */

struct staged_slot *staged_find(int dirfd, const char *path, bool follows)
{
    int error = errno;
    const struct staged_map *map = current();
    struct staged_slot *slot = NULL;
    struct stat found;

    if (map && is_path(path))
        slot = resolve(map, dirfd, path, follows, &found);
    errno = error;
    return slot;
}

/* A source may have several names: the name in the copy's path is dropped too.  Other names are
 * found by the changed state of the source. */
void staged_drop(struct staged_slot *slot)
{
    const struct staged_map *map = __atomic_load_n(&staged_map, __ATOMIC_ACQUIRE);
    bool is_in_map = (char *)slot >= map->bytes && (char *)slot < map->bytes + map->size;
    const char *own = is_in_map ? below_copies(map, map->bytes + slot->copy_at) : NULL;
    struct staged_slot *filed = own ? find(map, own) : NULL;

    __atomic_store_n(&slot->is_dropped, 1, __ATOMIC_RELEASE);
    if (filed)
        __atomic_store_n(&filed->is_dropped, 1, __ATOMIC_RELEASE);
    count(STAGED_WRITTEN);
}

/* --- disguise ------------------------------------------------------------------------------------
 * A program comparing fstat with stat, or the files of two descriptors, receives the source's
 * numbers: all from the source's own stat while the source is unchanged, else the numbers in the
 * map.  A frozen source is not asked. */

static void disguise(const struct staged_map *map, const struct staged_slot *slot,
                     struct stat *found)
{
    struct stat source;

    if (!slot || !is_of_size_and_time(slot, found))
        return;
    if (!is_frozen(slot) &&
        !syscall(SYS_newfstatat, AT_FDCWD, map->bytes + slot->path_at, &source, 0) &&
        is_unchanged(slot, &source)) {
        *found = source;
        return;
    }
    found->st_dev = slot->device;
    found->st_ino = slot->inode;
    found->st_ctim.tv_sec = slot->ctime_s;
    found->st_ctim.tv_nsec = (long)slot->ctime_ns;
}

static bool is_of(const struct staged_slot *slot, const struct statx *found)
{
    return S_ISREG(found->stx_mode) && found->stx_size == slot->size_bytes &&
           found->stx_mtime.tv_sec == slot->mtime_s && found->stx_mtime.tv_nsec == slot->mtime_ns;
}

static void disguise_x(const struct staged_map *map, const struct staged_slot *slot,
                       struct statx *found)
{
    struct statx source;

    if (!slot || !is_of(slot, found))
        return;
    if (!is_frozen(slot) &&
        !syscall(SYS_statx, AT_FDCWD, map->bytes + slot->path_at, 0,
                 STATX_BASIC_STATS | STATX_BTIME, &source) &&
        is_of(slot, &source) && source.stx_ctime.tv_sec == slot->ctime_s &&
        source.stx_ctime.tv_nsec == slot->ctime_ns) {
        *found = source;
        return;
    }
    found->stx_dev_major = major(slot->device);
    found->stx_dev_minor = minor(slot->device);
    found->stx_ino = slot->inode;
    found->stx_ctime.tv_sec = slot->ctime_s;
    found->stx_ctime.tv_nsec = slot->ctime_ns;
}

static bool is_on_tier(const struct staged_map *map, const struct statx *found)
{
    return map && makedev(found->stx_dev_major, found->stx_dev_minor) == map->device;
}

void staged_disguise_fd(int fd, struct stat *found)
{
    int error = errno;
    const struct staged_map *map = current();

    if (map && found->st_dev == map->device && S_ISREG(found->st_mode))
        disguise(map, slot_behind(map, fd, OF_COPY), found);
    errno = error;
}

void staged_disguise_fdx(int fd, struct statx *found)
{
    int error = errno;
    const struct staged_map *map = current();

    if (is_on_tier(map, found) && S_ISREG(found->stx_mode))
        disguise_x(map, slot_behind(map, fd, OF_COPY), found);
    errno = error;
}

void staged_disguise_path(int dirfd, const char *path, struct stat *found)
{
    int error = errno;
    const struct staged_map *map = current();

    if (map && found->st_dev == map->device && S_ISREG(found->st_mode))
        disguise(map, copy_behind(map, dirfd, path), found);
    errno = error;
}

void staged_disguise_pathx(int dirfd, const char *path, struct statx *found)
{
    int error = errno;
    const struct staged_map *map = current();

    if (is_on_tier(map, found) && S_ISREG(found->stx_mode))
        disguise_x(map, copy_behind(map, dirfd, path), found);
    errno = error;
}

ssize_t staged_disguise_link(const char *path, char *name, ssize_t got, size_t size)
{
    const struct staged_map *map = current();
    size_t skipped = map ? map->copies_bytes : 0;
    size_t apart = sizeof STAGED_APART - 1;

    /* A name as long as the buffer is cut, and the missing part is not known. */
    if (!map || got <= 0 || (size_t)got >= size || (size_t)got <= skipped ||
        !is_by_descriptor(path) || memcmp(name, map->copies, skipped) || name[skipped] != '/')
        return got;
    if ((size_t)got > skipped + apart && !memcmp(name + skipped, STAGED_APART "/", apart + 1))
        skipped += apart;
    memmove(name, name + skipped, (size_t)got - skipped);
    return got - (ssize_t)skipped;
}
