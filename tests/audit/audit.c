/* Audit mode: every system call of the main thread, and of threads made by pthread_create, passes a
 * signal handler (syscall user dispatch) that counts it as inside a recorded call, the recorder's own,
 * the loader's, or missed.  What is missed by the table of hooks shows itself here on each new version
 * of a library.  Preload it behind the recorder; the counts go to the file AUDIT_OUT at exit:
 *     number inside own loader missed
 * Programs that vfork or use vfork inside (posix_spawn) are not for this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_ON 1
#endif
#define ALLOW 0
#define BLOCK 1
#define NUMBERS 512

enum where { INSIDE, OWN, LOADER, MISSED, WHERES };

#define NAMES 64

static unsigned long counts[NUMBERS][WHERES];
static struct {
    long number;
    char path[256];
} missed[NAMES]; /* the first missed calls that name a path, to say which */
static int n_missed;
static struct {
    uintptr_t start, end;
} loader, recorder, audit;
static int (*in_call)(void);
static _Thread_local volatile char selector __attribute__((tls_model("initial-exec")));

/* The only system calls that are let through, besides the return from the handler. */
__attribute__((noinline)) static long pass(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

void audit_restore(void);
__asm__(".text\n.type audit_restore,@function\naudit_restore:\n    movl $15, %eax\n    syscall\n");

static enum where place_of(const greg_t *registers)
{
    uintptr_t instruction = (uintptr_t)registers[REG_RIP];
    const uintptr_t *stack = (const uintptr_t *)registers[REG_RSP];
    int i;

    if (instruction >= loader.start && instruction < loader.end)
        return LOADER;
    if (in_call && in_call())
        return INSIDE;
    if (instruction >= recorder.start && instruction < recorder.end)
        return OWN;
    for (i = 0; i < 2; i++) /* the recorder calls through libc's syscall(), which has a small frame or none */
        if (stack[i] >= recorder.start && stack[i] < recorder.end)
            return OWN;
    return MISSED;
}

static void note_missed(long number, const greg_t *registers)
{
    bool is_at = number == SYS_openat || number == SYS_newfstatat || number == SYS_statx;
    bool is_plain = number == SYS_open || number == SYS_stat || number == SYS_readlink;
    int i = is_at || is_plain ? __atomic_fetch_add(&n_missed, 1, __ATOMIC_RELAXED) : NAMES;

    if (i >= NAMES)
        return;
    missed[i].number = number;
    strncpy(missed[i].path, (const char *)registers[is_at ? REG_RSI : REG_RDI],
            sizeof missed[i].path - 1);
}

static void dispatched(int signal, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    long number = info->si_syscall;
    enum where place = place_of(registers);

    (void)signal;
    selector = ALLOW;
    if (number >= 0 && number < NUMBERS)
        __atomic_add_fetch(&counts[number][place], 1, __ATOMIC_RELAXED);
    if (place == MISSED)
        note_missed(number, registers);
    registers[REG_RAX] = pass(number, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                              registers[REG_R10], registers[REG_R8], registers[REG_R9]);
    selector = BLOCK;
}

static int find(struct dl_phdr_info *info, size_t size, void *unused)
{
    uintptr_t end = 0;
    int i;

    (void)size;
    (void)unused;
    for (i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (strstr(info->dlpi_name, "ld-linux")) {
        loader.start = info->dlpi_addr;
        loader.end = end;
    } else if (strstr(info->dlpi_name, "librec.so")) {
        recorder.start = info->dlpi_addr;
        recorder.end = end;
    } else if ((uintptr_t)find >= info->dlpi_addr && (uintptr_t)find < end) {
        audit.start = info->dlpi_addr;
        audit.end = end;
    }
    return 0;
}

static void arm(void)
{
    selector = ALLOW;
    prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, audit.start, audit.end - audit.start,
          &selector);
    selector = BLOCK;
}

struct start {
    void *(*function)(void *);
    void *argument;
};

static void *armed(void *argument)
{
    struct start start = *(struct start *)argument;

    free(argument);
    arm();
    argument = start.function(start.argument);
    selector = ALLOW;
    return argument;
}

/* clone inside the handler would return on the new thread's stack: it goes around it. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                   void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    struct start *start = malloc(sizeof *start);
    char before = selector;
    int error;

    selector = ALLOW;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    *start = (struct start){function, argument};
    error = real(thread, attributes, armed, start);
    selector = before;
    return error;
}

__attribute__((constructor)) static void begin(void)
{
    struct {
        void (*handler)(int, siginfo_t *, void *);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {dispatched, SA_SIGINFO | SA_NODEFER | 0x04000000 /* SA_RESTORER */, audit_restore, 0};

    if (!getenv("AUDIT_OUT"))
        return;
    dl_iterate_phdr(find, NULL);
    *(void **)&in_call = dlsym(RTLD_DEFAULT, "penstock_in_call");
    if (syscall(SYS_rt_sigaction, SIGSYS, &action, NULL, 8))
        abort();
    arm();
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("AUDIT_OUT");
    FILE *file;
    int i;

    selector = ALLOW;
    file = path ? fopen(path, "w") : NULL;
    for (i = 0; file && i < NUMBERS; i++)
        if (counts[i][INSIDE] || counts[i][OWN] || counts[i][LOADER] || counts[i][MISSED])
            fprintf(file, "%d %lu %lu %lu %lu\n", i, counts[i][INSIDE], counts[i][OWN],
                    counts[i][LOADER], counts[i][MISSED]);
    for (i = 0; file && i < n_missed && i < NAMES; i++)
        fprintf(file, "missed %ld %s\n", missed[i].number, missed[i].path);
    if (file)
        fclose(file);
}
