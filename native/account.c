#include "account.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder.h"

HOT uint64_t log_look_ticks;

/* An account is written if the time on a CPU and ready is at least a WORTH-th of the call: clocks
 * and readers do not resolve a smaller part. */
#define WORTH 8

/* --- a thread --------------------------------------------------------------------------------- */

/* The second number of schedstat, by direct system calls, so that no event results.  No descriptor
 * is kept (1.6 us against 0.4 us): the program may close the descriptor, or open a file under the
 * number. */
static bool read_delay(long folder, const char *path, uint64_t *ns)
{
    char text[96], *end;
    long fd = own_call(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC);
    uint64_t cpu_ns, slices;
    long got;

    if (fd < 0)
        return false;
    got = own_call(SYS_read, fd, text, sizeof text - 1);
    own_call(SYS_close, fd);
    text[got > 0 ? got : 0] = 0;
    cpu_ns = strtoull(text, &end, 10);
    *ns = strtoull(end, &end, 10);
    slices = strtoull(end, &end, 10);
    return cpu_ns || *ns || slices; /* a kernel without counts shows zeros */
}

bool account_delay(uint64_t *ns)
{
    return read_delay(AT_FDCWD, "/proc/thread-self/schedstat", ns);
}

int64_t penstock_run_delay(void)
{
    uint64_t ns;

    return account_delay(&ns) ? (int64_t)ns : -1;
}

static uint64_t to_ns(uint64_t ticks)
{
    return (uint64_t)((unsigned __int128)ticks * 1000000000u / clock_ticks_per_s);
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t log_look(struct thread *thread)
{
    uint64_t own = log_own_begin();
    int error = errno;

    thread->looked = clock_ticks(); /* first: a signal handler's calls are not to look again */
    thread->looked_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    log_own_calls++; /* the vDSO does not know the clock */
    if (!account_delay(&thread->looked_delay_ns))
        thread->looked_delay_ns = 0;
    log_own_end(own);
    errno = error;
    return thread->looked = clock_ticks();
}

/* The account is a separate event, with the start and the duration of the call. */
static void write_account(const struct call *call, uint64_t ticks, uint64_t cpu_ns,
                          uint64_t delay_ns)
{
    struct call account;

    if (!log_begin(&account, OP_ACCOUNT, call->file, -1, cpu_ns))
        return;
    log_began_earlier(&account, call->start);
    if (account.start == call->start)
        log_end_slowly(&account, ticks, 0, LOG_SAME_OFFSET, delay_ns);
    else if (log_event(&account)) /* the call began in the block before */
        log_event(&account)->begun = 0;
}

/* The earlier look is at most log_look_ticks older than the call.  The thread may have spent all
 * the time in between on a CPU, so the difference is a lower bound for the call. */
void account_call(const struct call *call, uint64_t ticks)
{
    struct thread *thread = log_self;
    uint64_t gap = call->start - thread->looked;
    uint64_t cpu_ns = thread->looked_cpu_ns, delay_ns = thread->looked_delay_ns, ns = to_ns(ticks);
    int error = errno;

    if (thread != call->thread || thread->is_borrowed || gap > log_look_ticks || ticks >> 63)
        return;
    log_look(thread);
    cpu_ns = thread->looked_cpu_ns - cpu_ns;
    cpu_ns = less(cpu_ns - less(cpu_ns, to_ns(gap)), ns);
    delay_ns = less(thread->looked_delay_ns - less(thread->looked_delay_ns, delay_ns), ns - cpu_ns);
    if ((cpu_ns + delay_ns) * WORTH >= ns)
        write_account(call, ticks, cpu_ns, delay_ns);
    errno = error;
}

/* --- all threads of the process --------------------------------------------------------------- */

#define THREADS 1024 /* half may be in use: a process with more threads is not measured */

/* Two measurements around a wait take at most a RARELY-th of the time. */
#define RARELY 100

struct seen {
    uint64_t tid; /* 0: free */
    uint64_t delay_ns;
};

/* Zero in a forked child, which has other threads. */
struct delays {
    struct seen seen[2][THREADS]; /* of the latest look, and of the look before */
    uint64_t total_ns;            /* of the threads seen, each since the first look at the thread */
    uint64_t looked, cost;        /* ticks */
    uint32_t turn;
    uint32_t lock;
    bool has_looked;
    bool is_awaited;
};

static struct delays *delays;

static struct seen *place_of(struct seen *seen, uint64_t tid)
{
    uint64_t i = (tid * 0x9e3779b97f4a7c15u >> 32) % THREADS;

    while (seen[i].tid && seen[i].tid != tid)
        i = (i + 1) % THREADS;
    return &seen[i];
}

/* A thread that is new since the last look has had all its delay since then.  A smaller number
 * means another thread with an equal id. */
static void add_thread(uint64_t tid, uint64_t ns)
{
    struct seen *before = place_of(delays->seen[1 - delays->turn], tid);
    struct seen *now = place_of(delays->seen[delays->turn], tid);
    uint64_t known_ns = before->tid && before->delay_ns <= ns ? before->delay_ns : 0;

    *now = (struct seen){tid, ns};
    if (delays->has_looked)
        delays->total_ns += ns - known_ns;
}

static bool look_at_threads(long folder)
{
    static const char file[] = "/schedstat";
    char entries[4096], path[32];
    uint32_t n = 0;
    long got, at;

    while ((got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0)
        for (at = 0; at < got; at += ((struct dirent64 *)(entries + at))->d_reclen) {
            const struct dirent64 *entry = (struct dirent64 *)(entries + at);
            size_t length = strlen(entry->d_name);
            uint64_t ns;

            if (*entry->d_name == '.' || length > sizeof path - sizeof file)
                continue;
            memcpy(path, entry->d_name, length);
            memcpy(path + length, file, sizeof file);
            if (!read_delay(folder, path, &ns))
                continue; /* the thread has ended meanwhile */
            if (++n > THREADS / 2)
                return false;
            add_thread(strtoull(entry->d_name, NULL, 10), ns);
        }
    return got == 0 && n > 0;
}

static bool look_at_all(void)
{
    long folder =
        syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_whole;

    if (folder < 0)
        return false;
    delays->turn = 1 - delays->turn;
    memset(delays->seen[delays->turn], 0, sizeof delays->seen[0]);
    is_whole = look_at_threads(folder);
    syscall(SYS_close, folder);
    delays->has_looked = is_whole;
    return is_whole;
}

bool account_is_awaited(void)
{
    return delays && __atomic_load_n(&delays->is_awaited, __ATOMIC_RELAXED);
}

int64_t penstock_run_delays(int when)
{
    uint64_t start = clock_ticks();
    int64_t total_ns = -1;
    int error = errno;

    if (!delays)
        delays = log_state ? log_map_wiped(sizeof *delays) : NULL;
    if (!delays || (when != PENSTOCK_AFTER && start - delays->looked < delays->cost * RARELY) ||
        !log_try_lock(&delays->lock))
        return -1;
    if (look_at_all())
        total_ns = (int64_t)delays->total_ns;
    __atomic_store_n(&delays->is_awaited, when == PENSTOCK_BEFORE_GRAPH && total_ns >= 0,
                     __ATOMIC_RELAXED);
    delays->looked = clock_ticks();
    delays->cost = 2 * (delays->looked - start);
    log_unlock(&delays->lock);
    errno = error;
    return total_ns;
}
