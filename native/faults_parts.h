/* Shared by the files of the page faults' recorder: the state and the kernel's records. */
#ifndef PENSTOCK_FAULTS_PARTS_H
#define PENSTOCK_FAULTS_PARTS_H

#include <linux/perf_event.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "events.h"
#include "faults.h"

/* The ring's owner tells of mappings and processes, and stays on in a pause. */
enum kind { KIND_MAPS, KIND_BEGIN, KIND_MAJOR, KIND_MINOR, KINDS };

#define OUT_BYTES (256u << 10)

/* Single records, 40 bytes each; past half of the number only faults with a wait. */
#define KEPT_MOST (1600u << 10)
#define BUCKETS 4096

/* A kind of event of a thread (or, before exec, of the programs to be started). */
struct counter {
    uint64_t id; /* the kernel counts the ids up */
    int fd;
    enum kind kind;
};

struct ring {
    char *memory;
    uint64_t bytes;
    uint64_t tail, head; /* the next record, and the end of the pass */
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
    bool is_new; /* changed since the last write */
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
    struct counts *memory; /* the counts without a file */
};

/* A begun fault. */
struct begun {
    struct begun *next;
    uint32_t tid;
    uint64_t address, time; /* 0: none */
};

struct faults {
    struct ring *rings;
    struct pollfd *polled;
    int n_rings, fd;
    int *tids; /* earlier threads */
    uint32_t n_tids;
    char *out;
    size_t out_used;
    char *record; /* a record across the ring's end */
    uint64_t counted_ns;
    uint64_t written; /* bytes in complete chunks */
    uint32_t kept, n_images, n_files;
    struct image *images[BUCKETS];
    struct begun *begun[BUCKETS];
    struct mapped_file *files[BUCKETS];
    struct faults_header header;
    struct faults_state state;
};

/* The end of every record but samples. */
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

#pragma GCC visibility push(hidden)

void faults_flush(struct faults *faults);
void *faults_put_chunk(struct faults *faults, uint32_t kind, size_t bytes);
struct fault *faults_put_fault(struct faults *faults, struct chunk **open);
void faults_put_image_counts(struct faults *faults, struct image *image);
void faults_put_state(struct faults *faults, bool is_ended);
int faults_write_header(struct faults *faults, int cpus, uint64_t ring_bytes);
void faults_forget_image(struct faults *faults, uint32_t pid);
struct image *faults_begin_image(struct faults *faults, uint32_t pid, uint32_t ppid, bool is_joined,
                                 uint64_t time);
void faults_map(struct image *image, struct mapping added);
uint32_t faults_file_of(struct faults *faults, const struct mmap2 *record);
const struct perf_event_header *faults_record_at(const struct faults *faults,
                                                 const struct ring *ring, uint64_t place);
void faults_take_until(struct faults *faults, uint64_t until);

#pragma GCC visibility pop

#endif
