#include "counters.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

#define FIRST_SLOTS 4096

struct entry {
    uint64_t key; /* file << 8 | op, plus 1; 0: free */
    void *counter;
};

/* Reached from log_state, so a forked child has none. */
struct counters {
    struct entry *entries;
    uint64_t size; /* a power of two */
    uint64_t used;
    struct block *blocks[BLOCK_ACCESS + 1]; /* the block being filled, of each kind */
};

static void *map_private(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);

    if (memory == MAP_FAILED)
        return NULL;
    syscall(SYS_madvise, memory, bytes, MADV_DONTFORK);
    return memory;
}

static uint64_t mix(uint64_t key)
{
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 32;
}

static struct entry *find(struct entry *entries, uint64_t size, uint64_t key)
{
    uint64_t i = mix(key) & (size - 1);

    while (entries[i].key && entries[i].key != key)
        i = (i + 1) & (size - 1);
    return &entries[i];
}

static bool grow(struct counters *counters)
{
    uint64_t size = counters->size ? counters->size * 2 : FIRST_SLOTS;
    struct entry *entries = map_private(size * sizeof *entries);
    uint64_t i;

    if (!entries)
        return false;
    for (i = 0; i < counters->size; i++)
        if (counters->entries[i].key)
            *find(entries, size, counters->entries[i].key) = counters->entries[i];
    if (counters->entries)
        syscall(SYS_munmap, counters->entries, counters->size * sizeof *entries);
    counters->entries = entries;
    counters->size = size;
    return true;
}

enum group {
    GROUP_metadata,
    GROUP_read,
    GROUP_write,
    GROUP_process,
    GROUP_account,
    GROUP_app,
    GROUP_wait,
    GROUP_sleep,
    GROUP_sync,
    GROUP_exchange
};

static enum group group_of(uint32_t op)
{
    static const uint8_t table[OP_LIMIT] = {
#define X(number, name, layer, group) [number] = GROUP_##group,
        OPS(X)
#undef X
    };

    return table[op & 0xff];
}

/* Calls that move bytes: not fsync and its kin. */
static bool is_access(uint32_t op)
{
    enum group group = group_of(op);
    bool is_sync = (op >= OP_FSYNC && op <= OP_SYNCFS) || op == OP_MSYNC || op == OP_FFLUSH;

    return (group == GROUP_read || group == GROUP_write) && !is_sync;
}

static void *new_counter(struct counters *counters, uint32_t kind)
{
    static const size_t sizes[] = {0, 0, sizeof(struct calls_counter),
                                   sizeof(struct access_counter)};
    struct block *block = counters->blocks[kind];
    uint64_t unit;

    if (!block || block->used == block->limit) {
        block = log_map_unit(&unit, NULL);
        if (!block)
            return NULL;
        block->magic = BLOCK_MAGIC;
        block->kind = kind;
        block->round = __atomic_add_fetch(&log_state->rounds, 1, __ATOMIC_RELAXED);
        block->limit = (uint32_t)((LOG_UNIT_BYTES - sizeof *block) / sizes[kind]);
        block->texts = LOG_UNIT_BYTES;
        block->first = clock_ticks();
        counters->blocks[kind] = block;
    }
    return (char *)(block + 1) + sizes[kind] * block->used++;
}

static void *counter_of(struct counters *counters, uint32_t file, uint32_t op)
{
    uint64_t key = ((uint64_t)file << 8 | op) + 1;
    struct entry *entry;
    void *counter;

    if (counters->used * 2 >= counters->size && !grow(counters))
        return NULL;
    entry = find(counters->entries, counters->size, key);
    if (entry->key)
        return entry->counter;
    counter = new_counter(counters, is_access(op) ? BLOCK_ACCESS : BLOCK_CALLS);
    if (!counter)
        return NULL;
    ((struct calls_counter *)counter)->file = file;
    ((struct calls_counter *)counter)->op = op;
    if (is_access(op)) {
        ((struct access_counter *)counter)->max_end = -1;
        ((struct access_counter *)counter)->last_end = -1;
        ((struct access_counter *)counter)->first_offset = -1;
    }
    entry->key = key;
    entry->counter = counter;
    counters->used++;
    return counter;
}

/* Darshan's bounds: a bucket holds sizes up to and including the bound. */
static unsigned bucket_of(uint64_t bytes)
{
    static const uint64_t bounds[COUNTER_BUCKETS - 1] = {
        100, 1024, 10240, 102400, 1048576, 4194304, 10485760, 104857600, 1073741824};
    unsigned i = 0;

    while (i < COUNTER_BUCKETS - 1 && bytes > bounds[i])
        i++;
    return i;
}

/* The four commonest values, by counting in place: exact while no more than four occur. */
static void count_value(int64_t value, void *slots)
{
    struct {
        int64_t value;
        uint64_t calls;
    } *common = slots, *rarest = common;
    int i;

    for (i = 0; i < COUNTER_COMMON; i++) {
        if (common[i].calls && common[i].value == value) {
            common[i].calls++;
            return;
        }
        if (common[i].calls < rarest->calls)
            rarest = &common[i];
    }
    rarest->value = value;
    rarest->calls++;
}

/* The definitions of src/penstock/runs/queries/counters.sql; a test compares a folded run with a
 * kept run.  The first access has no predecessor here: the reader judges the first access by
 * first_offset. */
static void count_place(struct access_counter *counter, int64_t offset, uint64_t moved)
{
    if (offset < 0)
        return;
    if (counter->first_offset < 0) {
        counter->first_offset = offset;
    } else {
        counter->sequential += !offset || offset >= counter->last_end;
        counter->consecutive += !offset || offset == counter->last_end;
        count_value(offset - counter->last_end, counter->strides);
    }
    if (offset & 4095)
        counter->unaligned++;
    counter->last_end = offset + (int64_t)moved;
    if (counter->last_end > counter->max_end)
        counter->max_end = counter->last_end;
}

/* Whether the last access of a file went the other way, whatever its op; only the index keeps the
 * direction. */
static bool has_turned(struct counters *counters, uint32_t file, bool is_write)
{
    struct entry *entry;
    uintptr_t before;

    if (counters->used * 2 >= counters->size && !grow(counters))
        return false;
    entry = find(counters->entries, counters->size, ((uint64_t)file << 8) + 1);
    before = (uintptr_t)entry->counter;
    counters->used += !entry->key;
    entry->key = ((uint64_t)file << 8) + 1;
    entry->counter = (void *)(uintptr_t)(is_write ? 2 : 1);
    return before && before != (uintptr_t)entry->counter;
}

/* A finished call, from an event or from a carried record. */
struct finished {
    uint32_t file, op;
    uint64_t start, ticks, asked, moved;
    int64_t offset;
    bool has_failed;
};

static struct finished finished_of(const struct block *block, const struct event *event)
{
    const struct event_rest *rest = event_rest(block, event);

    return (struct finished){
        .file = event_file(event),
        .op = event_op(event),
        .start = event_start(block, event),
        .ticks = event_ticks(event),
        .asked = rest ? rest->asked : event->asked,
        .moved = rest ? rest->moved : event->moved,
        .offset = event->offset,
        .has_failed = event->done >> 16 & 0xff,
    };
}

static void count_access(struct counters *counters, struct access_counter *counter,
                         const struct finished *call)
{
    bool is_copy =
        counter->op == OP_SENDFILE || counter->op == OP_COPY_RANGE || counter->op == OP_SPLICE;
    int64_t offset = is_copy ? -1 : call->offset; /* of a copy, the second file's id */

    if (!call->moved) {
        counter->empty++;
        return;
    }
    counter->buckets[bucket_of(call->moved)]++;
    count_value((int64_t)call->moved, counter->sizes);
    count_place(counter, offset, call->moved);
    if (offset >= 0)
        counter->switches +=
            has_turned(counters, counter->file, group_of(counter->op) == GROUP_write);
}

static bool count_call(struct counters *counters, const struct finished *call)
{
    struct access_counter *counter = counter_of(counters, call->file, call->op);

    if (!counter)
        return false;
    counter->calls++; /* both kinds begin alike, see events.h */
    counter->errors += call->has_failed;
    counter->ticks += call->ticks;
    if (!counter->first || call->start < counter->first)
        counter->first = call->start;
    if (call->start + call->ticks > counter->last)
        counter->last = call->start + call->ticks;
    counter->asked += call->asked;
    if (call->op < OP_FIRST_WAIT) /* of a wait, the waking thread: no sum */
        counter->moved += call->moved;
    if (call->ticks > counter->max_ticks) {
        counter->max_ticks = call->ticks;
        if (is_access(call->op))
            counter->max_ticks_bytes = call->moved;
    }
    if (is_access(call->op) && !call->has_failed)
        count_access(counters, counter, call);
    return true;
}

bool counters_fold(struct block *block)
{
    struct event *events = log_events(block);
    uint64_t folded = 0;
    bool is_counted = true;
    uint32_t i;

    log_lock(&log_state->lock);
    if (!log_state->counters)
        log_state->counters = map_private(sizeof *log_state->counters);
    if (!log_state->counters) {
        is_counted = false;
        log_fail(ENOMEM, "no memory for counters");
    }
    for (i = 0; i < block->used && is_counted; i++) {
        enum op op = event_op(&events[i]);
        struct finished call;

        if (!op || op >= OP_FIRST_APP || !event_ticks(&events[i]))
            continue;
        call = finished_of(block, &events[i]);
        is_counted = count_call(log_state->counters, &call);
        if (!is_counted)
            break;
        events[i].begun = 0;
        folded++;
    }
    log_state->header->folded += folded;
    log_unlock(&log_state->lock);
    return is_counted;
}
