/* The needs of a call of the burst buffer: memory, and names on the tier, beside the program's file
 * and in the file's folder. */
#include "burst_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "files.h"

#define ID_BYTES 26 /* 16 digits of time, 6 of the run, 2 of the process, a dash, 0 */
/* ext4 keeps a link's target in the inode if the target has fewer bytes: such a link takes no
 * block, and is made and removed in less time.  XFS, Btrfs and tmpfs keep longer targets there. */
#define INLINE_TARGET_BYTES 60
#define SHORTENED '~' /* begins a shortened name on the tier */

void *burst_map_private(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);

    return memory == MAP_FAILED ? NULL : memory;
}

/* A block is kept: to map and unmap a block takes as long as a call or two of the file system. */
static struct work *spare;

struct work *burst_work_begin(void)
{
    struct work *work = __atomic_exchange_n(&spare, NULL, __ATOMIC_ACQUIRE);

    if (!work) {
        work = burst_map_private(sizeof *work);
    } else { /* as if the block were new: empty texts */
        *work->name = *work->data = *work->home_link = *work->beside = *work->was = 0;
        *work->home = *work->text = *work->path = *work->older = *work->way = *work->marked = 0;
        work->base = NULL;
        work->found = (struct stat){0};
    }
    if (work)
        work->parent = -1;
    return work;
}

void burst_work_end(struct work *work)
{
    struct work *none = NULL;

    if (work->parent >= 0)
        syscall(SYS_close, work->parent);
    if (!__atomic_compare_exchange_n(&spare, &none, work, false, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED))
        syscall(SYS_munmap, work, sizeof *work);
}

/* --- names ------------------------------------------------------------------------------------ */

/* Return the name on the tier for a link's target or a descriptor's path; NULL: none. */
const char *burst_name_on_tier(const struct burst *state, const char *path)
{
    const char *name = path + state->data_bytes;

    if (strncmp(path, state->data, state->data_bytes) || !*name || strchr(name, '/') ||
        strlen(name) >= BURST_NAME_BYTES)
        return NULL;
    return name;
}

/* Return the name on the tier for a link at a path, in `name`; false: no link to the tier. */
bool burst_read_link(const struct burst *state, int dirfd, const char *path, char *name)
{
    char target[TARGET_BYTES];
    const char *found;
    long got = syscall(SYS_readlinkat, dirfd, path, target, sizeof target - 1);

    *name = 0;
    if (got <= 0 || got >= (long)sizeof target - 1)
        return false;
    target[got] = 0;
    found = burst_name_on_tier(state, target);
    if (found)
        strcpy(name, found);
    return found;
}

void burst_set_name(const struct burst *state, struct work *work, const char *name)
{
    if (work->name != name)
        strcpy(work->name, name);
    strcat(strcpy(work->data, state->data), name);
    strcat(strcpy(work->home_link, state->home), name);
}

/* Make .NAMEend: hidden, and beside the file, as a rename works only within a file system. */
void burst_set_beside(char *beside, const char *name, const char *end)
{
    strcat(strcat(strcpy(beside, "."), name), end);
}

/* A file on the tier is marked when no path refers to the file, or soon none will.  The mark comes
 * first, as a process killed in between must leave a file for the drain to remove. */
void burst_set_is_marked(const struct burst *state, struct work *work, const char *name,
                         bool is_marked)
{
    if (!*name)
        return;
    strcat(strcpy(work->way, state->home), name);
    strcat(strcpy(work->marked, work->way), BURST_HOME);
    syscall(SYS_renameat, AT_FDCWD, is_marked ? work->way : work->marked, AT_FDCWD,
            is_marked ? work->marked : work->way);
}

/* Get a descriptor of the program's folder, and the file's absolute path; false: leave the file
 * alone. */
bool burst_find_folder(struct work *work, int dirfd, const char *path)
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

/* Put the program's name into the name on the tier: the whole name, or as much of the end as leaves
 * room for the link's target in the link itself.  A replacing file keeps the whole name: the drain
 * looks for the earlier file by the name. */
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

/* Make a unique name among all processes, also on other nodes with the tier: by the time in ns, the
 * run, and the process with a turn.  If two names are equal all the same, the second open goes the
 * usual way.  is_first: nothing is at the program's path. */
void burst_new_name(const struct burst *state, struct work *work, bool is_first)
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
    burst_set_name(state, work, work->name);
}
