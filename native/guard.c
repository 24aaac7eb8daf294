/* The handler of SIGBUS.  Other faults are left to the program: the program's action is put in
 * place, and the signal comes again, so that the program's handler runs as the kernel would run the
 * handler. */
#include "guard.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

#define REGIONS_MAX 4096 /* each thread has a region */

struct region {
    char *start; /* NULL: free */
    size_t bytes;
    void (*is_cut)(void);
};

struct table {
    uint32_t used; /* regions ever in use */
    struct region regions[REGIONS_MAX];
};

static struct table family;
static struct table *process; /* zero in a forked child, without the mappings */
static struct sigaction theirs;
static int is_ours; /* the kernel's action */

static struct region *region_in(struct table *table, const char *address)
{
    uint32_t n = table ? __atomic_load_n(&table->used, __ATOMIC_ACQUIRE) : 0;
    uint32_t i;

    for (i = 0; i < n; i++) {
        struct region *region = &table->regions[i];
        char *start = __atomic_load_n(&region->start, __ATOMIC_ACQUIRE);

        if (start && address >= start && address < start + region->bytes)
            return region;
    }
    return NULL;
}

static struct region *region_at(const char *address)
{
    struct region *region = region_in(process, address);

    return region ? region : region_in(&family, address);
}

/* The instruction is repeated, and finds zeros, or the program's action runs. */
static void on_bus(int number, siginfo_t *info, void *context)
{
    struct region *region = info->si_code == BUS_ADRERR ? region_at(info->si_addr) : NULL;
    int error = errno;

    (void)context;
    if (region && MAP_FAILED != (void *)syscall(SYS_mmap, region->start, region->bytes,
                                                PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L)) {
        if (region->is_cut)
            region->is_cut();
        errno = error;
        return;
    }
    __atomic_store_n(&is_ours, 0, __ATOMIC_RELEASE);
    sigaction(number, &theirs, NULL);
    if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO) /* nothing is done again */
        syscall(SYS_rt_tgsigqueueinfo, syscall(SYS_getpid), syscall(SYS_gettid), number, info);
    errno = error;
}

/* SIGBUS is not blocked in the handler: the log's header, for is_cut's reason, may be gone too. */
void guard_start(void)
{
    struct sigaction ours = {.sa_sigaction = on_bus,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART};
    struct sigaction before;
    int error = errno;

    sigemptyset(&ours.sa_mask);
    if (!sigaction(SIGBUS, NULL, &before) && before.sa_sigaction != on_bus) {
        theirs = before;
        __atomic_store_n(&is_ours, 1, __ATOMIC_RELEASE);
        sigaction(SIGBUS, &ours, NULL);
    }
    errno = error;
}

/* NULL: the table is full. */
static struct region *free_region(struct table *table, char *start)
{
    uint32_t i, used;

    for (i = 0; table && i < REGIONS_MAX; i++) {
        char *none = NULL;

        if (!__atomic_compare_exchange_n(&table->regions[i].start, &none, start, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        used = __atomic_load_n(&table->used, __ATOMIC_RELAXED);
        while (used <= i && !__atomic_compare_exchange_n(&table->used, &used, i + 1, false,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            ;
        return &table->regions[i];
    }
    return NULL;
}

void guard_add(enum guard_of kind, void *start, size_t bytes, void (*is_cut)(void))
{
    struct region *region;
    int error = errno;

    if (kind == GUARD_PROCESS && !process)
        process = log_map_wiped(sizeof *process);
    guard_remove(start);
    region = free_region(kind == GUARD_PROCESS ? process : &family, start);
    if (region) {
        region->is_cut = is_cut;
        __atomic_store_n(&region->bytes, bytes, __ATOMIC_RELEASE);
    }
    if (!__atomic_load_n(&is_ours, __ATOMIC_ACQUIRE))
        guard_start();
    errno = error;
}

void guard_remove(const void *start)
{
    struct region *region = region_at(start);

    if (!region || region->start != start)
        return;
    region->bytes = 0; /* the place is in no mapping before the next one's size is known */
    __atomic_store_n(&region->start, NULL, __ATOMIC_RELEASE);
}

bool guard_action(const struct sigaction *action, struct sigaction *before)
{
    struct sigaction last = theirs;

    if (!__atomic_load_n(&is_ours, __ATOMIC_ACQUIRE))
        return false;
    if (action)
        theirs = *action;
    if (before)
        *before = last;
    return true;
}
