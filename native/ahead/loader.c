/* Files, or ranges of mapped files, in the order in which a data loader of the job will read them.
 * The adapter in the job sends what comes, and how many samples the loader has handed out, to a
 * socket; the answer names what is not needed from the adapter.  A kernel event (inotify) for each
 * file shows whether the program opened a file read here; page tables show the touch of a range. */
#include "ahead.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC 0x31414850u /* "PHA1"; keep in step with adapters/torch_ahead.py */
#define MOST_LISTS 64u
#define MOST_ITEMS 32768u /* of a list; the adapter sends fewer */
#define THREADS 16        /* a small file waits for three answers: name, open, bytes */
#define JUDGED 64u        /* files before a judgement */
#define JUDGED_MOST 2048u
#define LEAST_HITS 0.25
#define WARM_ROW 64u    /* files in memory in a row: from here on only some are looked at */
#define WARM_EVERY 16u  /* the first of every 16 */
#define ERRORS_ROW 256u /* unreadable files, in a row */
#define ALIVE_NS 1000000000
#define FIRST_MEAN (128u << 10)
#define MOST_SOURCES 4096u /* files of the ranges of a list */
#define ROOT UINT32_MAX    /* the number of a file that stands for all files */
/* Of ranges that the adapter expects: samples where the program must be seen before any is read. */
#define PROBED 8u
#define PROBED_MOST 4096u
#define LOOKED_AT 64u          /* samples a look */
#define PENDING_NS 10000000000 /* of a pass: how long a guess is looked at often */

enum flag {
    FLAG_NEW = 1,    /* a new pass; the first entry is the folder of all files */
    FLAG_SHORT = 2,  /* files of batches already with the workers */
    FLAG_RANGES = 4, /* the entries are ranges */
    FLAG_GUESS = 8,  /* the ranges are expected, not known */
};

/* The files that a loader shall send: all, every WARM_EVERY-th, none. */
enum wish { WISH_ALL, WISH_FEW, WISH_NONE };

struct answer {
    uint32_t list, wish;
};

struct message {
    uint32_t magic, list, flags, n_entries;
    uint64_t done, dispatched, total;
};

struct entry {
    uint64_t position;
    uint32_t path_bytes; /* the path follows */
} __attribute__((packed));

struct range_entry {
    uint64_t position;
    uint32_t file;
    uint8_t kind;        /* RANGE_NAME: the path of a file follows, or with ROOT of all files */
    uint16_t text_bytes; /* a text follows */
    uint32_t width;
    uint64_t offset, bytes, at;
} __attribute__((packed));

enum state { WAITING, READING, READ };

struct item {
    struct item *next_item;
    char *path;            /* NULL: a range */
    struct source *source; /* of a range; lives as long as this process */
    struct range range;
    uint64_t position, bytes;
    int watch;
    enum state state;
    /* read before a worker had the file; opened or touched; given up during the read; the range is
     * only looked for; and was found */
    bool is_early, is_hit, is_gone, is_probe, is_resolved;
};

struct list {
    pid_t pid;
    uint32_t id;
    char *root;
    struct item *first, *last, *next; /* next: the first waiting item */
    uint32_t n_items, n_reading;
    uint64_t done, dispatched, total;
    uint64_t read_bytes, hit_bytes, bytes_seen, n_seen;
    uint32_t n_judged, n_hits, n_warm_row, n_errors_row;
    int64_t began_ns;
    bool is_short, is_ranges, is_guess; /* is_guess: not yet seen to be right */
    struct source **sources;
    uint32_t n_sources;
    uint32_t n_probed, n_matched; /* of a guess: samples looked at, and touched by the program */
    enum wish answered;
    const char *why; /* off */
};

static struct list *lists[MOST_LISTS];
static uint32_t n_lists;
static uint64_t outstanding_bytes, reading_bytes;
static int events_fd = -1;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;

static uint64_t mean_of(const struct list *list)
{
    return list->n_seen ? list->bytes_seen / list->n_seen : FIRST_MEAN;
}

uint64_t lists_outstanding(void)
{
    return outstanding_bytes + reading_bytes;
}

/* --- the state of a file ---------------------------------------------------------------------- */

static void free_item(struct item *item)
{
    if (item->watch >= 0 && !item->is_hit) /* else the watch has ended with the event */
        inotify_rm_watch(events_fd, item->watch);
    free(item->path);
    free(item);
}

/* A range that the program has touched since it was read; only in the main thread. */
static enum range_use look_at_range(const struct ahead *ahead, struct list *list, struct item *item)
{
    enum range_use touch;

    if (item->path || item->is_hit || item->state != READ || !item->is_resolved)
        return item->is_hit ? TOUCHED : UNMAPPED;
    touch = range_touch(ahead, item->source, &item->range);
    if (touch == UNTOUCHED && ahead->full_ns <= list->began_ns)
        return UNMAPPED; /* a worker that is not known yet may have touched it */
    if (touch == TOUCHED) {
        item->is_hit = true;
        list->hit_bytes += item->bytes;
        outstanding_bytes -= item->bytes;
    }
    return touch;
}

static void turn_off(struct list *list, const char *why)
{
    if (!list->why)
        list->why = why;
    list->next = NULL;
}

static void judge(struct list *list, const struct item *item)
{
    if (!item->bytes || !(item->is_early || list->is_short))
        return;
    list->n_judged++;
    list->n_hits += item->is_hit;
    if (list->n_judged >= JUDGED && list->n_hits < LEAST_HITS * list->n_judged)
        turn_off(list, list->is_ranges
                           ? "the program touched fewer than a quarter of the samples read ahead"
                           : "the program opened fewer than a quarter of the files that were read "
                             "ahead");
    if (list->n_judged >= JUDGED_MOST) {
        list->n_judged /= 2;
        list->n_hits /= 2;
    }
}

/* Removes the first file or range of a list. */
static void pop_item(const struct ahead *ahead, struct list *list, bool is_judged)
{
    struct item *item = list->first;
    enum range_use touch = is_judged ? look_at_range(ahead, list, item) : UNMAPPED;

    list->first = item->next_item;
    if (list->last == item)
        list->last = NULL;
    if (list->next == item)
        list->next = item->next_item;
    list->n_items--;
    if (item->state == READING) {
        item->is_gone = true;
        return;
    }
    if (!item->is_hit)
        outstanding_bytes -= item->bytes;
    if (is_judged && (item->path ? item->watch >= 0 : touch != UNMAPPED)) {
        judge(list, item);
        list->n_probed += list->is_guess;
        list->n_matched += list->is_guess && item->is_hit;
    }
    free_item(item);
}

static void forget_all(const struct ahead *ahead, struct list *list)
{
    while (list->first)
        pop_item(ahead, list, false);
    list->done = list->dispatched = 0;
}

static void note_hit(int watch)
{
    struct item *item;
    uint32_t i;

    for (i = 0; i < n_lists; i++)
        for (item = lists[i]->first; item; item = item->next_item)
            if (item->watch == watch && !item->is_hit) {
                item->is_hit = true;
                lists[i]->hit_bytes += item->bytes;
                outstanding_bytes -= item->bytes;
                return;
            }
}

static bool look_at_events(void)
{
    static char events[1 << 14] __attribute__((aligned(8)));
    const struct inotify_event *event;
    bool is_any = false;
    ssize_t got, at;

    while (events_fd >= 0 && (got = read(events_fd, events, sizeof events)) > 0)
        for (at = 0; at < got; at += (ssize_t)(sizeof *event + event->len)) {
            event = (const void *)(events + at);
            if (event->mask & IN_OPEN) {
                note_hit(event->wd);
                is_any = true;
            }
        }
    return is_any;
}

/* --- reading
 * ------------------------------------------------------------------------------------------- */

static struct item *take_item(struct ahead *ahead, struct list **of)
{
    uint32_t i;

    if (ahead->is_pressed)
        return NULL;
    for (i = 0; i < n_lists; i++) {
        struct list *list = lists[i];

        while (list->next && list->n_warm_row >= WARM_ROW && list->next->position % WARM_EVERY)
            list->next = list->next->next_item;
        if (!list->next || ahead_outstanding(ahead) + mean_of(list) > ahead->room_bytes)
            continue;
        *of = list;
        list->next->state = READING;
        list->next->is_probe = list->is_guess;
        list->n_reading++;
        reading_bytes += mean_of(list);
        return list->next;
    }
    return NULL;
}

struct look {
    uint64_t size, bytes;
    bool is_there, is_error;
    struct range range; /* where a range is */
};

static struct look read_range(struct item *item, char *scratch)
{
    struct range range = item->range;
    struct look look = {0};

    if (!source_open(item->source) || !range_resolve(item->source, &range))
        return (struct look){.is_error = true};
    look.range = range;
    look.size = range.bytes;
    look.is_there = range_is_there(item->source, &range);
    if (look.is_there || item->is_probe)
        return look;
    if (range_read(item->source, &range, scratch))
        look.bytes = range.bytes;
    else
        look.is_error = true;
    return look;
}

static struct look read_item(struct ahead *ahead, struct item *item, char *scratch)
{
    struct look look = {0};
    struct stat status;
    char path[64];
    int fd = small_open(item->path, &status);

    if (fd < 0)
        return (struct look){.is_error = true};
    look.size = (uint64_t)status.st_size;
    look.is_there = small_is_there(fd, &status);
    if (!look.is_there) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        pthread_mutex_lock(&ahead->lock); /* an event finds the item */
        item->watch = inotify_add_watch(events_fd, path, IN_OPEN | IN_ONESHOT);
        pthread_mutex_unlock(&ahead->lock);
        if (small_read(fd, &status, scratch))
            look.bytes = look.size;
        else
            look.is_error = true;
    }
    close(fd);
    return look;
}

static void finish_item(struct list *list, struct item *item, const struct look *look)
{
    list->n_errors_row = look->is_error ? list->n_errors_row + 1 : 0;
    list->n_warm_row = look->is_there ? list->n_warm_row + 1 : 0;
    if (list->n_errors_row >= ERRORS_ROW)
        turn_off(list, list->is_ranges ? "its samples cannot be read"
                                       : "its files are not small, or cannot be read");
    if (!look->is_error) {
        list->n_seen++;
        list->bytes_seen += look->size;
    }
    list->read_bytes += look->bytes;
    if (item->is_hit)
        list->hit_bytes += look->bytes;
    if (item->is_gone) {
        free_item(item);
        return;
    }
    item->state = READ;
    item->is_resolved = !item->path && !look->is_error;
    if (item->is_resolved)
        item->range = look->range;
    item->bytes = look->bytes;
    item->is_early = item->position >= list->dispatched;
    if (!item->is_hit)
        outstanding_bytes += look->bytes;
}

static void *read_items(void *argument)
{
    struct ahead *ahead = argument;
    char *scratch = malloc(BLOCK_BYTES);
    struct item *item;
    struct list *list;

    pthread_mutex_lock(&ahead->lock);
    while (scratch && !ahead->is_ending) {
        uint64_t expected;
        struct look look;

        item = take_item(ahead, &list);
        if (!item) {
            pthread_cond_wait(&told, &ahead->lock);
            continue;
        }
        expected = mean_of(list);
        list->next = item->next_item;
        pthread_mutex_unlock(&ahead->lock);
        look = item->path ? read_item(ahead, item, scratch) : read_range(item, scratch);
        pthread_mutex_lock(&ahead->lock);
        list->n_reading--;
        reading_bytes -= expected;
        finish_item(list, item, &look);
    }
    pthread_mutex_unlock(&ahead->lock);
    free(scratch);
    return NULL;
}

static bool start_reading(struct ahead *ahead)
{
    static bool is_started;
    pthread_t thread;
    int i;

    if (is_started)
        return true;
    events_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    for (i = 0; i < THREADS; i++)
        is_started |= !pthread_create(&thread, NULL, read_items, ahead);
    return is_started;
}

/* --- messages
 * ------------------------------------------------------------------------------------------- */

static struct list *list_of(struct ahead *ahead, pid_t pid, uint32_t id)
{
    struct list *list;
    uint32_t i;

    for (i = 0; i < n_lists; i++)
        if (lists[i]->pid == pid && lists[i]->id == id)
            return lists[i];
    if (n_lists == MOST_LISTS || !start_reading(ahead) || !(list = calloc(1, sizeof *list)))
        return NULL;
    *list = (struct list){.pid = pid, .id = id};
    lists[n_lists++] = list;
    ahead->has_lists = true;
    return list;
}

static bool is_below(const char *path, const char *root)
{
    size_t length = root ? strlen(root) : 0;

    return length > 1 && !strncmp(path, root, length) && path[length] == '/';
}

/* Ends the files learnt without the loader: two orders would request every file twice. */
static void begin_pass(struct ahead *ahead, struct list *list, const char *root, size_t length)
{
    struct file *file;

    if (length) { /* none: the list is off */
        free(list->root);
        list->root = strndup(root, length);
    }
    for (file = ahead->files; file; file = file->next_file)
        file->is_ignored |= file->set && is_below(file->path, list->root);
}

static void add_item(struct list *list, const struct item *added)
{
    struct item *item = calloc(1, sizeof *item);

    if (!item) {
        free(added->path);
        return;
    }
    *item = *added;
    if (list->last)
        list->last->next_item = item;
    else
        list->first = item;
    list->last = item;
    list->n_items++;
    if (!list->next)
        list->next = item;
}

static bool has_room(const struct list *list, uint64_t position)
{
    return !list->why && list->n_items < MOST_ITEMS && position >= list->done;
}

static void add_file(const struct ahead *ahead, struct list *list, uint64_t position,
                     const char *text, size_t length)
{
    struct item item = {.position = position, .watch = -1};

    if (length >= PATH_MAX || !has_room(list, position))
        return;
    item.path = strndup(text, length);
    if (item.path && item.path[0] == '/' && is_data(ahead, item.path))
        add_item(list, &item);
    else
        free(item.path);
}

/* The adapter sends the paths, with equal numbers, again in each pass. */
static void add_source(const struct ahead *ahead, struct list *list, uint32_t number,
                       const char *text, size_t length)
{
    char path[PATH_MAX];
    struct source **more;

    if (number >= MOST_SOURCES || length >= sizeof path ||
        (number < list->n_sources && list->sources[number]))
        return;
    memcpy(path, text, length);
    path[length] = 0;
    if (path[0] != '/' || strlen(path) != length || !is_data(ahead, path))
        return;
    if (number >= list->n_sources) {
        more = realloc(list->sources, (number + 1) * sizeof(struct source *));
        if (!more)
            return;
        list->sources = more;
        while (list->n_sources <= number)
            list->sources[list->n_sources++] = NULL;
    }
    list->sources[number] = source_new(path, length);
}

static void add_range(struct list *list, const struct range_entry *entry)
{
    struct item item = {.position = entry->position,
                        .watch = -1,
                        .range = {.kind = entry->kind,
                                  .width = entry->width,
                                  .offset = entry->offset,
                                  .bytes = entry->bytes,
                                  .at = entry->at}};

    if (entry->file >= list->n_sources || !list->sources[entry->file] ||
        !has_room(list, entry->position))
        return;
    item.source = list->sources[entry->file];
    add_item(list, &item);
}

static void take_ranges(struct ahead *ahead, struct list *list, const struct message *head,
                        const char *text, size_t length)
{
    size_t at = sizeof *head;
    uint32_t i;

    for (i = 0; i < head->n_entries; i++) {
        struct range_entry entry;

        if (length - at < sizeof entry)
            return;
        memcpy(&entry, text + at, sizeof entry);
        at += sizeof entry;
        if (length - at < entry.text_bytes)
            return;
        if (entry.kind == RANGE_NAME && entry.file == ROOT)
            begin_pass(ahead, list, text + at, entry.text_bytes);
        else if (entry.kind == RANGE_NAME)
            add_source(ahead, list, entry.file, text + at, entry.text_bytes);
        else if (entry.kind <= RANGE_OFFSETS64)
            add_range(list, &entry);
        at += entry.text_bytes;
    }
}

static void take_message(struct ahead *ahead, pid_t pid, const char *text, size_t length)
{
    struct message head;
    struct list *list;
    size_t at = sizeof head;
    uint32_t i;

    if (length < sizeof head)
        return;
    memcpy(&head, text, sizeof head);
    if (head.magic != MAGIC || !(list = list_of(ahead, pid, head.list)))
        return;
    if (head.flags & FLAG_NEW) {
        forget_all(ahead, list);
        list->total = head.total;
        list->began_ns = now_ns();
        ahead->wants_full = true;
        list->is_guess = head.flags & FLAG_GUESS && !list->is_ranges;
        list->is_ranges = head.flags & FLAG_RANGES;
    }
    list->is_short = head.flags & FLAG_SHORT;
    list->done = head.done;
    list->dispatched = head.dispatched;
    while (list->first && list->first->position < list->done)
        pop_item(ahead, list, true);
    if (list->is_ranges || head.flags & FLAG_RANGES) {
        if (list->is_ranges && head.flags & FLAG_RANGES)
            take_ranges(ahead, list, &head, text, length);
        return;
    }
    for (i = 0; i < head.n_entries; i++) {
        struct entry entry;

        if (length - at < sizeof entry)
            return;
        memcpy(&entry, text + at, sizeof entry);
        at += sizeof entry;
        if (length - at < entry.path_bytes)
            return;
        if (!i && head.flags & FLAG_NEW)
            begin_pass(ahead, list, text + at, entry.path_bytes);
        else
            add_file(ahead, list, entry.position, text + at, entry.path_bytes);
        at += entry.path_bytes;
    }
}

/* Return the sender of a message; 0: a process of another user. */
static pid_t sender_of(struct msghdr *message)
{
    struct cmsghdr *part;

    for (part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS) {
            struct ucred sender;

            memcpy(&sender, CMSG_DATA(part), sizeof sender);
            return sender.uid == geteuid() ? sender.pid : 0;
        }
    return 0;
}

/* An answer without room is sent with the next message. */
static void answer(int socket_fd, const struct sockaddr_un *sender, socklen_t length, pid_t pid)
{
    uint32_t i;

    for (i = 0; i < n_lists; i++) {
        struct list *list = lists[i];
        enum wish wish = list->why ? WISH_NONE : list->n_warm_row >= WARM_ROW ? WISH_FEW : WISH_ALL;
        struct answer text = {list->id, wish};

        if (list->pid == pid && wish != list->answered &&
            sendto(socket_fd, &text, sizeof text, MSG_DONTWAIT | MSG_NOSIGNAL,
                   (const struct sockaddr *)sender, length) == sizeof text)
            list->answered = wish;
    }
}

/* Take the messages from loaders. */
void lists_take(struct ahead *ahead, int socket_fd)
{
    static char text[1 << 16] __attribute__((aligned(8)));
    char control[CMSG_SPACE(sizeof(struct ucred))];
    struct iovec part = {text, sizeof text};

    for (;;) {
        struct sockaddr_un sender;
        struct msghdr message = {.msg_name = &sender,
                                 .msg_namelen = sizeof sender,
                                 .msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        ssize_t got = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        pid_t pid = got > 0 ? sender_of(&message) : 0;

        if (got < 0)
            break;
        if (!pid || message.msg_flags & MSG_TRUNC)
            continue;
        pthread_mutex_lock(&ahead->lock);
        look_at_events();
        take_message(ahead, pid, text, (size_t)got);
        answer(socket_fd, &sender, message.msg_namelen, pid);
        pthread_cond_broadcast(&told);
        pthread_mutex_unlock(&ahead->lock);
    }
}

/* What was expected of samples is right: read from here on. */
static void begin_reading(struct list *list)
{
    struct item *item;

    list->is_guess = false;
    for (item = list->first; item; item = item->next_item) {
        if (item->state != READ || item->position < list->dispatched)
            continue;
        item->state = WAITING;
        item->is_hit = false;
        if (!list->next || list->next->position > item->position)
            list->next = item;
    }
}

/* Of data in memory, nothing is to be decided. */
static bool is_pending(const struct list *list)
{
    return list->is_guess && !list->why && list->first && list->n_warm_row < WARM_ROW;
}

/* The program must be seen where samples handed out are expected, and not where samples to come
 * are. */
static void look_at_guess(const struct ahead *ahead, struct list *list)
{
    uint32_t n_matched = 0, n_looked = 0, n_coming = 0, n_by_chance = 0;
    struct item *item;

    if (!is_pending(list))
        return;
    for (item = list->first; item && n_coming < LOOKED_AT; item = item->next_item) {
        enum range_use touch;

        if (item->position < list->dispatched) {
            if (n_looked++ < LOOKED_AT)
                n_matched += look_at_range(ahead, list, item) == TOUCHED;
        } else if (item->state == READ && item->is_resolved) {
            touch = range_touch(ahead, item->source, &item->range);
            n_coming += touch != UNMAPPED;
            n_by_chance += touch == TOUCHED;
        }
    }
    n_matched += list->n_matched;
    if (n_matched >= PROBED && 4 * list->n_matched >= 3 * list->n_probed &&
        2 * n_by_chance <= n_coming)
        begin_reading(list);
    else if (list->n_probed >= 4 * PROBED && 2 * list->n_matched < list->n_probed)
        turn_off(list, "its samples are not where they were expected");
    else if (list->n_probed >= PROBED_MOST)
        turn_off(list, "whether its samples are where they were expected cannot be seen");
}

/* Take the events of opened files; give up the lists of ended processes. */
bool lists_look(struct ahead *ahead)
{
    static int64_t alive_ns;
    int64_t now = now_ns();
    bool is_any;
    uint32_t i;

    if (!n_lists)
        return false;
    pthread_mutex_lock(&ahead->lock);
    is_any = look_at_events();
    for (i = 0; i < n_lists; i++) {
        look_at_guess(ahead, lists[i]);
        is_any |= is_pending(lists[i]) && now - lists[i]->began_ns < PENDING_NS;
    }
    if (now - alive_ns > ALIVE_NS) {
        alive_ns = now;
        for (i = 0; i < n_lists; i++)
            if (kill(lists[i]->pid, 0) && errno == ESRCH)
                forget_all(ahead, lists[i]);
    }
    pthread_cond_broadcast(&told); /* memory may be free again */
    pthread_mutex_unlock(&ahead->lock);
    return is_any;
}

/* Whether a loader gives the order of a file. */
bool lists_cover(struct ahead *ahead, const char *path)
{
    bool is_covered = false;
    uint32_t i;

    pthread_mutex_lock(&ahead->lock);
    for (i = 0; i < n_lists && !is_covered; i++)
        is_covered = is_below(path, lists[i]->root);
    pthread_mutex_unlock(&ahead->lock);
    return is_covered;
}

/* A loader's file, opened by the job. */
void lists_seen_open(struct ahead *ahead, const char *path, bool is_direct)
{
    uint32_t i;

    pthread_mutex_lock(&ahead->lock);
    for (i = 0; i < n_lists && is_direct; i++)
        if (is_below(path, lists[i]->root))
            turn_off(lists[i], "the program reads past the page cache (O_DIRECT)");
    pthread_mutex_unlock(&ahead->lock);
}

/* Whether ranges of a file are read in the order of a loader. */
bool lists_read(const struct file *file)
{
    uint32_t i, j;

    for (i = 0; i < n_lists; i++)
        for (j = 0; j < lists[i]->n_sources; j++)
            if (lists[i]->read_bytes && lists[i]->sources[j] &&
                source_is(lists[i]->sources[j], file))
                return true;
    return false;
}

static uint64_t size_of(const struct list *list)
{
    uint64_t bytes = 0;
    uint32_t i;

    if (!list->is_ranges)
        return mean_of(list) * list->total;
    for (i = 0; i < list->n_sources; i++)
        bytes += list->sources[i] ? source_bytes(list->sources[i]) : 0;
    return bytes;
}

void lists_report(void)
{
    uint32_t i;

    for (i = 0; i < n_lists; i++) {
        const struct list *list = lists[i];
        char *at;

        if (!list->root || (!list->read_bytes && !list->why))
            continue;
        for (at = list->root; *at; at++)
            if (*at == '\n' || *at == '\t')
                *at = '?';
        printf("%s\t%llu\t%llu\t%llu\t%llu\t%s\t%s%s\n", list->why ? "off" : "loader",
               (unsigned long long)list->read_bytes, (unsigned long long)list->hit_bytes,
               (unsigned long long)list->hit_bytes, (unsigned long long)size_of(list),
               list->why ? list->why : "", list->root, list->is_ranges ? "" : "/");
    }
}
