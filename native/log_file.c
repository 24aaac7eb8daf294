/* The file of a log: its process, its units, fork, start, stop and failures.  Only direct system
 * calls, no allocation by libc; the caller blocks signals. */
#include "log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "account.h"
#include "counters.h"
#include "guard.h"
#include "log_parts.h"
#include "secrets.h"
#include "sums.h"

/* glibc 2.32 and newer; a library built for an older glibc finds the function at run time, or
 * not. */
extern const char *strerrordesc_np(int error) __attribute__((weak));

#define DEFAULT_BUDGET (1ull << 30)

char log_folder[3072];

/* The facts about this program in every log; copied by fork, unlike log_state. */
static struct log_header identity;
uint64_t log_budget;
static struct stat
    said_to; /* standard error at the start: a program may close it and open a file there */
/* The latest log's header, which a forked child finds too: the child's calls are counted there when
 * the child can make no log, or its parent's log had failed. */
static struct log_header *latest;
static uint32_t latest_origin;
static uint64_t *lost; /* where calls are counted from our own failure to the window's end */

long log_read_small(const char *path, char *data, size_t size)
{
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long got;

    if (fd < 0)
        return -errno;
    got = syscall(SYS_read, fd, data, size);
    syscall(SYS_close, fd);
    return got;
}

/* --- the file -------------------------------------------------------------------------------- */

static long allocate(long fd, uint64_t offset, uint64_t bytes)
{
    static const char zeros[4096];
    uint64_t done;

    if (!own_call(SYS_fallocate, fd, 0, offset, bytes))
        return 0;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return -errno;
    for (done = 0; done < bytes; done += sizeof zeros) {
        long put = own_call(SYS_pwrite64, fd, zeros, sizeof zeros, offset + done);

        if (put != sizeof zeros)
            return put < 0 ? -errno : -ENOSPC;
    }
    return 0;
}

/* No descriptor stays open: a program that closes all descriptors, or writes to a number, cannot
 * hurt. */
long log_open_file(void)
{
    long fd = own_call(SYS_openat, AT_FDCWD, log_state->path, O_RDWR | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

/* A write past RLIMIT_FSIZE also raises a signal that would end the program.  Our signal is still
 * pending, as signals are blocked here. */
static void take_back_signal(void)
{
    static const struct timespec at_once;
    uint64_t set = 1ull << (SIGXFSZ - 1);

    syscall(SYS_rt_sigtimedwait, &set, NULL, &at_once, 8);
}

uint64_t log_next_unit(void)
{
    return __atomic_fetch_add(&log_state->header->units, 1, __ATOMIC_RELAXED);
}

uint64_t log_unit_offset(uint64_t unit)
{
    return LOG_HEADER_BYTES + unit * LOG_UNIT_BYTES;
}

static void is_cut(void);

/* Map a new unit of the file, allocated before the mapping: a full disk is an error here, not a
 * SIGBUS. */
void *log_map_unit(uint64_t *unit, void *address)
{
    long fd = log_open_file();
    void *block;
    long error;

    if (fd < 0) {
        log_fail((int)-fd, "the log cannot be opened");
        return NULL;
    }
    *unit = log_next_unit();
    error = allocate(fd, log_unit_offset(*unit), LOG_UNIT_BYTES);
    if (error) {
        own_call(SYS_close, fd);
        log_fail((int)-error, "the log cannot grow");
        return NULL;
    }
    block = (void *)own_call(SYS_mmap, address, LOG_UNIT_BYTES, PROT_READ | PROT_WRITE,
                             MAP_SHARED | (address ? MAP_FIXED : 0), fd, log_unit_offset(*unit));
    own_call(SYS_close, fd);
    if (block == MAP_FAILED) {
        log_fail(errno, "the log cannot be mapped");
        return NULL;
    }
    own_call(SYS_madvise, block, LOG_UNIT_BYTES, MADV_DONTFORK);
    guard_add(GUARD_PROCESS, block, LOG_UNIT_BYTES, is_cut);
    return block;
}

/* Return the header of a block after its close. */
struct block log_closed_head(const struct block *block)
{
    struct block head = *block;
    uint32_t sum;

    if (head.used > head.limit) /* calls without room */
        head.used = head.limit;
    head.kind = BLOCK_CLOSED;
    head.limit = 0;
    sum = sums_add(0, &head, sizeof head);
    sum = sums_add(sum, block + 1, head.used * sizeof(struct event));
    head.limit = sums_add(sum, (const char *)block + head.texts, LOG_UNIT_BYTES - head.texts);
    return head;
}

/* The header last: where the process dies between, the unit is empty and the block in use whole. */
long log_write_closed(uint64_t unit, const struct block *block)
{
    const struct block head = log_closed_head(block);
    const uint64_t at = log_unit_offset(unit);
    uint64_t done = sizeof head;
    long fd = log_open_file();
    long put;

    if (fd < 0)
        return fd;
    do {
        put = own_call(SYS_pwrite64, fd, (const char *)block + done, LOG_UNIT_BYTES - done,
                       at + done);
        if (put > 0)
            done += (uint64_t)put;
    } while (done < LOG_UNIT_BYTES && (put > 0 || (put < 0 && errno == EINTR)));
    if (done == LOG_UNIT_BYTES)
        put = own_call(SYS_pwrite64, fd, &head, sizeof head, at);
    put = put == sizeof head ? 0 : put < 0 ? -errno : -ENOSPC;
    own_call(SYS_close, fd);
    return put;
}

static uint32_t number_of(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    char *end;
    unsigned long number;

    if (!value || *value < '0' || *value > '9')
        return ~0u;
    errno = 0;
    number = strtoul(value, &end, 10);
    return errno || *end || number >= ~0u ? ~0u : (uint32_t)number;
}

/* The variables by which launchers number processes, the innermost launcher first: torchrun may run
 * below mpirun, and mpirun below Slurm.  RANK alone is a word that programs use for other
 * things. */
static void find_rank(void)
{
    static const char *const launchers[][3] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
        /* Not SLURM_NTASKS: the script of a batch job has the variable too, with number 0, and is
         * no task. */
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
    };
    size_t i, other;
    int saved = errno;

    identity.rank = identity.local_rank = identity.world_size = ~0u;
    for (i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        uint32_t rank = number_of(launchers[i][0]), size = number_of(launchers[i][1]);

        if (rank == ~0u || size == ~0u || rank >= size)
            continue;
        identity.rank = rank;
        identity.world_size = size;
        /* A job that sets RANK by hand from Slurm's variables leaves the local rank to Slurm. */
        for (other = i; other < sizeof launchers / sizeof *launchers; other++) {
            identity.local_rank = number_of(launchers[other][2]);
            if (identity.local_rank != ~0u)
                break;
        }
        break;
    }
    errno = saved;
}

/* Read the host and the boot of the clocks and the processes of a log. */
void log_machine(char host[64], uint8_t boot_id[16])
{
    struct utsname machine;
    char text[64] = "";
    int digits = 0;
    char *c;

    if (!uname(&machine))
        memccpy(host, machine.nodename, 0, 63);
    for (c = host; *c; c++)
        if (*c == '/')
            *c = '_';
    log_read_small("/proc/sys/kernel/random/boot_id", text, sizeof text - 1);
    for (c = text; *c && digits < 32; c++) {
        int value = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;

        if (value < 0)
            continue;
        boot_id[digits / 2] |= (uint8_t)(value << (digits & 1 ? 0 : 4));
        digits++;
    }
}

/* Read the arguments, without the secrets: a log is shared with all its content. */
static void read_command(void)
{
    static char words[sizeof identity.command - 2];
    long length;

    if (getenv("PENSTOCK_KEEP_ARGV")) {
        log_read_small("/proc/self/cmdline", identity.command, sizeof identity.command - 2);
        return;
    }
    length = log_read_small("/proc/self/cmdline", words, sizeof words);
    if (length > 0)
        secrets_hide(words, (size_t)length, identity.command, sizeof identity.command - 2,
                     getenv("PENSTOCK_SECRETS"));
    memset(words, 0, sizeof words);
}

static void identify(void)
{
    if (identity.version)
        return;
    memcpy(identity.magic, LOG_MAGIC, sizeof identity.magic);
    syscall(SYS_fstat, 2, &said_to);
    identity.version = LOG_VERSION;
    identity.header_bytes = LOG_HEADER_BYTES;
    identity.unit_bytes = LOG_UNIT_BYTES;
    identity.event_bytes = sizeof(struct event);
    log_machine(identity.host, identity.boot_id);
    find_rank();
    if (syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", identity.executable,
                sizeof identity.executable - 1) < 0)
        identity.executable[0] = 0;
    read_command();
}

static void fill_header(struct log_header *header, uint32_t origin)
{
    *header = identity;
    header->pid = (uint32_t)syscall(SYS_getpid);
    header->ppid = (uint32_t)syscall(SYS_getppid);
    header->clock = clock_is_counter ? CLOCK_TSC : CLOCK_NS;
    header->origin = origin;
    header->ticks_per_s = clock_ticks_per_s;
    header->budget_bytes = log_budget;
    header->waits_from_ns = WAIT_RECORDED_NS;
    if (syscall(SYS_getcwd, header->folder, sizeof header->folder) < 0)
        header->folder[0] = 0;
    header->start_unix_ns = clock_ns(CLOCK_REALTIME);
    header->start_ns = header->last_ns = clock_ns(CLOCK_MONOTONIC);
    header->start_ticks = header->last_ticks = clock_ticks();
    __atomic_store_n(&header->state, LOG_RUNNING, __ATOMIC_RELEASE);
}

/* Called in a signal handler, where the file is shorter than the mapping. */
static void is_cut(void)
{
    static const char what[] = "another program has cut a log, or its disk fails";
    struct log_header *header = log_state ? log_state->header : NULL;
    long fd;

    log_fail(EIO, what);
    if (!header || header->version) /* a missing header is zeros now */
        return;
    fill_header(header, latest_origin);
    header->state = LOG_FAILED;
    header->error = EIO;
    memcpy(header->reason, what, sizeof what);
    fd = log_open_file();
    if (fd < 0)
        return;
    syscall(SYS_pwrite64, fd, header, 4096, 0);
    syscall(SYS_close, fd);
}

static char *append(char *end, const char *limit, const char *text)
{
    while (*text && end < limit)
        *end++ = *text++;
    *end = 0;
    return end;
}

static char *append_number(char *end, const char *limit, uint64_t number)
{
    char digits[24];
    char *first = digits + sizeof digits - 1;

    *first = 0;
    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    return append(end, limit, first);
}

/* Readers of a run's folder may read the files; only the owner writes (as drafts.py). */
static mode_t mode_of_files(void)
{
    struct stat folder;

    if (syscall(SYS_newfstatat, AT_FDCWD, log_folder, &folder, 0))
        return S_IRUSR | S_IWUSR;
    return S_IRUSR | S_IWUSR | (folder.st_mode & (S_IRGRP | S_IROTH));
}

static long create_file(void)
{
    const mode_t mode = mode_of_files();
    const char *limit = log_state->path + sizeof log_state->path - 1;
    uint64_t serial;
    long fd = -EEXIST;

    for (serial = 0; fd == -EEXIST && serial < 1000000; serial++) {
        char *end = append(log_state->path, limit, log_folder);

        end = append(end, limit, "/");
        end = append(end, limit, identity.host);
        end = append(end, limit, ".");
        end = append_number(end, limit, (uint64_t)syscall(SYS_getpid));
        end = append(end, limit, ".");
        end = append_number(end, limit, serial);
        append(end, limit, ".events");
        fd = syscall(SYS_openat, AT_FDCWD, log_state->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
                     mode);
        if (fd < 0)
            fd = -errno;
    }
    return fd;
}

static int make_log(uint32_t origin)
{
    long fd = create_file();
    long error;
    void *header;

    if (fd < 0)
        return (int)fd;
    error = allocate(fd, 0, 4096);
    if (error)
        goto close_fd;
    header = (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    error = header == MAP_FAILED ? -errno : 0;
    if (error)
        goto close_fd;
    latest_origin = origin;
    fill_header(header, origin);
    if (!log_state->header && latest) { /* the parent's */
        guard_remove(latest);
        syscall(SYS_munmap, latest, 4096);
    }
    guard_add(GUARD_FAMILY, header, 4096, is_cut);
    latest = header;
    lost = NULL;
    /* a child's rounds differ from its parent's: a call begun before the fork is not the child's */
    if (!log_state->rounds)
        log_state->rounds = (uint64_t)((struct log_header *)header)->pid << 32;
    log_state->header = header;
    log_state->counters = NULL;
    log_state->pid = ((struct log_header *)header)->pid;
    memset(log_state->has_name, 0, sizeof log_state->has_name);
    __atomic_add_fetch(&log_state->serial, 1, __ATOMIC_RELEASE);

close_fd:
    syscall(SYS_close, fd);
    if (error)
        syscall(SYS_unlinkat, AT_FDCWD, log_state->path, 0);
    return (int)error;
}

/* --- fork, start, stop, trouble ----------------------------------------------------------------
 */

static struct {
    void *memory;
    size_t bytes;
} wiped[1024];
static uint32_t n_wiped;

/* Kernels before 4.14, and emulators, keep memory that should be wiped.  A child made without
 * fork() runs no handler: there the recorder relies on the kernel. */
static void wipe_in_child(void)
{
    uint32_t i;

    for (i = log_state->serial ? n_wiped : 0; i-- > 0;)
        memset(wiped[i].memory, 0, wiped[i].bytes);
}

/* Map memory that a forked child finds as zeros. */
void *log_map_wiped(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    uint32_t i = __atomic_load_n(&n_wiped, __ATOMIC_RELAXED);

    if (memory == MAP_FAILED)
        return NULL;
    syscall(SYS_madvise, memory, bytes, MADV_WIPEONFORK);
    if (i < sizeof wiped / sizeof *wiped) {
        wiped[i].memory = memory;
        wiped[i].bytes = bytes;
        __atomic_store_n(&n_wiped, i + 1, __ATOMIC_RELEASE);
    }
    return memory;
}

int log_setup(void)
{
    if (log_state)
        return 0;
    log_state = log_map_wiped(sizeof *log_state);
    if (!log_state)
        return -ENOMEM;
    pthread_atfork(NULL, NULL, wipe_in_child);
    log_make_key();
    return 0;
}

int log_start(const char *folder, uint64_t budget_bytes, uint32_t origin)
{
    sigset_t signals;
    int error;

    log_budget = budget_bytes ? budget_bytes : DEFAULT_BUDGET;
    if (log_state->header && !strcmp(folder, log_folder) &&
        !syscall(SYS_faccessat, AT_FDCWD, log_state->path, F_OK)) { /* else the log was removed */
        log_state->header->state = LOG_RUNNING;
        guard_start();
        return 0;
    }
    if (strlen(folder) >= sizeof log_folder)
        return -ENAMETOOLONG;
    identify();
    strcpy(log_folder, folder);
    signals_block(&signals);
    error = make_log(origin);
    if (error == -EFBIG)
        take_back_signal();
    signals_restore(&signals);
    if (error)
        log_folder[0] = 0;
    return error;
}

void log_stop(uint32_t state)
{
    if (!log_state || !log_state->header)
        return;
    log_anchor();
    if (log_state->header->state != LOG_FAILED)
        log_state->header->state = state;
    if (state == LOG_STOPPED)
        __atomic_store_n(&lost, NULL, __ATOMIC_RELEASE);
}

static bool is_first_failure(void)
{
    long folder = syscall(SYS_openat, AT_FDCWD, log_folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    long fd = syscall(SYS_openat, folder, "failed", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                      mode_of_files());
    bool is_first = fd >= 0 || errno != EEXIST;

    if (fd >= 0)
        syscall(SYS_close, fd);
    if (folder >= 0)
        syscall(SYS_close, folder);
    return is_first;
}

static bool is_standard_error(void)
{
    struct stat now;

    return said_to.st_ino && !syscall(SYS_fstat, 2, &now) && now.st_dev == said_to.st_dev &&
           now.st_ino == said_to.st_ino;
}

/* End the recording, never the run: a reason in the log, a line for the job. */
/* Standard error may be a file, and at the limit that caused the failure: then a write raises a
 * signal too. */
static void say(const char *line, size_t length)
{
    static const char prefix[] = "penstock: ";
    sigset_t signals;

    signals_block(&signals);
    if (syscall(SYS_write, 2, prefix, sizeof prefix - 1) < 0 ||
        syscall(SYS_write, 2, line, length) < 0) {
        if (errno == EFBIG)
            take_back_signal();
    }
    signals_restore(&signals);
}

static const char *described(int error)
{
    const char *text = strerrordesc_np ? strerrordesc_np(error) : NULL;

    return text ? text : "a system error";
}

void log_fail(int error, const char *what)
{
    char line[512];
    const char *limit = line + sizeof line - 2;
    char *end;

    if (error == EFBIG)
        take_back_signal();
    if (!recorder_on)
        return;
    /* Before the switch: no call may find us off and nowhere to be counted. */
    __atomic_store_n(&lost, latest ? &latest->lost : NULL, __ATOMIC_RELEASE);
    if (!__atomic_exchange_n(&recorder_on, 0, __ATOMIC_ACQ_REL))
        return;
    end = append(line, limit, what);
    end = append(end, limit, ": ");
    end = append(end, limit, error == ENOSPC ? "no space left" : described(error));
    if (log_state->header) {
        append(log_state->header->reason, log_state->header->reason + sizeof identity.reason - 1,
               line);
        log_state->header->error = error;
        log_state->header->state = LOG_FAILED;
    }
    end = append(end, limit, " (");
    end = append(end, limit, log_folder);
    end = append(end, limit, "); the program goes on, unrecorded\n");
    if (is_first_failure() && is_standard_error())
        say(line, end - line);
}

bool log_lost(void)
{
    uint64_t *count;

    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* after recorder_on, cleared last by log_fail */
    count = __atomic_load_n(&lost, __ATOMIC_RELAXED);
    if (count && !(log_self && log_self->is_borrowed))
        __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    return false;
}

bool log_ready(void)
{
    int error = 0;

    if (LIKELY(log_state->header))
        return true;
    log_lock(&log_state->lock);
    if (!log_state->header && recorder_on) {
        error = make_log(ORIGIN_FORK);
        if (error)
            log_fail(-error, "a forked process cannot make its log");
    }
    log_unlock(&log_state->lock);
    return log_state->header && recorder_on;
}
