#include "files.h"

#include "connections.h"
#include "staged.h"

#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The kernel maps nothing below, and answers EFAULT. */
#define BAD_POINTERS 65536
#define FIRST_LEVEL_BITS 13
#define HUGE_PAGE (2u << 20)
#define TABLE_WORTH_HUGE_PAGES (256u << 10)
#define LEVELS (sizeof files_state->levels / sizeof *files_state->levels)
#define DESCRIBED_BYTES 65536 /* a bit for each file */

/* A hash table growing without moves: each level holds four times the level before.  A path is
 * known by 96 bits of a keyed hash, without the bytes: among a billion paths two equal hashes are
 * less likely than 1 in 10^10.  The loss of a race, or of a whole level, costs a second text for a
 * path; the reader joins by path. */
struct level {
    uint64_t used;
    uint64_t reserved;
    struct entry {
        uint64_t hash; /* 0: free */
        uint64_t rest; /* 32 more bits of hash, file id; 0: being written */
    } entries[];
};

/* Folders stand in the table too, under a base above all file ids. */
#define ANY_FOLDER 0xffffffffu
#define ANY_OBJECT 0xfffffffeu /* likewise for loaded objects, not files of the job */
/* added to the base of a name, for the place of the file; ids stay below */
#define PLACES_BIT 30
enum { PLAIN_FOLDER = 1, LINKED_FOLDER };

struct key {
    uint64_t hash, rest;
};

HOT struct files *files_state;

static void *map_private(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);

    if (memory == MAP_FAILED)
        return NULL;
    syscall(SYS_madvise, memory, bytes, MADV_DONTFORK);
    return memory;
}

/* Descriptors and the folder changed unseen while no window was open.  File ids belong to a log: in
 * another log the ids start again, and the old tables stay for calls still under way. */
int files_start(bool is_new_log)
{
    if (!files_state || is_new_log) {
        struct files *fresh = log_map_wiped(sizeof *fresh);

        if (!fresh)
            return -ENOMEM;
        memcpy(fresh->seed, (const void *)getauxval(AT_RANDOM), sizeof fresh->seed);
        __atomic_store_n(&files_state, fresh, __ATOMIC_RELEASE);
    } else {
        files_closed_range(0, ~0u);
        files_folder_changed();
    }
    return 0;
}

/* A large table is read at random, and finding a small page costs as much as reading it: use huge
 * pages where possible.  A larger mapping gives the alignment; the rest is never touched. */
static void *map_table(size_t bytes)
{
    char *memory;

    if (bytes < TABLE_WORTH_HUGE_PAGES)
        return map_private(bytes);
    memory = map_private(bytes + HUGE_PAGE);
    if (!memory)
        return NULL;
    memory = (char *)(((uintptr_t)memory + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    syscall(SYS_madvise, memory, bytes, MADV_HUGEPAGE);
    return memory;
}

/* Publishes memory at *place unless another thread was first. */
static void *publish(void *place, size_t bytes)
{
    void **pointer = place;
    void *ours = map_table(bytes);
    void *expected = NULL;

    if (!ours)
        return __atomic_load_n(pointer, __ATOMIC_ACQUIRE);
    if (__atomic_compare_exchange_n(pointer, &expected, ours, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return ours;
    syscall(SYS_munmap, ours, bytes);
    return expected;
}

/* A call may be under way on a descriptor when a signal handler forks: after its return, the child
 * must find the slot, and find the slot empty. */
static struct slot_of_fd *publish_slots(struct slot_of_fd **chunk)
{
    size_t bytes = FDS_PER_CHUNK * sizeof **chunk;
    struct slot_of_fd *slots = publish(chunk, bytes);

    if (slots) {
        syscall(SYS_madvise, slots, bytes, MADV_DOFORK);
        syscall(SYS_madvise, slots, bytes, MADV_WIPEONFORK);
    }
    return slots;
}

/* --- paths ------------------------------------------------------------------------------------ */

__attribute__((always_inline)) static inline struct key mixed(struct key key, uint64_t word)
{
    key.hash = (key.hash ^ word) * 0xff51afd7ed558ccdu;
    key.rest = (key.rest + word) * 0xc4ceb9fe1a85ec53u;
    key.hash ^= key.hash >> 32;
    key.rest ^= key.rest >> 29;
    return key;
}

static inline uint64_t eight_bytes(const char *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof word);
    return word;
}

/* The last eight bytes of a name, though the word before holds some of the bytes too; the length in
 * the key shows how many. */
static inline uint64_t last_bytes(const char *name, size_t length)
{
    uint64_t word = 0;

    if (length >= 8)
        return eight_bytes(name + length - 8);
    while (length-- > 0)
        word = word << 8 | (uint8_t)name[length];
    return word;
}

static struct key key_of(const char *name, size_t length, uint32_t base)
{
    struct key key = {files_state->seed[0] ^ base, files_state->seed[1] ^ length};
    size_t at;

    for (at = 0; at + 8 < length; at += 8)
        key = mixed(key, eight_bytes(name + at));
    key = mixed(key, last_bytes(name, length));
    key.hash = (key.hash * 0x9fb21c651e98df25u) | 1;
    key.hash ^= key.hash >> 31 << 1;
    key.rest = key.rest * 0x9e3779b97f4a7c15u & ~0xffffffffull;
    return key;
}

static uint64_t level_mask(unsigned level)
{
    return (1ull << (FIRST_LEVEL_BITS + 2 * level)) - 1;
}

static uint64_t first_place(struct key key, uint64_t mask)
{
    return (key.hash >> 16) & mask;
}

static uint32_t find_in_level(const struct level *level, uint64_t mask, struct key key)
{
    uint64_t i = first_place(key, mask);
    uint64_t hash;

    while ((hash = __atomic_load_n(&level->entries[i].hash, __ATOMIC_ACQUIRE))) {
        if (hash == key.hash) {
            uint64_t rest = __atomic_load_n(&level->entries[i].rest, __ATOMIC_ACQUIRE);

            if ((rest & ~0xffffffffull) == key.rest && (uint32_t)rest)
                return (uint32_t)rest;
        }
        i = (i + 1) & mask;
    }
    return 0;
}

static uint32_t find_path(struct key key)
{
    unsigned i = __atomic_load_n(&files_state->n_levels, __ATOMIC_ACQUIRE);
    uint32_t id = 0;

    while (i-- > 0 && !id) {
        const struct level *level = __atomic_load_n(&files_state->levels[i], __ATOMIC_ACQUIRE);

        if (level)
            id = find_in_level(level, level_mask(i), key);
    }
    return id;
}

static struct level *begin_level(unsigned i)
{
    size_t bytes = sizeof(struct level) + (level_mask(i) + 1) * sizeof(struct entry);
    struct level *level = publish(&files_state->levels[i], bytes);
    uint32_t n = __atomic_load_n(&files_state->n_levels, __ATOMIC_RELAXED);

    while (level && n <= i &&
           !__atomic_compare_exchange_n(&files_state->n_levels, &n, i + 1, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    return level;
}

static void insert_path(struct key key, uint32_t id)
{
    unsigned i;

    for (i = 0; i < LEVELS; i++) {
        uint64_t mask = level_mask(i);
        struct level *level = __atomic_load_n(&files_state->levels[i], __ATOMIC_ACQUIRE);
        uint64_t place = first_place(key, mask);
        uint64_t expected = 0;

        if (!level)
            level = begin_level(i);
        if (!level)
            return;
        if (__atomic_fetch_add(&level->used, 1, __ATOMIC_RELAXED) * 2 >= mask)
            continue;
        while (!__atomic_compare_exchange_n(&level->entries[place].hash, &expected, key.hash, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            place = (place + 1) & mask;
            expected = 0;
        }
        __atomic_store_n(&level->entries[place].rest, key.rest | id, __ATOMIC_RELEASE);
        return;
    }
}

static uint32_t intern_on(enum file_place place, const char *name, uint32_t base)
{
    struct key key = key_of(name, strnlen(name, 4096), base ^ (uint32_t)place << PLACES_BIT);
    uint32_t id = find_path(key);
    struct text *text;

    if (id)
        return id;
    id = __atomic_add_fetch(&files_state->last_id, 1, __ATOMIC_RELAXED);
    text = log_text(TEXT_FILE, id, base, name, "");
    if (!text)
        return 0;
    text->tier = place;
    insert_path(key, id);
    return id;
}

static uint32_t intern(const char *name, uint32_t base)
{
    return intern_on(AT_ITS_PATH, name, base);
}

uint32_t files_object(const char *path)
{
    struct key key = key_of(path, strnlen(path, 4096), ANY_OBJECT);
    const char *slash = strrchr(path, '/');
    uint32_t id = find_path(key);

    if (id)
        return id;
    id = __atomic_add_fetch(&files_state->last_id, 1, __ATOMIC_RELAXED);
    if (!log_text(TEXT_OBJECT, id, 0, slash ? slash + 1 : path, path))
        return 0;
    insert_path(key, id);
    return id;
}

static uint32_t folder_id(void)
{
    uint64_t known = __atomic_load_n(&files_state->folder, __ATOMIC_ACQUIRE);
    uint32_t id = (uint32_t)known;
    sigset_t signals;
    uint64_t own;
    char *name;

    if (id)
        return id;
    if (log_is_borrowed())
        return 0; /* the child may have changed the folder */
    own = log_own_begin();
    signals_block(&signals);
    name = log_scratch();
    if (name && own_call(SYS_getcwd, name, SCRATCH_BYTES) > 0)
        id = intern(name, 0);
    signals_restore(&signals);
    log_own_end(own);
    /* Not kept if the folder changed meanwhile. */
    __atomic_compare_exchange_n(&files_state->folder, &known, known | id, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_RELAXED);
    return id;
}

uint32_t files_path_on(enum file_place place, int dirfd, const char *path)
{
    int error = errno;
    uint32_t base = 0;
    uint32_t id;

    if ((uintptr_t)path < BAD_POINTERS)
        return 0;
    if (path[0] != '/') {
        struct slot_of_fd *slot = dirfd == AT_FDCWD ? NULL : files_slot(dirfd);

        base = slot ? slot->file : folder_id();
    }
    id = intern_on(place, path, base);
    errno = error;
    return id;
}

uint32_t files_path(int dirfd, const char *path)
{
    return files_path_on(AT_ITS_PATH, dirfd, path);
}

void files_folder_changed(void)
{
    uint64_t known = __atomic_load_n(&files_state->folder, __ATOMIC_ACQUIRE);

    while (!__atomic_compare_exchange_n(&files_state->folder, &known, ((known >> 32) + 1) << 32,
                                        false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
}

/* --- descriptors --------------------------------------------------------------------------------
 */

static struct slot_of_fd *slot_for(int fd)
{
    struct slot_of_fd **chunk;
    struct slot_of_fd *slots;

    if ((unsigned)fd >= FDS_PER_CHUNK * FD_CHUNKS)
        return NULL;
    chunk = &files_state->fds[fd / FDS_PER_CHUNK];
    slots = __atomic_load_n(chunk, __ATOMIC_ACQUIRE);
    if (!slots)
        slots = publish_slots(chunk);
    return slots ? &slots[fd % FDS_PER_CHUNK] : NULL;
}

/* "socket:[4711]" becomes "socket:", and pipes and namespaces alike: a single name for each kind,
 * because a long-lived client sees more sockets than any table holds. */
static void drop_number(char *name)
{
    char *number = *name == '/' ? NULL : strstr(name, ":[");

    if (number && number[2] >= '0' && number[2] <= '9')
        number[1] = 0;
}

/* A socket between processes of a host does not use the network: "socket:" becomes "socket:unix".
 * A connected socket is named by its endpoint. */
static void name_family(int fd, char *name)
{
    int family = 0;
    socklen_t size = sizeof family;

    if (strcmp(name, "socket:") ||
        own_call(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &family, &size))
        return;
    if (family == AF_UNIX)
        strcpy(name + 7, "unix");
    else if (family == AF_INET || family == AF_INET6)
        connections_name(fd, name);
}

long files_link(int fd, char *name)
{
    char path[32] = "/proc/self/fd/";
    char digits[12];
    int n = 0, left = fd;
    char *end = path + 14;
    long got;

    do
        digits[n++] = (char)('0' + left % 10);
    while (left /= 10);
    while (n)
        *end++ = digits[--n];
    *end = 0;
    got = own_call(SYS_readlinkat, AT_FDCWD, path, name, SCRATCH_BYTES - 1);
    name[got > 0 ? got : 0] = 0;
    drop_number(name);
    name_family(fd, name);
    return got;
}

/* True for the first question about a file. */
static bool is_first_open(uint32_t id)
{
    uint8_t **chunk = &files_state->described[id / (8 * DESCRIBED_BYTES)];
    uint8_t *bits = __atomic_load_n(chunk, __ATOMIC_ACQUIRE);
    uint8_t bit = (uint8_t)(1u << id % 8);

    if (!bits)
        bits = publish(chunk, DESCRIBED_BYTES);
    if (!bits)
        return false;
    bits += id / 8 % DESCRIBED_BYTES;
    return !(*bits & bit) && !(__atomic_fetch_or(bits, bit, __ATOMIC_RELAXED) & bit);
}

/* Get type, identity and size of an open file, from the kernel's cache.  Where the cache is old,
 * fstat asks the server of a network file system or of FUSE, for a round trip.  The cached size may
 * be old too: the reader takes a larger size from reads and writes. */
static bool look_at(int fd, struct stat *found)
{
    struct statx known;

    if (own_call(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
                 STATX_TYPE | STATX_MODE | STATX_INO | STATX_SIZE, &known))
        return !own_call(SYS_fstat, fd, found); /* a kernel or a sandbox without statx */
    found->st_mode = known.stx_mode;
    found->st_dev = makedev(known.stx_dev_major, known.stx_dev_minor);
    found->st_ino = known.stx_ino;
    found->st_size = (off_t)known.stx_size;
    return true;
}

/* Whether a lookup by name is answered from this machine's memory: on a block device of its own.
 * Network file systems and FUSE have no block device, and no major number. */
static bool is_near(dev_t device)
{
    return major(device) != 0;
}

/* Whether an absolute name leads to a file without links.  The kernel's own answer, /proc/self/fd,
 * costs 2 us: on a near file system the kernel is asked once a folder, and readlink is asked about
 * the last part.  Elsewhere a lookup by name may take a round trip; /proc never does. */
static bool is_plain(const char *name, int fd, bool is_near, char *resolved)
{
    const char *slash = strrchr(name, '/');
    struct key folder = key_of(name, (size_t)(slash - name), ANY_FOLDER);
    uint32_t known = find_path(folder);

    if (known == PLAIN_FOLDER && is_near &&
        own_call(SYS_readlinkat, AT_FDCWD, name, resolved, SCRATCH_BYTES) < 0 && errno == EINVAL)
        return true;
    files_link(fd, resolved);
    if (!known)
        insert_path(folder, strcmp(name, resolved) ? LINKED_FOLDER : PLAIN_FOLDER);
    return !strcmp(name, resolved);
}

bool files_leads_straight(const char *name)
{
    const char *slash = strrchr(name, '/');
    char byte;

    return files_state && slash &&
           find_path(key_of(name, (size_t)(slash - name), ANY_FOLDER)) == PLAIN_FOLDER &&
           own_call(SYS_readlinkat, AT_FDCWD, name, &byte, 1) < 0 &&
           (errno == EINVAL || errno == ENOENT);
}

void files_learn_folder(const char *resolved)
{
    const char *slash = strrchr(resolved, '/');
    struct key folder;

    if (!files_state || !slash)
        return;
    folder = key_of(resolved, (size_t)(slash - resolved), ANY_FOLDER);
    if (!find_path(folder))
        insert_path(folder, PLAIN_FOLDER);
}

/* Store the facts from the first open: type, identity, size, and the target of links.  The facts go
 * into the text of the path if the text was written just now, else into a second text.  Signals are
 * blocked. */
static void describe(uint32_t id, int fd, char *resolved)
{
    struct text *text = log_last_text(id);
    bool is_one_of_many = false;
    struct stat found;

    if (!look_at(fd, &found))
        return;
    if (!text || text->base || text->tier || *(const char *)(text + 1) != '/') {
        files_link(fd, resolved);
        is_one_of_many = *resolved && *resolved != '/';
        text = log_text(TEXT_FILE, id, 0, "", resolved);
    } else if (!is_plain((const char *)(text + 1), fd, is_near(found.st_dev), resolved)) {
        text = log_text(TEXT_FILE, id, 0, "", resolved);
    }
    if (!text)
        return;
    text->mode = found.st_mode;
    if (is_one_of_many)
        return;
    text->device = found.st_dev;
    text->inode = found.st_ino;
    __atomic_store_n(&text->size, (int64_t)found.st_size, __ATOMIC_RELEASE);
}

static void set_slot(struct slot_of_fd *slot, uint32_t file, uint32_t flags, int64_t position)
{
    slot->position = position;
    slot->stdio_position = -1;
    slot->flags = flags;
    slot->forks = log_state->forks;
    __atomic_store_n(&slot->file, file, __ATOMIC_RELEASE);
}

static void describe_first(uint32_t id, int fd)
{
    uint64_t own = log_own_begin();
    sigset_t signals;
    char *scratch;

    signals_block(&signals);
    scratch = log_scratch();
    if (scratch)
        describe(id, fd, scratch);
    signals_restore(&signals);
    log_own_end(own);
}

void files_opened(int fd, uint32_t file, int flags)
{
    int error = errno;
    struct slot_of_fd *slot = file ? slot_for(fd) : NULL;

    if (slot) {
        if (is_first_open(file))
            describe_first(file, fd);
        set_slot(slot, file, SLOT_SEEKABLE | (flags & O_APPEND ? SLOT_APPEND : 0), 0);
    }
    errno = error;
}

uint32_t files_named(int fd, const char *name)
{
    struct slot_of_fd *slot = slot_for(fd);
    uint32_t id = slot ? intern(name, 0) : 0;

    if (!id)
        return 0;
    if (is_first_open(id))
        describe_first(id, fd);
    set_slot(slot, id, 0, -1);
    return id;
}

/* Return the id of an absolute path; for the path of a copy, the id of the program's own path. */
static uint32_t intern_found(const char *path)
{
    const char *source = staged_is_on() ? staged_source(path) : NULL;

    return source ? intern_on(STAGED_COPY, source, 0) : intern(path, 0);
}

static bool is_endpoint(const char *name)
{
    return !strncmp(name, "socket:", 7) && name[7] && strcmp(name + 7, "unix");
}

/* Return the file behind /proc/self/fd; 0: no descriptor. */
static uint32_t file_behind(int fd, bool *is_connection)
{
    uint32_t id = 0;
    sigset_t signals;
    char *scratch;

    signals_block(&signals);
    scratch = log_scratch();
    *is_connection = false;
    if (scratch && files_link(fd, scratch) > 0) {
        *is_connection = is_endpoint(scratch);
        id = intern_found(scratch);
        if (id && is_first_open(id))
            describe(id, fd, scratch);
    }
    signals_restore(&signals);
    return id;
}

/* Opened before the recording, received, or made by a call we do not wrap. */
struct slot_of_fd *files_slot_slowly(int fd)
{
    int error = errno;
    struct slot_of_fd *slot = NULL;
    uint32_t flags = SLOT_SHARED;
    bool is_connection;
    uint64_t own;
    uint32_t id;
    long status;

    if (fd < 0 || log_is_borrowed())
        return NULL; /* a vfork child: the descriptors are the child's, the table is the parent's */
    own = log_own_begin();
    id = file_behind(fd, &is_connection);
    if (id)
        slot = slot_for(fd);
    if (slot) {
        status = own_call(SYS_fcntl, fd, F_GETFL);
        if (status >= 0 && status & O_APPEND)
            flags |= SLOT_APPEND;
        if (own_call(SYS_lseek, fd, 0, SEEK_CUR) >= 0)
            flags |= SLOT_SEEKABLE;
        set_slot(slot, id, flags, 0);
        if (is_connection)
            connections_met(fd, id);
    }
    log_own_end(own);
    errno = error;
    return slot;
}

void files_closed(int fd)
{
    struct slot_of_fd *slot = files_peek(fd);

    if (slot && UNLIKELY(slot->file && slot->flags & SLOT_CONNECTION))
        connections_closed(fd, false);
    if (slot)
        __atomic_store_n(&slot->file, 0, __ATOMIC_RELEASE);
}

void files_closed_range(unsigned first, unsigned last)
{
    unsigned chunk;
    unsigned i;

    connections_closed_range(first, last);
    for (chunk = first / FDS_PER_CHUNK; chunk < FD_CHUNKS && chunk <= last / FDS_PER_CHUNK;
         chunk++) {
        if (!files_state->fds[chunk])
            continue;
        for (i = 0; i < FDS_PER_CHUNK; i++)
            if (chunk * FDS_PER_CHUNK + i >= first && chunk * FDS_PER_CHUNK + i <= last)
                __atomic_store_n(&files_state->fds[chunk][i].file, 0, __ATOMIC_RELEASE);
    }
}

void files_copied(int from, int to)
{
    int error = errno;
    struct slot_of_fd *source = files_slot(from);
    struct slot_of_fd *copy = source && from != to ? slot_for(to) : NULL;

    if (copy) {
        source->flags |= SLOT_SHARED;
        set_slot(copy, source->file, source->flags & ~(uint32_t)SLOT_CONNECTION, 0);
        connections_copied(from, to);
    } else if (from != to) {
        files_closed(to);
    }
    errno = error;
}

void files_forking(void)
{
    __atomic_add_fetch(&log_state->forks, 1, __ATOMIC_RELAXED);
}

int64_t files_kernel_position(struct slot_of_fd *slot, int fd)
{
    uint64_t own = log_own_begin();
    int error = errno;
    long position = own_call(SYS_lseek, fd, 0, SEEK_CUR);

    log_own_end(own);
    errno = error;
    if (position < 0) { /* a terminal, a pipe: no position */
        slot->flags &= ~(uint32_t)SLOT_SEEKABLE;
        return -1;
    }
    __atomic_store_n(&slot->position, position, __ATOMIC_RELAXED);
    return position;
}

/* The position is followed by adding, and read from the kernel where another process or descriptor
 * may have moved the position. */
int64_t files_position(struct slot_of_fd *slot, int fd)
{
    if (UNLIKELY(!(slot->flags & SLOT_SEEKABLE)))
        return -1;
    if (UNLIKELY((slot->flags & SLOT_SHARED) || slot->forks != log_state->forks))
        return files_kernel_position(slot, fd);
    return __atomic_load_n(&slot->position, __ATOMIC_RELAXED);
}

int64_t files_position_of(int fd)
{
    struct slot_of_fd *slot = recorder_on ? files_slot(fd) : NULL;

    return slot ? files_position(slot, fd) : -1;
}

void files_moved(struct slot_of_fd *slot, int64_t bytes)
{
    __atomic_fetch_add(&slot->position, bytes, __ATOMIC_RELAXED);
}

void files_set_position(int fd, int64_t position)
{
    struct slot_of_fd *slot = files_peek(fd);

    if (slot)
        __atomic_store_n(&slot->position, position, __ATOMIC_RELAXED);
}

void files_set_append(int fd, bool appends)
{
    struct slot_of_fd *slot = files_peek(fd);

    if (slot && appends)
        slot->flags |= SLOT_APPEND;
    else if (slot)
        slot->flags &= ~(uint32_t)SLOT_APPEND;
}

void files_unsure(int fd)
{
    struct slot_of_fd *slot = files_peek(fd);

    if (slot)
        slot->flags |= SLOT_SHARED;
}

void files_set_stdio_position(int fd, int64_t position)
{
    struct slot_of_fd *slot = files_peek(fd);

    if (slot)
        slot->stdio_position = position;
}
