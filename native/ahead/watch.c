/* The processes of the job, the data files mapped by the processes, and the touched blocks: /proc
 * shows all three from outside.  A page table entry exists once the program has touched the page or
 * one of the 15 pages around the page. */
#include "ahead.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MOST_PROCESSES 1024
#define MOST_FILES 4096
#define MOST_MAPPINGS 4096 /* of a process */
/* How often mappings are checked for changes not shown by the size of the memory: a file given up
 * and another file of equal size mapped.  For a process with files being read, the checks take a
 * twentieth of the time. */
#define SCAN_EVERY_NS 1000000000
#define BUSY_SCAN_NS 20000000
#define ACTIVE_NS 1000000000
#define SLICE_NS 10000000 /* of a look at touches, if many files are mapped */
#define BUSY_SCAN_TIMES 20
#define GONE_NS 2000000000 /* programs map a file for the head, and again for the data */
#define PAGE_PRESENT (1ull << 63)

static uint64_t page_bytes(void)
{
    static uint64_t bytes;

    if (!bytes)
        bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

/* --- processes
 * -------------------------------------------------------------------------------------- */

struct relative {
    pid_t pid, parent;
    bool is_ours;
};

static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    const char *after;
    ssize_t got;
    int fd, parent = 0;

    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    after = strrchr(text, ')'); /* the name may hold anything */
    if (!after || sscanf(after + 1, " %*c %d", &parent) != 1)
        return 0;
    return parent;
}

static struct process *process_of(struct ahead *ahead, pid_t pid)
{
    struct process *process;
    char path[64];
    uint32_t n = 0;

    for (process = ahead->processes; process; process = process->next_process, n++)
        if (process->pid == pid)
            return process;
    process = n < MOST_PROCESSES ? calloc(1, sizeof *process) : NULL;
    if (!process)
        return NULL;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    *process = (struct process){.next_process = ahead->processes, .pid = pid, .pagemap_fd = -1};
    process->statm_fd = open(path, O_RDONLY | O_CLOEXEC);
    ahead->processes = process;
    return process;
}

static void forget_process(struct process *process)
{
    if (process->pagemap_fd >= 0)
        close(process->pagemap_fd);
    if (process->statm_fd >= 0)
        close(process->statm_fd);
    free(process->mappings);
    free(process);
}

/* Find all descendants of the launcher, except this process. */
static void find_processes(struct ahead *ahead)
{
    static struct relative all[1 << 15];
    uint32_t n = 0, i, j;
    bool is_more = true;
    struct dirent *entry;
    DIR *proc = opendir("/proc");

    if (!proc)
        return;
    while (n < sizeof all / sizeof *all && (entry = readdir(proc)))
        if (isdigit((unsigned char)entry->d_name[0])) {
            pid_t pid = atoi(entry->d_name);

            if (pid != getpid() && pid != ahead->launcher)
                all[n++] = (struct relative){pid, parent_of(entry->d_name), false};
        }
    closedir(proc);
    while (is_more) { /* as often as the tree is deep */
        is_more = false;
        for (i = 0; i < n; i++) {
            if (all[i].is_ours)
                continue;
            all[i].is_ours = all[i].parent == ahead->launcher;
            for (j = 0; j < n && !all[i].is_ours; j++)
                all[i].is_ours = all[j].is_ours && all[j].pid == all[i].parent;
            is_more |= all[i].is_ours;
        }
    }
    for (i = 0; i < n; i++)
        if (all[i].is_ours)
            process_of(ahead, all[i].pid);
}

/* --- mappings
 * --------------------------------------------------------------------------------------- */

static struct file *file_of(struct ahead *ahead, pid_t pid, const char *path, ino_t inode)
{
    char inside[PATH_MAX + 64];
    struct stat status;
    struct file *file;
    uint32_t n = 0;

    snprintf(inside, sizeof inside, "/proc/%d/root%s", pid, path); /* a container's own tree */
    if ((stat(path, &status) || status.st_ino != inode) &&
        (path = inside, stat(path, &status) || status.st_ino != inode))
        return NULL;
    if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size < LEAST_FILE_BYTES)
        return NULL;
    for (file = ahead->files; file; file = file->next_file, n++)
        if (file->inode == inode && file->device == status.st_dev)
            break;
    if (!file) {
        file = n < MOST_FILES ? calloc(1, sizeof *file) : NULL;
        if (!file)
            return NULL;
        *file = (struct file){.next_file = ahead->files, .fd = -1, .lock_fd = -1, .inode = inode};
        file->device = status.st_dev;
        pthread_mutex_lock(&ahead->lock);
        ahead->files = file;
        pthread_mutex_unlock(&ahead->lock);
    }
    if (file->is_ignored)
        return NULL;
    if (file->fd < 0) {
        pthread_mutex_lock(&ahead->lock);
        file->is_ignored = !file_open(file, path);
        if (!file->is_ignored)
            learn_begin(ahead, file);
        pthread_mutex_unlock(&ahead->lock);
    }
    if (file->is_ignored)
        return NULL;
    if (!file->is_mapped) { /* the remaining blocks waited for the mapping */
        pthread_mutex_lock(&ahead->lock);
        file->is_mapped = true;
        pthread_cond_broadcast(&ahead->work);
        pthread_mutex_unlock(&ahead->lock);
    }
    return file;
}

bool is_data(const struct ahead *ahead, const char *path)
{
    static const char *const others[] = {"/proc/", "/dev/", "/sys/", "/memfd:"};
    size_t i, length = strlen(path), excluded = strlen(ahead->excluded);

    if (length > 10 && !strcmp(path + length - 10, " (deleted)"))
        return false;
    for (i = 0; i < sizeof others / sizeof *others; i++)
        if (!strncmp(path, others[i], strlen(others[i])))
            return false;
    return strncmp(path, ahead->excluded, excluded) || path[excluded] != '/';
}

static void add_mapping(struct process *process, struct mapping mapping)
{
    struct mapping *more;
    uint32_t n = process->n_mappings;

    if (n == MOST_MAPPINGS)
        return;
    if (!(n & (n - 1))) {
        more = realloc(process->mappings, (n ? 2 * n : 1) * sizeof *more);
        if (!more)
            return;
        process->mappings = more;
    }
    process->mappings[process->n_mappings++] = mapping;
}

static void scan_mappings(struct ahead *ahead, struct process *process)
{
    char path[64];
    char *line = NULL;
    size_t room = 0;
    FILE *maps;

    process->n_mappings = 0;
    process->scanned_ns = now_ns();
    snprintf(path, sizeof path, "/proc/%d/maps", process->pid);
    maps = fopen(path, "re");
    while (maps && getline(&line, &room, maps) > 0) {
        unsigned long start, end, offset, inode;
        char rights[8];
        struct file *file;
        int at = 0;

        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%lx-%lx %7s %lx %*s %lu %n", &start, &end, rights, &offset, &inode, &at) <
                5 ||
            !inode || line[at] != '/' || end - start < LEAST_FILE_BYTES || rights[2] == 'x' ||
            strlen(line + at) >= PATH_MAX || !is_data(ahead, line + at))
            continue;
        file = file_of(ahead, process->pid, line + at, inode);
        if (file)
            add_mapping(process, (struct mapping){start, end - start, offset, file});
    }
    free(line);
    if (maps)
        fclose(maps);
    process->scan_took_ns = now_ns() - process->scanned_ns;
    if (process->pagemap_fd >= 0)
        close(process->pagemap_fd); /* the descriptor shows the memory from before an exec */
    process->pagemap_fd = -1;
    if (process->n_mappings) {
        snprintf(path, sizeof path, "/proc/%d/pagemap", process->pid);
        process->pagemap_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
}

static bool is_busy(const struct process *process)
{
    int64_t now = now_ns();
    uint32_t i;

    for (i = 0; i < process->n_mappings; i++) {
        const struct file *file = process->mappings[i].file;

        if (file->order != ORDER_WARM && file->order != ORDER_OFF &&
            now - file->active_ns < ACTIVE_NS)
            return true;
    }
    return false;
}

static bool is_due(const struct process *process, uint64_t pages)
{
    uint64_t before = process->vm_pages, least = LEAST_FILE_BYTES / page_bytes();
    int64_t every_ns = SCAN_EVERY_NS;

    if (pages >= before + least || pages + least <= before)
        return true;
    if (is_busy(process)) {
        every_ns = BUSY_SCAN_TIMES * process->scan_took_ns;
        if (every_ns < BUSY_SCAN_NS)
            every_ns = BUSY_SCAN_NS;
    }
    return now_ns() - process->scanned_ns > every_ns;
}

static bool vm_pages_of(const struct process *process, uint64_t *pages)
{
    char text[128];
    ssize_t got = pread(process->statm_fd, text, sizeof text - 1, 0);

    if (got <= 0)
        return false;
    text[got] = 0;
    *pages = strtoull(text, NULL, 10);
    return true;
}

/* Look at mappings where the size of the memory changed by at least the smallest watched file, and
 * each second. */
void watch_processes(struct ahead *ahead, bool is_full)
{
    struct process **at = &ahead->processes;
    struct file *file;
    uint32_t i;

    if (is_full)
        find_processes(ahead);
    while (*at) {
        struct process *process = *at;
        uint64_t pages = 0;

        if (!vm_pages_of(process, &pages)) {
            *at = process->next_process;
            forget_process(process);
            continue;
        }
        if (is_due(process, pages)) {
            process->vm_pages = pages;
            scan_mappings(ahead, process);
        }
        at = &process->next_process;
    }
    pthread_mutex_lock(&ahead->lock);
    for (file = ahead->files; file; file = file->next_file)
        file->is_mapped = false;
    for (struct process *process = ahead->processes; process; process = process->next_process)
        for (i = 0; i < process->n_mappings; i++)
            process->mappings[i].file->is_mapped = true;
    for (file = ahead->files; file; file = file->next_file)
        file->is_mapped |= file->set && ahead->processes;
    for (file = ahead->files; file; file = file->next_file)
        if (file->is_mapped)
            file->mapped_ns = now_ns();
        else if (file->fd >= 0 && now_ns() - file->mapped_ns > GONE_NS)
            learn_unmapped(ahead, file);
    pthread_mutex_unlock(&ahead->lock);
}

/* --- touches
 * ---------------------------------------------------------------------------------------- */

/* Find new touched blocks of [first, end) in this mapping, and add the blocks to `found`. */
static uint32_t touched_in(const struct process *process, const struct mapping *mapping,
                           uint32_t first, uint32_t end, uint32_t *found, uint32_t n)
{
    static uint64_t entries[(1u << 20) / 4096 * 16]; /* of 16 MiB at pages of 4 KiB */
    const struct file *file = mapping->file;
    uint64_t pages_a_block = BLOCK_BYTES / page_bytes();
    uint32_t most = (uint32_t)(sizeof entries / sizeof *entries / pages_a_block);
    uint32_t block = first;

    while (block < end) {
        uint32_t stop, i;
        uint64_t at, j;
        ssize_t got;

        if (bit_of(file->touched, block)) {
            block++;
            continue;
        }
        for (stop = block; stop < end && stop - block < most && !bit_of(file->touched, stop);)
            stop++;
        at = mapping->start + (uint64_t)block * BLOCK_BYTES - mapping->offset;
        got = pread(process->pagemap_fd, entries, (stop - block) * pages_a_block * 8,
                    (off_t)(at / page_bytes() * 8));
        if (got <= 0)
            return n;
        for (i = 0; i < stop - block; i++)
            for (j = i * pages_a_block; j < (i + 1) * pages_a_block; j++)
                if ((j + 1) * 8 <= (uint64_t)got && entries[j] & PAGE_PRESENT) {
                    found[n++] = block + i;
                    break;
                }
        block = stop;
    }
    return n;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Look at the part of the file [first, end) in the mapping, in whole blocks. */
static uint32_t touched_of(const struct process *process, const struct mapping *mapping,
                           uint32_t first, uint32_t end, uint32_t *found, uint32_t n)
{
    uint64_t from = (mapping->offset + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t to = (mapping->offset + mapping->length + BLOCK_BYTES - 1) / BLOCK_BYTES;

    if (from > first)
        first = from < end ? (uint32_t)from : end;
    if (to < end)
        end = (uint32_t)to;
    return first < end ? touched_in(process, mapping, first, end, found, n) : n;
}

/* True: something of the file was touched since the last look. */
static bool look_at(struct ahead *ahead, struct file *file)
{
    static uint32_t found[1 << 16];
    uint32_t n = 0, kept = 0, i, front = file->front, rest = file->cursor;
    uint32_t front_end = lesser(file->n_blocks, front + FRONT_BLOCKS);
    uint32_t rest_end = lesser(file->n_blocks, rest + REST_BLOCKS);
    struct process *process;

    for (process = ahead->processes; process; process = process->next_process)
        for (i = 0; i < process->n_mappings && process->pagemap_fd >= 0; i++) {
            const struct mapping *mapping = &process->mappings[i];

            if (mapping->file != file || n + FRONT_BLOCKS + REST_BLOCKS > 1 << 16)
                continue;
            n = touched_of(process, mapping, front, front_end, found, n);
            n = touched_of(process, mapping, rest, rest_end, found, n);
        }
    file->cursor = rest_end < file->n_blocks ? rest_end : 0;
    if (!n)
        return false;
    qsort(found, n, sizeof *found, by_number);
    for (i = 0; i < n; i++)
        if (!kept || found[i] != found[kept - 1])
            found[kept++] = found[i];
    pthread_mutex_lock(&ahead->lock);
    learn_touched(ahead, file, found, kept);
    pthread_mutex_unlock(&ahead->lock);
    return true;
}

/* Looks at the page tables, at some files of many in turn; true: something was touched since the
 * last look. */
bool watch_touches(struct ahead *ahead)
{
    static struct file *next;
    struct file *file = next ? next : ahead->files, *first = file;
    int64_t until_ns = now_ns() + SLICE_NS;
    bool is_any = false;

    if (!file)
        return false;
    do {
        if (!file->set && file->is_mapped && file->order != ORDER_OFF && file->order != ORDER_WARM)
            is_any |= look_at(ahead, file);
        file = file->next_file ? file->next_file : ahead->files;
    } while (file != first && now_ns() < until_ns);
    next = file;
    return is_any;
}
