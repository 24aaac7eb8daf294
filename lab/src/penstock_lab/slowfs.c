/* slowfs: a folder seen through slow storage.  A FUSE pass-through with delays and counts; knows no
 * disk, keeps no data, and writes all messages to standard error.
 *
 *   slowfs ROOT MOUNT STATS [NAME=NUMBER]... [lines=FILE]
 *
 * A read or a write occupies one of `slots` servers and ends no sooner than
 *
 *   start + latency + the request's bytes at the bandwidth of a stream,
 *   the bytes of all earlier requests, at the common bandwidth, + latency,
 *   the number of all earlier requests, at the common rate, + latency.
 *
 * With seek_us, all requests also share a single head: a request that does not continue the earlier
 * request makes the head jump, which delays all later requests.
 *
 * With targets, the bandwidth and the rate are of each of so many parallel storage servers: the
 * pieces of a file, of stripe_bytes, lie on the servers in turn.
 *
 * With lines=FILE, every slowfs with the file shares all shared parts: nodes with separate page
 * caches, and a common storage.
 *
 * Everything else costs metadata_us, and passes at metadata_hz.  The delays are absolute: the tier
 * behaves alike on every faster disk.  STATS is made, and holds the counters while slowfs runs.
 * Prints a line when the mount is there.  watch=1: ends with standard input, so nothing is left of
 * a tier after a kill of its maker. */
#define _GNU_SOURCE
#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 312
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ll

/* The work admitted at once after a pause: late wakes are made up for, to keep the requested mean.
 * 5 ms at 200 MB/s are 1 MB. */
#define CREDIT_NS 5000000ll

enum { SIZES = 32 };

/* The file STATS: tier.py reads the fields in this order. */
struct counters {
    _Atomic uint64_t reads, read_bytes, writes, written_bytes, opens, metadata;
    _Atomic uint64_t in_flight, most_in_flight;
    /* [n]: requests of more than 2^(n-1) and at most 2^n bytes */
    _Atomic uint64_t read_sizes[SIZES], write_sizes[SIZES];
};

/* 0: no limit */
static double latency_us, jitter, bandwidth_bps, stream_bps, requests_hz, metadata_us;
static double seek_us, metadata_hz;
static double targets = 1, stripe_bytes = 1 << 20;
static double slots = 64, attributes_s = 60, allow_other, watch;

static const struct {
    const char *name;
    double *value;
} settings[] = {
    {"latency_us", &latency_us},
    {"jitter", &jitter},
    {"bandwidth_bps", &bandwidth_bps},
    {"stream_bps", &stream_bps},
    {"requests_hz", &requests_hz},
    {"metadata_us", &metadata_us},
    {"metadata_hz", &metadata_hz},
    {"seek_us", &seek_us},
    {"targets", &targets},
    {"stripe_bytes", &stripe_bytes},
    {"slots", &slots},
    {"attributes_s", &attributes_s},
    {"allow_other", &allow_other},
    {"watch", &watch},
};

static int root;
static struct counters *counters;
static sem_t servers;

/* Virtual clocks: when all admitted work will have passed.  And the place of the head: the file,
 * and the byte behind.  Read-ahead asks for a few pieces of a file at once, in any order: a drive's
 * own buffer has bytes as near as NEAR_BYTES. */
#define NEAR_BYTES ((int64_t)1 << 20)
enum { TARGETS = 256 };
struct lines {
    pthread_mutex_t lock;
    int64_t bytes_ns[TARGETS], requests_ns[TARGETS], metadata_ns;
    uint64_t head_file;
    int64_t head_end;
};
static struct lines own_lines, *lines = &own_lines;

/* --- time ------------------------------------------------------------------------------------ */

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void wait_until(int64_t end_ns)
{
    struct timespec end = {end_ns / NS_PER_S, end_ns % NS_PER_S};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        ;
}

/* Between -1 and 1. */
static double drawn(void)
{
    static _Thread_local uint64_t state;

    if (!state)
        state = (uint64_t)now_ns() ^ (uintptr_t)&state ^ 0x9E3779B97F4A7C15ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-52 - 1;
}

static int64_t passed_ns(int64_t *line_ns, int64_t start_ns, double cost_ns)
{
    if (*line_ns < start_ns - CREDIT_NS)
        *line_ns = start_ns - CREDIT_NS;
    *line_ns += (int64_t)cost_ns;
    return *line_ns;
}

/* A slowfs killed with the lock leaves clocks as good as before. */
static void lock_lines(void)
{
    if (pthread_mutex_lock(&lines->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&lines->lock);
}

static int init_lines(void)
{
    pthread_mutexattr_t shared;

    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    return pthread_mutex_init(&lines->lock, &shared);
}

/* The first slowfs that opens the file makes the lines.  0 or -1 with errno. */
static int share_lines(const char *path)
{
    struct stat status;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int failed = -1;

    if (file < 0 || flock(file, LOCK_EX) || fstat(file, &status))
        goto close_file;
    if (!status.st_size && ftruncate(file, sizeof *lines))
        goto close_file;
    lines = mmap(NULL, sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (lines == MAP_FAILED)
        goto close_file;
    failed = status.st_size ? 0 : init_lines();
close_file:
    if (file >= 0) {
        flock(file, LOCK_UN); /* the mapping would keep the lock */
        close(file);
    }
    return failed ? -1 : 0;
}

/* Return the cost of the head's way to the bytes; the lines are locked. */
static double jump_ns(uint64_t file, int64_t offset, uint64_t bytes)
{
    int64_t away = offset - lines->head_end;
    bool is_near = file == lines->head_file && away <= NEAR_BYTES && away >= -NEAR_BYTES;

    lines->head_file = file;
    lines->head_end = offset + (int64_t)bytes;
    return is_near ? 0 : seek_us * 1e3;
}

/* Return the server of a piece of a file. */
static size_t target_of(uint64_t file, int64_t offset)
{
    return (size_t)((file + (uint64_t)offset / (uint64_t)stripe_bytes) % (uint64_t)targets);
}

/* Return when a request that began at start_ns may end.  A request is on the server of its first
 * byte: the kernel's requests are no longer than a stripe. */
static int64_t end_of(int64_t start_ns, uint64_t file, int64_t offset, uint64_t bytes)
{
    size_t target = target_of(file, offset);
    int64_t latency_ns = (int64_t)(latency_us * 1e3 * (1 + jitter * drawn()));
    double shared_ns = bandwidth_bps > 0 ? (double)bytes * 1e9 / bandwidth_bps : 0;
    double stream_ns = stream_bps > 0 ? (double)bytes * 1e9 / stream_bps : 0;
    int64_t alone_ns = start_ns + (int64_t)(shared_ns > stream_ns ? shared_ns : stream_ns);
    int64_t end_ns = alone_ns, line_ns;

    lock_lines();
    if (bandwidth_bps > 0 || seek_us > 0) {
        if (seek_us > 0)
            shared_ns += jump_ns(file, offset, bytes);
        line_ns = passed_ns(&lines->bytes_ns[target], start_ns, shared_ns);
        end_ns = line_ns > end_ns ? line_ns : end_ns;
    }
    if (requests_hz > 0) {
        line_ns = passed_ns(&lines->requests_ns[target], start_ns, 1e9 / requests_hz);
        end_ns = line_ns > end_ns ? line_ns : end_ns;
    }
    pthread_mutex_unlock(&lines->lock);
    return end_ns + latency_ns;
}

static int64_t begun(void)
{
    uint64_t most, now;

    while (sem_wait(&servers) && errno == EINTR)
        ;
    now = atomic_fetch_add(&counters->in_flight, 1) + 1;
    most = counters->most_in_flight;
    while (now > most && !atomic_compare_exchange_weak(&counters->most_in_flight, &most, now))
        ;
    return now_ns();
}

/* Return a file's number on the disk: descriptors are used again, and slowfs is not told paths. */
static uint64_t number_of(uint64_t handle)
{
    struct stat status;

    if ((seek_us <= 0 && targets <= 1) || fstat((int)handle, &status))
        return 0;
    return (uint64_t)status.st_ino;
}

static void ended(int64_t start_ns, const struct fuse_file_info *file, off_t offset, ssize_t moved)
{
    wait_until(end_of(start_ns, number_of(file->fh), offset, moved > 0 ? (uint64_t)moved : 0));
    atomic_fetch_sub(&counters->in_flight, 1);
    sem_post(&servers);
}

static int class_of(size_t size)
{
    int class = 0;

    while (class < SIZES - 1 && (size_t)1 << class < size)
        class++;
    return class;
}

static void metadata(void)
{
    int64_t end_ns = now_ns(), line_ns;

    counters->metadata++;
    if (metadata_hz > 0) {
        lock_lines();
        line_ns = passed_ns(&lines->metadata_ns, end_ns, 1e9 / metadata_hz);
        pthread_mutex_unlock(&lines->lock);
        end_ns = line_ns > end_ns ? line_ns : end_ns;
    }
    if (metadata_us > 0 || metadata_hz > 0)
        wait_until(end_ns + (int64_t)(metadata_us * 1e3));
}

/* --- requests of the kernel ------------------------------------------------------------------- */

static const char *below_root(const char *path)
{
    return path[1] ? path + 1 : ".";
}

/* 0 or -errno, of a call that answers -1 */
static int answer(int result)
{
    return result < 0 ? -errno : 0;
}

/* Return the group of new files in a folder: the folder's own with the setgid bit. */
static gid_t group_below(const char *path, gid_t callers)
{
    const char *name = below_root(path), *slash = strrchr(name, '/');
    char *folder = slash ? strndup(name, (size_t)(slash - name)) : strdup(".");
    struct stat status;
    bool is_inherited =
        folder && !fstatat(root, folder, &status, AT_SYMLINK_NOFOLLOW) && status.st_mode & S_ISGID;

    free(folder);
    return is_inherited ? (gid_t)-1 : callers; /* -1: unchanged */
}

/* Give a file just made by root's tier for another user to the user, as without the tier.  Where
 * the disk below keeps no owners the file stays root's, as everything there does. */
static void given(const char *path, int descriptor)
{
    const struct fuse_context *caller = fuse_get_context();
    gid_t group;
    int failed;

    if (geteuid() || (!caller->uid && !caller->gid))
        return;
    group = group_below(path, caller->gid);
    if (descriptor >= 0)
        failed = fchown(descriptor, caller->uid, group);
    else
        failed = fchownat(root, below_root(path), caller->uid, group, AT_SYMLINK_NOFOLLOW);
    (void)failed;
}

static int slow_getattr(const char *path, struct stat *status, struct fuse_file_info *file)
{
    metadata();
    if (file)
        return answer(fstat((int)file->fh, status));
    return answer(fstatat(root, below_root(path), status, AT_SYMLINK_NOFOLLOW));
}

static int slow_readlink(const char *path, char *target, size_t size)
{
    metadata();
    ssize_t length = readlinkat(root, below_root(path), target, size - 1);
    if (length < 0)
        return -errno;
    target[length] = 0;
    return 0;
}

static int slow_mkdir(const char *path, mode_t mode)
{
    int failed;

    metadata();
    failed = answer(mkdirat(root, below_root(path), mode));
    if (!failed)
        given(path, -1);
    return failed;
}

static int slow_unlink(const char *path)
{
    metadata();
    return answer(unlinkat(root, below_root(path), 0));
}

static int slow_rmdir(const char *path)
{
    metadata();
    return answer(unlinkat(root, below_root(path), AT_REMOVEDIR));
}

static int slow_symlink(const char *target, const char *path)
{
    int failed;

    metadata();
    failed = answer(symlinkat(target, root, below_root(path)));
    if (!failed)
        given(path, -1);
    return failed;
}

static int slow_rename(const char *from, const char *to, unsigned flags)
{
    metadata();
    return answer(renameat2(root, below_root(from), root, below_root(to), flags));
}

static int slow_link(const char *from, const char *to)
{
    metadata();
    return answer(linkat(root, below_root(from), root, below_root(to), 0));
}

static int slow_chmod(const char *path, mode_t mode, struct fuse_file_info *file)
{
    metadata();
    if (file)
        return answer(fchmod((int)file->fh, mode));
    return answer(fchmodat(root, below_root(path), mode, 0));
}

static int slow_chown(const char *path, uid_t user, gid_t group, struct fuse_file_info *file)
{
    metadata();
    if (file)
        return answer(fchown((int)file->fh, user, group));
    return answer(fchownat(root, below_root(path), user, group, AT_SYMLINK_NOFOLLOW));
}

static int slow_truncate(const char *path, off_t size, struct fuse_file_info *file)
{
    int descriptor, failed;

    metadata();
    if (file)
        return answer(ftruncate((int)file->fh, size));
    descriptor = openat(root, below_root(path), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0)
        return -errno;
    failed = answer(ftruncate(descriptor, size));
    close(descriptor);
    return failed;
}

static int slow_utimens(const char *path, const struct timespec times[2],
                        struct fuse_file_info *file)
{
    metadata();
    if (file)
        return answer(futimens((int)file->fh, times));
    return answer(utimensat(root, below_root(path), times, AT_SYMLINK_NOFOLLOW));
}

/* Offsets are the kernel's, also for appends; our buffers are not aligned. */
static int opened(const char *path, int flags, mode_t mode, struct fuse_file_info *file)
{
    int descriptor;

    counters->opens++;
    metadata();
    flags &= ~(O_APPEND | O_DIRECT);
    descriptor = openat(root, below_root(path), flags | O_NOFOLLOW | O_CLOEXEC, mode);
    if (descriptor < 0)
        return -errno;
    file->fh = (uint64_t)descriptor;
    file->keep_cache = 1; /* until a changed size or time is seen, as NFS does */
    return 0;
}

static int slow_open(const char *path, struct fuse_file_info *file)
{
    return opened(path, file->flags & ~(O_CREAT | O_EXCL), 0, file);
}

static int slow_create(const char *path, mode_t mode, struct fuse_file_info *file)
{
    int failed = opened(path, file->flags | O_CREAT | O_EXCL, mode, file);

    /* another process made the file meanwhile, and owns the file */
    if (failed == -EEXIST && !(file->flags & O_EXCL))
        return slow_open(path, file);
    if (!failed)
        given(path, (int)file->fh);
    return failed;
}

static int slow_release(const char *path, struct fuse_file_info *file)
{
    (void)path;
    close((int)file->fh);
    return 0;
}

static int slow_read(const char *path, char *data, size_t size, off_t offset,
                     struct fuse_file_info *file)
{
    int64_t start_ns = begun();
    ssize_t got = pread((int)file->fh, data, size, offset);
    int error = errno;

    (void)path;
    if (got >= 0) {
        counters->reads++;
        counters->read_bytes += (uint64_t)got;
        counters->read_sizes[class_of(size)]++;
    }
    ended(start_ns, file, offset, got);
    return got < 0 ? -error : (int)got;
}

static int slow_write(const char *path, const char *data, size_t size, off_t offset,
                      struct fuse_file_info *file)
{
    int64_t start_ns = begun();
    ssize_t put = pwrite((int)file->fh, data, size, offset);
    int error = errno;

    (void)path;
    if (put >= 0) {
        counters->writes++;
        counters->written_bytes += (uint64_t)put;
        counters->write_sizes[class_of(size)]++;
    }
    ended(start_ns, file, offset, put);
    return put < 0 ? -error : (int)put;
}

static int slow_fsync(const char *path, int data_only, struct fuse_file_info *file)
{
    (void)path;
    metadata();
    return answer(data_only ? fdatasync((int)file->fh) : fsync((int)file->fh));
}

static int slow_fallocate(const char *path, int mode, off_t offset, off_t length,
                          struct fuse_file_info *file)
{
    (void)path;
    metadata();
    return answer(fallocate((int)file->fh, mode, offset, length));
}

static int slow_statfs(const char *path, struct statvfs *status)
{
    (void)path;
    metadata();
    return answer(fstatvfs(root, status));
}

static int slow_opendir(const char *path, struct fuse_file_info *file)
{
    int descriptor;
    DIR *folder;

    metadata();
    descriptor = openat(root, below_root(path), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0)
        return -errno;
    folder = fdopendir(descriptor);
    if (!folder) {
        close(descriptor);
        return -ENOMEM;
    }
    file->fh = (uint64_t)(uintptr_t)folder;
    return 0;
}

static int slow_readdir(const char *path, void *list, fuse_fill_dir_t fill, off_t offset,
                        struct fuse_file_info *file, enum fuse_readdir_flags flags)
{
    DIR *folder = (DIR *)(uintptr_t)file->fh;
    struct dirent *entry;

    (void)path, (void)offset, (void)flags;
    metadata();
    rewinddir(folder);
    while ((entry = readdir(folder))) {
        struct stat status = {.st_ino = entry->d_ino, .st_mode = DTTOIF(entry->d_type)};
        if (fill(list, entry->d_name, &status, 0, 0))
            return -ENOMEM;
    }
    return 0;
}

static int slow_releasedir(const char *path, struct fuse_file_info *file)
{
    (void)path;
    closedir((DIR *)(uintptr_t)file->fh);
    return 0;
}

static void *slow_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    /* Read-ahead may have as many requests in flight as there are servers. */
    connection->max_background = connection->congestion_threshold = (unsigned)slots + 1;
    config->entry_timeout = config->attr_timeout = attributes_s;
    config->use_ino = 1;
    config->nullpath_ok = 1; /* a removed file that is open lives on as .fuse_hidden... */
    return NULL;
}

static const struct fuse_operations operations = {
    .getattr = slow_getattr,
    .readlink = slow_readlink,
    .mkdir = slow_mkdir,
    .unlink = slow_unlink,
    .rmdir = slow_rmdir,
    .symlink = slow_symlink,
    .rename = slow_rename,
    .link = slow_link,
    .chmod = slow_chmod,
    .chown = slow_chown,
    .truncate = slow_truncate,
    .utimens = slow_utimens,
    .open = slow_open,
    .create = slow_create,
    .release = slow_release,
    .read = slow_read,
    .write = slow_write,
    .fsync = slow_fsync,
    .fallocate = slow_fallocate,
    .statfs = slow_statfs,
    .opendir = slow_opendir,
    .readdir = slow_readdir,
    .releasedir = slow_releasedir,
    .init = slow_init,
};

/* --- the program ----------------------------------------------------------------------------- */

static int set(char *argument)
{
    char *equals = strchr(argument, '='), *end;
    double value;

    if (!equals)
        return -EINVAL;
    *equals = 0;
    value = strtod(equals + 1, &end);
    if (!equals[1] || *end || !(value >= 0) || value > 1e15)
        return -EINVAL;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(argument, settings[i].name)) {
            *settings[i].value = value;
            return 0;
        }
    return -EINVAL;
}

static int map_counters(const char *path)
{
    int error = 0, descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (descriptor < 0)
        return -errno;
    if (ftruncate(descriptor, sizeof *counters))
        error = -errno;
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (!error && counters == MAP_FAILED)
        error = -errno;
    close(descriptor);
    return error;
}

static void *watch_input(void *main_thread)
{
    char byte;
    ssize_t got;

    do
        got = read(STDIN_FILENO, &byte, 1);
    while (got > 0 || (got < 0 && errno == EINTR));
    pthread_kill(*(pthread_t *)main_thread, SIGTERM); /* libfuse's own handler ends the loop */
    return NULL;
}

static int start_watch(pthread_t *main_thread)
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    *main_thread = pthread_self();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals to slowfs go to the main thread */
    error = pthread_create(&thread, NULL, watch_input, main_thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

static int serve(struct fuse *fuse)
{
    /* Each request in flight holds a thread; a request waiting for metadata holds no server. */
    unsigned threads = (unsigned)slots + 16;

#if FUSE_USE_VERSION >= 312
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    int result;

    fuse_loop_cfg_set_max_threads(config, threads);
    fuse_loop_cfg_set_idle_threads(config, threads);
    result = fuse_loop_mt(fuse, config);
    fuse_loop_cfg_destroy(config);
    return result;
#else
    struct fuse_loop_config config = {.clone_fd = 0, .max_idle_threads = threads};

    return fuse_loop_mt(fuse, &config);
#endif
}

static int mounted(const char *mount)
{
    char options[] = "default_permissions,fsname=slowfs,subtype=slowfs,allow_other";
    char *arguments[] = {"slowfs", "-o", options, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
    static pthread_t main_thread;
    struct fuse *fuse;
    int failed = 1;

    if (!allow_other)
        *strrchr(options, ',') = 0;
    fuse = fuse_new(&args, &operations, sizeof operations, NULL);
    if (!fuse)
        goto free_args;
    if (fuse_mount(fuse, mount))
        goto destroy;
    if (fuse_set_signal_handlers(fuse_get_session(fuse)))
        goto unmount;
    if (watch && start_watch(&main_thread))
        goto unmount;
    if (write(STDOUT_FILENO, "mounted\n", 8) != 8)
        goto unmount;
    failed = serve(fuse) < 0;
unmount:
    fuse_unmount(fuse);
destroy:
    fuse_destroy(fuse);
free_args:
    fuse_opt_free_args(&args);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("slowfs ROOT MOUNT STATS [NAME=NUMBER]... [lines=FILE]\n", stderr);
        return 2;
    }
    init_lines();
    for (int i = 4; i < argc; i++)
        if (!strncmp(argv[i], "lines=", 6)) {
            if (share_lines(argv[i] + 6)) {
                perror(argv[i]);
                return 1;
            }
        } else if (set(argv[i])) {
            fprintf(stderr, "slowfs: no such setting, or no number: %s\n", argv[i]);
            return 2;
        }
    root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || map_counters(argv[3])) {
        perror(root < 0 ? argv[1] : argv[3]);
        return 1;
    }
    if (targets < 1 || targets > TARGETS || stripe_bytes < 1) {
        fputs("slowfs: targets: 1 to 256; stripe_bytes: 1 or more\n", stderr);
        return 2;
    }
    if (slots < 1 || slots > 4096 || sem_init(&servers, 0, (unsigned)slots)) {
        fputs("slowfs: slots: 1 to 4096\n", stderr);
        return 2;
    }
    umask(0);
    prctl(PR_SET_TIMERSLACK, 1000); /* ns; all threads inherit the slack */
    return mounted(argv[2]);
}
