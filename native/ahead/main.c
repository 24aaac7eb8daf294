/* Reads ahead for the programs of a launcher.
 *
 *     ahead LAUNCHER_PID MOST_BYTES EXCLUDED_FOLDER SOCKET
 *
 * SOCKET receives the order of samples from data loaders.  Ends with the end of standard input,
 * when the launcher ends, however the launcher ends.  Then writes to standard output a line for
 * each file with a decision:
 *
 *     ORDER  READ_BYTES  HIT_BYTES  TOUCHED_BYTES  SIZE_BYTES  REASON  PATH
 *
 * separated by tabs.  Bytes are counted in blocks of 64 KiB.  A hit is a block read here before the
 * program touched the block.  A mapping that ends between two looks loses its last hits, so the
 * hits are a lower bound. */
#include "ahead.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A look takes about 0.1 ms for a few files.  With these pauses, looks at mappings take at most a
 * hundredth of a CPU, looks at all processes another hundredth while programs start, and all looks
 * together a tenth while files are read. */
#define BUSY_MS 4
#define IDLE_MS 10
#define BUSY_TIMES 10
#define IDLE_TIMES 100
#define LONGEST_MS 1000
#define CALM_NS 200000000 /* without a touch */
#define FULL_NS 50000000  /* between two looks at all processes, if any was started */
#define FULL_TIMES 100    /* and as often as a look takes */
#define ROOM_NS 100000000
#define WARM_NS 1000000000

int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* The number given last to a process or thread: unchanged, if none was started. */
static int last_pid(void)
{
    FILE *file = fopen("/proc/loadavg", "re");
    int pid = 0;

    if (!file)
        return 0;
    if (fscanf(file, "%*f %*f %*f %*s %d", &pid) != 1)
        pid = 0;
    fclose(file);
    return pid;
}

static void look_at_room(struct ahead *ahead)
{
    uint64_t room = room_bytes();

    pthread_mutex_lock(&ahead->lock);
    ahead->room_bytes = room < ahead->limit_bytes ? room : ahead->limit_bytes;
    ahead->is_pressed = room_is_pressed();
    pthread_cond_broadcast(&ahead->work);
    pthread_mutex_unlock(&ahead->lock);
}

/* Files in memory may have been dropped. */
static void look_at_warm(struct ahead *ahead, int64_t now)
{
    struct file *file;

    for (file = ahead->files; file; file = file->next_file)
        if (file->order == ORDER_WARM && file->fd >= 0 && now - file->looked_ns > WARM_NS) {
            file->looked_ns = now;
            if (!file_is_resident(file)) {
                pthread_mutex_lock(&ahead->lock);
                learn_begin(ahead, file);
                pthread_mutex_unlock(&ahead->lock);
            }
        }
}

static void report(struct ahead *ahead)
{
    static const char *const orders[] = {"unknown",  "in memory", "weights",
                                         "in order", "random",    "off"};
    struct file *file;

    for (file = ahead->files; file; file = file->next_file) {
        char *at;

        if (!file->path || (!file->read_bytes && (file->order != ORDER_OFF || lists_read(file))))
            continue;
        for (at = file->path; *at; at++)
            if (*at == '\n' || *at == '\t')
                *at = '?';
        printf("%s\t%llu\t%llu\t%llu\t%llu\t%s\t%s\n", orders[file->order],
               (unsigned long long)file->read_bytes, (unsigned long long)file->hit_bytes,
               (unsigned long long)file->touched_bytes, (unsigned long long)file->size,
               file->why ? file->why : "", file->path);
    }
    lists_report();
    fflush(stdout);
}

/* Ignore signals for the job's process group and for the end of the terminal: only the end of
 * standard input ends this program. */
static void leave_job(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    struct rlimit files;
    size_t i;

    setsid();
    for (i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static int pause_ms(int64_t took_ns, bool is_busy)
{
    int64_t ms = took_ns * (is_busy ? BUSY_TIMES : IDLE_TIMES) / 1000000;
    int64_t least = is_busy ? BUSY_MS : IDLE_MS;

    return (int)(ms < least ? least : ms > LONGEST_MS ? LONGEST_MS : ms);
}

/* Wait for the next look, and take messages of loaders.  True: the launcher has ended. */
static bool has_ended(struct ahead *ahead, struct pollfd *ends, int ms)
{
    int64_t until_ns = now_ns() + ms * 1000000ll;

    for (;;) {
        int64_t left_ns = until_ns - now_ns();
        int n = poll(ends, 2, left_ns > 0 ? (int)((left_ns + 999999) / 1000000) : 0);

        if (n > 0 && !ends[0].revents && ends[1].revents)
            lists_take(ahead, ends[1].fd);
        else if (n)
            return true;
        if (now_ns() >= until_ns)
            return false;
    }
}

int main(int argc, char **argv)
{
    static struct ahead ahead = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                 .work = PTHREAD_COND_INITIALIZER};
    struct pollfd ends[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.events = POLLIN}};
    static const int on = 1;
    int64_t full_ns = 0, full_every_ns = FULL_NS, room_ns = 0, touched_ns = 0, now, began;
    int newest = 0, pid, ms = 0;

    if (argc != 5)
        return 2;
    leave_job();
    ahead.launcher = atoi(argv[1]);
    ahead.limit_bytes = strtoull(argv[2], NULL, 10);
    ahead.excluded = argv[3];
    ends[1].fd = atoi(argv[4]);
    if (setsockopt(ends[1].fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on))
        ends[1].fd = -1; /* ignored by poll */
    look_at_room(&ahead);
    if (reader_start(&ahead))
        return 1;
    while (!has_ended(&ahead, ends, ms)) {
        bool is_full, is_touched;

        sets_find(&ahead); /* with a separate time limit */
        began = now = now_ns();
        pid = last_pid();
        is_full = ahead.wants_full || (pid != newest && now - full_ns > full_every_ns);
        ahead.wants_full = false;
        if (is_full) {
            newest = pid;
            full_ns = now;
        }
        watch_processes(&ahead, is_full);
        if (is_full) {
            ahead.full_ns = now;
            full_every_ns = FULL_TIMES * (now_ns() - now);
            if (full_every_ns < FULL_NS)
                full_every_ns = FULL_NS;
        }
        is_touched = watch_touches(&ahead);
        is_touched |= sets_look(&ahead);
        is_touched |= lists_look(&ahead);
        if (is_touched)
            touched_ns = now;
        if ((ahead.files || ahead.has_lists) && now - room_ns > ROOM_NS) {
            look_at_room(&ahead);
            room_ns = now;
        }
        look_at_warm(&ahead, now);
        ms = pause_ms(now_ns() - began, now - touched_ns < CALM_NS);
    }
    watch_touches(&ahead);
    while (sets_look(&ahead))
        ;
    lists_look(&ahead);
    pthread_mutex_lock(&ahead.lock);
    ahead.is_ending = true;
    report(&ahead);
    _exit(0); /* a reader may wait for storage that does not answer */
}
