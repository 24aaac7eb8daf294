/* The kernel's records, in order of time: mappings become files, samples become faults of the
 * files. */
#include "faults_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* --- processes, files and mappings ------------------------------------------------------------ */

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

void faults_forget_image(struct faults *faults, uint32_t pid)
{
    struct image **place = &faults->images[pid % BUCKETS];
    struct image *image;

    while (*place && (*place)->pid != pid)
        place = &(*place)->next;
    image = *place;
    if (!image)
        return;
    *place = image->next;
    faults_put_image_counts(faults, image);
    free_counts(image->counts);
    free_counts(image->memory);
    free(image->maps);
    free(image);
}

/* Begin a process, or a process anew by exec; NULL: no memory, the faults are foreign. */
struct image *faults_begin_image(struct faults *faults, uint32_t pid, uint32_t ppid, bool is_joined,
                                 uint64_t time)
{
    struct image *image;

    faults_forget_image(faults, pid);
    image = calloc(1, sizeof *image);
    if (!image)
        return NULL;
    image->pid = pid;
    image->number = ++faults->n_images;
    image->next = faults->images[pid % BUCKETS];
    faults->images[pid % BUCKETS] = image;
    *(struct fault_image *)faults_put_chunk(faults, CHUNK_IMAGES, sizeof(struct fault_image)) =
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

/* Return the first mapping with an end behind the address. */
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

/* A new mapping replaces the old mappings at the place; without a file, the place has no entry. */
void faults_map(struct image *image, struct mapping added)
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

/* 0: no memory for the file. */
uint32_t faults_file_of(struct faults *faults, const struct mmap2 *record)
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
    chunk = faults_put_chunk(faults, CHUNK_FILE, sizeof file->known + length + 1);
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

/* Return the ns since the fault began; ~0: the first sample was lost. */
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
    *faults_put_fault(faults, open) = (struct fault){ns == ~0ull ? sample->time : sample->time - ns,
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
        faults_map(image, (struct mapping){record->address, record->address + record->bytes,
                                           record->offset, NULL,
                                           is_file ? faults_file_of(faults, record) : 0});
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
        faults_forget_image(faults, task->pid);
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
            faults_begin_image(faults, task->pid, 0, false, ring->time);
        break;
    case PERF_RECORD_FORK:
        if (task->pid != task->ppid) {
            struct image *image =
                faults_begin_image(faults, task->pid, task->ppid, false, task->time);

            if (image)
                copy_mappings(image, image_of(faults, task->ppid));
        }
        break;
    case PERF_RECORD_EXIT: take_end(faults, task); break;
    case PERF_RECORD_LOST: faults->state.lost += ((const uint64_t *)(head + 1))[1]; break;
    default: break;
    }
}

/* Return a record in a single piece. */
const struct perf_event_header *faults_record_at(const struct faults *faults,
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

/* Set `time` to the time of the next record, ~0 at the end of the pass. */
static void look_ahead(const struct faults *faults, struct ring *ring)
{
    const struct perf_event_header *head;

    ring->time = ~0ull;
    if (ring->tail >= ring->head)
        return;
    head = faults_record_at(faults, ring, ring->tail);
    if (head->size < sizeof *head + sizeof(struct trailer)) {
        ring->tail = ring->head; /* not a record of ours: later records cannot be found */
        return;
    }
    ring->time = head->type == PERF_RECORD_SAMPLE
                     ? ((const struct sample *)head)->time
                     : ((const struct trailer *)((const char *)head + head->size))[-1].time;
}

/* Take all rings' records in order of time: a fault may begin on a CPU and end on another.  Records
 * younger than `until` stay, as an older record may be on the way into another ring. */
void faults_take_until(struct faults *faults, uint64_t until)
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
        head = faults_record_at(faults, next, next->tail);
        take(faults, next, head, &open);
        next->tail += head->size;
        page = (void *)(next->memory - faults->header.page_bytes);
        __atomic_store_n(&page->data_tail, next->tail, __ATOMIC_RELEASE);
        look_ahead(faults, next);
    }
    faults_flush(faults);
}
