/* Start, stop, windows, spans: in the right order and only once. */
#include "recorder.h"
#include "secrets.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "account.h"
#include "burst.h"
#include "connections.h"
#include "files.h"
#include "guard.h"
#include "hook_open.h"
#include "imports.h"
#include "log.h"
#include "patch.h"
#include "spread.h"
#include "staged.h"
#include "sums.h"
#include "waits.h"

/* The linker gathers every HOOK into the section. */
extern const struct hook *__start_penstock_hooks[] __attribute__((visibility("hidden")));
extern const struct hook *__stop_penstock_hooks[] __attribute__((visibility("hidden")));

HOT bool redirection_is_on;

static pthread_mutex_t window =
    PTHREAD_MUTEX_INITIALIZER; /* start and stop; never taken by a hook */
static bool is_open;
static struct call window_call;
static struct call pause_call; /* from the pause on; start 0: the process has no such event */
static uint32_t origin = ORIGIN_RECORD;
static uint32_t names_lock; /* of the spans' names; a forked child keeps the names */

/* A fork while another thread starts or stops would leave the child a closed lock for ever. */
static void lock_window(void)
{
    pthread_mutex_lock(&window);
    log_lock(&names_lock);
    if (log_state)
        files_forking();
}

static void unlock_window(void)
{
    log_unlock(&names_lock);
    pthread_mutex_unlock(&window);
}

static int setup_once(void)
{
    static bool is_done;
    int error;

    if (is_done)
        return 0;
    error = log_setup();
    if (error)
        return error;
    pthread_atfork(lock_window, unlock_window, unlock_window);
    is_done = true;
    return 0;
}

static void apply_patches(uint64_t start_ns)
{
    struct patch_counts counts;
    sigset_t signals;

    signals_block(&signals);
    log_lock(&log_state->patch_lock);
    patch_apply(&counts);
    patch_apply(&counts); /* a thread may have resolved a lazy slot during the first pass */
    log_unlock(&log_state->patch_lock);
    signals_restore(&signals);
    log_state->header->slots = counts.slots;
    log_state->header->objects = counts.objects;
    log_state->header->slots_failed = counts.failed;
    log_state->header->attach_ns = clock_ns(CLOCK_MONOTONIC) - start_ns;
}

/* --- names ----------
 * ------------------------------------------------------------------------------ */

/* Kept across fork and windows, so ids kept by Python stay good; written to a log at the first
 * use. */
static char *names[NAMES_MAX];
static uint32_t n_names = 1;

static char *keep_name(const char *name)
{
    static char *arena;
    static size_t left;
    size_t bytes = strlen(name) + 1;
    char *kept;

    if (bytes > left) {
        left = bytes > 65536 ? bytes : 65536;
        arena = (char *)syscall(SYS_mmap, NULL, left, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
        if (arena == MAP_FAILED) {
            left = 0;
            return NULL;
        }
    }
    kept = memcpy(arena, name, bytes);
    arena += bytes;
    left -= bytes;
    return kept;
}

uint32_t penstock_name(const char *name)
{
    sigset_t signals;
    uint32_t id;

    signals_block(&signals);
    log_lock(&names_lock);
    for (id = 1; id < n_names && strcmp(names[id], name); id++)
        ;
    if (id == n_names) {
        if (id < NAMES_MAX && (names[id] = keep_name(name)))
            n_names++;
        else
            id = 0; /* more names are data, not names: a span without a name */
    }
    log_unlock(&names_lock);
    signals_restore(&signals);
    return id;
}

static void write_name(uint32_t id)
{
    uint8_t *byte = &log_state->has_name[id / 8];
    uint8_t bit = (uint8_t)(1u << id % 8);

    if (id && id < n_names && !(__atomic_load_n(byte, __ATOMIC_RELAXED) & bit) &&
        log_text(TEXT_NAME, id, 0, names[id], ""))
        __atomic_fetch_or(byte, bit, __ATOMIC_RELAXED);
}

/* --- windows ------------------------------------------------------------------------------------
 */

#define CONTROL_BYTES 4096
#define WARM_EVENTS 16
#define TIMED_EVENTS 64

/* Measure the cost of an event here and now, on events skipped by readers: the report
 * multiplies. */
static void measure_event(void)
{
    char text[24];
    struct call call;
    uint64_t start = 0;
    int i;

    for (i = 0; i < WARM_EVENTS + TIMED_EVENTS; i++) {
        if (i == WARM_EVENTS)
            start = clock_ticks();
        if (!log_begin(&call, OP_VOID, 0, -1, 0))
            return;
        log_end(&call, 0, 0);
        call.event->begun = 0;
    }
    snprintf(text, sizeof text, "%.1f",
             (double)(clock_ticks() - start) * 1e9 / (double)clock_ticks_per_s / TIMED_EVENTS);
    log_text(TEXT_NOTE, 0, 0, "event_cost_ns", text);
}

/* The start's own calls are not part of the cost of recording: attach_ns counts the start. */
static void begin_own(uint64_t calls, uint64_t ticks)
{
    log_state->header->own_calls = calls;
    log_state->header->own_ticks = ticks;
    log_own_calls = 0;
}

static int open_window(const char *folder, uint64_t budget_bytes)
{
    const char *ticks = getenv("PENSTOCK_TICKS");
    uint64_t start_ns = clock_ns(CLOCK_MONOTONIC), delay_ns, own_calls = 0, own_ticks = 0;
    uint32_t serial, name;
    int error;

    error = setup_once();
    if (!error)
        error = patch_setup(__start_penstock_hooks, __stop_penstock_hooks);
    if (error)
        return error;
    clock_choose(ticks ? strtoull(ticks, NULL, 10) : 0);
    serial = log_state->serial;
    if (log_state->header) {
        own_calls = log_state->header->own_calls;
        own_ticks = log_state->header->own_ticks;
    }
    error = log_start(folder, budget_bytes, origin);
    if (!error)
        error = files_start(log_state->serial != serial);
    if (!error)
        error = connections_start(log_state->serial != serial);
    if (!error)
        error = waits_start();
    if (error)
        return error;
    spread_setup(folder, budget_bytes);
    log_switch_on();
    is_open = true;
    apply_patches(start_ns);
    if (log_state->serial != serial) {
        measure_event();
        log_text(TEXT_NOTE, 0, 0, "run-queue delay",
                 account_delay(&delay_ns) ? "measured" : "not measured");
    }
    if (staged_is_on())
        log_text(TEXT_NOTE, 0, 0, "tier", staged_tier());
    if (burst_is_on())
        log_text(TEXT_NOTE, 0, 0, "burst tier", burst_folder());
    name = penstock_name("window");
    write_name(name);
    if (!log_begin(&window_call, OP_WINDOW, name, -1, 0))
        window_call.start = 0;
    if (log_state->header) {
        bool is_new = log_state->serial != serial;

        begin_own(is_new ? 0 : own_calls, is_new ? 0 : own_ticks);
    }
    return 0;
}

/* The folder's absolute name without links, by direct system calls. */
static int resolve(const char *folder, char *path, size_t size)
{
    char link[40];
    long fd = syscall(SYS_openat, AT_FDCWD, folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    long got;

    if (fd < 0)
        return -errno;
    snprintf(link, sizeof link, "/proc/self/fd/%ld", fd);
    got = syscall(SYS_readlinkat, AT_FDCWD, link, path, size - 1);
    got = got < 0 ? -errno : got;
    syscall(SYS_close, fd);
    if (got < 0)
        return (int)got;
    path[got] = 0;
    return 0;
}

int penstock_start(const char *folder, uint64_t budget_bytes)
{
    char path[PATH_MAX];
    int error = resolve(folder, path, sizeof path);

    if (error)
        return error;
    pthread_mutex_lock(&window);
    error = is_open ? -EALREADY : open_window(path, budget_bytes);
    pthread_mutex_unlock(&window);
    return error;
}

/* Return the age of the process in seconds; negative: not known. */
static double age_s(void)
{
    char text[1024];
    const char *fields;
    unsigned long long start_ticks;
    long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC);
    long got = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof text - 1);

    if (fd >= 0)
        syscall(SYS_close, fd);
    text[got > 0 ? got : 0] = 0;
    fields = strrchr(text, ')'); /* the program's name, with any characters, stands before */
    if (!fields || sscanf(fields + 1,
                          " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                          "%*d %*d %llu",
                          &start_ticks) != 1)
        return -1;
    return (double)clock_ns(CLOCK_BOOTTIME) / 1e9 -
           (double)start_ticks / (double)sysconf(_SC_CLK_TCK);
}

int penstock_attach(const char *folder, uint64_t budget_bytes)
{
    uint32_t before = origin;
    double late_s = age_s();
    char text[96];
    int error;

    origin = ORIGIN_ATTACH;
    error = penstock_start(folder, budget_bytes);
    origin = before;
    if (error)
        return error;
    snprintf(text, sizeof text, "its first %.1f s: the recorder joined a process that ran already",
             late_s);
    penstock_note("not measured", late_s < 0 ? "its first part: the recorder joined late" : text);
    spread_into_python(true);
    return 0;
}

/* Call after setting the data for the wrappers. */
static void redirect_opens(void)
{
    __atomic_store_n(&redirection_is_on, true, __ATOMIC_RELEASE);
}

int penstock_staged(const char *map)
{
    int error;

    pthread_mutex_lock(&window);
    error = is_open ? -EALREADY : staged_start(map);
    if (!error)
        redirect_opens();
    pthread_mutex_unlock(&window);
    return error;
}

int penstock_burst(const char *folder, const char *patterns, uint32_t run)
{
    int error;

    pthread_mutex_lock(&window);
    error = is_open ? -EALREADY : burst_start(folder, patterns, run);
    if (!error)
        redirect_opens();
    pthread_mutex_unlock(&window);
    return error;
}

uint32_t penstock_crc32c(uint32_t sum, const void *data, size_t bytes)
{
    return sums_add(sum, data, bytes);
}

void penstock_unburst(void)
{
    burst_stop();
}

/* The pause's event ends on the pausing thread; a forked child has no event. */
static void end_pause(void)
{
    if (recorder_paused && pause_call.start && pause_call.thread == log_self)
        log_end(&pause_call, 0, 0);
    pause_call.start = 0;
}

int penstock_pause(int64_t index)
{
    uint32_t name;
    int error = -EINVAL;

    pthread_mutex_lock(&window);
    if (is_open && recorder_on && log_ready()) {
        error = 0;
        name = penstock_name("paused");
        write_name(name);
        if (!log_begin(&pause_call, OP_WINDOW, name, index, 0))
            pause_call.start = 0;
        connections_tell();
        recorder_paused = 1;
        __atomic_store_n(&recorder_on, 0, __ATOMIC_SEQ_CST);
        log_stop(LOG_STOPPED);
    }
    pthread_mutex_unlock(&window);
    return error;
}

int penstock_resume(void)
{
    int error = -EINVAL;
    bool is_ours;

    pthread_mutex_lock(&window);
    if (is_open && recorder_paused) {
        is_ours = log_state->header != NULL; /* else a child forked in the pause */
        error = is_ours && pause_call.start && pause_call.thread != log_self ? -EAGAIN
                                                                             : files_start(false);
    }
    if (!error) {
        if (is_ours)
            log_state->header->state = LOG_RUNNING;
        end_pause();
        recorder_paused = 0;
        log_switch_on();
    }
    pthread_mutex_unlock(&window);
    return error;
}

/* NULL: the folder has no page, or the page is too short. */
static const uint64_t *map_control(void)
{
    char path[sizeof log_folder + 16];
    struct stat status;
    void *page = MAP_FAILED;
    long fd;

    strcat(strcpy(path, log_folder), "/control");
    fd = *log_folder ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return NULL;
    if (!syscall(SYS_fstat, fd, &status) && status.st_size >= CONTROL_BYTES)
        page = (void *)syscall(SYS_mmap, NULL, CONTROL_BYTES, PROT_READ, MAP_SHARED, fd, 0L);
    syscall(SYS_close, fd);
    return page == MAP_FAILED ? NULL : page;
}

const uint64_t *penstock_control(void)
{
    static char mapped[sizeof log_folder];
    static const uint64_t *page;

    if (!page || strcmp(mapped, log_folder)) {
        page = map_control();
        if (page)
            guard_add(GUARD_FAMILY, (void *)page, CONTROL_BYTES, NULL);
        strcpy(mapped, log_folder);
    }
    return page;
}

/* The page is unmapped again: a mapped page marks a process as a reader. */
static void begin_paused(void)
{
    const uint64_t *page = map_control();
    uint64_t asked = page ? *page : 0;

    if ((uint32_t)asked == PENSTOCK_PAUSE)
        penstock_pause((int64_t)(asked >> 32));
    if (page)
        syscall(SYS_munmap, page, CONTROL_BYTES);
}

int penstock_stop(void)
{
    sigset_t signals;
    int error = -EINVAL;

    pthread_mutex_lock(&window);
    if (is_open) {
        error = 0;
        is_open = false;
        end_pause();
        if (recorder_on && window_call.start && window_call.thread == log_self)
            log_end(&window_call, 0, 0);
        connections_tell();
        __atomic_store_n(&recorder_on, 0, __ATOMIC_SEQ_CST);
        recorder_paused = 0;
        signals_block(&signals);
        log_lock(&log_state->patch_lock);
        patch_restore();
        log_unlock(&log_state->patch_lock);
        signals_restore(&signals);
        log_stop(LOG_STOPPED);
    }
    pthread_mutex_unlock(&window);
    return error;
}

int penstock_state(void)
{
    return recorder_on ? 1 : recorder_paused ? 3 : is_open ? 2 : 0;
}

const char *penstock_reason(void)
{
    return log_state && log_state->header ? log_state->header->reason : "";
}

const char *penstock_folder(void)
{
    return log_folder;
}

/* --- spans --------------------------------------------------------------------------------------
 */

/* Where the process' first step begins, and at its end: record the thread's CPU time, and the time
 * ready to run without a CPU.  An instant. */
static void tell_cpu(void)
{
    int64_t delay_ns = penstock_run_delay();
    uint64_t handle = penstock_begin(OP_SPAN, penstock_name("thread cpu"), -1);

    penstock_end(handle, clock_ns(CLOCK_THREAD_CPUTIME_ID), (uint64_t)(delay_ns + 1));
}

static void tell_cpu_at_first_step(void)
{
    uint32_t serial = log_state->serial;

    if (__atomic_exchange_n(&log_state->cpu_told, serial, __ATOMIC_RELAXED) != serial)
        tell_cpu();
}

uint64_t penstock_begin(uint32_t op, uint32_t name, int64_t index)
{
    struct call call;
    uint64_t oldest = 0;
    uint64_t i;

    if (op < OP_FIRST_APP || !log_is_on() || !log_ready())
        return 0;
    if (UNLIKELY(op == OP_STEP && log_state->cpu_told != log_state->serial))
        tell_cpu_at_first_step();
    write_name(name);
    if (!log_begin(&call, op, name, index, 0))
        return 0;
    for (i = 0; i < SPANS_PER_THREAD; i++)
        if (log_self->spans[i].start < log_self->spans[oldest].start)
            oldest = i; /* a free span has start 0; a span without an end stays unfinished */
    log_self->spans[oldest] = call;
    return (call.start << 5) | oldest;
}

static int end_span(uint64_t handle, int64_t index, uint64_t a, uint64_t b)
{
    struct thread *thread = log_self;
    struct call *span = thread ? &thread->spans[handle & 31] : NULL;
    struct event_rest *rest;
    struct event *event;

    if (!handle || !span || !span->start || span->start << 5 != (handle & ~31ull))
        return -EINVAL;
    event = log_event(span);
    rest = event ? event_rest(thread->block, event) : NULL;
    if (rest)
        rest->asked = log_bounded(a);
    log_end_at(span, 0, index, b);
    span->start = 0;
    return 0;
}

int penstock_end(uint64_t handle, uint64_t a, uint64_t b)
{
    return end_span(handle, LOG_SAME_OFFSET, a, b);
}

void penstock_note(const char *key, const char *value)
{
    if (recorder_on && log_ready())
        log_text(TEXT_NOTE, 0, 0, key, value);
}

void penstock_request(const char *name, const char *path, const void *record)
{
    struct request_record copy;

    if (!recorder_on || !log_ready())
        return;
    memcpy(&copy, record, sizeof copy);
    copy.told = clock_ticks();
    log_text_with(TEXT_REQUEST, 0, 0, name, path, &copy, sizeof copy);
}

uint64_t penstock_connection(int fd)
{
    const struct connection *connection =
        recorder_on && connections_state && log_ready() ? connections_peek(fd) : NULL;

    return connection ? connection->so_far.number : 0;
}

static uint64_t since(int64_t now, int64_t before)
{
    return now < 0 || before < 0 ? INT64_MAX : now > before ? (uint64_t)(now - before) : 0;
}

uint64_t penstock_balance(uint64_t handle, uint32_t name, int64_t index)
{
    struct thread *thread = log_self;
    int64_t cpu_ns = (int64_t)clock_ns(CLOCK_THREAD_CPUTIME_ID);
    int64_t delay_ns = penstock_run_delay();

    if (thread)
        end_span(handle, index, since(cpu_ns, thread->cpu_ns), since(delay_ns, thread->delay_ns));
    handle = penstock_begin(OP_SPAN, name, -1);
    thread = log_self;
    if (thread) {
        thread->cpu_ns = cpu_ns;
        thread->delay_ns = delay_ns;
    }
    return handle;
}

/* --- for tests
 * ------------------------------------------------------------------------------------ */

int penstock_slots(void)
{
    return is_open ? (int)log_state->header->slots : 0;
}

int penstock_in_call(void)
{
    struct thread *thread = log_self;
    struct block *block = thread ? thread->block : NULL;
    const struct event *last = block ? log_events(block) + block->used - 1 : NULL;

    if (!block || !block->used || block->used > block->limit)
        return 0;
    if (event_op(last) == OP_REST)
        last--;
    return event_op(last) && !event_ticks(last);
}

const char *penstock_hook(int number)
{
    int n = (int)(__stop_penstock_hooks - __start_penstock_hooks);

    return number >= 0 && number < n ? __start_penstock_hooks[number]->name : NULL;
}

/* --- preloaded
 * ------------------------------------------------------------------------------------- */

size_t penstock_hide_secrets(const char *words, size_t bytes, char *out, size_t room)
{
    return secrets_hide(words, bytes, out, room, getenv("PENSTOCK_SECRETS"));
}

__attribute__((constructor)) static void begin_process(void)
{
    const char *folder = getenv("PENSTOCK_RUN");
    const char *budget = getenv("PENSTOCK_BUDGET");
    const char *map = getenv("PENSTOCK_STAGED");
    const char *burst = getenv("PENSTOCK_BURST");
    const char *patterns = getenv("PENSTOCK_BURST_PATTERNS");
    const char *run = getenv("PENSTOCK_BURST_RUN"); /* hexadecimal */
    uint32_t number = run ? (uint32_t)strtoul(run, NULL, 16) : 0;
    int unmapped, unburst;

    if (!folder || *folder != '/')
        return;
    origin = getenv("PENSTOCK_INJECTED") ? ORIGIN_EXEC : ORIGIN_RUN;
    unmapped = map && *map == '/' ? penstock_staged(map) : 0;
    unburst = burst && *burst == '/' && patterns ? penstock_burst(burst, patterns, number) : 0;
    if (penstock_start(folder, budget ? strtoull(budget, NULL, 10) : 0))
        return; /* the launcher has checked the folder; a child unable to write is not seen */
    /* the launcher has checked the map too; without a map every file is the original */
    if (unmapped)
        penstock_note("tier lost", strerror(-unmapped));
    if (unburst)
        penstock_note("burst tier lost", strerror(-unburst));
    spread_hide();
    begin_paused();
    imports_await();
}

__attribute__((destructor)) static void end_process(void)
{
    if (!is_open || log_is_borrowed())
        return; /* a stopped window's log has an end; a child's end is not its parent's */
    end_pause();
    if (recorder_on && log_self && (pid_t)log_self->tid == getpid())
        tell_cpu();
    if (recorder_on && window_call.start && window_call.thread == log_self)
        log_end(&window_call, 0, 0);
    connections_tell();
    log_stop(LOG_EXITED);
    log_close_own();
}
