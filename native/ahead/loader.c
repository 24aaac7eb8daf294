/* Files in the order in which a data loader of the job will read them.  The adapter in the job
 * sends the coming files, and how many samples the loader has handed out, to a socket; the answer
 * names the files not needed from the adapter.  A kernel event (inotify) for each file shows
 * whether the program opened a file read here. */
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
#define MOST_ITEMS 8192u /* of a list; the adapter sends fewer */
#define THREADS 16       /* a small file waits for three answers: name, open, bytes */
#define JUDGED 64u       /* files before a judgement */
#define JUDGED_MOST 2048u
#define LEAST_HITS 0.25
#define WARM_ROW 64u    /* files in memory in a row: from here on only some are looked at */
#define WARM_EVERY 16u  /* the first of every 16 */
#define ERRORS_ROW 256u /* unreadable files, in a row */
#define ALIVE_NS 1000000000
#define FIRST_MEAN (128u << 10)

enum flag {
    FLAG_NEW = 1,   /* a new pass; the first entry is the folder of all files */
    FLAG_SHORT = 2, /* files of batches already with the workers */
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

enum state { WAITING, READING, READ };

struct item {
    struct item *next_item;
    char *path;
    uint64_t position, bytes;
    int watch;
    enum state state;
    /* read before a worker had the file; opened; given up during the read */
    bool is_early, is_hit, is_gone;
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
    bool is_short;
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

static void turn_off(struct list *list, const char *why)
{
    if (!list->why)
        list->why = why;
    list->next = NULL;
}

static void judge(struct list *list, const struct item *item)
{
    if (!item->bytes || item->watch < 0 || !(item->is_early || list->is_short))
        return;
    list->n_judged++;
    list->n_hits += item->is_hit;
    if (list->n_judged >= JUDGED && list->n_hits < LEAST_HITS * list->n_judged)
        turn_off(list, "the program opened fewer than a quarter of the files that were read ahead");
    if (list->n_judged >= JUDGED_MOST) {
        list->n_judged /= 2;
        list->n_hits /= 2;
    }
}

/* Removes the first file of a list. */
static void pop_item(struct list *list, bool is_judged)
{
    struct item *item = list->first;

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
    if (is_judged)
        judge(list, item);
    free_item(item);
}

static void forget_all(struct list *list)
{
    while (list->first)
        pop_item(list, false);
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
        list->n_reading++;
        reading_bytes += mean_of(list);
        return list->next;
    }
    return NULL;
}

struct look {
    uint64_t size, bytes;
    bool is_there, is_error;
};

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
        turn_off(list, "its files are not small, or cannot be read");
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
        look = read_item(ahead, item, scratch);
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

static void add_item(const struct ahead *ahead, struct list *list, uint64_t position,
                     const char *text, size_t length)
{
    struct item *item;

    if (list->why || list->n_items == MOST_ITEMS || length >= PATH_MAX || position < list->done)
        return;
    item = calloc(1, sizeof *item);
    if (!item)
        return;
    *item = (struct item){.position = position, .watch = -1, .path = strndup(text, length)};
    if (!item->path || item->path[0] != '/' || !is_data(ahead, item->path)) {
        free(item->path);
        free(item);
        return;
    }
    if (list->last)
        list->last->next_item = item;
    else
        list->first = item;
    list->last = item;
    list->n_items++;
    if (!list->next)
        list->next = item;
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
        forget_all(list);
        list->total = head.total;
    }
    list->is_short = head.flags & FLAG_SHORT;
    list->done = head.done;
    list->dispatched = head.dispatched;
    while (list->first && list->first->position < list->done)
        pop_item(list, true);
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
            add_item(ahead, list, entry.position, text + at, entry.path_bytes);
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
    if (now - alive_ns > ALIVE_NS) {
        alive_ns = now;
        for (i = 0; i < n_lists; i++)
            if (kill(lists[i]->pid, 0) && errno == ESRCH)
                forget_all(lists[i]);
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
        printf("%s\t%llu\t%llu\t%llu\t%llu\t%s\t%s/\n", list->why ? "off" : "loader",
               (unsigned long long)list->read_bytes, (unsigned long long)list->hit_bytes,
               (unsigned long long)list->hit_bytes,
               (unsigned long long)(mean_of(list) * list->total), list->why ? list->why : "",
               list->root);
    }
}
