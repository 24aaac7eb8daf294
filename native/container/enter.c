/* `penstock run --container` starts the program inside the container, in front of the user's
 * program:
 *
 *   enter FOLDER LIBRARY [NAME=VALUE...] -- PROGRAM [ARGUMENT...]
 *
 * Preloads LIBRARY into PROGRAM, with the variables, if the container's own loader can load
 * LIBRARY: the neighbouring `probe` is started with LIBRARY first.  Otherwise PROGRAM runs
 * unchanged, and standard error has the reason.  A description of the container, its process
 * numbers and its mounts, goes to FOLDER/container; the first container of a run writes the file.
 *
 * An image may hold another libc, an older libc or none: so the program is linked with no libc and
 * makes system calls directly. */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

enum { NOT_EXECUTABLE = 126, NOT_FOUND = 127, WRONG_USE = 2 };
enum { MOST_VARIABLES = 4096 };

/* The program starts with nothing but a stack, with arguments and environment. */
#if defined(__x86_64__)
__asm__(".globl _start\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call enter\n");

static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl enter\n");

static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;

    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#endif

/* The compiler calls these functions for copies of structures and for empty arrays. */
void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *memory, int value, size_t n)
{
    unsigned char *bytes = memory;

    while (n)
        bytes[--n] = (unsigned char)value;
    return memory;
}

static size_t length(const char *text)
{
    size_t n = 0;

    while (text[n])
        n++;
    return n;
}

static int begins(const char *text, const char *with)
{
    while (*with && *text == *with)
        text++, with++;
    return !*with;
}

/* Append to `path`; too long a text is cut, and the result then names no file. */
static void add(char *path, const char *text)
{
    size_t n = length(path);

    while (*text && n < PATH_MAX - 1)
        path[n++] = *text++;
    path[n] = 0;
}

static void put(long fd, const char *text)
{
    size_t left = length(text);

    while (left) {
        long put = call(SYS_write, fd, (long)text, (long)left, 0);

        if (put <= 0)
            return;
        text += put;
        left -= (size_t)put;
    }
}

_Noreturn static void leave(int status)
{
    for (;;)
        call(SYS_exit_group, status, 0, 0, 0);
}

/* --- a description of the container ----------------------------------------------------------- */

static void copy(long to, const char *path)
{
    static char block[4096];
    long from = call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
    long got;

    while (from >= 0 && (got = call(SYS_read, from, (long)block, sizeof block - 1, 0)) > 0) {
        block[got] = 0;
        put(to, block);
    }
    if (from >= 0)
        call(SYS_close, from, 0, 0, 0);
}

static void put_link(long to, const char *key, const char *path)
{
    char target[256];
    long got = call(SYS_readlinkat, AT_FDCWD, (long)path, (long)target, sizeof target - 1);

    target[got > 0 ? got : 0] = 0;
    put(to, key);
    put(to, target);
    put(to, "\n");
}

/* 0, or -errno: then nothing can be recorded there either. */
static long describe(const char *folder, const char *why_not)
{
    char path[PATH_MAX] = "";
    long fd;

    add(path, folder);
    add(path, "/container");
    fd = call(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return fd == -EEXIST ? 0 : fd;
    put(fd, "penstock container 1\nboot ");
    copy(fd, "/proc/sys/kernel/random/boot_id");
    put_link(fd, "processes ", "/proc/self/ns/pid");
    put_link(fd, "mounts ", "/proc/self/ns/mnt");
    put(fd, "not recorded ");
    put(fd, why_not ? why_not : "");
    put(fd, "\n\n");
    copy(fd, "/proc/self/mountinfo");
    call(SYS_close, fd, 0, 0, 0);
    return 0;
}

/* --- whether the recorder can be loaded here ----------------------------------------------------
 */

/* Return why the container cannot record; NULL: recording is possible.  `probe` shows by its status
 * whether LIBRARY was loaded. */
static const char *forbidden(const char *self, const char *library)
{
    char path[PATH_MAX] = "", preload[PATH_MAX] = "LD_PRELOAD=";
    char *arguments[] = {path, NULL};
    char *environment[] = {preload, NULL};
    size_t end;
    int status = -1;
    long child;

    add(path, self);
    for (end = length(path); end && path[end - 1] != '/'; end--)
        ;
    path[end] = 0;
    add(path, "probe");
    add(preload, library);
    child = call(SYS_clone, SIGCHLD, 0, 0, 0);
    if (child < 0)
        return "no process can be started";
    if (!child) {
        long quiet = call(SYS_openat, AT_FDCWD, (long)"/dev/null", O_RDWR, 0);
        int fd;

        for (fd = 0; fd <= 2; fd++) /* the loader's own complaint: ours says more */
            if (quiet < 0 || call(SYS_dup3, quiet, fd, 0, 0) < 0)
                call(SYS_close, fd, 0, 0, 0);
        call(SYS_execve, (long)path, (long)arguments, (long)environment, 0);
        leave(NOT_FOUND);
    }
    while (call(SYS_wait4, child, (long)&status, 0, 0) == -EINTR)
        ;
    if (status == NOT_FOUND << 8)
        return "there is no glibc in it (musl, or none)";
    return status ? "its glibc is older than the one that the recorder was built with" : NULL;
}

/* --- the program --------------------------------------------------------------------------------
 */

static const char *value_of(char **environment, const char *name)
{
    for (; *environment; environment++)
        if (begins(*environment, name))
            return *environment + length(name);
    return NULL;
}

/* Return only where the program cannot be executed: -errno. */
static long execute(char **words, char **environment)
{
    const char *search = value_of(environment, "PATH=");
    const char *c;
    long error = -ENOENT;

    for (c = words[0]; *c; c++)
        if (*c == '/')
            return call(SYS_execve, (long)words[0], (long)words, (long)environment, 0);
    for (c = search ? search : "/usr/local/bin:/usr/bin:/bin"; *c;) {
        char path[PATH_MAX];
        size_t n = 0;
        long found;

        for (; *c && *c != ':'; c++)
            if (n < PATH_MAX - 1)
                path[n++] = *c;
        c += *c == ':';
        path[n] = 0;
        add(path, n ? "/" : "./");
        add(path, words[0]);
        found = call(SYS_execve, (long)path, (long)words, (long)environment, 0);
        if (found != -ENOENT && found != -ENOTDIR)
            error = found; /* the file is there: report its error, if no other file is found */
    }
    return error;
}

/* Run as a shell runs a file without a first line. */
static long execute_by_shell(char **words, char **environment)
{
    static char *shell[MOST_VARIABLES];
    int n;

    shell[0] = "/bin/sh";
    for (n = 0; words[n] && n < MOST_VARIABLES - 2; n++)
        shell[n + 1] = words[n];
    return words[n] ? -E2BIG : call(SYS_execve, (long)shell[0], (long)shell, (long)environment, 0);
}

static void say(const char *first, const char *then)
{
    put(2, "penstock: ");
    put(2, first);
    put(2, then);
    put(2, "\n");
}

static int count(char **words, int most)
{
    int n = 0;

    while (n < most && words[n])
        n++;
    return n;
}

/* Return why nothing is recorded in this container; NULL: recording works.  words: the run's
 * folder, the library. */
static const char *why_not(char **words, char **inherited, int given)
{
    const char *reason = forbidden(words[0], words[2]);
    long error = describe(words[1], reason);

    if (reason)
        return reason;
    if (error == -EACCES || error == -EPERM || error == -EROFS)
        return "the run's folder cannot be written there, by that user";
    if (error)
        return "the run's folder is not there";
    if (count(inherited, MOST_VARIABLES) + given >= MOST_VARIABLES)
        return "its environment is too large";
    return NULL;
}

/* Return the environment with the recorder: words[3..at) are variables of the recording. */
static char **recorded_environment(char **words, int at, char **inherited)
{
    static char *changed[MOST_VARIABLES];
    static char preload[PATH_MAX * 4] = "LD_PRELOAD=";
    const char *others = value_of(inherited, "LD_PRELOAD=");
    int given, kept;

    add(preload, words[2]);
    add(preload, others && *others ? ":" : "");
    add(preload, others ? others : "");
    changed[0] = preload;
    for (given = 3; given < at; given++)
        changed[given - 2] = words[given];
    given = at - 2;
    for (kept = 0; inherited[kept]; kept++)
        if (!begins(inherited[kept], "LD_PRELOAD=") && !begins(inherited[kept], "PENSTOCK_"))
            changed[given++] = inherited[kept];
    return changed;
}

__attribute__((used)) _Noreturn void enter(char **stack)
{
    long n = *(long *)(void *)stack;
    char **words = stack + 1, **environment = words + n + 1;
    const char *reason;
    long error;
    int at;

    for (at = 3; at < n && !(begins(words[at], "--") && !words[at][2]); at++)
        ;
    if (at + 1 >= n) {
        say("enter FOLDER LIBRARY [NAME=VALUE...] -- PROGRAM [ARGUMENT...]", "");
        leave(WRONG_USE);
    }
    reason = why_not(words, environment, at);
    if (reason)
        say("nothing is recorded in this container: ", reason);
    else
        environment = recorded_environment(words, at, environment);
    words += at + 1;
    error = execute(words, environment);
    if (error == -ENOEXEC)
        error = execute_by_shell(words, environment);
    say(words[0], error == -ENOENT ? ": not found in the container" : ": cannot be executed");
    leave(error == -ENOENT ? NOT_FOUND : NOT_EXECUTABLE);
}
