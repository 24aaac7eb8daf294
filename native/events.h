/* The bytes on disk.  docs/FORMAT.md says the same in prose; a test holds log.py equal to this
 * file.
 *
 * A log is a header of one unit (its fields lie in the first 4 KiB, the rest is a hole) followed by
 * units of 64 KiB.  A unit begins with a block header; blocks hold events that grow up from the
 * header and texts that grow down from the unit's end, or counters. Everything is little endian.  A
 * zero unit was reserved and never written. */
#ifndef PENSTOCK_EVENTS_H
#define PENSTOCK_EVENTS_H

#include <stdint.h>

#define LOG_MAGIC "PENSTOCK"
#define LOG_VERSION 1
#define LOG_HEADER_BYTES 65536 /* a whole unit: a mapping's offset must suit 64 KiB pages too */
#define LOG_UNIT_BYTES 65536
#define BLOCK_MAGIC 0x4b425350u /* "PSBK" */

/* Numbers are on disk and never reused; 127 stays free for page faults, which are no calls.
 * layer: 1 POSIX, 2 STDIO, 3 process, 4 application, 5 wait: calls that only block, recorded where
 * they blocked for WAIT_RECORDED_NS.
 * group: what a wait is attributed to, and what the fold keeps: read, write, metadata, ... */
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
#define OP_FIRST_APP 128 /* the fold past the budget keeps these as single events */

/* The shortest wait that is recorded.  Waking a thread takes 5 to 50 µs, so a shorter wait says
 * little about what the thread waited for; and a thread records at most 20,000 waits a second. */
#define WAIT_RECORDED_NS 50000

/* One call.  Opened before it (duration 0), completed after it: an event whose duration is still 0
 * was in flight when the log ends.  A slot without an op holds no event: it was reserved and not
 * yet written, or taken back.  offset is -1 where it is unknown or has no meaning.  Of a wait, the
 * file id is that of the loaded object that called (TEXT_OBJECT).  An ACCOUNT is of the call of its
 * thread that began when it does: asked is how many ns of the call the thread was on a CPU, moved
 * how many it was ready and had none. */
struct event {
    uint64_t begun; /* ticks from the block's `first` << 24 | op << 16 | low half of the file id */
    uint64_t done;  /* duration << 24 | errno << 16 | high half of the file id */
    int64_t offset; /* bytes; a second file's id: RENAME, LINK, SENDFILE, COPY_RANGE, SPLICE, and of
                       POLL, SELECT, EPOLL, RECEIVE and SEND the descriptor's; of other waits, an
                       address; of a read from a connection, -2 less enum net_phase */
    uint32_t asked; /* bytes; of a wait for a connection, enum net_phase */
    /* Bytes; of a wait the thread that ended it, 0 not known; of POLL, SELECT, EPOLL, RECEIVE and
     * SEND the bytes that its thread received by recv, less those that it sent, since its last wait
     * in one of them. */
    uint32_t moved;
};

/* What does not fit an event stands in the slot after it; the event's own fields for it are 0.  An
 * event that was carried over is always of this kind. */
struct event_rest {
    uint64_t mark;         /* OP_REST << 16 */
    uint64_t start;        /* ticks of the log's clock */
    uint64_t asked, moved; /* bytes, less than 2^63 */
};

/* What a thread waits for at a connection: numbers are on disk.  An answer begins with the first
 * bytes that come after a send. */
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
/* A duration of 40 bits: the highest says that the others count 2^16 ticks, the rest cut off. */
#define EVENT_LONG_BIT 39
#define EVENT_LONG_SHIFT 16

/* A closed block of events is not changed any more: its `limit` holds the CRC-32C of its header
 * with limit 0, its records and its texts. */
enum block_kind { BLOCK_EVENTS = 1, BLOCK_CALLS = 2, BLOCK_ACCESS = 3, BLOCK_CLOSED = 4 };

struct block {
    uint32_t magic;
    uint32_t kind;
    uint64_t
        round; /* unique in the log; a chunk and a live block of one round hold the same events */
    uint32_t used;    /* records reserved; may exceed limit by a few when the process was killed */
    uint32_t limit;   /* records that fit */
    uint32_t texts;   /* where the lowest text begins, bytes from the block's start */
    uint32_t thread;  /* number of the thread in this log, from 1 */
    uint32_t tid;     /* the kernel's thread id */
    uint32_t carried; /* slots at the front with calls that began before the block did */
    uint64_t first;   /* ticks when the block was begun */
    char name[16];    /* the thread's name */
};

/* A text defines what an id means.  bytes: name, NUL, resolved name, NUL; padded to 8.
 * A file may have a second text with an empty name: it adds what the first open showed. */
enum text_kind {
    TEXT_FILE = 1,
    TEXT_NAME = 2,
    TEXT_NOTE = 3,
    TEXT_OBJECT = 4,     /* a program or library that waits: base name, path; ids as files have */
    TEXT_CONNECTION = 5, /* counts of a connection; the id is that of its endpoint, a file; no
                            names, and struct connection_record at the end */
    TEXT_REQUEST = 6     /* a request over HTTP; the name is endpoint, method, operation, client,
                            bucket and error, tabs between, the resolved name its path, and struct
                            request_record stands at the end */
};

struct text {
    uint32_t bytes; /* of the whole record, a multiple of 8 */
    uint32_t kind;
    uint32_t id;   /* file id or name id */
    uint32_t base; /* the file id of the folder that a relative path starts from, 0: absolute */
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

/* A TCP connection so far: a later record of one number and descriptor takes an earlier one's
 * place.  Times are ticks of the log's clock, 0: not seen, or not yet. */
struct connection_record {
    uint64_t number; /* in this log, from 1; copies of a descriptor share it */
    uint64_t opened, connected, closed, told;
    uint64_t received, sent;       /* bytes, by recorded calls */
    uint64_t receives, sends;      /* calls that moved any */
    uint64_t answers;              /* bytes that came right after a send */
    uint64_t first_byte, transfer; /* from a send's end to those; from those to the last ones */
    uint64_t waited[NET_PHASES];   /* that threads were blocked, in waits that are recorded */
    uint64_t kernel_received, kernel_sent; /* bytes, by TCP_INFO */
    uint32_t rtt_us, rtt_min_us, retransmits;
    uint32_t flags;
    uint32_t fd;
    uint32_t object; /* that connected or accepted it, 0: not known */
    uint16_t local_port, peer_port;
    uint32_t summed;             /* how many connections the record sums; 0: it is one connection */
    uint8_t local[16], peer[16]; /* addresses; IPv4 as ::ffff:a.b.c.d */
    uint64_t handshake;          /* of TLS, from `connected` on; 0: none was seen to its end */
};

enum request_flag {
    REQUEST_PART = 1,     /* its body was not read to the end */
    REQUEST_FAILED = 2,   /* ended in an error before its answer, or in mid-body */
    REQUEST_FOLDED = 4,   /* sums of several: a later record of the number takes its place */
    REQUEST_OPERATION = 8 /* of a client whose own requests are not seen */
};

/* A request that an adapter saw end.  Durations are ns. */
struct request_record {
    uint64_t number;     /* in this process, from 1 */
    uint64_t told;       /* ticks of the log's clock when this was written */
    uint64_t connection; /* number of the connection, 0: not known */
    uint64_t ago;        /* from its begin to `told` */
    uint64_t first_byte; /* from its begin to the first byte of its answer, ~0: none came */
    uint64_t duration;
    uint64_t received;                 /* bytes of the answer's body, as they were sent */
    int64_t sent;                      /* bytes of its own body, -1: not known */
    int64_t range_first, range_length; /* bytes asked for, -1: no range, or up to the end */
    int64_t object_bytes;              /* the whole object's, -1: not known */
    uint64_t backoff;                  /* the client slept before it, as the try before failed */
    uint64_t requests;                 /* 1, of a folded one how many */
    int64_t batch;                     /* that its thread was to fetch, -1: not known */
    uint32_t tid;                      /* of the thread that began it */
    uint16_t status;                   /* 0: no answer */
    uint16_t attempt;                  /* how many tries of it came before */
    uint32_t flags;
    uint32_t unused;
};

/* Past the budget single events are folded into these; nothing is dropped without a count. */
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
    int64_t max_end; /* the highest byte touched plus one, -1: unknown */
    int64_t
        first_offset; /* of the first access with an offset: what it followed, the reader knows */
    int64_t last_end; /* where the latest access ended; both -1: none had an offset */
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
    STAGED_COPY = 1,  /* on the tier that the note `tier` names */
    ON_BURST_TIER = 2 /* as a new file that is yet to get to its path; the note `burst tier` */
};

/* What came of opening a file of which a tier holds a copy: numbers are on disk. */
#define STAGED_OUTCOMES(X)                                                                         \
    X(1, SERVED)  /* the copy was opened */                                                        \
    X(2, CHANGED) /* the source is not what was copied */                                          \
    X(3, DROPPED) /* a recorded program wrote, renamed or removed the source */                    \
    X(4, ABSENT)  /* not copied yet, or evicted */                                                 \
    X(5, GONE)    /* the copy cannot be opened: a vanished tier */                                 \
    X(6, DAMAGED) /* the copy is not as it was made */                                             \
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
    LOG_FAILED = 5 /* our own trouble ended the recording; reason says which */
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
    uint64_t last_ticks; /* ... and two of them again, each time a block was full and at the end */
    uint64_t last_ns;
    uint64_t ticks_per_s; /* nominal, measured over a millisecond */
    uint64_t budget_bytes;
    uint64_t chunk_bytes; /* written of that budget */
    uint64_t folded;      /* single events that live on only in counters */
    uint64_t lost; /* calls after LOG_FAILED, also of children without a log: this count is left */
    uint64_t unseen;       /* calls recorded whose contents were not seen (io_uring, cuFile) */
    uint64_t attach_ns;    /* what the first start took */
    uint32_t slots;        /* import slots patched */
    uint32_t objects;      /* loaded objects scanned */
    uint32_t slots_failed; /* could not be made writable */
    uint32_t rank, local_rank, world_size; /* ~0: not known */
    uint8_t boot_id[16];
    char host[64];
    char reason[192];
    char executable[512];
    char folder[512];       /* working directory at start */
    char command[2048];     /* arguments, separated by NUL, ended by two */
    uint64_t opens[16];     /* of staged files, by outcome; [0] is not used */
    uint64_t waits_from_ns; /* waits of this length and longer are recorded; 0: none are */
    uint64_t own_calls;     /* system calls of the recorder's own since its start ended ... */
    uint64_t own_ticks;     /* ... and how long they took, with what is done between them */
};

/* Page faults lie in a file of their own, written beside the job: a header, then chunks, each of
 * one kind of record.  Files and images are numbered from 1 in the order in which they were seen;
 * an image is what a process runs between two calls of exec.  Times are CLOCK_MONOTONIC ns. */
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
    uint32_t cpus;          /* processors on which faults are seen */
    uint32_t ring_bytes;    /* of each */
    uint32_t is_user_only;  /* 1: faults inside system calls are not seen */
    uint32_t sum;           /* of the header, this field as 0 */
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

/* A mapped file; its path follows, ended by a NUL. */
struct fault_file {
    uint32_t file;
    uint32_t device_major, device_minor;
    uint32_t reserved;
    uint64_t inode;
};

struct fault_image {
    uint32_t image;
    uint32_t pid, ppid; /* ppid 0: not known, it began with exec or ran already */
    uint32_t is_joined; /* 1: it ran when sampling began, at start_ns */
    uint64_t start_ns;
};

enum fault_kind { FAULT_MINOR = 1, FAULT_MAJOR = 2 };

struct fault {
    uint64_t start_ns;
    uint64_t duration_ns; /* ~0: its begin was not seen */
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
    uint64_t kept; /* of them are single records */
};

/* A minor fault takes 1 to 3 µs, that of 16 pages at once included; no device answers sooner than
 * this. A longer one waited: for a page already on its way, or for a processor. */
#define FAULT_WAITED_NS 10000

/* The latest one counts.  counted: by the kernel, exactly; seen: those whose samples came. */
struct faults_state {
    uint64_t now_ns;
    uint64_t counted_major, counted_minor;
    uint64_t seen_major, seen_minor;
    uint64_t foreign;  /* of those seen, of no process known: the launcher's own */
    uint64_t unpaired; /* seen without their begin: no duration */
    uint64_t lost;     /* records that found the ring full, of any kind */
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
