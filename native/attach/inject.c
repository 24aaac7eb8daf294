/* Calls a function of a library in another process:
 *
 *   inject PID LIBRARY FUNCTION [TEXT [NUMBER]]
 *
 * Loads the library there first, if necessary.  The function is int (*)(const char *, uint64_t).
 * Prints "returned N" and for how many microseconds a thread stood still, or the reason of a
 * failure in words.  Exit status: 0 returned; 2 wrong use; 3 the process is gone; 4 not permitted;
 * 5 no thread was at a safe point in time; 6 a process of another kind; 7 the library or the
 * function cannot be loaded; 8 the rest.
 *
 * Signals wait until the end of this program: a thread in use must be given back. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "target.h"
#include "thread.h"

enum { DONE, WRONG_USE = 2, GONE, NOT_PERMITTED, BUSY, OTHER_KIND, NOT_LOADED, BROKEN };

#define SEARCH_S 5.0
/* After this time, words on a stack that point into the loader may be left-overs of the program's
 * start: newer C libraries leave words there on most stacks.  Threads in a system call are then
 * used. */
#define STRICT_S 0.3
#define THREADS_MAX 4096
#define RTLD_NOW_GLOBAL 0x102

struct request {
    pid_t pid;
    const char *library, *function, *text;
    uint64_t number;
};

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int explain(int error)
{
    switch (error) {
    case -ESRCH: return GONE;
    case -EPERM:
    case -EACCES: return NOT_PERMITTED;
    case -ETIME: return BUSY;
    case -ENOEXEC: return OTHER_KIND;
    default: return BROKEN;
    }
}

/* --- in the thread -----------------------------------------------------------------------------
 */

static int put(const struct target *target, uint64_t *at, const char *text, uint64_t *address)
{
    size_t size = strlen(text) + 1;

    *address = *at;
    *at += (size + 15) & ~15ull;
    return target_write(target, *address, text, size);
}

static void print_refusal(const struct target *target, uint64_t address)
{
    char text[512] = "";
    size_t size;

    for (size = sizeof text - 1; size && target_read(target, address, text, size); size /= 2)
        ;
    text[size] = 0;
    printf("%s\n", *text ? text : "the loader gave no reason");
}

/* -ELIBACC: the reason was printed. */
static int load_and_call(struct thread *thread, const struct target *target,
                         const struct request *request, int *returned)
{
    uint64_t at = thread->memory, arguments[3] = {0}, result = 0, function, text = 0;
    int error = put(target, &at, request->library, &arguments[0]);

    if (!error && request->text)
        error = put(target, &at, request->text, &text);
    arguments[1] = RTLD_NOW_GLOBAL;
    if (!error)
        error = thread_call(thread, target, target->dlopen, arguments, &result);
    if (error)
        return error;
    if (!result) {
        if (target->dlerror && !thread_call(thread, target, target->dlerror, arguments, &result))
            print_refusal(target, result);
        return -ELIBACC;
    }
    function = target_function(target, request->library, request->function);
    if (!function) {
        printf("%s: exports no %s\n", request->library, request->function);
        return -ELIBACC;
    }
    arguments[0] = text;
    arguments[1] = request->number;
    error = thread_call(thread, target, function, arguments, &result);
    *returned = (int)result;
    return error;
}

/* Conclude from the system call of a stopped thread which code the thread is not in. */
static enum outside outside_of(const struct user_regs_struct *at)
{
    switch ((int64_t)at->orig_rax) {
    case SYS_pause:
    case SYS_poll:
    case SYS_ppoll:
    case SYS_select:
    case SYS_pselect6:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
    case SYS_wait4:
    case SYS_waitid: return OUTSIDE_ALLOCATOR;
    case SYS_read: /* the allocator may read a single byte: whether memory is overcommitted */
        return at->rdx != 1 ? OUTSIDE_ALLOCATOR : OUTSIDE_LOADER;
    /* the wait of a condition or a semaphore; the wait of the allocator's lock is plain */
    case SYS_futex:
        return (at->rsi & (uint64_t)FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET ? OUTSIDE_ALLOCATOR
                                                                         : OUTSIDE_LOADER;
    default: return (int64_t)at->orig_rax >= 0 ? OUTSIDE_LOADER : OUTSIDE_NOTHING;
    }
}

/* Ends this process: the kernel then releases all held parts of the other process. */
static _Noreturn void attempt(const struct request *request, const struct target *target, pid_t id,
                              bool is_strict)
{
    static struct thread thread;
    double begin_s = now_s();
    int returned = 0;
    int error = thread_stop(&thread, id);

    if (!error && (thread_is_closed(&thread) ||
                   target_is_busy(target, thread.before.rsp, thread.before.rip,
                                  is_strict ? OUTSIDE_NOTHING : outside_of(&thread.before))))
        error = -EAGAIN;
    if (!error)
        error = thread_borrow(&thread, target);
    if (!error)
        error = load_and_call(&thread, target, request, &returned);
    thread_release(&thread, target);
    if (!error)
        printf("returned %d; thread %d stood still for %.0f us\n", returned, id,
               (now_s() - begin_s) * 1e6);
    else if (error != -EAGAIN && error != -ETIME && error != -ESRCH && error != -ELIBACC)
        printf("thread %d: %s\n", id, strerror(-error));
    fflush(stdout);
    /* A thread that has ended, does not stop or is at an unsafe point is not usable; others are. */
    _exit(!error                                                   ? DONE
          : error == -EAGAIN || error == -ETIME || error == -ESRCH ? BUSY
          : error == -ELIBACC                                      ? NOT_LOADED
                                                                   : explain(error));
}

/* --- the thread ------------------------------------------------------------------------------- */

/* Calls that end with EINTR when the thread is stopped, whatever the program requested (signal(7));
 * all other calls continue as if the thread had not been stopped.  The list also has the calls
 * without a thread to give back afterwards. */
static const int delicate[] = {SYS_epoll_wait, SYS_epoll_pwait,     SYS_semop,
                               SYS_semtimedop, SYS_rt_sigtimedwait, SYS_msgrcv,
                               SYS_msgsnd,     SYS_io_getevents,    SYS_recvfrom,
                               SYS_recvmsg,    SYS_accept,          SYS_accept4,
                               SYS_connect,    SYS_sendto,          SYS_sendmsg,
                               SYS_exit,       SYS_exit_group,      SYS_execve,
                               SYS_execveat,   SYS_clone,           SYS_fork,
                               SYS_vfork,      SYS_clone3,          SYS_io_uring_enter,
                               SYS_recvmmsg,   SYS_rt_sigsuspend,   SYS_restart_syscall};

enum rank { WAITS, RUNS, DELICATE, N_RANKS };

static enum rank rank_of(pid_t pid, pid_t id)
{
    char path[64], line[64] = "";
    FILE *file;
    size_t i;
    int number;

    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, id);
    file = fopen(path, "re");
    if (file) {
        if (!fgets(line, sizeof line, file))
            *line = 0;
        fclose(file);
    }
    if (sscanf(line, "%d", &number) != 1 || number < 0)
        return RUNS;
    for (i = 0; i < sizeof delicate / sizeof *delicate; i++)
        if (delicate[i] == number)
            return DELICATE;
    return WAITS;
}

/* Threads by rank, the first of the process ahead. */
static size_t list_threads(pid_t pid, pid_t *ids, enum rank *ranks)
{
    char path[40];
    struct dirent *entry;
    DIR *folder;
    size_t n = 0;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    folder = opendir(path);
    while (folder && n < THREADS_MAX && (entry = readdir(folder)))
        if (atoi(entry->d_name) > 0) {
            ids[n] = atoi(entry->d_name);
            ranks[n] = rank_of(pid, ids[n]);
            n++;
        }
    if (folder)
        closedir(folder);
    return n;
}

/* Runs in a separate process: a late thread is released when the process ends. */
static int in_child(const struct request *request, const struct target *target, pid_t id,
                    bool is_strict)
{
    int status;
    pid_t child = fork();

    if (child < 0)
        return BROKEN;
    if (!child)
        attempt(request, target, id, is_strict);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return BROKEN;
    return WIFEXITED(status) ? WEXITSTATUS(status) : BROKEN;
}

static int search(const struct request *request, const struct target *target)
{
    static pid_t ids[THREADS_MAX];
    static enum rank ranks[THREADS_MAX];
    const struct timespec nap = {0, 5000000};
    double begin_s = now_s();
    int result = BUSY;

    do {
        size_t n = list_threads(request->pid, ids, ranks);
        /* In the first half of the search, only threads that do not notice a stop. */
        int last = now_s() - begin_s < SEARCH_S / 2 ? RUNS : DELICATE;
        bool is_strict = now_s() - begin_s < STRICT_S;
        int rank;

        if (!n)
            return GONE;
        for (rank = WAITS; rank <= last; rank++)
            for (size_t i = 0; i < n; i++)
                if ((int)ranks[i] == rank && now_s() - begin_s < SEARCH_S &&
                    (result = in_child(request, target, ids[i], is_strict)) != BUSY)
                    return result;
        nanosleep(&nap, NULL);
    } while (now_s() - begin_s < SEARCH_S);
    return BUSY;
}

int main(int n_words, char **words)
{
    struct request request = {0};
    struct target target;
    sigset_t all;
    int error, result;

    if (n_words < 4 || n_words > 6 || atoi(words[1]) <= 0 || strlen(words[2]) >= PATH_MAX ||
        (n_words > 4 && strlen(words[4]) >= PATH_MAX)) {
        fprintf(stderr, "inject PID LIBRARY FUNCTION [TEXT [NUMBER]]\n");
        return WRONG_USE;
    }
    request = (struct request){atoi(words[1]), words[2], words[3], n_words > 4 ? words[4] : NULL,
                               n_words > 5 ? strtoull(words[5], NULL, 10) : 0};
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    error = target_open(&target, request.pid);
    if (error) {
        printf("%s\n", strerror(-error));
        return explain(error == -ENOENT ? -ESRCH : error);
    }
    result = search(&request, &target);
    target_close(&target);
    return result;
}
