/* Page faults of the job, seen from beside it.  Knows the kernel's samples and the bytes of the
 * faults' file; knows no log and no call of the job.
 *
 * Each fault gives two samples: one where it begins, one (major or minor) where it ends.  A ring
 * for each processor takes them, together with every mapping that is made, so a fault's address
 * becomes a file and an offset without asking the job anything. */
#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "events.h"
#include "log.h"
#include "sums.h"

/* The ring's owner tells of mappings and processes, and stays on in a pause. */
enum kind { KIND_MAPS, KIND_BEGIN, KIND_MAJOR, KIND_MINOR, KINDS };

#define RINGS_BYTES (32u << 20) /* all of them at most; locked memory */
#define RING_MOST_BYTES (2u << 20)
#define RING_LEAST_BYTES (16u << 10)
#define OUT_BYTES (256u << 10)
#define RECORD_MOST_BYTES 65536 /* the kernel's own limit: its size has 16 bits */
/* Single records, 40 bytes each; past half of it only those that waited. */
#define KEPT_MOST (1600u << 10)
#define BUCKETS 4096
#define SETTLED_NS 2000000 /* what is older has surely reached its ring */
#define COUNTS_EVERY_NS 1000000000u
#define PASSES_MOST 8 /* in which a process starts no thread that we have not seen */

/* One kind of a thread's (or, before exec, of what will be started). */
struct counter {
    uint64_t id; /* the kernel counts them up */
    int fd;
    enum kind kind;
};

struct ring {
    char *memory;
    uint64_t bytes;
    uint64_t tail, head; /* the next record, and where this pass ends */
    uint64_t time;       /* of the next record */
    int cpu;
    uint32_t n_events, room;
    struct counter *events; /* in order of their ids; the first is the ring's owner */
};

struct mapped_file {
    struct mapped_file *next;
    struct fault_file known;
    char path[];
};

struct counts {
    struct counts *next;
    struct fault_counts known;
    bool is_new; /* since they were last written */
};

struct mapping {
    uint64_t start, end, offset;
    struct counts *counts; /* NULL: no fault yet */
    uint32_t file;         /* 0: none */
};

struct image {
    struct image *next;
    uint32_t pid, number;
    uint32_t n, room;
    struct mapping *maps; /* by address, none overlap */
    struct counts *counts;
    struct counts *memory; /* those without a file */
};

/* A fault that began. */
struct begun {
    struct begun *next;
    uint32_t tid;
    uint64_t address, time; /* 0: none */
};

struct faults {
    struct ring *rings;
    struct pollfd *polled;
    int n_rings, fd;
    int *tids; /* threads that ran already */
    uint32_t n_tids;
    char *out;
    size_t out_used;
    char *record; /* one that wraps around its ring's end */
    uint64_t counted_ns;
    uint64_t written; /* bytes that are whole */
    uint32_t kept, n_images, n_files;
    struct image *images[BUCKETS];
    struct begun *begun[BUCKETS];
    struct mapped_file *files[BUCKETS];
    struct faults_header header;
    struct faults_state state;
};

/* What stands behind every record but samples, and its place from the end. */
struct trailer {
    uint32_t pid, tid;
    uint64_t time, identifier;
};

struct sample {
    struct perf_event_header head;
    uint64_t identifier;
    uint32_t pid, tid;
    uint64_t time, address;
};

struct mmap2 {
    struct perf_event_header head;
    uint32_t pid, tid;
    uint64_t address, bytes, offset;
    uint32_t device_major, device_minor;
    uint64_t inode, generation;
    uint32_t protection, flags;
    char path[];
};

struct task {
    struct perf_event_header head;
    uint32_t pid, ppid, tid, ptid;
    uint64_t time;
};

/* --- the file -----------------------------------------------------------------------------------
 */

/* A chunk of faults grows until it is written: sums come last. */
static void put_sums(struct faults *faults)
{
    size_t at = 0;

    while (at < faults->out_used) {
        struct chunk *chunk = (struct chunk *)(faults->out + at);

        chunk->head_sum = sums_add(0, chunk, offsetof(struct chunk, head_sum));
        chunk->sum = sums_add(0, chunk + 1, chunk->bytes - sizeof *chunk);
        at += chunk->bytes;
    }
}

static void flush(struct faults *faults)
{
    size_t done = 0;
    ssize_t put = 0;

    put_sums(faults);
    while (!faults->state.error && done < faults->out_used) {
        put = write(faults->fd, faults->out + done, faults->out_used - done);
        if (put < 0 && errno != EINTR)
            faults->state.error = errno;
        else if (!put)
            faults->state.error = ENOSPC;
        else if (put > 0)
            done += (size_t)put;
    }
    if (faults->state.error && faults->out_used) {
        /* A part of a chunk would make what follows unreadable. */
        if (ftruncate(faults->fd, (off_t)faults->written))
            faults->state.error = errno;
    } else {
        faults->written += done;
    }
    faults->out_used = 0;
}

static void *put_chunk(struct faults *faults, uint32_t kind, size_t bytes)
{
    struct chunk *chunk;

    bytes = (sizeof *chunk + bytes + 7) & ~7ull;
    if (faults->out_used + bytes > OUT_BYTES)
        flush(faults);
    chunk = (struct chunk *)(faults->out + faults->out_used);
    memset(chunk, 0, bytes);
    *chunk = (struct chunk){.kind = kind, .bytes = (uint32_t)bytes};
    faults->out_used += bytes;
    return chunk + 1;
}

/* Faults come by the thousand: one chunk holds those of a pass that follow one another. */
static struct fault *put_fault(struct faults *faults, struct chunk **open)
{
    struct fault *fault;

    if (*open && faults->out_used + sizeof *fault <= OUT_BYTES &&
        (char *)*open + (*open)->bytes == faults->out + faults->out_used) {
        fault = (struct fault *)(faults->out + faults->out_used);
        (*open)->bytes += sizeof *fault;
        faults->out_used += sizeof *fault;
        return fault;
    }
    fault = put_chunk(faults, CHUNK_FAULTS, sizeof *fault);
    *open = (struct chunk *)fault - 1;
    return fault;
}

static void put_counts(struct faults *faults, struct counts *counts)
{
    for (; counts; counts = counts->next) {
        if (!counts->is_new)
            continue;
        counts->is_new = false;
        *(struct fault_counts *)put_chunk(faults, CHUNK_COUNTS, sizeof counts->known) =
            counts->known;
    }
}

static void put_image_counts(struct faults *faults, struct image *image)
{
    put_counts(faults, image->counts);
    put_counts(faults, image->memory);
}

static uint64_t read_count(const struct faults *faults, enum kind kind)
{
    uint64_t sum = 0;
    uint64_t one;
    uint32_t n;
    int i;

    for (i = 0; i < faults->n_rings; i++)
        for (n = 0; n < faults->rings[i].n_events; n++) {
            const struct counter *event = &faults->rings[i].events[n];

            if (event->kind == kind && read(event->fd, &one, sizeof one) == sizeof one)
                sum += one;
        }
    return sum;
}

static void put_state(struct faults *faults, bool is_ended)
{
    struct faults_state *state = &faults->state;
    size_t i;

    for (i = 0; i < BUCKETS; i++) {
        struct image *image;

        for (image = faults->images[i]; image; image = image->next)
            put_image_counts(faults, image);
    }
    state->now_ns = clock_ns(CLOCK_MONOTONIC);
    state->counted_major = read_count(faults, KIND_MAJOR);
    state->counted_minor = read_count(faults, KIND_MINOR);
    state->is_ended = is_ended;
    *(struct faults_state *)put_chunk(faults, CHUNK_STATE, sizeof *state) = *state;
    flush(faults);
    faults->counted_ns = state->now_ns;
}

static int write_header(struct faults *faults, int cpus, uint64_t ring_bytes)
{
    struct faults_header *header = &faults->header;
    char page[FAULTS_HEADER_BYTES] = {0};

    memcpy(header->magic, FAULTS_MAGIC, sizeof header->magic);
    header->version = FAULTS_VERSION;
    header->header_bytes = FAULTS_HEADER_BYTES;
    header->launcher = (uint32_t)getpid();
    header->page_bytes = (uint32_t)sysconf(_SC_PAGESIZE);
    header->start_unix_ns = clock_ns(CLOCK_REALTIME);
    header->start_ns = clock_ns(CLOCK_MONOTONIC);
    header->cpus = (uint32_t)cpus;
    header->ring_bytes = (uint32_t)ring_bytes;
    log_machine(header->host, header->boot_id);
    header->sum = 0;
    memcpy(page, header, sizeof *header);
    header->sum = sums_add(0, page, sizeof page);
    memcpy(page, header, sizeof *header);
    if (write(faults->fd, page, sizeof page) != sizeof page)
        return errno ? -errno : -ENOSPC;
    faults->written = sizeof page;
    return 0;
}

/* --- what is known of processes, files and mappings ---------------------------------------------
 */

static struct image *image_of(struct faults *faults, uint32_t pid)
{
    struct image *image = faults->images[pid % BUCKETS];

    while (image && image->pid != pid)
        image = image->next;
    return image;
}

static void free_counts(struct counts *counts)
{
    while (counts) {
        struct counts *next = counts->next;

        free(counts);
        counts = next;
    }
}

static void forget_image(struct faults *faults, uint32_t pid)
{
    struct image **place = &faults->images[pid % BUCKETS];
    struct image *image;

    while (*place && (*place)->pid != pid)
        place = &(*place)->next;
    image = *place;
    if (!image)
        return;
    *place = image->next;
    put_image_counts(faults, image);
    free_counts(image->counts);
    free_counts(image->memory);
    free(image->maps);
    free(image);
}

/* A process begins, or begins anew by exec; NULL: no memory, its faults are foreign. */
static struct image *begin_image(struct faults *faults, uint32_t pid, uint32_t ppid, bool is_joined,
                                 uint64_t time)
{
    struct image *image;

    forget_image(faults, pid);
    image = calloc(1, sizeof *image);
    if (!image)
        return NULL;
    image->pid = pid;
    image->number = ++faults->n_images;
    image->next = faults->images[pid % BUCKETS];
    faults->images[pid % BUCKETS] = image;
    *(struct fault_image *)put_chunk(faults, CHUNK_IMAGES, sizeof(struct fault_image)) =
        (struct fault_image){image->number, pid, ppid, is_joined, time};
    return image;
}

static bool has_room(struct image *image, uint32_t more)
{
    uint32_t room = image->room ? image->room : 64;
    struct mapping *maps;

    while (room < image->n + more)
        room *= 2;
    if (room == image->room)
        return true;
    maps = realloc(image->maps, room * sizeof *maps);
    if (!maps)
        return false;
    image->maps = maps;
    image->room = room;
    return true;
}

static void copy_mappings(struct image *to, const struct image *from)
{
    uint32_t i;

    if (!from || !has_room(to, from->n))
        return;
    for (i = 0; i < from->n; i++) {
        to->maps[i] = from->maps[i];
        to->maps[i].counts = NULL;
    }
    to->n = from->n;
}

/* The first mapping that ends behind the address. */
static uint32_t place_of(const struct image *image, uint64_t address)
{
    uint32_t low = 0, high = image->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (image->maps[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A new mapping takes the place of what was there; without a file nothing is left to know. */
static void map(struct image *image, struct mapping added)
{
    uint32_t first = place_of(image, added.start);
    uint32_t last, kept = 0;
    struct mapping left[2];

    if (!has_room(image, 2))
        return;
    for (last = first; last < image->n && image->maps[last].start < added.end; last++) {
        struct mapping old = image->maps[last];

        if (old.start < added.start) {
            left[0] = old;
            left[0].end = added.start;
            kept |= 1;
        }
        if (old.end > added.end) {
            left[1] = old;
            left[1].offset += added.end - old.start;
            left[1].start = added.end;
            kept |= 2;
        }
    }
    {
        uint32_t n = (kept & 1) + (kept >> 1) + (added.file != 0);
        struct mapping *place = image->maps + first;

        memmove(place + n, image->maps + last, (image->n - last) * sizeof *place);
        image->n += n - (last - first);
        if (kept & 1)
            *place++ = left[0];
        if (added.file)
            *place++ = added;
        if (kept & 2)
            *place = left[1];
    }
}

static uint32_t hash_of(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 16777619u;
    return hash % BUCKETS;
}

/* 0: no memory for it. */
static uint32_t file_of(struct faults *faults, const struct mmap2 *record)
{
    struct mapped_file **place = &faults->files[hash_of(record->path)];
    struct mapped_file *file;
    size_t length = strlen(record->path);
    char *chunk;

    for (; *place; place = &(*place)->next)
        if ((*place)->known.inode == record->inode &&
            (*place)->known.device_major == record->device_major &&
            (*place)->known.device_minor == record->device_minor &&
            !strcmp((*place)->path, record->path))
            return (*place)->known.file;
    file = malloc(sizeof *file + length + 1);
    if (!file)
        return 0;
    *place = file;
    file->next = NULL;
    file->known = (struct fault_file){++faults->n_files, record->device_major, record->device_minor,
                                      0, record->inode};
    memcpy(file->path, record->path, length + 1);
    chunk = put_chunk(faults, CHUNK_FILE, sizeof file->known + length + 1);
    memcpy(chunk, &file->known, sizeof file->known);
    memcpy(chunk + sizeof file->known, record->path, length + 1);
    return file->known.file;
}

static struct counts *counts_of(struct image *image, uint32_t file)
{
    struct counts **list = file ? &image->counts : &image->memory;
    struct counts *counts = *list;

    while (counts && counts->known.file != file)
        counts = counts->next;
    if (counts)
        return counts;
    counts = calloc(1, sizeof *counts);
    if (!counts)
        return NULL;
    counts->known.image = image->number;
    counts->known.file = file;
    counts->next = *list;
    *list = counts;
    return counts;
}

/* --- faults -------------------------------------------------------------------------------------
 */

static struct begun **begun_of(struct faults *faults, uint32_t tid)
{
    struct begun **place = &faults->begun[tid % BUCKETS];

    while (*place && (*place)->tid != tid)
        place = &(*place)->next;
    return place;
}

static void begin_fault(struct faults *faults, const struct sample *sample)
{
    struct begun **place = begun_of(faults, sample->tid);

    if (!*place) {
        *place = calloc(1, sizeof **place);
        if (!*place)
            return;
        (*place)->tid = sample->tid;
    }
    (*place)->address = sample->address;
    (*place)->time = sample->time;
}

/* ns since the fault began; ~0: that sample was lost. */
static uint64_t end_of(struct faults *faults, const struct sample *sample)
{
    struct begun *begun = *begun_of(faults, sample->tid);
    uint64_t time = begun ? begun->time : 0;

    if (!time || begun->address != sample->address || time > sample->time) {
        faults->state.unpaired++;
        return ~0ull;
    }
    begun->time = 0;
    return sample->time - time;
}

static void count(struct fault_counts *counts, bool is_major, uint64_t ns)
{
    uint64_t known_ns = ns == ~0ull ? 0 : ns;

    if (is_major) {
        counts->major++;
        counts->major_ns += known_ns;
    } else {
        counts->minor++;
        counts->minor_ns += known_ns;
        if (known_ns >= FAULT_WAITED_NS) {
            counts->waited++;
            counts->waited_ns += known_ns;
        }
    }
    if (known_ns > counts->max_ns)
        counts->max_ns = known_ns;
}

static bool is_worth(const struct faults *faults, bool is_major, uint64_t ns)
{
    bool has_waited = is_major || (ns != ~0ull && ns >= FAULT_WAITED_NS);

    return faults->kept < (has_waited ? KEPT_MOST : KEPT_MOST / 2);
}

static void end_fault(struct faults *faults, const struct sample *sample, bool is_major,
                      struct chunk **open)
{
    struct image *image = image_of(faults, sample->pid);
    uint64_t ns = end_of(faults, sample);
    uint64_t page = sample->address & ~(uint64_t)(faults->header.page_bytes - 1);
    struct mapping *found = NULL;
    struct counts *counts;
    uint32_t place;

    *(is_major ? &faults->state.seen_major : &faults->state.seen_minor) += 1;
    if (!image) {
        faults->state.foreign++;
        return;
    }
    place = place_of(image, sample->address);
    if (place < image->n && image->maps[place].start <= sample->address)
        found = &image->maps[place];
    counts = found && found->counts ? found->counts : counts_of(image, found ? found->file : 0);
    if (!counts) {
        faults->state.foreign++;
        return;
    }
    count(&counts->known, is_major, ns);
    counts->is_new = true;
    if (!found)
        return;
    found->counts = counts;
    if (!is_worth(faults, is_major, ns)) {
        faults->state.folded++;
        return;
    }
    faults->kept++;
    counts->known.kept++;
    *put_fault(faults, open) = (struct fault){ns == ~0ull ? sample->time : sample->time - ns,
                                              ns,
                                              page - found->start + found->offset,
                                              image->number,
                                              sample->tid,
                                              found->file,
                                              is_major ? FAULT_MAJOR : FAULT_MINOR};
}

/* --- the kernel's records -----------------------------------------------------------------------
 */

static enum kind kind_of(const struct ring *ring, uint64_t id)
{
    uint32_t low = 0, high = ring->n_events;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (ring->events[middle].id <= id)
            low = middle;
        else
            high = middle;
    }
    return ring->events[low].kind;
}

static void take_sample(struct faults *faults, const struct ring *ring, const struct sample *sample,
                        struct chunk **open)
{
    enum kind kind = kind_of(ring, sample->identifier);

    if (kind == KIND_BEGIN)
        begin_fault(faults, sample);
    else
        end_fault(faults, sample, kind == KIND_MAJOR, open);
}

static void take_mapping(struct faults *faults, const struct mmap2 *record)
{
    struct image *image = image_of(faults, record->pid);
    bool is_file = record->inode && record->path[0] == '/' && record->path[1] != '/';

    if (image)
        map(image, (struct mapping){record->address, record->address + record->bytes,
                                    record->offset, NULL, is_file ? file_of(faults, record) : 0});
}

static void take_end(struct faults *faults, const struct task *task)
{
    struct begun **place = begun_of(faults, task->tid);
    struct begun *begun = *place;

    if (begun) {
        *place = begun->next;
        free(begun);
    }
    if (task->tid == task->pid)
        forget_image(faults, task->pid);
}

static void take(struct faults *faults, const struct ring *ring,
                 const struct perf_event_header *head, struct chunk **open)
{
    const struct task *task = (const struct task *)head;

    switch (head->type) {
    case PERF_RECORD_SAMPLE: take_sample(faults, ring, (const struct sample *)head, open); break;
    case PERF_RECORD_MMAP2: take_mapping(faults, (const struct mmap2 *)head); break;
    case PERF_RECORD_COMM:
        if (head->misc & PERF_RECORD_MISC_COMM_EXEC)
            begin_image(faults, task->pid, 0, false, ring->time);
        break;
    case PERF_RECORD_FORK:
        if (task->pid != task->ppid) {
            struct image *image = begin_image(faults, task->pid, task->ppid, false, task->time);

            if (image)
                copy_mappings(image, image_of(faults, task->ppid));
        }
        break;
    case PERF_RECORD_EXIT: take_end(faults, task); break;
    case PERF_RECORD_LOST: faults->state.lost += ((const uint64_t *)(head + 1))[1]; break;
    default: break;
    }
}

/* A record as one piece. */
static const struct perf_event_header *record_at(const struct faults *faults,
                                                 const struct ring *ring, uint64_t place)
{
    uint64_t at = place & (ring->bytes - 1);
    const struct perf_event_header *head = (const void *)(ring->memory + at);
    uint64_t first = ring->bytes - at;

    if (head->size <= first)
        return head;
    memcpy(faults->record, head, first);
    memcpy(faults->record + first, ring->memory, head->size - first);
    return (const struct perf_event_header *)faults->record;
}

/* Sets `time` to that of the next record, ~0 at the end of what this pass takes. */
static void look_ahead(const struct faults *faults, struct ring *ring)
{
    const struct perf_event_header *head;

    ring->time = ~0ull;
    if (ring->tail >= ring->head)
        return;
    head = record_at(faults, ring, ring->tail);
    if (head->size < sizeof *head + sizeof(struct trailer)) {
        ring->tail = ring->head; /* no record of ours: nothing behind it can be found */
        return;
    }
    ring->time = head->type == PERF_RECORD_SAMPLE
                     ? ((const struct sample *)head)->time
                     : ((const struct trailer *)((const char *)head + head->size))[-1].time;
}

/* All rings' records in order of time: a fault may begin on one processor and end on another.  What
 * is younger than `until` stays, as an older one may be on its way into another ring. */
static void drain(struct faults *faults, uint64_t until)
{
    struct chunk *open = NULL;
    int i;

    for (i = 0; i < faults->n_rings; i++) {
        struct ring *ring = &faults->rings[i];
        struct perf_event_mmap_page *page = (void *)(ring->memory - faults->header.page_bytes);

        ring->head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
        look_ahead(faults, ring);
    }
    for (;;) {
        struct ring *next = &faults->rings[0];
        const struct perf_event_header *head;
        struct perf_event_mmap_page *page;

        for (i = 1; i < faults->n_rings; i++)
            if (faults->rings[i].time < next->time)
                next = &faults->rings[i];
        if (next->time == ~0ull || next->time > until)
            break;
        head = record_at(faults, next, next->tail);
        take(faults, next, head, &open);
        next->tail += head->size;
        page = (void *)(next->memory - faults->header.page_bytes);
        __atomic_store_n(&page->data_tail, next->tail, __ATOMIC_RELEASE);
        look_ahead(faults, next);
    }
    flush(faults);
}

/* --- open and close -----------------------------------------------------------------------------
 */

/* tid: a thread that runs; 0: what we start by exec. */
static int open_event(struct faults *faults, enum kind kind, int tid, int cpu, bool is_paused)
{
    static const uint64_t events[] = {PERF_COUNT_SW_DUMMY, PERF_COUNT_SW_PAGE_FAULTS,
                                      PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_COUNT_SW_PAGE_FAULTS_MIN};
    bool is_on = kind == KIND_MAPS || !is_paused;
    struct perf_event_attr attr = {
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof attr,
        .config = events[kind],
        .sample_type =
            PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR,
        .disabled = !tid || !is_on,
        .enable_on_exec = !tid && is_on,
        .inherit = 1,
        .sample_id_all = 1,
        .use_clockid = 1,
        .clockid = CLOCK_MONOTONIC,
        .watermark = 1,
        .wakeup_watermark = faults->header.ring_bytes / 4,
        .exclude_kernel = faults->header.is_user_only,
        .exclude_hv = 1,
    };

    if (kind == KIND_MAPS)
        attr.mmap = attr.mmap2 = attr.mmap_data = attr.comm = attr.comm_exec = attr.task = 1;
    else
        attr.sample_period = 1;
    return (int)syscall(SYS_perf_event_open, &attr, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

static void close_ring(const struct faults *faults, struct ring *ring)
{
    uint32_t i;

    if (ring->memory)
        munmap(ring->memory - faults->header.page_bytes, ring->bytes + faults->header.page_bytes);
    for (i = 0; i < ring->n_events; i++)
        close(ring->events[i].fd);
    free(ring->events);
    *ring = (struct ring){0};
}

/* The memory is the first event's; it is there before any other can put something into it. */
static int share_memory(struct faults *faults, struct ring *ring, int fd)
{
    uint32_t page_bytes = faults->header.page_bytes;
    char *memory;

    if (ring->memory)
        return ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, ring->events[0].fd) ? -errno : 0;
    ring->bytes = faults->header.ring_bytes;
    memory = mmap(NULL, ring->bytes + page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    ring->memory = memory + page_bytes;
    return 0;
}

static int add_event(struct faults *faults, struct ring *ring, enum kind kind, int tid,
                     bool is_paused)
{
    struct counter event = {.kind = kind};
    int error = 0;

    if (ring->n_events == ring->room) {
        uint32_t room = ring->room ? 2 * ring->room : KINDS;
        struct counter *events = realloc(ring->events, room * sizeof *events);

        if (!events)
            return -ENOMEM;
        ring->events = events;
        ring->room = room;
    }
    event.fd = open_event(faults, kind, tid, ring->cpu, is_paused);
    if (event.fd < 0)
        return -errno;
    if (ioctl(event.fd, PERF_EVENT_IOC_ID, &event.id))
        error = -errno;
    else
        error = share_memory(faults, ring, event.fd);
    if (error) {
        close(event.fd);
        return error;
    }
    ring->events[ring->n_events++] = event;
    return 0;
}

static int add_thread(struct faults *faults, int tid, bool is_paused)
{
    int error = 0;
    int i, kind;

    for (i = 0; i < faults->n_rings && !error; i++)
        for (kind = 0; kind < KINDS && !error; kind++)
            error = add_event(faults, &faults->rings[i], kind, tid, is_paused);
    return error;
}

static void close_rings(struct faults *faults)
{
    while (faults->n_rings)
        close_ring(faults, &faults->rings[--faults->n_rings]);
    faults->n_tids = 0;
}

/* --- processes that run already ----------------------------------------------------------------
 */

static bool has_tid(const struct faults *faults, int tid)
{
    uint32_t i;

    for (i = 0; i < faults->n_tids; i++)
        if (faults->tids[i] == tid)
            return true;
    return false;
}

/* A thread that one of ours has started is seen already: the ring says so. */
static bool is_inherited(const struct faults *faults, int tid)
{
    int i;

    for (i = 0; i < faults->n_rings; i++) {
        const struct ring *ring = &faults->rings[i];
        const struct perf_event_mmap_page *page =
            (const void *)(ring->memory - faults->header.page_bytes);
        uint64_t end = ring->memory ? __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE) : 0;
        uint64_t at = ring->tail;

        while (at < end) {
            const struct perf_event_header *head = record_at(faults, ring, at);

            if (head->size < sizeof *head)
                break;
            if (head->type == PERF_RECORD_FORK && ((const struct task *)head)->tid == (uint32_t)tid)
                return true;
            at += head->size;
        }
    }
    return false;
}

static int keep_tid(struct faults *faults, int tid)
{
    if (!(faults->n_tids & (faults->n_tids - 1))) {
        int *tids = realloc(faults->tids, (faults->n_tids ? 2 * faults->n_tids : 1) * sizeof *tids);

        if (!tids)
            return -ENOMEM;
        faults->tids = tids;
    }
    faults->tids[faults->n_tids++] = tid;
    return 0;
}

/* The threads of a process that are not seen yet; how many, or -errno.  What one of them starts
 * before its turn comes is found by the next call. */
static int add_threads(struct faults *faults, int pid, bool is_paused)
{
    struct timespec settled = {.tv_nsec = SETTLED_NS}; /* a start reaches its ring after /proc */
    char path[64];
    struct dirent *entry;
    int added = 0, error = 0;
    int *found = NULL;
    uint32_t n = 0, i;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    tasks = opendir(path);
    if (!tasks)
        return -ESRCH;
    while (!error && (entry = readdir(tasks))) {
        int tid = atoi(entry->d_name);

        if (tid <= 0 || has_tid(faults, tid))
            continue;
        if (!(n & (n - 1))) {
            int *more = realloc(found, (n ? 2 * n : 1) * sizeof *more);

            if (!more) {
                error = -ENOMEM;
                break;
            }
            found = more;
        }
        found[n++] = tid;
    }
    closedir(tasks);
    if (n)
        nanosleep(&settled, NULL);
    for (i = 0; i < n && !error; i++) {
        if (is_inherited(faults, found[i]))
            continue;
        error = add_thread(faults, found[i], is_paused);
        if (error == -ESRCH) {
            error = 0; /* it has ended meanwhile */
            continue;
        }
        if (!error)
            error = keep_tid(faults, found[i]);
        added++;
    }
    free(found);
    return error ? error : added;
}

/* What it has mapped already.  Mappings made while we read come once more from the rings, all of
 * them in their order: what they leave is what is there. */
static void read_mappings(struct faults *faults, int pid)
{
    struct image *image;
    struct mmap2 *record = (struct mmap2 *)faults->record;
    char path[64];
    char *line = NULL;
    size_t room = 0;
    FILE *maps;

    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    maps = fopen(path, "re");
    image = begin_image(faults, (uint32_t)pid, 0, true, clock_ns(CLOCK_MONOTONIC));
    while (maps && image && getline(&line, &room, maps) > 0) {
        unsigned long start, end, offset, inode;
        unsigned int device_major, device_minor;
        int at = 0;

        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %x:%x %lu %n", &start, &end, &offset, &device_major,
                   &device_minor, &inode, &at) < 6 ||
            !inode || line[at] != '/' || strlen(line + at) > RECORD_MOST_BYTES / 2)
            continue;
        *record = (struct mmap2){
            .device_major = device_major, .device_minor = device_minor, .inode = inode};
        strcpy(record->path, line + at);
        map(image, (struct mapping){start, end, offset, NULL, file_of(faults, record)});
    }
    free(line);
    if (maps)
        fclose(maps);
}

/* Children that ours started meanwhile are seen by inheritance. */
static int add_process(struct faults *faults, int pid, bool is_paused)
{
    int any = 0, pass = 0, added;

    do {
        added = add_threads(faults, pid, is_paused);
        any |= added > 0;
    } while (added > 0 && ++pass < PASSES_MOST);
    if (any && added >= 0)
        read_mappings(faults, pid);
    return added < 0 ? added : any ? 0 : -ESRCH;
}

/* The processors that any of the threads may use. */
static int processors_of(const int *pids, int n, cpu_set_t *cpus)
{
    cpu_set_t one;
    int i;

    CPU_ZERO(cpus);
    if (!n)
        return sched_getaffinity(0, sizeof *cpus, cpus) ? -errno : 0;
    for (i = 0; i < n; i++) {
        char path[64];
        struct dirent *entry;
        DIR *tasks;

        snprintf(path, sizeof path, "/proc/%d/task", pids[i]);
        tasks = opendir(path);
        while (tasks && (entry = readdir(tasks)))
            if (atoi(entry->d_name) > 0 &&
                !sched_getaffinity(atoi(entry->d_name), sizeof one, &one))
                CPU_OR(cpus, cpus, &one);
        if (tasks)
            closedir(tasks);
    }
    return CPU_COUNT(cpus) ? 0 : -ESRCH;
}

static int open_rings(struct faults *faults, const cpu_set_t *cpus, const int *pids, int n_pids,
                      bool is_paused)
{
    int error = 0;
    int cpu, i;

    for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, cpus))
            faults->rings[faults->n_rings++].cpu = cpu;
    if (!n_pids)
        error = add_thread(faults, 0, is_paused);
    for (i = 0; i < n_pids && !error; i++) {
        error = add_process(faults, pids[i], is_paused);
        if (error == -ESRCH && i)
            error = 0; /* a child that has ended, or is seen by inheritance */
    }
    for (i = 0; i < faults->n_rings && !error; i++) {
        faults->polled[i].fd = faults->rings[i].events[0].fd;
        faults->polled[i].events = POLLIN;
    }
    if (error)
        close_rings(faults);
    return error;
}

/* With the kernel's own faults where that is allowed; with as much locked memory as is allowed. */
static int open_all(struct faults *faults, const int *pids, int n_pids, bool is_paused)
{
    struct rlimit before, raised;
    cpu_set_t cpus;
    uint32_t bytes = RING_MOST_BYTES;
    int error, n;

    error = processors_of(pids, n_pids, &cpus);
    if (error)
        return error;
    n = CPU_COUNT(&cpus);
    faults->rings = calloc((size_t)n, sizeof *faults->rings);
    faults->polled = calloc((size_t)n, sizeof *faults->polled);
    if (!faults->rings || !faults->polled)
        return -ENOMEM;
    while (bytes > RING_LEAST_BYTES && (uint64_t)bytes * (uint64_t)n > RINGS_BYTES)
        bytes /= 2;
    /* Descriptors beyond the limit stay open when it is lowered again: the program inherits it. */
    getrlimit(RLIMIT_NOFILE, &before);
    raised = before;
    raised.rlim_cur = before.rlim_max;
    setrlimit(RLIMIT_NOFILE, &raised);
    for (;;) {
        faults->header.ring_bytes = bytes;
        error = open_rings(faults, &cpus, pids, n_pids, is_paused);
        if (error == -EACCES && !faults->header.is_user_only)
            faults->header.is_user_only = 1;
        else if ((error == -EPERM || error == -ENOMEM) && bytes > RING_LEAST_BYTES)
            bytes /= 2;
        else
            break;
    }
    setrlimit(RLIMIT_NOFILE, &before);
    return error;
}

static void free_all(struct faults *faults)
{
    size_t i;

    close_rings(faults);
    if (faults->fd >= 0)
        close(faults->fd);
    for (i = 0; i < BUCKETS; i++) {
        while (faults->images[i])
            forget_image(faults, faults->images[i]->pid);
        while (faults->begun[i]) {
            struct begun *next = faults->begun[i]->next;

            free(faults->begun[i]);
            faults->begun[i] = next;
        }
        while (faults->files[i]) {
            struct mapped_file *next = faults->files[i]->next;

            free(faults->files[i]);
            faults->files[i] = next;
        }
    }
    free(faults->rings);
    free(faults->polled);
    free(faults->tids);
    free(faults->out);
    free(faults->record);
    free(faults);
}

/* Of a file in a run's folder: whoever may read the folder may read it (as log.c). */
static mode_t mode_beside(const char *path)
{
    const char *name = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    struct stat status;

    if (name && (size_t)(name - path) < sizeof folder) {
        memcpy(folder, path, (size_t)(name - path));
        folder[name - path] = 0;
    }
    if (stat(folder, &status))
        return S_IRUSR | S_IWUSR;
    return S_IRUSR | S_IWUSR | (status.st_mode & (S_IRGRP | S_IROTH));
}

int penstock_faults_open(const char *path, int is_paused, const int *pids, int n_pids,
                         struct faults **opened)
{
    struct faults *faults = calloc(1, sizeof *faults);
    int error = -ENOMEM;

    if (!faults)
        return error;
    faults->fd = -1;
    faults->header.page_bytes = (uint32_t)sysconf(_SC_PAGESIZE);
    faults->out = malloc(OUT_BYTES);
    faults->record = malloc(RECORD_MOST_BYTES);
    if (!faults->out || !faults->record)
        goto failed;
    error = open_all(faults, pids, n_pids, is_paused);
    if (error)
        goto failed;
    faults->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_beside(path));
    error =
        faults->fd < 0 ? -errno : write_header(faults, faults->n_rings, faults->header.ring_bytes);
    if (error)
        goto failed;
    flush(faults); /* what is mapped already */
    *opened = faults;
    return 0;

failed:
    free_all(faults);
    return error;
}

int penstock_faults_drain(struct faults *faults, int timeout_ms)
{
    uint64_t now;
    int i;

    if (poll(faults->polled, (nfds_t)faults->n_rings, timeout_ms) > 0)
        for (i = 0; i < faults->n_rings; i++)
            if (faults->polled[i].revents & (POLLHUP | POLLERR))
                faults->polled[i].fd = -1; /* its thread has ended: it would be ready for ever */
    now = clock_ns(CLOCK_MONOTONIC);
    drain(faults, now - SETTLED_NS);
    if (now - faults->counted_ns >= COUNTS_EVERY_NS)
        put_state(faults, false);
    return -faults->state.error;
}

void penstock_faults_pause(struct faults *faults, int is_paused)
{
    unsigned long request = is_paused ? PERF_EVENT_IOC_DISABLE : PERF_EVENT_IOC_ENABLE;
    uint32_t n;
    int i;

    for (i = 0; i < faults->n_rings; i++)
        for (n = 0; n < faults->rings[i].n_events; n++)
            if (faults->rings[i].events[n].kind != KIND_MAPS)
                ioctl(faults->rings[i].events[n].fd, request, 0);
}

int penstock_faults_close(struct faults *faults)
{
    int error;

    drain(faults, ~0ull - 1);
    put_state(faults, true);
    error = -faults->state.error;
    free_all(faults);
    return error;
}
