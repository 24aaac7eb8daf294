/* The bytes on disk.  docs/FORMAT.md describes the bytes in prose; a test holds log.py equal to
 * this file.
 *
 * A log is a header of a unit (with fields in the first 4 KiB, the rest is a hole) followed by
 * units of 64 KiB.  A unit begins with a block header; blocks hold events, growing up from the
 * header, and texts, growing down from the unit's end, or counters.  Everything is little endian.
 * A zero unit was reserved and never written. */
#ifndef PENSTOCK_EVENTS_H
#define PENSTOCK_EVENTS_H

#include <stdint.h>

#define LOG_MAGIC "PENSTOCK"
#define LOG_VERSION 1
#define LOG_HEADER_BYTES 65536 /* a whole unit: a mapping's offset must suit 64 KiB pages too */
#define LOG_UNIT_BYTES 65536
#define BLOCK_MAGIC 0x4b425350u /* "PSBK" */

/* Numbers are on disk and never reused; 127 stays free for page faults: no calls.
 * layer: 1 POSIX, 2 STDIO, 3 process, 4 application, 5 wait: purely blocking calls, recorded where
 * the calls blocked for WAIT_RECORDED_NS.
 * group: the cause of a wait in a report, and the group in the fold: read, write, metadata, ... */
#define OPS(X)                                                                                     \
    X(1, OPEN, posix, metadata)                                                                    \
    X(2, CLOSE, posix, metadata)                                                                   \
    X(3, READ, posix, read)                                                                        \
    X(4, WRITE, posix, write)                                                                      \
    X(5, PREAD, posix, read)                                                                       \
    X(6, PWRITE, posix, write)                                                                     \
    X(7, READV, posix, read)                                                                       \
    X(8, WRITEV, posix, write)                                                                     \
    X(9, PREADV, posix, read)                                                                      \
    X(10, PWRITEV, posix, write)                                                                   \
    X(11, LSEEK, posix, metadata)                                                                  \
    X(12, STAT, posix, metadata)                                                                   \
    X(13, FSTAT, posix, metadata)                                                                  \
    X(14, LSTAT, posix, metadata)                                                                  \
    X(15, ACCESS, posix, metadata)                                                                 \
    X(16, READLINK, posix, metadata)                                                               \
    X(17, OPENDIR, posix, metadata)                                                                \
    X(18, READDIR, posix, metadata)                                                                \
    X(19, CLOSEDIR, posix, metadata)                                                               \
    X(20, LIST, posix, metadata)                                                                   \
    X(21, FSYNC, posix, write)                                                                     \
    X(22, FDATASYNC, posix, write)                                                                 \
    X(23, SYNC_RANGE, posix, write)                                                                \
    X(24, SYNCFS, posix, write)                                                                    \
    X(25, TRUNCATE, posix, metadata)                                                               \
    X(26, FALLOCATE, posix, metadata)                                                              \
    X(27, RENAME, posix, metadata)                                                                 \
    X(28, UNLINK, posix, metadata)                                                                 \
    X(29, MKDIR, posix, metadata)                                                                  \
    X(30, RMDIR, posix, metadata)                                                                  \
    X(31, LINK, posix, metadata)                                                                   \
    X(32, SYMLINK, posix, metadata)                                                                \
    X(33, MMAP, posix, metadata)                                                                   \
    X(34, MUNMAP, posix, metadata)                                                                 \
    X(35, MSYNC, posix, write)                                                                     \
    X(36, SENDFILE, posix, read)                                                                   \
    X(37, COPY_RANGE, posix, read)                                                                 \
    X(38, SPLICE, posix, read)                                                                     \
    X(39, FADVISE, posix, metadata)                                                                \
    X(40, READAHEAD, posix, metadata)                                                              \
    X(41, DUP, posix, metadata)                                                                    \
    X(42, AIO_READ, posix, metadata)                                                               \
    X(43, AIO_WRITE, posix, metadata)                                                              \
    X(44, AIO_READ_DONE, posix, read)                                                              \
    X(45, AIO_WRITE_DONE, posix, write)                                                            \
    X(46, IO_URING, posix, metadata)                                                               \
    X(47, CHMOD, posix, metadata)                                                                  \
    X(48, CUFILE_READ, posix, read)                                                                \
    X(49, CUFILE_WRITE, posix, write)                                                              \
    X(50, CUFILE_SUBMIT, posix, metadata)                                                          \
    X(64, FOPEN, stdio, metadata)                                                                  \
    X(65, FDOPEN, stdio, metadata)                                                                 \
    X(66, FREOPEN, stdio, metadata)                                                                \
    X(67, FCLOSE, stdio, metadata)                                                                 \
    X(68, FREAD, stdio, read)                                                                      \
    X(69, FWRITE, stdio, write)                                                                    \
    X(70, FSEEK, stdio, metadata)                                                                  \
    X(71, FFLUSH, stdio, write)                                                                    \
    X(96, FORK, process, process)                                                                  \
    X(97, EXEC, process, process)                                                                  \
    X(98, SPAWN, process, process)                                                                 \
    X(99, ACCOUNT, process, account)                                                               \
    X(104, SEM_WAIT, wait, wait)                                                                   \
    X(105, COND_WAIT, wait, wait)                                                                  \
    X(106, FUTEX, wait, wait)                                                                      \
    X(107, POLL, wait, wait)                                                                       \
    X(108, SELECT, wait, wait)                                                                     \
    X(109, EPOLL, wait, wait)                                                                      \
    X(110, SLEEP, wait, sleep)                                                                     \
    X(111, WAITPID, wait, wait)                                                                    \
    X(112, JOIN, wait, wait)                                                                       \
    X(113, MUTEX, wait, wait)                                                                      \
    X(114, BARRIER, wait, wait)                                                                    \
    X(115, RECEIVE, wait, wait)                                                                    \
    X(116, SIGNAL, wait, wait)                                                                     \
    X(117, SYNC, wait, sync)                                                                       \
    X(118, COLLECTIVE, wait, exchange)                                                             \
    X(119, SEND, wait, wait)                                                                       \
    X(120, RESOLVE, wait, wait)                                                                    \
    X(128, WINDOW, app, app)                                                                       \
    X(129, STEP, app, app)                                                                         \
    X(130, SPAN, app, app)

enum op {
    OP_VOID = 0,
#define X(number, name, layer, group) OP_##name = number,
    OPS(X)
#undef X
};

#define OP_LIMIT 256

#define OP_FIRST_WAIT 104
#define OP_FIRST_APP 128 /* the fold past the budget keeps application events as single events */

/* The shortest recorded wait.  Waking a thread takes 5 to 50 µs, so a shorter wait says little
 * about the cause; and a thread records at most 20,000 waits a second. */
#define WAIT_RECORDED_NS 50000

/* A call.  Opened before the call (duration 0), completed after the call: an event whose duration
 * is still 0 was in flight when the log ends.  A slot without an op holds no event: the slot was
 * reserved and not yet written, or taken back.  offset is -1 where the offset is unknown or has no
 * meaning.  The file id of a wait is the id of the calling object (TEXT_OBJECT).  An ACCOUNT
 * belongs to the call of its thread with an equal start: asked is the ns of the call on a CPU,
 * moved the ns ready without a CPU. */
struct event {
    uint64_t begun; /* ticks from the block's `first` << 24 | op << 16 | low half of the file id */
    uint64_t done;  /* duration << 24 | errno << 16 | high half of the file id */
    int64_t offset; /* bytes; a second file's id: RENAME, LINK, SENDFILE, COPY_RANGE, SPLICE, and of
                       POLL, SELECT, EPOLL, RECEIVE and SEND the descriptor's; of other waits, an
                       address; of a read from a connection, -2 less enum net_phase */
    uint32_t asked; /* bytes; of a wait for a connection, enum net_phase */
    /* Bytes; of a wait, the waking thread, 0 not known; of POLL, SELECT, EPOLL, RECEIVE and SEND,
     * the bytes that the thread received by recv, less the bytes sent, since the thread's last wait
     * in a call of the list. */
    uint32_t moved;
};

/* Values too large for an event stand in the slot after the event; the event's own fields are then
 * 0.  A carried event is always of this kind. */
struct event_rest {
    uint64_t mark;         /* OP_REST << 16 */
    uint64_t start;        /* ticks of the log's clock */
    uint64_t asked, moved; /* bytes, less than 2^63 */
};

/* The cause of a thread's wait at a connection: numbers are on disk.  An answer begins with the
 * first bytes after a send. */
enum net_phase {
    NET_NOT_KNOWN = 0,
    NET_CONNECT = 1,
    NET_SEND = 2,
    NET_FIRST_BYTE = 3,
    NET_TRANSFER = 4
};
#define NET_PHASES 5

#define OP_REST 255

#define EVENT_TIME_BITS 40
/* A duration of 40 bits: with the highest bit set, the others count 2^16 ticks, the rest cut
 * off. */
#define EVENT_LONG_BIT 39
#define EVENT_LONG_SHIFT 16

/* A closed block of events no longer changes: `limit` holds the CRC-32C of the header with limit 0,
 * the records and the texts. */
enum block_kind { BLOCK_EVENTS = 1, BLOCK_CALLS = 2, BLOCK_ACCESS = 3, BLOCK_CLOSED = 4 };

struct block {
    uint32_t magic;
    uint32_t kind;
    uint64_t
        round; /* unique in the log; a chunk and a live block of equal round hold equal events */
    uint32_t used;    /* records reserved; may exceed limit by a few when the process was killed */
    uint32_t limit;   /* room for records */
    uint32_t texts;   /* where the lowest text begins, bytes from the block's start */
    uint32_t thread;  /* number of the thread in the log, from 1 */
    uint32_t tid;     /* the kernel's thread id */
    uint32_t carried; /* slots at the front with calls older than the block */
    uint64_t first;   /* ticks when the block was begun */
    char name[16];    /* the thread's name */
};

/* A text defines the meaning of an id.  bytes: name, NUL, resolved name, NUL; padded to 8.  A file
 * may have a second text with an empty name: the text adds the facts from the first open. */
enum text_kind {
    TEXT_FILE = 1,
    TEXT_NAME = 2,
    TEXT_NOTE = 3,
    TEXT_OBJECT = 4, /* a waiting program or library: base name, path; ids as files have */
    /* counts of a connection; the id is the endpoint's, a file; no names, and struct
     * connection_record at the end */
    TEXT_CONNECTION = 5,
    /* a request over HTTP; the name is endpoint, method, operation, client, bucket and error, tabs
     * between, the resolved name is the path, and struct request_record stands at the end */
    TEXT_REQUEST = 6
};

struct text {
    uint32_t bytes; /* of the whole record, a multiple of 8 */
    uint32_t kind;
    uint32_t id;   /* file id or name id */
    uint32_t base; /* the file id of the start folder of a relative path, 0: absolute */
    uint32_t mode; /* st_mode at the first open, 0: not measured */
    uint32_t tier; /* enum file_place */
    uint64_t device, inode;
    int64_t size; /* st_size at the first open, -1: not measured */
};

enum connection_flag {
    CONNECTION_ACCEPTED = 1,
    CONNECTION_EARLIER = 2, /* opened before the recording, by another process, or unseen */
    CONNECTION_COPY = 4     /* by dup: of the number's first descriptor */
};

/* A TCP connection so far: a later record of equal number and descriptor replaces an earlier
 * record.  Times are ticks of the log's clock, 0: not seen, or not yet. */
struct connection_record {
    uint64_t number; /* in the log, from 1; shared by copies of a descriptor */
    uint64_t opened, connected, closed, told;
    uint64_t received, sent;  /* bytes, by recorded calls */
    uint64_t receives, sends; /* calls with bytes */
    uint64_t answers;         /* bytes right after a send */
    /* from a send's end to the first answer; from there to the last bytes */
    uint64_t first_byte, transfer;
    uint64_t waited[NET_PHASES];           /* of blocked threads, in recorded waits */
    uint64_t kernel_received, kernel_sent; /* bytes, by TCP_INFO */
    uint32_t rtt_us, rtt_min_us, retransmits;
    uint32_t flags;
    uint32_t fd;
    uint32_t object; /* the connecting or accepting object, 0: not known */
    uint16_t local_port, peer_port;
    uint32_t summed;             /* number of connections in the record; 0: a single connection */
    uint8_t local[16], peer[16]; /* addresses; IPv4 as ::ffff:a.b.c.d */
    uint64_t handshake;          /* of TLS, from `connected` on; 0: none was seen to the end */
};

enum request_flag {
    REQUEST_PART = 1,     /* the body was not read to the end */
    REQUEST_FAILED = 2,   /* ended in an error before the answer, or in mid-body */
    REQUEST_FOLDED = 4,   /* sums of several: replaced by a later record of the number */
    REQUEST_OPERATION = 8 /* of a client with unseen requests */
};

/* A request that ended, as seen by an adapter.  Durations are ns. */
struct request_record {
    uint64_t number;     /* in the process, from 1 */
    uint64_t told;       /* ticks of the log's clock at the write of the record */
    uint64_t connection; /* number of the connection, 0: not known */
    uint64_t ago;        /* from the begin to `told` */
    uint64_t first_byte; /* from the begin to the first byte of the answer, ~0: none came */
    uint64_t duration;
    uint64_t received;                 /* bytes of the answer's body, as sent */
    int64_t sent;                      /* bytes of the request's body, -1: not known */
    int64_t range_first, range_length; /* bytes asked for, -1: no range, or up to the end */
    int64_t object_bytes;              /* the whole object's, -1: not known */
    uint64_t backoff;                  /* the client's sleep before, after a failed try */
    uint64_t requests;                 /* 1; in a folded record, how many */
    int64_t batch;                     /* assigned to the thread, -1: not known */
    uint32_t tid;                      /* of the thread that began the request */
    uint16_t status;                   /* 0: no answer */
    uint16_t attempt;                  /* number of earlier tries */
    uint32_t flags;
    uint32_t unused;
};

/* Past the budget single events are folded into the counters below; nothing is dropped without a
 * count. */
struct calls_counter {
    uint32_t file, op;
    uint64_t calls, errors, ticks, max_ticks, first, last;
    uint64_t asked, moved;
};

#define COUNTER_BUCKETS                                                                            \
    10 /* 0-100 B, 1 K, 10 K, 100 K, 1 M, 4 M, 10 M, 100 M, 1 G and more: Darshan's */
#define COUNTER_COMMON 4

struct access_counter {
    uint32_t file, op;
    uint64_t calls, errors, ticks, max_ticks, first, last;
    uint64_t asked, moved, max_ticks_bytes;
    int64_t max_end;      /* the highest byte touched plus 1, -1: unknown */
    int64_t first_offset; /* of the first with an offset: only the reader knows the earlier */
    int64_t last_end;     /* where the latest access ended; both -1: none had an offset */
    uint64_t sequential, consecutive, switches, unaligned, empty;
    uint64_t buckets[COUNTER_BUCKETS];
    struct {
        int64_t value;
        uint64_t calls;
    } sizes[COUNTER_COMMON], strides[COUNTER_COMMON];
};

/* Where a file was opened, in a text: numbers are on disk. */
enum file_place {
    AT_ITS_PATH = 0,
    STAGED_COPY = 1,  /* on the tier of the note `tier` */
    ON_BURST_TIER = 2 /* on the fast tier, as a new file on its way home; the note `burst tier` */
};

/* The result of opening a file with a copy on a tier: numbers are on disk. */
#define STAGED_OUTCOMES(X)                                                                         \
    X(1, SERVED)  /* the copy was opened */                                                        \
    X(2, CHANGED) /* the source has changed since */                                               \
    X(3, DROPPED) /* a recorded program wrote, renamed or removed the source */                    \
    X(4, ABSENT)  /* not copied yet, or evicted */                                                 \
    X(5, GONE)    /* the copy cannot be opened: a vanished tier */                                 \
    X(6, DAMAGED) /* the copy itself has changed */                                                \
    X(7, DIRECT)  /* O_DIRECT was asked for */                                                     \
    X(8, DENIED)  /* the program may not read the source */                                        \
    X(9, WRITTEN) /* opened for writing: no longer served */

enum staged_outcome {
    STAGED_NOT = 0,
#define X(number, name) STAGED_##name = number,
    STAGED_OUTCOMES(X)
#undef X
};

enum log_state {
    LOG_RUNNING = 1, /* or killed: the reader asks whether the process is alive */
    LOG_STOPPED = 2, /* no window is open */
    LOG_EXITED = 3,
    LOG_EXECED = 4,
    LOG_FAILED = 5 /* the recorder's own failure ended the recording; see reason */
};

enum log_clock { CLOCK_NS = 0, CLOCK_TSC = 1 };
enum log_origin {
    ORIGIN_RUN = 1,
    ORIGIN_RECORD = 2,
    ORIGIN_FORK = 3,
    ORIGIN_EXEC = 4,
    ORIGIN_ATTACH = 5
};

struct log_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t unit_bytes;
    uint32_t event_bytes;
    uint32_t pid, ppid;
    uint32_t clock;
    uint32_t origin;
    uint32_t state;
    int32_t error;          /* errno of LOG_FAILED */
    uint64_t units;         /* reserved so far */
    uint64_t start_ticks;   /* three clocks read together when the log was made ... */
    uint64_t start_ns;      /* CLOCK_MONOTONIC */
    uint64_t start_unix_ns; /* CLOCK_REALTIME */
    uint64_t last_ticks; /* ... and two of the clocks again, after each full block and at the end */
    uint64_t last_ns;
    uint64_t ticks_per_s; /* nominal, measured over a millisecond */
    uint64_t budget_bytes;
    uint64_t chunk_bytes; /* written of the budget */
    uint64_t folded;      /* single events kept only in counters */
    uint64_t lost;   /* calls after LOG_FAILED, also of children without a log; a remaining count */
    uint64_t unseen; /* recorded calls with unseen contents (io_uring, cuFile) */
    uint64_t attach_ns;                    /* duration of the first start */
    uint32_t slots;                        /* import slots patched */
    uint32_t objects;                      /* loaded objects scanned */
    uint32_t slots_failed;                 /* could not be made writable */
    uint32_t rank, local_rank, world_size; /* ~0: not known */
    uint8_t boot_id[16];
    char host[64];
    char reason[192];
    char executable[512];
    char folder[512];   /* working directory at start */
    char command[2048]; /* arguments, separated by NUL, ended by two */
    uint64_t opens[16]; /* of staged files, by outcome; [0] is not used */
    /* waits of at least this length are recorded; 0: waits are not recorded */
    uint64_t waits_from_ns;
    uint64_t own_calls; /* system calls of the recorder's own after its start ... */
    uint64_t own_ticks; /* ... and their duration, with the work in between */
};

/* Page faults lie in a separate file, written beside the job: a header, then chunks, each with
 * records of a single kind.  Files and images are numbered from 1 in the order of their appearance;
 * an image is the part of a process' life between two calls of exec.  Times are CLOCK_MONOTONIC
 * ns. */
#define FAULTS_MAGIC "PENFAULT"
#define FAULTS_VERSION 2 /* since 2 the header and each chunk have checksums */
#define FAULTS_HEADER_BYTES 256

struct faults_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t launcher; /* pid of the writer */
    uint32_t page_bytes;
    uint64_t start_ns;      /* CLOCK_MONOTONIC */
    uint64_t start_unix_ns; /* CLOCK_REALTIME */
    uint32_t cpus;          /* CPUs with sampled faults */
    uint32_t ring_bytes;    /* of each */
    uint32_t is_user_only;  /* 1: faults inside system calls are not seen */
    uint32_t sum;           /* of the header, with `sum` as 0 */
    uint8_t boot_id[16];
    char host[64];
};

enum chunk_kind {
    CHUNK_FILE = 1,
    CHUNK_IMAGES = 2,
    CHUNK_FAULTS = 3,
    CHUNK_COUNTS = 4,
    CHUNK_STATE = 5
};

struct chunk {
    uint32_t kind;
    uint32_t bytes;    /* of the whole chunk, a multiple of 8 */
    uint32_t head_sum; /* of kind and bytes: shows where the next chunk begins, and a cut end */
    uint32_t sum;      /* of the records */
};

/* A mapped file; the path follows, ended by a NUL. */
struct fault_file {
    uint32_t file;
    uint32_t device_major, device_minor;
    uint32_t reserved;
    uint64_t inode;
};

struct fault_image {
    uint32_t image;
    uint32_t pid, ppid; /* ppid 0: not known, began with exec or ran already */
    uint32_t is_joined; /* 1: ran when sampling began, at start_ns */
    uint64_t start_ns;
};

enum fault_kind { FAULT_MINOR = 1, FAULT_MAJOR = 2 };

struct fault {
    uint64_t start_ns;
    uint64_t duration_ns; /* ~0: the begin was not seen */
    uint64_t offset;      /* of the page in the file, bytes */
    uint32_t image, tid, file, kind;
};

/* All faults of an image in a file, from the beginning: a later record takes an earlier one's
 * place. File 0 is memory without a file. */
struct fault_counts {
    uint32_t image, file;
    uint64_t major, minor;
    uint64_t waited; /* minor faults of FAULT_WAITED_NS and more */
    uint64_t major_ns, minor_ns, waited_ns;
    uint64_t max_ns;
    uint64_t kept; /* faults with single records */
};

/* A minor fault takes 1 to 3 µs, also with 16 pages at once; no device answers sooner than 10 µs.
 * A longer fault waited: for a page already on its way, or for a CPU. */
#define FAULT_WAITED_NS 10000

/* The latest state counts.  counted: by the kernel, exactly; seen: faults with samples. */
struct faults_state {
    uint64_t now_ns;
    uint64_t counted_major, counted_minor;
    uint64_t seen_major, seen_minor;
    uint64_t foreign;  /* seen, but of no known process: the launcher's own */
    uint64_t unpaired; /* seen without their begin: no duration */
    uint64_t lost;     /* records lost to a full ring, of any kind */
    uint64_t folded;   /* seen and counted, but no single record */
    uint32_t is_ended; /* 1: the program has */
    int32_t error;     /* errno; single records end here */
};

_Static_assert(sizeof(struct event) == 32, "an event is 32 bytes on disk");
_Static_assert(sizeof(struct event_rest) == 32, "the rest of an event is a slot on disk");
_Static_assert(sizeof(struct block) == 64, "a block header is 64 bytes on disk");
_Static_assert(sizeof(struct text) == 48, "a text header is 48 bytes on disk");
_Static_assert(sizeof(struct connection_record) == 224, "a connection is 224 bytes on disk");
_Static_assert(sizeof(struct request_record) == 128, "a request is 128 bytes on disk");
_Static_assert(sizeof(struct calls_counter) == 72, "a calls counter is 72 bytes on disk");
_Static_assert(sizeof(struct access_counter) == 352, "an access counter is 352 bytes on disk");
_Static_assert(sizeof(struct faults_header) <= FAULTS_HEADER_BYTES, "the header fits");
_Static_assert(sizeof(struct chunk) == 16, "a chunk's head is 16 bytes on disk");
_Static_assert(sizeof(struct fault_file) == 24, "a mapped file is 24 bytes and its path on disk");
_Static_assert(sizeof(struct fault_image) == 24, "an image is 24 bytes on disk");
_Static_assert(sizeof(struct fault) == 40, "a fault is 40 bytes on disk");
_Static_assert(sizeof(struct fault_counts) == 72, "counts are 72 bytes on disk");
_Static_assert(sizeof(struct faults_state) == 80, "a state is 80 bytes on disk");
_Static_assert(sizeof(struct log_header) <= 4096, "the header fits its page");

#endif
