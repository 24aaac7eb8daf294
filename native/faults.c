/* Page faults of the job, seen from beside the job.  Knows the kernel's samples and the bytes of
 * the faults' file; knows no log and no call of the job.
 *
 * Each fault gives two samples: at the begin, and (major or minor) at the end.  A ring for each CPU
 * takes the samples, together with every new mapping, so a fault's address becomes a file and an
 * offset without a question to the job. */
#include "faults_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
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
#include "log.h"

#define RINGS_BYTES (32u << 20) /* most memory of all rings; locked memory */
#define RING_MOST_BYTES (2u << 20)
#define RING_LEAST_BYTES (16u << 10)
#define RECORD_MOST_BYTES 65536 /* the kernel's own limit: the size has 16 bits */
#define SETTLED_NS 2000000      /* older records have surely reached their ring */
#define COUNTS_EVERY_NS 1000000000u
#define PASSES_MOST 8 /* until a pass without new unseen threads */

/* --- open and close -----------------------------------------------------------------------------
 */

/* tid: a running thread; 0: the programs started from here by exec. */
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

/* The memory belongs to the first event, and exists before any other event can write there. */
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

/* --- running processes ------------------------------------------------------------------------ */

static bool has_tid(const struct faults *faults, int tid)
{
    uint32_t i;

    for (i = 0; i < faults->n_tids; i++)
        if (faults->tids[i] == tid)
            return true;
    return false;
}

/* A thread started by a sampled thread is seen already, as the ring shows. */
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
            const struct perf_event_header *head = faults_record_at(faults, ring, at);

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

/* Add the threads of a process that are not seen yet; return the number, or -errno.  The next call
 * finds threads started meanwhile by unseen threads. */
static int add_threads(struct faults *faults, int pid, bool is_paused)
{
    struct timespec settled = {.tv_nsec = SETTLED_NS}; /* a start reaches /proc before the ring */
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
            error = 0; /* the thread has ended meanwhile */
            continue;
        }
        if (!error)
            error = keep_tid(faults, found[i]);
        added++;
    }
    free(found);
    return error ? error : added;
}

/* Read the existing mappings of the process.  Mappings made during the read come again from the
 * rings, complete and in order: the result is the present state. */
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
    image = faults_begin_image(faults, (uint32_t)pid, 0, true, clock_ns(CLOCK_MONOTONIC));
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
        faults_map(image,
                   (struct mapping){start, end, offset, NULL, faults_file_of(faults, record)});
    }
    free(line);
    if (maps)
        fclose(maps);
}

/* Children started meanwhile by sampled processes are seen by inheritance. */
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

/* The CPUs allowed for any of the threads. */
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
            error = 0; /* an ended child, or seen by inheritance */
    }
    for (i = 0; i < faults->n_rings && !error; i++) {
        faults->polled[i].fd = faults->rings[i].events[0].fd;
        faults->polled[i].events = POLLIN;
    }
    if (error)
        close_rings(faults);
    return error;
}

/* Include the kernel's own faults where permitted; use as much locked memory as permitted. */
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
    /* Descriptors beyond the limit stay open when the limit is lowered again: the program inherits
     * the limit. */
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
            faults_forget_image(faults, faults->images[i]->pid);
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

/* The mode of a file in a run's folder: readers of the folder may read the file (as log.c). */
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
    error = faults->fd < 0
                ? -errno
                : faults_write_header(faults, faults->n_rings, faults->header.ring_bytes);
    if (error)
        goto failed;
    faults_flush(faults); /* the mappings found so far */
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
                faults->polled[i].fd = -1; /* the thread has ended: ready for ever otherwise */
    now = clock_ns(CLOCK_MONOTONIC);
    faults_take_until(faults, now - SETTLED_NS);
    if (now - faults->counted_ns >= COUNTS_EVERY_NS)
        faults_put_state(faults, false);
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

    faults_take_until(faults, ~0ull - 1);
    faults_put_state(faults, true);
    error = -faults->state.error;
    free_all(faults);
    return error;
}
