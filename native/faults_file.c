/* The file of page faults: header, chunks and checksums. */
#include "faults_parts.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "sums.h"

/* A chunk of faults grows until the write: sums come last. */
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

void faults_flush(struct faults *faults)
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
        /* A part of a chunk would make the following chunks unreadable. */
        if (ftruncate(faults->fd, (off_t)faults->written))
            faults->state.error = errno;
    } else {
        faults->written += done;
    }
    faults->out_used = 0;
}

void *faults_put_chunk(struct faults *faults, uint32_t kind, size_t bytes)
{
    struct chunk *chunk;

    bytes = (sizeof *chunk + bytes + 7) & ~7ull;
    if (faults->out_used + bytes > OUT_BYTES)
        faults_flush(faults);
    chunk = (struct chunk *)(faults->out + faults->out_used);
    memset(chunk, 0, bytes);
    *chunk = (struct chunk){.kind = kind, .bytes = (uint32_t)bytes};
    faults->out_used += bytes;
    return chunk + 1;
}

/* Faults come by the thousand: a chunk holds the consecutive faults of a pass. */
struct fault *faults_put_fault(struct faults *faults, struct chunk **open)
{
    struct fault *fault;

    if (*open && faults->out_used + sizeof *fault <= OUT_BYTES &&
        (char *)*open + (*open)->bytes == faults->out + faults->out_used) {
        fault = (struct fault *)(faults->out + faults->out_used);
        (*open)->bytes += sizeof *fault;
        faults->out_used += sizeof *fault;
        return fault;
    }
    fault = faults_put_chunk(faults, CHUNK_FAULTS, sizeof *fault);
    *open = (struct chunk *)fault - 1;
    return fault;
}

static void put_counts(struct faults *faults, struct counts *counts)
{
    for (; counts; counts = counts->next) {
        if (!counts->is_new)
            continue;
        counts->is_new = false;
        *(struct fault_counts *)faults_put_chunk(faults, CHUNK_COUNTS, sizeof counts->known) =
            counts->known;
    }
}

void faults_put_image_counts(struct faults *faults, struct image *image)
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

void faults_put_state(struct faults *faults, bool is_ended)
{
    struct faults_state *state = &faults->state;
    size_t i;

    for (i = 0; i < BUCKETS; i++) {
        struct image *image;

        for (image = faults->images[i]; image; image = image->next)
            faults_put_image_counts(faults, image);
    }
    state->now_ns = clock_ns(CLOCK_MONOTONIC);
    state->counted_major = read_count(faults, KIND_MAJOR);
    state->counted_minor = read_count(faults, KIND_MINOR);
    state->is_ended = is_ended;
    *(struct faults_state *)faults_put_chunk(faults, CHUNK_STATE, sizeof *state) = *state;
    faults_flush(faults);
    faults->counted_ns = state->now_ns;
}

int faults_write_header(struct faults *faults, int cpus, uint64_t ring_bytes)
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
