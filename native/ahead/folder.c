/* Folders of small files that the job opens one after the other.  Finds the folders by the open
 * files of the job's processes, learns of opened files from the kernel's events (inotify), and
 * reads a file for the reader.  learn.c decides about the next file; for learn.c a file of a set is
 * a block. */
#include "ahead.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define MOST_SMALL_BYTES (8u << 20) /* a larger file is not a small file: its own reads go ahead */
#define MOST_NAMES 500000u          /* some 30 bytes each */
#define MOST_ROOTS 32u
#define SEEN 64u         /* the last paths seen open */
#define LEAST_OPENED 4u  /* of one folder, or */
#define LEAST_OF_TREE 3u /* of two folders beside each other */
#define SAMPLES 16u      /* files that show the mean size, and whether the set is in memory */
#define WARM_SAMPLES 15u
#define SPOT_EVERY_NS 20000000 /* between two looks at open files; as often as 50 looks take */
#define SPOT_TIMES 50
#define STEP_BYTES (128u << 10) /* of a readahead(): the kernel cuts off a longer request */

struct folder {
    char *path;
    int wd;
    uint32_t first, n;
};

struct set {
    struct folder *folders;
    uint32_t n_folders, n;
    char **names;
    uint32_t *spread;   /* all numbers, of each folder in turn */
    unsigned char *own; /* opens by this program, without an event so far */
    uint64_t mean_bytes;
};

struct place {
    struct file *file;
    uint32_t folder;
};

struct sight {
    char path[PATH_MAX];
};

static int events_fd = -1;
static struct place *places; /* by watch descriptor */
static int n_places;
static struct sight seen[SEEN];
static uint32_t n_seen;
static char *roots[MOST_ROOTS];
static uint32_t n_roots;
static _Atomic bool is_listing; /* a set is being listed */

uint64_t set_bytes(const struct set *set, uint64_t n)
{
    return n * set->mean_bytes;
}

/* --- a file ----------------------------------------------------------------------------------- */

/* mincore() answers only a user who may write the file; for other users a read without waiting
 * answers. */
static bool is_resident(int fd, uint64_t size, bool is_own)
{
    static _Thread_local unsigned char pages[MOST_SMALL_BYTES / 4096 + 1];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (size + page - 1) / page, i;
    char byte;
    struct iovec one = {&byte, 1};
    void *view;

    if (!size)
        return true;
    if (!is_own)
        return preadv2(fd, &one, 1, 0, RWF_NOWAIT) == 1 &&
               preadv2(fd, &one, 1, (off_t)size - 1, RWF_NOWAIT) == 1;
    view = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (view == MAP_FAILED)
        return false;
    memset(pages, 0, n);
    if (mincore(view, size, pages))
        memset(pages, 0, n);
    munmap(view, size);
    for (i = 0; i < n; i++)
        if (!(pages[i] & 1))
            return false;
    return true;
}

/* A descriptor of our own, or -1. */
int small_open(const char *path, struct stat *status)
{
    int fd = open(path, O_RDONLY | O_NOATIME | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0 && errno == EPERM)
        fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, status)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int open_small(const struct set *set, uint32_t number, struct stat *status)
{
    const struct folder *folder = set->folders;
    char path[PATH_MAX];

    while (number >= folder->first + folder->n)
        folder++;
    if (snprintf(path, sizeof path, "%s/%s", folder->path, set->names[number]) >= PATH_MAX)
        return -1;
    return small_open(path, status);
}

static bool may_tell(const struct stat *status)
{
    return !geteuid() || geteuid() == status->st_uid;
}

/* Whether an open file is in memory. */
bool small_is_there(int fd, const struct stat *status)
{
    return S_ISREG(status->st_mode) && status->st_size <= MOST_SMALL_BYTES &&
           is_resident(fd, (uint64_t)status->st_size, may_tell(status));
}

/* Read an open file into memory; false: the file was in memory, or is not a small data file. */
bool small_read(int fd, const struct stat *status, char *scratch)
{
    uint64_t size = (uint64_t)status->st_size, at, last;

    if (!S_ISREG(status->st_mode) || !size || size > MOST_SMALL_BYTES ||
        is_resident(fd, size, may_tell(status)))
        return false;
    for (at = 0; at < size; at += STEP_BYTES)
        if (readahead(fd, (off_t)at, STEP_BYTES))
            break;
    for (at = 0; at < size; at += STEP_BYTES) {
        last = at + STEP_BYTES < size ? at + STEP_BYTES : size;
        if (pread(fd, scratch, 1, (off_t)last - 1) < 1) /* waits for the page */
            break;
    }
    for (at = 0; at < size && !is_resident(fd, size, may_tell(status)); at += BLOCK_BYTES)
        if (pread(fd, scratch, BLOCK_BYTES, (off_t)at) < 1)
            break;
    return true;
}

/* Read a file of a set into memory; false: the file was in memory, or is not a small data file. */
bool set_read(struct ahead *ahead, struct file *file, uint32_t number, char *scratch)
{
    struct set *set = file->set;
    struct stat status;
    bool is_read;
    int fd;

    pthread_mutex_lock(&ahead->lock);
    set->own[number]++;
    pthread_mutex_unlock(&ahead->lock);
    fd = open_small(set, number, &status);
    if (fd < 0) { /* no event will come */
        pthread_mutex_lock(&ahead->lock);
        set->own[number] -= set->own[number] > 0;
        pthread_mutex_unlock(&ahead->lock);
        return false;
    }
    is_read = small_read(fd, &status, scratch);
    close(fd);
    return is_read;
}

/* --- a set
 * --------------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_name(struct set *set, const char *name)
{
    if (set->n == MOST_NAMES)
        return false;
    if (!(set->n & (set->n - 1))) {
        char **more = realloc(set->names, (set->n ? 2 * set->n : 1) * sizeof *more);

        if (!more)
            return false;
        set->names = more;
    }
    set->names[set->n] = strdup(name);
    return set->names[set->n] && ++set->n;
}

/* The regular files of a folder, in the order of their names. */
static bool add_folder(struct set *set, const char *path)
{
    struct folder *more = realloc(set->folders, (set->n_folders + 1) * sizeof *more);
    struct folder *folder;
    struct dirent *entry;
    bool is_whole = true;
    DIR *listing;

    if (!more)
        return false;
    set->folders = more;
    folder = &more[set->n_folders];
    *folder = (struct folder){strdup(path), -1, set->n, 0};
    listing = folder->path ? opendir(path) : NULL;
    if (!listing) { /* removed meanwhile, or not for us */
        free(folder->path);
        return true;
    }
    while (is_whole && (entry = readdir(listing)))
        if (entry->d_name[0] != '.' && (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN))
            is_whole = add_name(set, entry->d_name);
    closedir(listing);
    folder->n = set->n - folder->first;
    qsort(set->names + folder->first, folder->n, sizeof *set->names, by_text);
    set->n_folders++;
    if (is_whole) /* after the listing, because the listing opens the folder */
        folder->wd = inotify_add_watch(events_fd, path, IN_OPEN | IN_ONLYDIR);
    return is_whole && folder->wd >= 0;
}

static bool add_tree(struct set *set, const char *root)
{
    struct dirent **entries = NULL;
    char path[PATH_MAX];
    bool is_whole = true;
    int n = scandir(root, &entries, NULL, alphasort), i;

    for (i = 0; i < n; i++) {
        bool is_folder = entries[i]->d_type == DT_DIR || entries[i]->d_type == DT_UNKNOWN;

        if (is_whole && is_folder && entries[i]->d_name[0] != '.' &&
            snprintf(path, sizeof path, "%s/%s", root, entries[i]->d_name) < PATH_MAX)
            is_whole = add_folder(set, path);
        free(entries[i]);
    }
    free(entries);
    return is_whole && n >= 0;
}

/* Some file systems look up the names of a folder one after the other (FUSE, some servers): where
 * the order does not matter, the next file is a file of the next folder. */
static bool spread_numbers(struct set *set)
{
    uint32_t n = 0, row, i;

    set->spread = calloc(set->n, sizeof *set->spread);
    for (row = 0; set->spread && n < set->n; row++)
        for (i = 0; i < set->n_folders; i++)
            if (row < set->folders[i].n)
                set->spread[n++] = set->folders[i].first + row;
    return set->spread;
}

uint32_t set_spread(const struct set *set, uint32_t position)
{
    return set->spread[position];
}

static void free_set(struct set *set)
{
    uint32_t i;

    for (i = 0; i < set->n_folders; i++) {
        if (set->folders[i].wd >= 0)
            inotify_rm_watch(events_fd, set->folders[i].wd);
        free(set->folders[i].path);
    }
    for (i = 0; i < set->n; i++)
        free(set->names[i]);
    free(set->folders);
    free(set->names);
    free(set->own);
    free(set->spread);
    free(set);
}

/* The mean size, and whether all is in memory. */
static bool is_warm(struct set *set)
{
    uint32_t n = set->n < SAMPLES ? set->n : SAMPLES, i, n_files = 0, n_resident = 0;
    uint64_t bytes = 0;
    struct stat status;

    for (i = 0; i < n; i++) {
        int fd = open_small(set, (uint32_t)((uint64_t)i * set->n / n), &status);

        if (fd < 0)
            continue;
        if (S_ISREG(status.st_mode) && status.st_size <= MOST_SMALL_BYTES) {
            n_files++;
            bytes += (uint64_t)status.st_size;
            n_resident += is_resident(fd, (uint64_t)status.st_size, may_tell(&status));
        }
        close(fd);
    }
    set->mean_bytes = n_files ? bytes / n_files : 0;
    return !n_files || n_resident * SAMPLES >= n_files * WARM_SAMPLES;
}

static bool grow_places(int wd)
{
    struct place *more;

    if (wd < n_places)
        return true;
    more = realloc(places, (size_t)(2 * wd + 16) * sizeof *more);
    if (!more)
        return false;
    memset(more + n_places, 0, (size_t)(2 * wd + 16 - n_places) * sizeof *more);
    places = more;
    n_places = 2 * wd + 16;
    return true;
}

/* Makes the set known to the reader; under the lock. */
static void attach_set(struct ahead *ahead, struct file *file)
{
    uint32_t i;

    for (i = 0; i < file->set->n_folders; i++)
        if (grow_places(file->set->folders[i].wd))
            places[file->set->folders[i].wd] = (struct place){file, i};
    file->next_file = ahead->files;
    file->is_mapped = true;
    file->active_ns = file->mapped_ns = now_ns();
    ahead->files = file;
}

struct listing {
    struct ahead *ahead;
    bool is_tree;
    char root[PATH_MAX];
};

/* Runs in a separate thread, as the storage may be slow. */
static void *list_set(void *argument)
{
    struct listing *listing = argument;
    struct ahead *ahead = listing->ahead;
    struct set *set = calloc(1, sizeof *set);
    struct file *file = calloc(1, sizeof *file);
    struct statfs system;
    struct stat status;
    bool is_good = set && file && !stat(listing->root, &status) &&
                   !statfs(listing->root, &system) && !is_in_memory((long)system.f_type);

    if (is_good)
        is_good = listing->is_tree ? add_tree(set, listing->root) : add_folder(set, listing->root);
    is_good = is_good && set->n > LEAST_OPENED && !is_warm(set) && set->mean_bytes;
    if (is_good) {
        *file = (struct file){.fd = -1, .lock_fd = -1, .set = set, .n_blocks = set->n};
        file->inode = status.st_ino;
        file->device = status.st_dev;
        file->size = set_bytes(set, set->n);
        file->path = malloc(strlen(listing->root) + 2);
        set->own = calloc(set->n, 1);
        is_good = file->path && set->own && spread_numbers(set) && file_make_bits(file);
    }
    if (is_good)
        is_good = !reader_start_small(ahead);
    pthread_mutex_lock(&ahead->lock);
    if (is_good) {
        sprintf(file->path, "%s/", listing->root);
        attach_set(ahead, file);
    } else {
        if (set)
            free_set(set);
        if (file) {
            free(file->path);
            free(file->touched);
            free(file->ours);
        }
        free(file);
    }
    is_listing = false;
    pthread_mutex_unlock(&ahead->lock);
    free(listing);
    return NULL;
}

/* --- files opened by the job ------------------------------------------------------------------ */

static bool is_below_root(const char *path)
{
    uint32_t i;

    for (i = 0; i < n_roots; i++) {
        size_t length = strlen(roots[i]);

        if (!strncmp(path, roots[i], length) && path[length] == '/')
            return true;
    }
    return false;
}

static void begin_set(struct ahead *ahead, const char *root, bool is_tree)
{
    struct listing *listing;
    pthread_t thread;

    if (events_fd < 0)
        events_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (events_fd < 0 || n_roots == MOST_ROOTS || !(listing = calloc(1, sizeof *listing)))
        return;
    roots[n_roots] = strdup(root);
    if (!roots[n_roots]) {
        free(listing);
        return;
    }
    n_roots++;
    listing->ahead = ahead;
    listing->is_tree = is_tree;
    snprintf(listing->root, sizeof listing->root, "%s", root);
    is_listing = true;
    if (pthread_create(&thread, NULL, list_set, listing)) {
        is_listing = false;
        free(listing);
    } else
        pthread_detach(thread);
}

static size_t folder_length(const char *path, size_t length)
{
    while (length && path[length - 1] != '/')
        length--;
    return length ? length - 1 : 0;
}

/* For a file opened by the job: check whether the folder, or the folder with its neighbours, is a
 * set. */
static void note_open(struct ahead *ahead, const char *path)
{
    size_t length = folder_length(path, strlen(path)), above = folder_length(path, length);
    uint32_t i, n_here = 1, n_tree = 1, n_others = 0;
    char root[PATH_MAX];

    for (i = 0; i < SEEN; i++) {
        const char *other = seen[i].path;
        size_t its = folder_length(other, strlen(other));

        if (!strcmp(other, path))
            return;
        if (its == length && !strncmp(other, path, length))
            n_here++, n_tree++;
        else if (above && folder_length(other, its) == above && !strncmp(other, path, above))
            n_others++, n_tree++;
    }
    snprintf(seen[n_seen++ % SEEN].path, PATH_MAX, "%s", path);
    if (n_others && n_tree >= LEAST_OF_TREE)
        length = above;
    else if (n_here < LEAST_OPENED)
        return;
    snprintf(root, sizeof root, "%.*s", (int)length, path);
    begin_set(ahead, root, length == above);
}

static bool is_small_data(const char *link, const char *path)
{
    static const char *const code[] = {".py", ".pyc", ".so", ".json", ".log"};
    static const char *const systems[] = {"/proc/", "/sys/", "/dev/", "/usr/", "/lib", "/etc/"};
    size_t length = strlen(path), i;
    struct stat here, there;

    for (i = 0; i < sizeof systems / sizeof *systems; i++)
        if (!strncmp(path, systems[i], strlen(systems[i])))
            return false;
    for (i = 0; i < sizeof code / sizeof *code; i++)
        if (length > strlen(code[i]) && !strcmp(path + length - strlen(code[i]), code[i]))
            return false;
    return !stat(link, &here) && S_ISREG(here.st_mode) && here.st_size > 0 &&
           here.st_size <= MOST_SMALL_BYTES && !stat(path, &there) && here.st_ino == there.st_ino &&
           here.st_dev == there.st_dev;
}

/* Read-ahead is useless for a program with reads past the page cache. */
static bool is_direct(pid_t pid, const char *number)
{
    char path[320], line[128];
    unsigned flags = 0;
    FILE *info;

    snprintf(path, sizeof path, "/proc/%d/fdinfo/%s", pid, number);
    info = fopen(path, "re");
    while (info && fgets(line, sizeof line, info))
        if (sscanf(line, "flags: %o", &flags) == 1)
            break;
    if (info)
        fclose(info);
    return flags & O_DIRECT;
}

static void look_at_open(struct ahead *ahead, pid_t pid)
{
    char folder[64], link[PATH_MAX], path[PATH_MAX];
    struct dirent *entry;
    struct stat status;
    ssize_t length;
    DIR *open_files;

    snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
    open_files = opendir(folder);
    while (open_files && !is_listing && (entry = readdir(open_files))) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(link, sizeof link, "%s/%s", folder, entry->d_name);
        length = readlink(link, path, sizeof path - 1);
        if (length <= 0 || path[0] != '/')
            continue;
        path[length] = 0;
        /* The rights of the link are the rights of the descriptor: a file opened for writing is not
         * data. */
        if (!is_data(ahead, path) || is_below_root(path) || lstat(link, &status) ||
            status.st_mode & S_IWUSR)
            continue;
        if (lists_cover(ahead, path))
            lists_seen_open(ahead, path, is_direct(pid, entry->d_name));
        else if (is_small_data(link, path) && !is_direct(pid, entry->d_name))
            note_open(ahead, path);
    }
    if (open_files)
        closedir(open_files);
}

static int64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Look at the job's open files, until each set of files is found. */
void sets_find(struct ahead *ahead)
{
    static int64_t next_ns;
    const struct process *process;
    int64_t began = now_ns(), used = cpu_ns(), took;

    if (is_listing || n_roots == MOST_ROOTS || began < next_ns)
        return;
    for (process = ahead->processes; process; process = process->next_process)
        look_at_open(ahead, process->pid);
    took = SPOT_TIMES * (cpu_ns() - used);
    next_ns = began + (took > SPOT_EVERY_NS ? took : SPOT_EVERY_NS);
}

/* --- events
 * ------------------------------------------------------------------------------------------- */

struct touch {
    struct file *file;
    uint32_t number;
};

static int by_file(const void *a, const void *b)
{
    const struct touch *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Find the file of an event; false: an open by this program, or of a new file. */
static bool touch_of(const struct inotify_event *event, struct touch *touch)
{
    const char *name = event->name;
    struct place place;
    struct set *set;
    char **at;

    if (event->wd < 0 || event->wd >= n_places || !places[event->wd].file || !event->len ||
        event->mask & IN_ISDIR)
        return false;
    place = places[event->wd];
    set = place.file->set;
    at = bsearch(&name, set->names + set->folders[place.folder].first, set->folders[place.folder].n,
                 sizeof *at, by_text);
    if (!at)
        return false;
    *touch = (struct touch){place.file, (uint32_t)(at - set->names)};
    if (set->own[touch->number]) {
        set->own[touch->number]--;
        return false;
    }
    return true;
}

static void forget_own(struct ahead *ahead)
{
    struct file *file;

    for (file = ahead->files; file; file = file->next_file)
        if (file->set)
            memset(file->set->own, 0, file->set->n);
}

/* Take the opens since the last look; true: there were opens. */
bool sets_look(struct ahead *ahead)
{
    static char events[1 << 16] __attribute__((aligned(8)));
    static struct touch touches[sizeof events / sizeof(struct inotify_event)];
    static uint32_t numbers[sizeof events / sizeof(struct inotify_event)];
    const struct inotify_event *event;
    uint32_t n = 0, i, end, kept;
    ssize_t got, at;

    if (events_fd < 0 || (got = read(events_fd, events, sizeof events)) <= 0)
        return false;
    pthread_mutex_lock(&ahead->lock);
    for (at = 0; at < got; at += (ssize_t)(sizeof *event + event->len)) {
        event = (const void *)(events + at);
        if (event->mask & IN_Q_OVERFLOW)
            forget_own(ahead); /* their events are lost too */
        n += touch_of(event, &touches[n]);
    }
    qsort(touches, n, sizeof *touches, by_file);
    for (i = 0; i < n; i = end) {
        struct file *file = touches[i].file;

        for (end = i, kept = 0; end < n && touches[end].file == file; end++)
            if (!kept || touches[end].number != numbers[kept - 1])
                numbers[kept++] = touches[end].number;
        if (file->order != ORDER_OFF)
            learn_touched(ahead, file, numbers, kept);
    }
    pthread_mutex_unlock(&ahead->lock);
    return n > 0;
}
