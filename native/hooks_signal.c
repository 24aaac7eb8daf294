/* Signals: the program's own action for SIGBUS, replaced in the kernel by the recorder's (guard.h),
 * and the signals with which a process of the job ends others, as notes `signal sent`. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard.h"
#include "hook.h"

/* A vfork child has its own signals on its parent's memory. */
static bool is_guarded(int number)
{
    return number == SIGBUS && !(log_self && log_self->is_borrowed);
}

HOOK(int, sigaction, (int number, const struct sigaction *action, struct sigaction *before))
{
    if (is_guarded(number) && guard_action(action, before))
        return 0;
    return real_sigaction(number, action, before);
}

HOOK(sighandler_t, signal, (int number, sighandler_t handler))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;

    if (is_guarded(number) && handler != SIG_ERR && guard_action(&action, &before))
        return before.sa_handler;
    return real_signal(number, handler);
}

/* --- sent signals -------------------------------------------------------------------------------
 */

#define MOST_SENT 1000 /* notes per process: a program that sends in a loop must not fill the log */

struct sending {
    bool is_noted;
    int64_t target; /* pid; -N: process group N; -1: all processes */
    int number;
    uint64_t ns; /* CLOCK_MONOTONIC, before the call */
};

static struct {
    pid_t pid; /* a forked child counts from 0 */
    uint32_t n;
} sent;

static bool ends_a_process(int number)
{
    switch (number) {
    case 0:
    case SIGCHLD:
    case SIGCONT:
    case SIGURG:
    case SIGWINCH:
    case SIGSTOP:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU: return false;
    default: return true;
    }
}

static char *put_number(char *at, uint64_t number)
{
    char digits[20];
    int n = 0;

    do
        digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    while (n)
        *at++ = digits[--n];
    return at;
}

/* A process that has ended takes signals until its parent asks for the status: these did not end
 * the process. */
static bool has_ended(int64_t pid)
{
    char path[32] = "/proc/", text[128], *at = put_number(path + 6, (uint64_t)pid);
    long fd, got, i;
    char state = 0;

    memcpy(at, "/stat", 6);
    fd = own_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = own_call(SYS_read, fd, text, sizeof text);
    own_call(SYS_close, fd);
    for (i = 0; i + 2 < got; i++) /* the name, in parentheses, may hold any character */
        if (text[i] == ')')
            state = text[i + 2];
    return state == 'Z' || state == 'X';
}

static void note_sent(const struct sending *sending)
{
    char text[80], *at = text;

    if (sending->target < 0)
        *at++ = '-';
    at = put_number(at, (uint64_t)(sending->target < 0 ? -sending->target : sending->target));
    *at++ = '\t';
    at = put_number(at, (uint64_t)sending->number);
    *at++ = '\t';
    at = put_number(at, sending->ns);
    *at = 0;
    log_text(TEXT_NOTE, 0, 0, "signal sent", text);
}

/* A process that sends a signal to itself alone is no sender. */
static bool may_note(int64_t target)
{
    pid_t own = (pid_t)syscall(SYS_getpid);

    if (target == own)
        return false;
    if (sent.pid != own) {
        sent.pid = own;
        sent.n = 0;
    }
    return __atomic_add_fetch(&sent.n, 1, __ATOMIC_RELAXED) <= MOST_SENT;
}

/* A signal to a group may end the
 * sender in the call, and is noted before the call. */
static void begin_sending(struct sending *sending, int64_t target, int number)
{
    int error = errno;
    uint64_t own;

    sending->is_noted = false;
    if (!ends_a_process(number) || !log_is_on() || log_is_borrowed() || !may_note(target))
        return;
    if (!target)
        target = -syscall(SYS_getpgid, 0);
    own = log_own_begin();
    if (target < 0 || !has_ended(target)) {
        sending->ns = clock_ns(CLOCK_MONOTONIC);
        sending->target = target;
        sending->number = number;
        sending->is_noted = target > 0;
        if (target < 0)
            note_sent(sending);
    }
    log_own_end(own);
    errno = error;
}

static int end_sending(const struct sending *sending, int result)
{
    if (sending->is_noted && result >= 0)
        note_sent(sending);
    return result;
}

HOOK(int, kill, (pid_t pid, int number))
{
    struct sending sending;

    begin_sending(&sending, pid, number);
    return end_sending(&sending, real_kill(pid, number));
}

HOOK(int, killpg, (pid_t group, int number))
{
    struct sending sending;

    begin_sending(&sending, -(int64_t)group, number);
    return end_sending(&sending, real_killpg(group, number));
}

HOOK(int, sigqueue, (pid_t pid, int number, const union sigval value))
{
    struct sending sending;

    begin_sending(&sending, pid, number);
    return end_sending(&sending, real_sigqueue(pid, number, value));
}
