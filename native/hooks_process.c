/* Processes and the loader: wrappers to follow children and late libraries. */
#include <alloca.h>
#include <dlfcn.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "connections.h"
#include "hook.h"
#include "spread.h"

/* A wrapper in assembly: the original looks at its caller or returns twice. */
#define HOOK_ASSEMBLY(type, function, parameters)                                                  \
    __attribute__((visibility("hidden"))) type(*real_##function) parameters;                       \
    __attribute__((visibility("hidden"))) type wrap_##function parameters;                         \
    static const struct hook hook_##function = {#function, (void *)wrap_##function,                \
                                                (void **)&real_##function, NULL, NULL};            \
    static const struct hook *entry_##function __attribute__((section("penstock_hooks"), used)) =  \
        &hook_##function

/* --- fork ---------------------------------------------------------------------------------------
 */

static pid_t recorded_fork(pid_t (*real)(void))
{
    struct call call;
    bool is_open = begin_plain(&call, OP_FORK, -1, 0);
    pid_t pid = real();

    if (is_open && pid) /* the child has no events yet: its thread was wiped */
        log_end(&call, pid < 0 ? errno : 0, pid < 0 ? 0 : (uint64_t)pid);
    return pid;
}

HOOK(pid_t, fork, (void))
{
    return recorded_fork(real_fork);
}

HOOK(pid_t, _Fork, (void))
{
    if (recorder_on)
        files_forking(); /* _Fork runs no handlers */
    return recorded_fork(real__Fork);
}

/* The child runs on the parent's thread and memory until its exec: the child borrows the thread. */
__attribute__((used, visibility("hidden"))) void hooks_vfork_begin(void)
{
    struct call call;

    if (!begin_plain(&call, OP_FORK, -1, 0))
        return;
    files_forking();
    log_self->fork = call;
    log_borrow(true);
}

__attribute__((used, visibility("hidden"))) long hooks_vfork_end(long result)
{
    struct thread *thread = log_self;

    if (thread && thread->is_borrowed) {
        log_borrow(false);
        log_end(&thread->fork, result < 0 ? (int)-result : 0, result < 0 ? 0 : (uint64_t)result);
    }
    if (result >= 0)
        return result;
    errno = (int)-result;
    return -1;
}

HOOK_ASSEMBLY(pid_t, vfork, (void));
#if defined(__x86_64__)
__asm__(
    ".text\n.p2align 4\n.globl wrap_vfork\n.hidden wrap_vfork\n.type wrap_vfork,@function\n"
    "wrap_vfork:\n"
    "    endbr64\n"
    "    subq $8, %rsp\n"
    "    call hooks_vfork_begin\n"
    "    addq $8, %rsp\n"
    "    popq %rdi\n" /* the child overwrites the stack: the return address stays in a register */
    "    movl $58, %eax\n"
    "    syscall\n"
    "    pushq %rdi\n"
    "    testq %rax, %rax\n"
    "    jz 1f\n"
    "    movq %rax, %rdi\n"
    "    subq $8, %rsp\n"
    "    call hooks_vfork_end\n"
    "    addq $8, %rsp\n"
    "1:  ret\n"
    ".size wrap_vfork, .-wrap_vfork\n");
#else
__asm__(".text\n.p2align 4\n.globl wrap_vfork\n.hidden wrap_vfork\n.type wrap_vfork,%function\n"
        "wrap_vfork:\n"
        "    stp x29, x30, [sp, #-16]!\n"
        "    bl hooks_vfork_begin\n"
        "    ldp x29, x30, [sp], #16\n"
        "    mov x0, #0x4111\n" /* CLONE_VM | CLONE_VFORK | SIGCHLD */
        "    mov x1, #0\n"
        "    mov x2, #0\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    mov x8, #220\n"
        "    svc #0\n"
        "    cbz x0, 1f\n"
        "    stp x29, x30, [sp, #-16]!\n"
        "    bl hooks_vfork_end\n"
        "    ldp x29, x30, [sp], #16\n"
        "1:  ret\n"
        ".size wrap_vfork, .-wrap_vfork\n");
#endif

/* --- exec ---------------------------------------------------------------------------------------
 */

struct exec {
    struct call call;
    bool is_open, is_borrowed, is_child;
};

/* On success the call does not return, so the event is finished before the call and mended on
 * failure.  The log ends with the log's process, not with a child on the process' memory. */
static void begin_exec(struct exec *exec, const char *path)
{
    exec->is_borrowed = log_self && log_self->is_borrowed;
    exec->is_child = recorder_is_in() && log_is_borrowed();
    if (exec->is_borrowed)
        log_borrow(false);
    /* A vfork child has a separate working folder, and the table is the parent's. */
    if (exec->is_child && (!path || *path != '/'))
        exec->is_open = begin_plain(&exec->call, OP_EXEC, -1, 0);
    else
        exec->is_open = begin_path(&exec->call, OP_EXEC, AT_FDCWD, path);
    if (exec->is_open) {
        log_end(&exec->call, 0, (uint64_t)syscall(SYS_getpid));
        if (!exec->is_child) {
            connections_tell();
            log_stop(LOG_EXECED);
        }
    }
    if (exec->is_borrowed)
        log_borrow(true);
}

static int end_exec(const struct exec *exec)
{
    if (!exec->is_open)
        return -1;
    if (exec->is_borrowed)
        log_borrow(false);
    log_end(&exec->call, errno, (uint64_t)syscall(SYS_getpid));
    if (exec->is_borrowed)
        log_borrow(true);
    else if (!exec->is_child && log_state->header->state == LOG_EXECED)
        log_state->header->state = LOG_RUNNING;
    return -1;
}

static size_t count(char *const *list)
{
    size_t n = 0;

    while (list && list[n])
        n++;
    return n;
}

/* On the caller's stack: exec may follow a vfork, where nothing may be allocated. */
#define WITH_US(environment)                                                                       \
    ({                                                                                             \
        char *const *given_ = (environment);                                                       \
        if (recorder_is_in() && !spread_has_all(given_)) {                                         \
            char **copy_ = alloca((count(given_) + SPREAD_ENTRIES) * sizeof *copy_);               \
            spread_fill(given_, copy_, alloca(spread_preload_bytes(given_)));                      \
            given_ = copy_;                                                                        \
        }                                                                                          \
        given_;                                                                                    \
    })

HOOK(int, execve, (const char *path, char *const *arguments, char *const *environment))
{
    struct exec exec;

    begin_exec(&exec, path);
    real_execve(path, arguments, WITH_US(environment));
    return end_exec(&exec);
}

HOOK(int, execveat,
     (int dirfd, const char *path, char *const *arguments, char *const *environment, int flags))
{
    struct exec exec;

    begin_exec(&exec, path);
    real_execveat(dirfd, path, arguments, WITH_US(environment), flags);
    return end_exec(&exec);
}

HOOK(int, fexecve, (int fd, char *const *arguments, char *const *environment))
{
    struct exec exec;

    begin_exec(&exec, "");
    real_fexecve(fd, arguments, WITH_US(environment));
    return end_exec(&exec);
}

HOOK(int, execvpe, (const char *path, char *const *arguments, char *const *environment))
{
    struct exec exec;

    begin_exec(&exec, path);
    real_execvpe(path, arguments, WITH_US(environment));
    return end_exec(&exec);
}

HOOK(int, execv, (const char *path, char *const *arguments))
{
    struct exec exec;

    (void)real_execv;
    begin_exec(&exec, path);
    real_execve(path, arguments, WITH_US(environ));
    return end_exec(&exec);
}

HOOK(int, execvp, (const char *path, char *const *arguments))
{
    struct exec exec;

    (void)real_execvp;
    begin_exec(&exec, path);
    real_execvpe(path, arguments, WITH_US(environ));
    return end_exec(&exec);
}

static size_t count_list(const char *first, va_list list)
{
    size_t n = first ? 1 : 0;

    while (n && va_arg(list, const char *))
        n++;
    return n;
}

#define HOOK_EXECL(function, through, has_environment)                                             \
    HOOK(int, function, (const char *path, const char *first, ...))                                \
    {                                                                                              \
        char *const *environment = environ;                                                        \
        struct exec exec;                                                                          \
        const char **arguments;                                                                    \
        va_list list;                                                                              \
        size_t n, i;                                                                               \
                                                                                                   \
        (void)real_##function;                                                                     \
        va_start(list, first);                                                                     \
        n = count_list(first, list);                                                               \
        va_end(list);                                                                              \
        arguments = alloca((n + 1) * sizeof *arguments);                                           \
        va_start(list, first);                                                                     \
        arguments[0] = first;                                                                      \
        for (i = 1; i <= n; i++)                                                                   \
            arguments[i] = va_arg(list, const char *);                                             \
        if (has_environment)                                                                       \
            environment = va_arg(list, char *const *);                                             \
        va_end(list);                                                                              \
        begin_exec(&exec, path);                                                                   \
        through(path, (char *const *)arguments, WITH_US(environment));                             \
        return end_exec(&exec);                                                                    \
    }
HOOK_EXECL(execl, real_execve, false)
HOOK_EXECL(execle, real_execve, true)
HOOK_EXECL(execlp, real_execvpe, false)

#define HOOK_SPAWN(function)                                                                       \
    HOOK(int, function,                                                                            \
         (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,                \
          const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment))  \
    {                                                                                              \
        struct call call;                                                                          \
        pid_t child = 0;                                                                           \
        int error;                                                                                 \
                                                                                                   \
        if (!begin_path(&call, OP_SPAWN, AT_FDCWD, path))                                          \
            return real_##function(pid, path, actions, attributes, arguments, environment);        \
        files_forking();                                                                           \
        error =                                                                                    \
            real_##function(&child, path, actions, attributes, arguments, WITH_US(environment));   \
        if (pid && !error)                                                                         \
            *pid = child;                                                                          \
        log_end(&call, error, error ? 0 : (uint64_t)child);                                        \
        return error;                                                                              \
    }
HOOK_SPAWN(posix_spawn)
HOOK_SPAWN(posix_spawnp)

/* system and popen start a shell inside libc with the process' own environment.  The recorder may
 * not exchange the environment: other threads read and change the variables.  Where the environment
 * lacks the recorder, the shell is not seen. */
static void begin_shell(struct call *call, bool *is_open)
{
    *is_open = begin_path(call, OP_SPAWN, AT_FDCWD, "/bin/sh");
    if (!*is_open)
        return;
    files_forking();
    if (!spread_has_all(environ))
        log_text(TEXT_NOTE, 0, 0, "unseen", "/bin/sh");
}

HOOK(int, system, (const char *command))
{
    struct call call;
    bool is_open = false;
    int status;

    if (command)
        begin_shell(&call, &is_open);
    status = real_system(command);
    if (is_open)
        log_end(&call, status < 0 ? errno : 0, 0);
    return status;
}

HOOK(FILE *, popen, (const char *command, const char *mode))
{
    struct call call;
    bool is_open;
    FILE *pipe;

    begin_shell(&call, &is_open);
    pipe = real_popen(command, mode);
    if (pipe)
        files_closed(fileno(pipe)); /* the number's former file is gone */
    if (is_open)
        log_end(&call, pipe ? 0 : errno, 0);
    return pipe;
}

HOOK(int, pclose, (FILE * pipe))
{
    if (recorder_on && pipe && fileno(pipe) >= 0)
        files_closed(fileno(pipe));
    return real_pclose(pipe);
}

#define HOOK_EXIT(function)                                                                        \
    HOOK(void, function, (int status))                                                             \
    {                                                                                              \
        if (recorder_is_in() && !log_is_borrowed()) {                                              \
            connections_tell();                                                                    \
            log_stop(LOG_EXITED);                                                                  \
            log_close_own();                                                                       \
        }                                                                                          \
        real_##function(status);                                                                   \
        __builtin_unreachable();                                                                   \
    }
HOOK_EXIT(_exit)
HOOK_EXIT(_Exit)

/* --- loader -------------------------------------------------------------------------------------
 */

/* dlopen and dlsym look at their caller (RUNPATH, RTLD_NEXT): a wrapper in C would be the caller.
 * So both jump to the original with the caller's return address in place.  Objects loaded by a
 * dlopen are patched at the next dlsym: without dlsym nobody calls into the object. */
static bool has_new_objects;

static void rescan(void)
{
    sigset_t signals;
    bool is_new;

    if (!recorder_is_in() || !__atomic_exchange_n(&has_new_objects, false, __ATOMIC_ACQ_REL))
        return;
    signals_block(&signals);
    /* Not waited for: the caller may be inside dl_iterate_phdr, with a lock wanted by the
     * holder. */
    is_new = false;
    if (log_try_lock(&log_state->patch_lock)) {
        is_new = patch_rescan();
        log_unlock(&log_state->patch_lock);
    } else {
        __atomic_store_n(&has_new_objects, true, __ATOMIC_RELEASE);
    }
    signals_restore(&signals);
    if (is_new && __atomic_exchange_n(&patch_saw_framework, false, __ATOMIC_RELAXED))
        spread_into_python(true);
}

__attribute__((used, visibility("hidden"))) void hooks_dlopen(void)
{
    int error = errno;

    rescan();
    __atomic_store_n(&has_new_objects, true, __ATOMIC_RELEASE);
    errno = error;
}

HOOK_ASSEMBLY(void *, dlopen, (const char *path, int flags));
HOOK_ASSEMBLY(void *, dlsym, (void *handle, const char *name));
HOOK_ASSEMBLY(void *, dlvsym, (void *handle, const char *name, const char *version));

/* RTLD_NEXT depends on the caller, not on the recorder.  Where no library stands between the
 * program and libc, the next function after any caller is libc's. */
static const struct hook *hook_asked_for(void *handle, const char *name)
{
    const struct hook *hook;

    rescan();
    hook = recorder_is_in() && name ? patch_find(name) : NULL;
    /* Of several versions, RTLD_NEXT gives the oldest. */
    if (!hook || !*hook->real ||
        (handle == RTLD_NEXT && (hook->version || !patch_is_libc(*hook->real))))
        return NULL;
    return hook;
}

/* Return the answer for a hooked name, NULL: call the real dlsym, from the caller's place. */
__attribute__((used, visibility("hidden"))) void *hooks_dlsym(void *handle, const char *name)
{
    int error = errno;
    const struct hook *hook = hook_asked_for(handle, name);
    bool is_ours = hook && (handle == RTLD_NEXT || real_dlsym(handle, name) == *hook->real);

    errno = error;
    return is_ours ? hook->wrapper : NULL;
}

__attribute__((used, visibility("hidden"))) void *hooks_dlvsym(void *handle, const char *name,
                                                               const char *version)
{
    int error = errno;
    const struct hook *hook = hook_asked_for(handle, name);
    bool is_ours = hook && real_dlvsym(handle == RTLD_NEXT ? RTLD_DEFAULT : handle, name,
                                       version) == *hook->real;

    errno = error;
    return is_ours ? hook->wrapper : NULL;
}

#define FUNCTION(name)                                                                             \
    ".text\n.p2align 4\n.globl " name "\n.hidden " name "\n.type " name ",%function\n" name ":\n"
#if defined(__x86_64__)
__asm__(FUNCTION("wrap_dlopen") "endbr64\n"
                                "pushq %rdi\n"
                                "pushq %rsi\n"
                                "subq $8, %rsp\n"
                                "call hooks_dlopen\n"
                                "addq $8, %rsp\n"
                                "popq %rsi\n"
                                "popq %rdi\n"
                                "jmp *real_dlopen(%rip)\n"
                                ".size wrap_dlopen, .-wrap_dlopen\n");
#define LOOKUP(name)                                                                               \
    __asm__(FUNCTION("wrap_" name) "endbr64\n"                                                     \
                                   "pushq %rdi\n"                                                  \
                                   "pushq %rsi\n"                                                  \
                                   "pushq %rdx\n"                                                  \
                                   "call hooks_" name "\n"                                         \
                                   "popq %rdx\n"                                                   \
                                   "popq %rsi\n"                                                   \
                                   "popq %rdi\n"                                                   \
                                   "testq %rax, %rax\n"                                            \
                                   "jz 1f\n"                                                       \
                                   "ret\n"                                                         \
                                   "1: jmp *real_" name "(%rip)\n"                                 \
                                   ".size wrap_" name ", .-wrap_" name "\n")
#else
__asm__(FUNCTION("wrap_dlopen") "stp x29, x30, [sp, #-32]!\n"
                                "stp x0, x1, [sp, #16]\n"
                                "bl hooks_dlopen\n"
                                "ldp x0, x1, [sp, #16]\n"
                                "ldp x29, x30, [sp], #32\n"
                                "adrp x16, real_dlopen\n"
                                "ldr x16, [x16, #:lo12:real_dlopen]\n"
                                "br x16\n"
                                ".size wrap_dlopen, .-wrap_dlopen\n");
#define LOOKUP(name)                                                                               \
    __asm__(FUNCTION("wrap_" name) "stp x29, x30, [sp, #-48]!\n"                                   \
                                   "stp x0, x1, [sp, #16]\n"                                       \
                                   "str x2, [sp, #32]\n"                                           \
                                   "bl hooks_" name "\n"                                           \
                                   "mov x17, x0\n"                                                 \
                                   "ldp x0, x1, [sp, #16]\n"                                       \
                                   "ldr x2, [sp, #32]\n"                                           \
                                   "ldp x29, x30, [sp], #48\n"                                     \
                                   "cbz x17, 1f\n"                                                 \
                                   "mov x0, x17\n"                                                 \
                                   "ret\n"                                                         \
                                   "1: adrp x16, real_" name "\n"                                  \
                                   "ldr x16, [x16, #:lo12:real_" name "]\n"                        \
                                   "br x16\n"                                                      \
                                   ".size wrap_" name ", .-wrap_" name "\n")
#endif
LOOKUP("dlsym");
LOOKUP("dlvsym");

HOOK(int, dlclose, (void *handle))
{
    int result;

    if (recorder_is_in())
        hooks_dlopen();
    result = real_dlclose(handle);
    rescan();
    return result;
}
