/* From the touched blocks of a file, decides about the next blocks.  Reads nothing. */
#include "ahead.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define IN_ORDER_BLOCKS 8u /* 512 KiB in a run, on average */
#define RANDOM_RUNS 8u
#define RANDOM_BLOCKS 32u
#define WINDOW_BLOCKS (uint32_t)((16u << 20) / BLOCK_BYTES)
#define PORTION_BLOCKS (uint32_t)((64u << 20) / BLOCK_BYTES)
#define JUMPS 4u
#define WHOLE_SHARE 8u /* in order: after an eighth of the file, the whole file is expected */
#define JUDGED_BLOCKS (uint32_t)((64u << 20) / BLOCK_BYTES)
#define LEAST_HITS 0.25    /* of the blocks read, or of the hits expected by chance */
#define RANDOM_TOUCHES 16u /* between two portions, and for a judgement */
/* A program with touches of separate places in rising order, as a reader of the heads of an Arrow
 * file does, is not random: the program does not need the blocks between its touches yet. */
#define RISING_ODDS 24.0

/* safetensors: 8 bytes of length, then JSON; GGUF; torch.save: a zip with data.pkl as the first
 * entry. */
static bool holds_weights(const struct file *file)
{
    unsigned char head[128] = {0};
    ssize_t got = pread(file->fd, head, sizeof head - 1, 0);

    if (got < 64)
        return false;
    if (!memcmp(head, "GGUF", 4))
        return true;
    if (!memcmp(head, "PK\3\4", 4))
        return strstr((const char *)head + 30, "/data.pkl") != NULL;
    return head[8] == '{' && head[9] == '"' && !head[4] && !head[5] && !head[6] && !head[7];
}

static void turn_off(struct file *file, const char *why)
{
    file->order = ORDER_OFF;
    file->why = why;
    file->next = file->until = 0;
    file_undo(file);
}

/* Only one reader of a file on a node: the name is free again when the reader's process ends,
 * however the process ends. */
static bool hold_lock(struct file *file)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length, fd;

    if (file->lock_fd >= 0)
        return true;
    length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "penstock-ahead-%x-%llx-%llx",
                      getuid(), (unsigned long long)file->device, (unsigned long long)file->inode);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return true; /* two readers read only the missing blocks twice */
    if (bind(fd, (struct sockaddr *)&name,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length))) {
        close(fd);
        return false;
    }
    file->lock_fd = fd;
    return true;
}

static void read_until(struct ahead *ahead, struct file *file, uint32_t first, uint32_t until)
{
    if (!hold_lock(file))
        return;
    file->first = file->next = first;
    file->until = until < file->n_blocks ? until : file->n_blocks;
    file->is_wrapped = false;
    pthread_cond_broadcast(&ahead->work);
}

/* A file mapped for the first time, or again. */
void learn_begin(struct ahead *ahead, struct file *file)
{
    if (file->order == ORDER_OFF)
        return;
    file->front = file->n_risen = 0;
    file->read_share = 0;
    file->order = ORDER_LEARNT;
    if (file_is_resident(file))
        file->order = ORDER_WARM;
    else if (!ahead->weights_are_wrong && holds_weights(file)) {
        file->order = ORDER_WEIGHTS;
        read_until(ahead, file, 0, file->n_blocks);
    }
    file->looked_ns = file->active_ns = now_ns();
}

static void in_order(struct ahead *ahead, struct file *file)
{
    bool is_jump = file->front > file->until || file->front < file->first;

    if (file->order != ORDER_IN_ORDER) {
        file->order = ORDER_IN_ORDER;
        file->window = WINDOW_BLOCKS;
        read_until(ahead, file, file->front, file->front + file->window);
    } else if (file->is_wrapped) {
        return;
    } else if (file->n_touched > file->n_blocks / WHOLE_SHARE) {
        file->until = file->n_blocks; /* then from the start: see the reader */
    } else if (is_jump) {
        file->n_jumps++;
        file->window = WINDOW_BLOCKS;
        read_until(ahead, file, file->front, file->front + file->window);
    } else if (file->front + file->window / 2 >= file->until) {
        if (file->window < file->n_blocks)
            file->window *= 2;
        file->until = file->front + file->window;
        if (file->until > file->n_blocks)
            file->until = file->n_blocks;
    }
    pthread_cond_broadcast(&ahead->work);
}

static bool is_rising(const struct file *file)
{
    return file->rising_odds >= RISING_ODDS;
}

/* Of m and then n random places, all n lie behind all m by chance once in (m + n over n) times,
 * more than 1 + m n.  In a large file, a look sees the front and a part of the rest: only there the
 * order is known. */
static void note_rising(struct file *file, const uint32_t *blocks, uint32_t n)
{
    bool is_seen = file->set || file->n_blocks <= FRONT_BLOCKS + REST_BLOCKS ||
                   blocks[n - 1] < file->front + (uint64_t)FRONT_BLOCKS;

    if (is_seen && file->n_risen && blocks[0] > file->highest) {
        file->rising_odds *= 1 + (double)file->n_risen * n;
        file->n_risen += n;
    } else {
        file->rising_odds = 1;
        file->n_risen = n;
    }
    file->highest = blocks[n - 1];
}

/* Reads in portions.  Each portion doubles the amount read: the touches since the last portion must
 * have hit the blocks read as often as chance predicts. */
static void at_random(struct ahead *ahead, struct file *file)
{
    if (file->order != ORDER_RANDOM) {
        if (file->size > ahead->room_bytes) {
            turn_off(file, "random order, and the file is larger than the free memory");
            return;
        }
        file->order = ORDER_RANDOM;
        file->expected_hits = file->observed_hits = 0;
        file->portion_end_touched = file->n_touched;
        if (is_rising(file))
            read_until(ahead, file, file->front, file->front + PORTION_BLOCKS);
        else
            read_until(ahead, file, 0, PORTION_BLOCKS);
    } else if (file->expected_hits >= RANDOM_TOUCHES &&
               file->observed_hits < LEAST_HITS * file->expected_hits) {
        turn_off(file, "what was read ahead was not what the program touched");
    } else if (file->is_wrapped) {
        return;
    } else if (is_rising(file) && file->front > file->next && file->front < file->n_blocks) {
        /* The blocks behind the program are read at the end. */
        read_until(ahead, file, file->front, file->front + PORTION_BLOCKS);
    } else if (file->next >= file->until && file->until < file->n_blocks &&
               file->n_touched >= file->portion_end_touched + RANDOM_TOUCHES) {
        file->portion_end_touched = file->n_touched;
        if (!file->until) { /* another reader had the file */
            read_until(ahead, file, 0, PORTION_BLOCKS);
            return;
        }
        file->until += file->until - file->first;
        if (file->until > file->n_blocks)
            file->until = file->n_blocks;
        pthread_cond_broadcast(&ahead->work);
    }
}

static void judge(struct ahead *ahead, struct file *file)
{
    bool is_missed = file->n_hits < LEAST_HITS * file->n_ours && file->n_ours > JUDGED_BLOCKS;

    if (file->order == ORDER_IN_ORDER && file->n_jumps >= JUMPS && is_missed)
        at_random(ahead, file); /* large records */
    else if (file->order == ORDER_IN_ORDER)
        in_order(ahead, file);
    else if (file->order == ORDER_RANDOM)
        at_random(ahead, file);
    else if (file->order == ORDER_LEARNT) {
        if (file->n_touched >= IN_ORDER_BLOCKS * (file->n_runs ? file->n_runs : 1))
            in_order(ahead, file);
        else if (file->n_touched >= RANDOM_BLOCKS && file->n_runs >= RANDOM_RUNS)
            at_random(ahead, file);
    } else if (file->order == ORDER_WEIGHTS && file->lock_fd < 0)
        read_until(ahead, file, 0, file->n_blocks); /* the other reader may have ended */
}

/* Takes the newly touched blocks, in their order. */
void learn_touched(struct ahead *ahead, struct file *file, const uint32_t *blocks, uint32_t n)
{
    double share = file->read_share; /* blocks read later came after some of the touches */
    uint32_t i;

    file->active_ns = now_ns();
    note_rising(file, blocks, n);
    for (i = 0; i < n; i++) {
        uint32_t block = blocks[i];
        bool is_sweep = file->order == ORDER_RANDOM && is_rising(file);
        bool is_new_run = !block || !bit_of(file->touched, block - 1);

        if (bit_of(file->touched, block))
            continue;
        set_bit(file->touched, block);
        file->n_touched++;
        file->touched_bytes += file_bytes(file, block, block + 1);
        file->n_runs += is_new_run;
        file->expected_hits += is_sweep ? 0 : share; /* by chance only where chance decides */
        if (bit_of(file->ours, block)) {
            file->n_hits++;
            file->hit_bytes += file_bytes(file, block, block + 1);
            file->observed_hits += !is_sweep;
        }
        /* The front is where a run grew last; of a sample of several the furthest. */
        if (!is_new_run || file->order == ORDER_LEARNT || is_sweep)
            file->front = block + 1;
    }
    file->read_share = 0;
    if (file->n_blocks > file->n_touched)
        file->read_share =
            (double)(file->n_ours - file->n_hits) / (file->n_blocks - file->n_touched);
    judge(ahead, file);
}

/* The program gave up the last mapping of the file some time ago: judge the blocks read of
 * weights. */
void learn_unmapped(struct ahead *ahead, struct file *file)
{
    if (file->n_in_flight)
        return;
    file->next = file->until = 0;
    if (file->order == ORDER_WEIGHTS && file->n_ours > JUDGED_BLOCKS &&
        file->n_hits < LEAST_HITS * file->n_ours) {
        ahead->weights_are_wrong = true;
        turn_off(file, "weights that the program did not touch");
    }
    file_close(file);
}
