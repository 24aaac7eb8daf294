/* Reads mapped data files and folders of small files ahead of a job, from a process beside the job.
 * Knows processes, mappings and the page cache; knows no log, and changes nothing in the job: no
 * call, no thread, no descriptor.
 *
 * watch.c finds the files mapped and the blocks touched by the job.  folder.c finds the folders
 * from which the job opens small files; each file counts as a block of the set.  learn.c decides
 * which blocks to read, reader.c reads the blocks, room.c bounds the memory, main.c runs the loop
 * and reports.  loader.c reads in the order sent by a data loader of the job: whole files, or the
 * ranges of ranges.c within mapped files. */
#ifndef PENSTOCK_AHEAD_H
#define PENSTOCK_AHEAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* A page fault maps the resident pages of the 64 KiB around the address (fault_around_bytes of the
 * kernel): page tables do not show finer positions of a program. */
#define BLOCK_BYTES (64u << 10)
#define PIECE_BLOCKS 16u /* of a request to the pool: 1 MiB */
/* Per file and look: the place where the program will be next, and a part of the rest in turn.  A
 * page has 8 bytes in the page table: 128 MiB have 256 KiB of page table, about 0.3 ms. */
#define FRONT_BLOCKS (uint32_t)((128u << 20) / BLOCK_BYTES)
#define REST_BLOCKS (uint32_t)((256u << 20) / BLOCK_BYTES)
#define LEAST_FILE_BYTES (1u << 20) /* a smaller file is a few faults */

enum order {
    ORDER_LEARNT, /* not known yet */
    ORDER_WARM,   /* the whole file was in memory */
    ORDER_WEIGHTS,
    ORDER_IN_ORDER,
    ORDER_RANDOM,
    ORDER_OFF,
};

struct file {
    struct file *next_file;
    dev_t device;
    ino_t inode;
    char *path;
    struct set *set; /* of small files; NULL: a mapped file */
    int fd;          /* -1: closed, as nobody has the file mapped */
    int lock_fd;     /* held by the node's only reader of the file; -1: not held */
    uint64_t size;
    int64_t modified_ns;
    unsigned char *view; /* for mincore, never touched; NULL: the kernel would not tell */
    uint32_t n_blocks;
    uint64_t *touched, *ours; /* a bit for each block */
    enum order order;
    const char *why; /* ORDER_OFF */
    bool is_mapped, is_ignored, is_wrapped;
    int64_t active_ns; /* when a block was last touched, or the file was mapped */
    int64_t mapped_ns; /* when the file was last seen mapped */
    uint64_t read_bytes, hit_bytes, touched_bytes; /* of all mappings of the file */
    uint32_t n_touched, n_runs;                    /* while the file was watched */
    uint32_t n_ours, n_hits;                       /* read here, and touched after the read */
    uint32_t front;                                /* where the last run of touches ended */
    uint32_t next, until;                          /* blocks to read: [next, until) */
    /* where reading began; after the end, reading goes on up to here */
    uint32_t first;
    uint32_t window;              /* blocks, in order */
    uint32_t portion_end_touched; /* random: n_touched when the last portion was asked */
    double expected_hits;         /* random: if the touches were spread evenly */
    uint32_t observed_hits;
    uint32_t n_in_flight, n_jumps;
    double read_share;  /* of the blocks untouched at the last look: read by us */
    uint32_t highest;   /* the last block of the last look with touches */
    uint32_t n_risen;   /* touches of a row of looks, each look wholly behind the look before */
    double rising_odds; /* against such a row by chance */
    uint32_t cursor;    /* of the samples */
    int64_t looked_ns;
};

struct mapping {
    uint64_t start, length, offset;
    struct file *file;
};

struct process {
    struct process *next_process;
    pid_t pid;
    uint64_t vm_pages;
    int64_t scanned_ns, scan_took_ns;
    int pagemap_fd, statm_fd;
    struct mapping *mappings;
    uint32_t n_mappings;
    bool is_seen;
};

struct ahead {
    pthread_mutex_t lock; /* of all fields below but processes, known only to the main thread */
    pthread_cond_t work;
    struct file *files;
    struct process *processes;
    pid_t launcher;
    const char *excluded; /* a folder with Penstock's own files */
    uint64_t limit_bytes, room_bytes;
    bool is_pressed, is_ending, weights_are_wrong, has_lists;
    bool wants_full; /* a loader has begun: its workers are new processes */
    int64_t full_ns; /* the last look at all processes */
};

static inline bool bit_of(const uint64_t *bits, uint32_t n)
{
    return bits[n / 64] >> n % 64 & 1;
}

static inline void set_bit(uint64_t *bits, uint32_t n)
{
    bits[n / 64] |= 1ull << n % 64;
}

int64_t now_ns(void);

/* watch.c */
void watch_processes(struct ahead *ahead, bool is_full);
bool watch_touches(struct ahead *ahead);

bool is_data(const struct ahead *ahead, const char *path);

/* folder.c; set_bytes under the lock */
void sets_find(struct ahead *ahead);
bool sets_look(struct ahead *ahead);
bool set_read(struct ahead *ahead, struct file *file, uint32_t number, char *scratch);
uint64_t set_bytes(const struct set *set, uint64_t n);
uint32_t set_spread(const struct set *set, uint32_t position);
int small_open(const char *path, struct stat *status);
bool small_is_there(int fd, const struct stat *status);
bool small_read(int fd, const struct stat *status, char *scratch);

/* ranges.c; range_touch only in the main thread */
enum range_kind { RANGE_NAME, RANGE_BYTES, RANGE_OFFSETS32, RANGE_OFFSETS64 };
enum range_use { UNMAPPED, UNTOUCHED, TOUCHED };

struct range {
    enum range_kind kind;
    uint32_t width;
    uint64_t offset, bytes, at;
};

struct source;
struct source *source_new(const char *text, size_t length);
uint64_t source_bytes(const struct source *source);
bool source_is(const struct source *source, const struct file *file);
bool source_open(struct source *source);
bool range_resolve(const struct source *source, struct range *range);
bool range_is_there(const struct source *source, const struct range *range);
bool range_read(const struct source *source, const struct range *range, char *scratch);
enum range_use range_touch(const struct ahead *ahead, const struct source *source,
                           const struct range *range);

/* loader.c; lists_outstanding under the lock */
void lists_take(struct ahead *ahead, int socket_fd);
bool lists_look(struct ahead *ahead);
bool lists_read(const struct file *file);
bool lists_cover(struct ahead *ahead, const char *path);
void lists_seen_open(struct ahead *ahead, const char *path, bool is_direct);
uint64_t lists_outstanding(void);
void lists_report(void);

/* learn.c; under the lock */
void learn_begin(struct ahead *ahead, struct file *file);
void learn_touched(struct ahead *ahead, struct file *file, const uint32_t *blocks, uint32_t n);
void learn_unmapped(struct ahead *ahead, struct file *file);

/* reader.c */
uint64_t ahead_outstanding(const struct ahead *ahead);
int reader_start(struct ahead *ahead);
int reader_start_small(struct ahead *ahead);
bool is_in_memory(long kind);
bool file_is_told(int fd, const struct stat *status);
bool file_make_bits(struct file *file);
bool file_open(struct file *file, const char *path);
void file_close(struct file *file);
bool file_is_resident(struct file *file);
uint64_t file_bytes(const struct file *file, uint32_t block, uint32_t end);
void file_undo(struct file *file);

/* room.c */
uint64_t room_bytes(void);
bool room_is_pressed(void);

#endif
