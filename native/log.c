/* Where events go.  Signals are blocked in everything here that is not inline: a handler that does
 * I/O finds either the state before or the state after.  Only direct system calls, no allocation by
 * libc. */
#include "log.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <sched.h>
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
#include "secrets.h"
#include "sums.h"

#define POOL_BYTES 65536
#define CARRIED_MAX                                                                                \
    48 /* calls in flight that one thread can nest; older ones stay where they are */
#define KEYS_WITHOUT_ALLOCATION 32 /* glibc keeps values of the first keys inside the thread */
#define DEFAULT_BUDGET (1ull << 30)

HOT struct log *log_state;
HOT int recorder_on;
HOT int recorder_paused;
_Thread_local struct thread *log_self INITIAL_EXEC;
_Thread_local uint32_t log_own_calls INITIAL_EXEC;
static _Thread_local uint64_t own_since INITIAL_EXEC;
char log_folder[3072];
void (*log_thread_ends)(struct thread *thread);

HOT bool clock_is_counter;
uint64_t clock_ticks_per_s;

/* What every log of this program says about it; copied by fork, unlike log_state. */
static struct log_header identity;
static uint64_t budget;
static struct stat
    said_to; /* standard error as it was: a program may close it and open a file there */
/* The latest log's header, which a forked child finds too: there its calls are counted when it can
 * make no log, or its parent's had failed. */
static struct log_header *latest;
static uint32_t latest_origin;
static uint64_t *lost; /* where calls are counted from our own failure to the window's end */
static pthread_key_t key;
static bool has_key;

/* --- small tools ---------------------------------------------------------------------------- */

/* Not SIGBUS: the kernel ends a program that blocks it and touches what a file no longer has.  A
 * thread that had it blocked can receive it from its first block on. */
#define BUS (1ull << (SIGBUS - 1))

void signals_block(sigset_t *before)
{
    uint64_t all = ~BUS;

    own_call(SYS_rt_sigprocmask, SIG_SETMASK, &all, before, 8);
}

void signals_restore(const sigset_t *before)
{
    uint64_t set;

    memcpy(&set, before, sizeof set);
    set &= ~BUS;
    own_call(SYS_rt_sigprocmask, SIG_SETMASK, &set, NULL, 8);
}

uint64_t log_own_begin(void)
{
    uint64_t now = clock_ticks();

    if (own_since && now - own_since < clock_ticks_per_s) /* else a handler jumped out of us */
        return 0;
    own_since = now;
    return now;
}

void log_own_end(uint64_t start)
{
    struct log_header *header = log_state ? log_state->header : NULL;

    if (!start)
        return;
    own_since = 0;
    if (!header)
        return;
    __atomic_fetch_add(&header->own_calls, log_own_calls, __ATOMIC_RELAXED);
    __atomic_fetch_add(&header->own_ticks, clock_ticks() - start, __ATOMIC_RELAXED);
    log_own_calls = 0;
}

/* A lock of our own: it lies in memory that fork wipes, so a child never inherits it taken. */
bool log_try_lock(uint32_t *lock)
{
    return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE);
}

void log_lock(uint32_t *lock)
{
    while (!log_try_lock(lock))
        syscall(SYS_sched_yield);
}

void log_unlock(uint32_t *lock)
{
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
}

static long read_small(const char *path, char *data, size_t size)
{
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long got;

    if (fd < 0)
        return -errno;
    got = syscall(SYS_read, fd, data, size);
    syscall(SYS_close, fd);
    return got;
}

/* --- clock ----------------------------------------------------------------------------------- */

static bool counter_is_invariant(void)
{
#if defined(__x86_64__)
    uint32_t a = 0x80000000u, b, c = 0, d;
    char source[32] = "";

    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (a < 0x80000007u)
        return false;
    a = 0x80000007u;
    c = 0;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (!(d & 1u << 8))
        return false;
    /* The kernel drops the counter as its own clock when it finds the cores apart. */
    read_small("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
               sizeof source - 1);
    return !strncmp(source, "tsc", 3) || !strncmp(source, "kvm-clock", 9);
#else
    return true;
#endif
}

void clock_choose(uint64_t known_ticks_per_s)
{
    uint64_t ticks, ns, elapsed;

    if (clock_ticks_per_s)
        return;
    clock_is_counter = counter_is_invariant();
    if (!clock_is_counter) {
        clock_ticks_per_s = 1000000000u;
    } else if (known_ticks_per_s) {
        clock_ticks_per_s = known_ticks_per_s;
    } else {
        ns = clock_ns(CLOCK_MONOTONIC);
        ticks = clock_counter();
        do
            elapsed = clock_ns(CLOCK_MONOTONIC) - ns;
        while (elapsed < 1000000);
        clock_ticks_per_s = (uint64_t)((double)(clock_counter() - ticks) * 1e9 / (double)elapsed);
    }
    log_look_ticks = clock_ticks_per_s / (1000000000u / ACCOUNT_NS);
}

void log_anchor(void)
{
    struct log_header *header = log_state ? log_state->header : NULL;
    uint64_t ns, ticks;

    if (!header)
        return;
    /* Both first, so that a kill hardly ever falls between the two stores: a reader refuses a log
     * whose clocks do not agree. */
    ns = clock_ns(CLOCK_MONOTONIC);
    ticks = clock_ticks();
    header->last_ns = ns;
    header->last_ticks = ticks;
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

/* No descriptor stays open: a program that closes them all, or writes to one by number, cannot
 * hurt. */
static long open_log(void)
{
    long fd = own_call(SYS_openat, AT_FDCWD, log_state->path, O_RDWR | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

/* A write past RLIMIT_FSIZE also raises a signal that would end the program.  Ours is still
 * pending, as signals are blocked here. */
static void take_back_signal(void)
{
    static const struct timespec at_once;
    uint64_t set = 1ull << (SIGXFSZ - 1);

    syscall(SYS_rt_sigtimedwait, &set, NULL, &at_once, 8);
}

static uint64_t next_unit(void)
{
    return __atomic_fetch_add(&log_state->header->units, 1, __ATOMIC_RELAXED);
}

static uint64_t unit_offset(uint64_t unit)
{
    return LOG_HEADER_BYTES + unit * LOG_UNIT_BYTES;
}

static void is_cut(void);

/* A new unit of the file, allocated before it is mapped: a full disk is an error here, not a
 * SIGBUS. */
void *log_map_unit(uint64_t *unit, void *address)
{
    long fd = open_log();
    void *block;
    long error;

    if (fd < 0) {
        log_fail((int)-fd, "the log cannot be opened");
        return NULL;
    }
    *unit = next_unit();
    error = allocate(fd, unit_offset(*unit), LOG_UNIT_BYTES);
    if (error) {
        own_call(SYS_close, fd);
        log_fail((int)-error, "the log cannot grow");
        return NULL;
    }
    block = (void *)own_call(SYS_mmap, address, LOG_UNIT_BYTES, PROT_READ | PROT_WRITE,
                             MAP_SHARED | (address ? MAP_FIXED : 0), fd, unit_offset(*unit));
    own_call(SYS_close, fd);
    if (block == MAP_FAILED) {
        log_fail(errno, "the log cannot be mapped");
        return NULL;
    }
    own_call(SYS_madvise, block, LOG_UNIT_BYTES, MADV_DONTFORK);
    guard_add(GUARD_PROCESS, block, LOG_UNIT_BYTES, is_cut);
    return block;
}

/* The header that a block has when it is closed. */
static struct block closed(const struct block *block)
{
    struct block head = *block;
    uint32_t sum;

    if (head.used > head.limit) /* calls that found no room */
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
    const struct block head = closed(block);
    const uint64_t at = unit_offset(unit);
    uint64_t done = sizeof head;
    long fd = open_log();
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

/* How launchers tell a process which of how many it is, the innermost first: torchrun may run below
 * mpirun, that below Slurm.  RANK alone is a word that programs use for other things. */
static void find_rank(void)
{
    static const char *const launchers[][3] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
        /* Not SLURM_NTASKS: the script of a batch job has it too, with number 0, and is no task. */
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
        /* Who sets RANK by hand from Slurm's leaves the local rank to Slurm. */
        for (other = i; other < sizeof launchers / sizeof *launchers; other++) {
            identity.local_rank = number_of(launchers[other][2]);
            if (identity.local_rank != ~0u)
                break;
        }
        break;
    }
    errno = saved;
}

/* What the clocks and the processes of a log belong to. */
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
    read_small("/proc/sys/kernel/random/boot_id", text, sizeof text - 1);
    for (c = text; *c && digits < 32; c++) {
        int value = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;

        if (value < 0)
            continue;
        boot_id[digits / 2] |= (uint8_t)(value << (digits & 1 ? 0 : 4));
        digits++;
    }
}

/* The arguments, without the secrets among them: a log is shared with everything in it. */
static void read_command(void)
{
    static char words[sizeof identity.command - 2];
    long length;

    if (getenv("PENSTOCK_KEEP_ARGV")) {
        read_small("/proc/self/cmdline", identity.command, sizeof identity.command - 2);
        return;
    }
    length = read_small("/proc/self/cmdline", words, sizeof words);
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
    header->budget_bytes = budget;
    header->waits_from_ns = WAIT_RECORDED_NS;
    if (syscall(SYS_getcwd, header->folder, sizeof header->folder) < 0)
        header->folder[0] = 0;
    header->start_unix_ns = clock_ns(CLOCK_REALTIME);
    header->start_ns = header->last_ns = clock_ns(CLOCK_MONOTONIC);
    header->start_ticks = header->last_ticks = clock_ticks();
    __atomic_store_n(&header->state, LOG_RUNNING, __ATOMIC_RELEASE);
}

/* Called in a signal handler, where the file is shorter than what is mapped of it. */
static void is_cut(void)
{
    static const char what[] = "another program has cut a log, or its disk fails";
    struct log_header *header = log_state ? log_state->header : NULL;
    long fd;

    log_fail(EIO, what);
    if (!header || header->version) /* a header that was gone is zeros now */
        return;
    fill_header(header, latest_origin);
    header->state = LOG_FAILED;
    header->error = EIO;
    memcpy(header->reason, what, sizeof what);
    fd = open_log();
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

/* Who may read a run's folder may read its files; only their owner writes them (as drafts.py). */
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
    header = (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
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
    if (!log_state->rounds) /* a child's differ from its parent's: a call begun before the fork is
                               not its own */
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

/* Kernels before 4.14, and emulators, keep what they were asked to wipe.  A child made without
 * fork() runs no handler: there we rely on the kernel. */
static void wipe_in_child(void)
{
    uint32_t i;

    for (i = log_state->serial ? n_wiped : 0; i-- > 0;)
        memset(wiped[i].memory, 0, wiped[i].bytes);
}

/* Memory that a forked child finds as zeros. */
void *log_map_wiped(size_t bytes)
{
    void *memory = (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
    has_key = !pthread_key_create(&key, log_thread_end);
    if (has_key && key >= KEYS_WITHOUT_ALLOCATION)
        has_key = false; /* setting it could allocate inside an allocator's own call */
    return 0;
}

int log_start(const char *folder, uint64_t budget_bytes, uint32_t origin)
{
    sigset_t signals;
    int error;

    budget = budget_bytes ? budget_bytes : DEFAULT_BUDGET;
    if (log_state->header && !strcmp(folder, log_folder) &&
        !syscall(SYS_faccessat, AT_FDCWD, log_state->path, F_OK)) { /* else it was removed since */
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

/* Ends the recording, never the run: a reason in the log, one line for the job. */
/* Standard error may be a file, and at the limit that made us fail: then a write raises a signal
 * too. */
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
    end = append(end, limit, error == ENOSPC ? "no space left" : strerrordesc_np(error));
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

    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* after recorder_on, which log_fail clears last */
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

/* --- threads and blocks ----------------------------------------------------------------------- */

static struct thread *free_threads; /* both wiped with the pool they point into: see take_thread */
static struct thread *pool;
static uint32_t pool_used;
static uint32_t pool_pid;

static struct thread *take_thread(void)
{
    struct thread *thread;
    uint32_t pid = (uint32_t)own_call(SYS_getpid);

    log_lock(&log_state->lock);
    if (pool_pid != pid) { /* a forked child: the parent's threads are not here */
        pool_pid = pid;
        free_threads = NULL;
        pool = NULL;
    }
    thread = free_threads;
    if (thread) {
        free_threads = thread->next;
    } else {
        if (!pool || pool_used == POOL_BYTES / sizeof *pool) {
            pool = log_map_wiped(POOL_BYTES);
            pool_used = 0;
        }
        thread = pool ? &pool[pool_used++] : NULL;
    }
    log_unlock(&log_state->lock);
    return thread;
}

static bool is_in_child(void)
{
    return log_state->pid && log_state->pid != (uint32_t)own_call(SYS_getpid);
}

bool log_is_borrowed(void)
{
    return log_state && ((log_self && log_self->is_borrowed) || is_in_child());
}

void log_switch_on(void)
{
    static int windows;

    windows = windows < INT32_MAX ? windows + 1 : 1;
    __atomic_store_n(&recorder_on, windows, __ATOMIC_SEQ_CST);
}

/* Called with signals blocked.  Once a window the kernel is asked which process this is: a vfork
 * child that began before the window runs on its parent's thread, and no wrapper has noted it. */
struct thread *log_thread(void)
{
    struct thread *thread = log_self;
    int now = recorder_on;

    if (thread && thread->is_used && thread->window == now)
        return thread;
    if (is_in_child())
        return NULL;
    if (!thread) {
        thread = take_thread();
        if (!thread) {
            log_fail(ENOMEM, "no memory for a thread's place");
            return NULL;
        }
        memset(thread, 0, sizeof *thread);
        log_self = thread;
    }
    if (!thread->is_used) {
        thread->is_used = 1;
        thread->tid = (uint32_t)own_call(SYS_gettid);
        thread->number = __atomic_add_fetch(&log_state->threads, 1, __ATOMIC_RELAXED);
        if (has_key)
            pthread_setspecific(key, thread);
    }
    if (thread->log != log_state->serial)
        thread->block = thread->parked = NULL; /* of an earlier log */
    thread->window = now;
    return thread;
}

static void begin_round(struct thread *thread, struct block *block)
{
    block->magic = BLOCK_MAGIC;
    block->kind = BLOCK_EVENTS;
    block->thread = thread->number;
    block->tid = thread->tid;
    block->first = clock_ticks();
    own_call(SYS_prctl, 16 /* PR_GET_NAME */, block->name, 0, 0, 0);
    __atomic_store_n(&block->round, __atomic_add_fetch(&log_state->rounds, 1, __ATOMIC_RELAXED),
                     __ATOMIC_RELEASE);
}

static bool acquire_block(struct thread *thread)
{
    uint32_t serial = __atomic_load_n(&log_state->serial, __ATOMIC_ACQUIRE);
    struct block *block = log_map_unit(&thread->unit, thread->address);

    if (!block)
        return false;
    thread->address = block;
    thread->log = serial;
    block->used = 0;
    block->texts = LOG_UNIT_BYTES;
    block->limit = EVENTS_PER_BLOCK;
    begin_round(thread, block);
    __atomic_store_n(&thread->block, block, __ATOMIC_RELEASE);
    return true;
}

/* A call in flight on its way from a full block to the next one. */
struct carried {
    struct event event;
    uint64_t start, asked, moved;
};

/* Calls in flight must not leave with a full block: their end would not find them.  They stay in
 * it, too: the reader takes the later one. */
static uint32_t copy_carried(const struct block *block, struct carried *carried)
{
    const struct event *events = log_events(block);
    uint32_t n = 0;
    uint32_t i;

    for (i = block->used; i-- > 0 && n < CARRIED_MAX;) {
        const struct event_rest *rest;

        if (event_ticks(&events[i]) || !event_op(&events[i]) || event_op(&events[i]) == OP_REST)
            continue;
        rest = event_rest(block, &events[i]);
        carried[n].event = events[i];
        carried[n].start = event_start(block, &events[i]);
        carried[n].asked = rest ? rest->asked : events[i].asked;
        carried[n].moved = rest ? rest->moved : events[i].moved;
        n++;
    }
    return n;
}

static void put_wide(struct event *event, const struct carried *call)
{
    struct event_rest *rest = (struct event_rest *)(event + 1);

    *rest = (struct event_rest){OP_REST << 16, call->start, call->asked, call->moved};
    event->done = call->event.done;
    event->offset = call->event.offset;
    event->asked = event->moved = 0;
    __atomic_store_n(&event->begun, call->event.begun & 0xffffff, __ATOMIC_RELEASE);
}

/* In the order in which they began; returns the slots that they take. */
static uint32_t put_carried(struct event *place, const struct carried *carried, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        put_wide(place + 2 * i, &carried[n - 1 - i]);
    return 2 * n;
}

/* The order of the stores is what a reader of a killed process' log relies on: first the block is
 * empty, then it is of another round, then it holds what was carried over.  A slot that nobody has
 * written in this round must hold no event of an earlier one, nor a text. */
static void next_round(struct thread *thread, struct block *block, const struct carried *carried,
                       uint32_t n)
{
    __atomic_store_n(&block->used, 0, __ATOMIC_RELEASE);
    memset(block + 1, 0, LOG_UNIT_BYTES - sizeof *block);
    block->texts = LOG_UNIT_BYTES;
    block->limit = EVENTS_PER_BLOCK;
    begin_round(thread, block);
    block->carried = put_carried(log_events(block), carried, n);
    __atomic_store_n(&block->used, block->carried, __ATOMIC_RELEASE);
}

static bool write_block(struct thread *thread, struct block *block, const struct carried *carried,
                        uint32_t n)
{
    long error = log_write_closed(next_unit(), block);

    if (error) {
        log_fail((int)-error, "the log cannot grow");
        return false;
    }
    __atomic_add_fetch(&log_state->header->chunk_bytes, LOG_UNIT_BYTES, __ATOMIC_RELAXED);
    next_round(thread, block, carried, n);
    return true;
}

/* Moves what the fold left and what has ended to the front: the application's spans, which all have
 * a rest.  Returns the slots that they take. */
static uint32_t gather_spans(struct block *block)
{
    struct event *events = log_events(block);
    uint32_t n = 0;
    uint32_t i;

    for (i = 0; i < block->used; i++) {
        struct event event = events[i];
        const struct event_rest *rest = event_rest(block, &events[i]);
        struct carried span;

        if (!event_op(&event) || event_op(&event) == OP_REST || !event_ticks(&event) || !rest)
            continue;
        span = (struct carried){event, rest->start, rest->asked, rest->moved};
        events[i].begun = 0;
        put_wide(&events[n], &span);
        n += 2;
    }
    return n;
}

/* Past the budget: single events become counts; texts, the application's spans and calls in flight
 * stay. */
static bool fold_block(struct thread *thread, struct block *block, const struct carried *carried,
                       uint32_t n_carried)
{
    struct event *events = log_events(block);
    uint32_t n;

    if (!counters_fold(block))
        return false;
    if (n_carried == CARRIED_MAX)
        return write_block(thread, block, carried, n_carried); /* there may be more of them */
    n = gather_spans(block);
    memset(&events[n], 0, (block->used - n) * sizeof *events);
    if (n + 2 * n_carried > EVENTS_PER_BLOCK / 2 || block->texts < LOG_UNIT_BYTES / 2) {
        block->used = n;
        return write_block(thread, block, carried, n_carried);
    }
    n += put_carried(&events[n], carried, n_carried);
    block->carried = n;
    __atomic_store_n(&block->used, n, __ATOMIC_RELEASE);
    begin_round(thread, block);
    return true;
}

static bool empty_block(struct thread *thread, struct block *block)
{
    struct carried carried[CARRIED_MAX];
    uint32_t n;

    log_anchor();
    if (block->used > block->limit)
        block->used = block->limit;
    n = copy_carried(block, carried);
    if (log_state->header->chunk_bytes + LOG_UNIT_BYTES > budget)
        return fold_block(thread, block, carried, n);
    return write_block(thread, block, carried, n);
}

static bool make_room(struct thread *thread, uint32_t text_bytes)
{
    struct block *block;

    if (!recorder_on || !log_ready())
        return false;
    block = thread->block;
    if (!block || thread->log != log_state->serial) {
        if (!acquire_block(thread))
            return false;
        block = thread->block;
    }
    if (block->used + 2 > block->limit ||
        sizeof *block + (block->used + 2) * sizeof(struct event) + text_bytes > block->texts)
        return empty_block(thread, block);
    return true;
}

/* Two slots, taken as one instruction takes them while there is room; NULL: not recording. */
static struct event *take_two_slots(struct call *call)
{
    struct thread *thread = log_self;
    struct block *block = thread ? thread->block : NULL;
    struct event *event = NULL;
    sigset_t signals;
    uint64_t own;
    uint32_t slot;

    if (block && thread->window == recorder_on) {
        slot = log_reserve(&block->used, 2);
        if (slot + 2 <= block->limit)
            event = log_events(block) + slot;
    }
    if (!event) {
        own = log_own_begin();
        signals_block(&signals);
        thread = log_thread();
        if (thread && !thread->is_borrowed && make_room(thread, 0)) {
            block = thread->block;
            event = log_events(block) + log_reserve(&block->used, 2);
        }
        signals_restore(&signals);
        log_own_end(own);
    }
    if (event) {
        call->thread = thread;
        call->block = block;
        call->event = event;
        call->round = block->round;
    }
    return event;
}

/* An event with a rest: it may start, ask and move whatever it likes.  Also the way out of a full
 * block, and into the first one. */
bool log_begin_wide(struct call *call, enum op op, uint32_t file, int64_t offset, uint64_t asked)
{
    int error = errno;
    struct event *event = recorder_on ? take_two_slots(call) : NULL;
    struct event_rest *rest = (struct event_rest *)event + 1;

    errno = error;
    if (!event)
        return log_lost();
    event->done = log_done(0, 0, file);
    event->offset = offset;
    event->asked = event->moved = 0;
    rest->mark = OP_REST << 16;
    rest->asked = log_bounded(asked);
    rest->moved = 0;
    call->file = file;
    call->op = op;
    call->is_wide = true;
    call->start = clock_ticks();
    if (call->start - call->thread->looked > log_look_ticks)
        call->start = log_look(call->thread);
    rest->start = call->start;
    __atomic_store_n(&event->begun, log_begun(0, op, file), __ATOMIC_RELEASE);
    return true;
}

void log_began_earlier(struct call *call, uint64_t start)
{
    struct event *event = log_event(call);
    struct event_rest *rest = event ? event_rest(call->block, event) : NULL;

    if (!event || start < call->block->first)
        return; /* an event never begins before its block */
    call->start = start;
    if (rest)
        rest->start = start;
    else
        event->begun = log_begun(start - call->block->first, call->op, call->file);
}

/* Two stores, as the id stands in two halves: right before the call or the end, so that no process
 * is known to have died between them. */
void log_turned_to(struct call *call, uint32_t file)
{
    struct event *event = file ? log_event(call) : NULL;

    if (!event)
        return;
    call->file = file;
    event->done = log_done(0, 0, file);
    event->begun = (event->begun & ~0xffffull) | (file & 0xffff);
}

/* The block may have been emptied, or another log begun, while the call was under way. */
struct event *log_event(const struct call *call)
{
    struct thread *thread = log_self;
    struct block *block = thread == call->thread ? thread->block : NULL;
    struct event *events = log_events(block);
    uint32_t i;

    if (!block || thread->log != log_state->serial)
        return NULL;
    if (block == call->block && block->round == call->round)
        return call->event;
    for (i = 0; i + 1 < block->carried; i += 2)
        if (event_start(block, &events[i]) == call->start && event_op(&events[i]) == call->op &&
            !event_ticks(&events[i]))
            return &events[i];
    return NULL;
}

/* An event without a rest turns out to need one: it is taken back and written anew. */
static struct event *widen(struct event *event, const struct call *call)
{
    struct carried old = {*event, call->start, event->asked, 0};
    struct call anew;
    struct event *wide;

    event->begun = 0;
    wide = take_two_slots(&anew);
    if (wide)
        put_wide(wide, &old);
    else
        log_lost();
    return wide;
}

void log_end_slowly(const struct call *call, uint64_t ticks, int error, int64_t offset,
                    uint64_t moved)
{
    uint64_t is_long = ticks >> EVENT_LONG_BIT != 0, length = ticks;
    /* As in log_end_at: where a window ended meanwhile, its block still has the event. */
    bool is_there = !call->is_wide && !is_long && !(moved >> 32) &&
                    call->thread->block == call->block && call->block->round == call->round;
    struct event *event = is_there ? call->event : log_event(call);
    struct event_rest *rest;
    int kept = errno;

    if (!event)
        return;
    rest = is_there ? NULL : event_rest(log_self->block, event);
    if (!rest && moved >> 32) {
        event = widen(event, call);
        rest = (struct event_rest *)event + 1;
        errno = kept;
    }
    if (!event)
        return;
    if (ticks >> 63)
        ticks = 0; /* two processors' counters a little apart */
    else if (is_long)
        ticks = ticks >> EVENT_LONG_SHIFT | is_long << EVENT_LONG_BIT;
    if (rest)
        rest->moved = log_bounded(moved);
    else
        event->moved = (uint32_t)moved;
    if (offset != LOG_SAME_OFFSET)
        event->offset = offset;
    __atomic_store_n(&event->done, log_done(ticks ? ticks : 1, error, call->file),
                     __ATOMIC_RELEASE);
    if (length >= log_look_ticks && call->op < OP_FORK && call->thread->log == log_state->serial)
        account_call(call, length);
}

/* --- waits ------------------------------------------------------------------------------------ */

/* Most waits are short, and their events are taken back: the next wait uses the slot again, so
 * short waits do not fill the log.  A signal handler that waits in between may have used the slot.
 * */
bool log_open_wait(struct call *call, enum op op, uint32_t file, int64_t offset)
{
    struct thread *thread = log_self;
    struct block *block = thread->block;
    struct event *event = thread->spare;
    uint64_t since_first;

    if (!event || thread->spare_round != block->round)
        return log_begin(call, op, file, offset, 0);
    thread->spare = NULL;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (event->begun)
        return log_begin(call, op, file, offset, 0);
    event->done = log_done(0, 0, file);
    event->offset = offset;
    event->asked = event->moved = 0;
    *call = (struct call){thread, block, event, block->round, clock_ticks(), file, op, false};
    since_first = call->start - block->first;
    if (since_first >> EVENT_TIME_BITS)
        return log_begin(call, op, file, offset, 0);
    __atomic_store_n(&event->begun, log_begun(since_first, op, file), __ATOMIC_RELEASE);
    return true;
}

/* A full block in the file shows the event in flight, so the event that was carried must end. */
bool log_take_back(const struct call *call)
{
    struct thread *thread = log_self;
    struct block *block = thread == call->thread ? thread->block : NULL;

    if (!block || thread->log != log_state->serial)
        return true;
    if (block != call->block || block->round != call->round)
        return !log_event(call);
    __atomic_store_n(&call->event->begun, 0, __ATOMIC_RELEASE);
    if (!call->is_wide) {
        thread->spare_round = block->round;
        thread->spare = call->event;
    }
    return true;
}

/* Record a call that has ended and has no event yet. */
void log_past(enum op op, uint32_t file, int64_t offset, uint64_t start, uint64_t ticks, int error,
              uint64_t moved)
{
    struct call call;

    if (!log_begin_wide(&call, op, file, offset, 0))
        return;
    call.start = start;
    ((struct event_rest *)(call.event + 1))->start = start;
    log_end_slowly(&call, ticks, error, LOG_SAME_OFFSET, moved);
}

struct thread *log_known(void)
{
    int error = errno;
    struct thread *thread = log_self;
    sigset_t signals;

    if (UNLIKELY(!thread || !thread->is_used)) {
        signals_block(&signals);
        thread = log_thread();
        signals_restore(&signals);
        errno = error;
    }
    return thread;
}

/* A vfork child runs on its parent's thread: what it does is neither the parent's nor worth a log.
 */
void log_borrow(bool is_borrowed)
{
    sigset_t signals;
    int error = errno;
    struct thread *thread;

    signals_block(&signals);
    thread = log_thread();
    if (thread && is_borrowed != thread->is_borrowed) {
        thread->is_borrowed = is_borrowed;
        if (is_borrowed) {
            thread->parked = thread->block;
            thread->block = NULL;
        } else {
            thread->block = thread->parked;
        }
    }
    signals_restore(&signals);
    errno = error;
}

static void punch(uint64_t first, uint64_t end)
{
    long fd;

    first = (first + 4095) & ~4095ull;
    end &= ~4095ull;
    if (first >= end)
        return;
    fd = open_log();
    if (fd < 0)
        return;
    own_call(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, end - first);
    own_call(SYS_close, fd);
}

/* The block is not written any more: its head gets a checksum in the place of the limit. */
static void close_block(struct block *block)
{
    struct block head = closed(block);

    /* A reader looks at a limit that cannot be one no more than at a sum. */
    block->used = head.used;
    __atomic_store_n(&block->limit, head.limit, __ATOMIC_RELEASE);
    __atomic_store_n(&block->kind, head.kind, __ATOMIC_RELEASE);
}

/* The process ends, and this thread with it.  A call that still comes begins another block. */
void log_close_own(void)
{
    struct thread *thread = log_self;
    int error = errno;
    sigset_t signals;

    signals_block(&signals);
    if (thread && thread->is_used && !thread->is_borrowed && thread->block &&
        thread->log == log_state->serial) {
        struct block *block = thread->block;

        __atomic_store_n(&thread->block, NULL, __ATOMIC_RELEASE);
        thread->spare = NULL;
        close_block(block);
    }
    signals_restore(&signals);
    errno = error;
}

/* A thread ends: its block stays in the file, the unused middle goes back to the disk. */
void log_thread_end(void *argument)
{
    struct thread *thread = argument;
    uint64_t own = log_own_begin();
    sigset_t signals;
    int error = errno;

    signals_block(&signals);
    if (log_self == thread && thread->is_used) {
        struct block *block;

        if (log_thread_ends)
            log_thread_ends(thread);
        block = thread->block;
        log_self = NULL;
        thread->block = NULL;
        thread->is_used = 0;
        if (block && thread->log == log_state->serial) {
            uint64_t start = unit_offset(thread->unit);

            close_block(block);
            punch(start + sizeof *block + block->used * sizeof(struct event), start + block->texts);
        }
        if (thread->address) {
            guard_remove(thread->address);
            own_call(SYS_munmap, thread->address, LOG_UNIT_BYTES);
        }
        if (thread->scratch)
            own_call(SYS_munmap, thread->scratch, SCRATCH_BYTES);
        thread->address = NULL;
        thread->scratch = NULL;
        log_lock(&log_state->lock);
        thread->next = free_threads;
        free_threads = thread;
        log_unlock(&log_state->lock);
    }
    signals_restore(&signals);
    log_own_end(own);
    errno = error;
}

char *log_scratch(void)
{
    struct thread *thread = log_thread();
    void *memory;

    if (!thread || thread->scratch)
        return thread ? thread->scratch : NULL;
    memory = (void *)own_call(SYS_mmap, NULL, SCRATCH_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    own_call(SYS_madvise, memory, SCRATCH_BYTES, MADV_DONTFORK);
    thread->scratch = memory;
    return memory;
}

/* --- texts ------------------------------------------------------------------------------------ */

/* Stores what an id means in the calling thread's block; NULL when not recording. */
struct text *log_text(enum text_kind kind, uint32_t id, uint32_t base, const char *name,
                      const char *resolved)
{
    size_t name_bytes = strnlen(name, 4096) + 1;
    size_t resolved_bytes = strnlen(resolved, 4096) + 1;
    uint32_t bytes = (uint32_t)((sizeof(struct text) + name_bytes + resolved_bytes + 7) & ~7ull);
    uint64_t own = log_own_begin();
    struct text *text = NULL;
    int error = errno;
    struct thread *thread;
    sigset_t signals;

    signals_block(&signals);
    thread = log_thread();
    if (thread && !thread->is_borrowed && make_room(thread, bytes)) {
        struct block *block = thread->block;
        char *names;

        text = (struct text *)((char *)block + block->texts - bytes);
        block->limit = (uint32_t)((block->texts - bytes - sizeof *block) / sizeof(struct event));
        *text = (struct text){bytes, kind, id, base, 0, 0, 0, 0, -1};
        names = (char *)(text + 1);
        memcpy(names, name, name_bytes - 1);
        names[name_bytes - 1] = 0;
        memcpy(names + name_bytes, resolved, resolved_bytes - 1);
        memset(names + name_bytes + resolved_bytes - 1, 0,
               bytes - sizeof *text - name_bytes - resolved_bytes + 1);
        __atomic_store_n(&block->texts, block->texts - bytes, __ATOMIC_RELEASE);
        thread->text = text;
        thread->text_round = block->round;
    }
    signals_restore(&signals);
    log_own_end(own);
    errno = error;
    return text;
}

struct text *log_last_text(uint32_t id)
{
    struct thread *thread = log_self;
    struct block *block = thread ? thread->block : NULL;

    if (!block || !thread->text || block->round != thread->text_round || thread->text->id != id ||
        thread->text->kind != TEXT_FILE)
        return NULL;
    return thread->text;
}
