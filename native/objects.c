#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "files.h"
#include "log.h"

#define OBJECTS 4096 /* later objects are not known by name */
/* calling places; TensorFlow and torch together have about 80 blocking places */
#define SITES 512
#define ARENA_BYTES 65536

/* A path loaded again keeps the old entry. */
struct region {
    uintptr_t start, end; /* 0: not loaded now */
    uint32_t hash;
    const char *path;
};

/* A call site and the id of its object.  Two threads may write an entry at once: key and value are
 * checked against each other.  The id is valid while the stamp is current. */
struct site {
    uint64_t key;   /* the address, mixed with the value */
    uint64_t value; /* stamp << 32 | id */
};

static struct region regions[OBJECTS];
static uint32_t n_regions;
static uint32_t version; /* odd while regions change */
HOT static struct site *sites;

int objects_start(void)
{
    if (!sites)
        sites = log_map_wiped(SITES * sizeof *sites);
    return sites ? 0 : -ENOMEM;
}

/* --- loaded objects --------------------------------------------------------------------------- */

static uint32_t hash_of(const char *path)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    while (*path)
        hash = (hash ^ (uint8_t)*path++) * 16777619u;
    return hash;
}

static const char *kept(const char *path)
{
    static char *arena;
    static size_t left;
    size_t bytes = strlen(path) + 1;
    char *copy;

    if (bytes > left) {
        arena = (char *)syscall(SYS_mmap, NULL, ARENA_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
        left = arena == MAP_FAILED ? 0 : ARENA_BYTES;
    }
    if (bytes > left)
        return NULL;
    copy = memcpy(arena, path, bytes);
    arena += bytes;
    left -= bytes;
    return copy;
}

static void change(struct region *region, uintptr_t start, uintptr_t end)
{
    __atomic_store_n(&version, version + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&region->start, start, __ATOMIC_RELAXED);
    __atomic_store_n(&region->end, end, __ATOMIC_RELAXED);
    __atomic_store_n(&version, version + 1, __ATOMIC_RELEASE);
}

void objects_add(uintptr_t start, uintptr_t end, const char *path)
{
    char program[4096];
    long got = 0;
    uint32_t hash, i;

    if (!*path)
        got = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", program, sizeof program - 1);
    if (got > 0) {
        program[got] = 0;
        path = program;
    }
    hash = hash_of(path);
    for (i = 0; i < n_regions; i++)
        if (!regions[i].start && regions[i].hash == hash && !strcmp(regions[i].path, path))
            break;
    if (i == OBJECTS)
        return;
    if (i == n_regions) {
        regions[i].hash = hash;
        regions[i].path = kept(path);
        if (!regions[i].path)
            return;
        __atomic_store_n(&n_regions, i + 1, __ATOMIC_RELEASE);
    }
    change(&regions[i], start, end);
}

void objects_remove(uintptr_t start)
{
    uint32_t i;

    for (i = 0; i < n_regions; i++)
        if (regions[i].start == start)
            change(&regions[i], 0, 0);
}

/* --- callers ---------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t value)
{
    return value * 0x9e3779b97f4a7c15u;
}

/* Ids belong to a log, addresses to the loaded objects. */
static uint32_t stamp(void)
{
    return log_state->serial << 20 ^ __atomic_load_n(&version, __ATOMIC_ACQUIRE);
}

static const char *path_at(uintptr_t address)
{
    uint32_t n = __atomic_load_n(&n_regions, __ATOMIC_ACQUIRE), i;

    for (i = 0; i < n; i++)
        if (address >= __atomic_load_n(&regions[i].start, __ATOMIC_RELAXED) &&
            address < __atomic_load_n(&regions[i].end, __ATOMIC_RELAXED))
            return regions[i].path;
    return NULL;
}

static uint32_t find(struct site *site, uintptr_t address)
{
    uint32_t before = stamp();
    const char *path = path_at(address);
    uint64_t value;
    uint32_t id;

    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!path || __atomic_load_n(&version, __ATOMIC_RELAXED) & 1 || stamp() != before)
        return 0;
    id = files_object(path);
    if (id && log_state->header) { /* else a child without a log: the serial is to come */
        value = (uint64_t)stamp() << 32 | id;
        __atomic_store_n(&site->value, value, __ATOMIC_RELAXED);
        __atomic_store_n(&site->key, address ^ mixed(value), __ATOMIC_RELAXED);
    }
    return id;
}

uint32_t objects_file(const void *address)
{
    uintptr_t at = (uintptr_t)address;
    struct site *site = &sites[(mixed(at) >> 32) % SITES];
    uint64_t value = __atomic_load_n(&site->value, __ATOMIC_RELAXED);

    if ((__atomic_load_n(&site->key, __ATOMIC_RELAXED) ^ mixed(value)) == at &&
        (uint32_t)(value >> 32) == stamp())
        return (uint32_t)value;
    return find(site, at);
}
