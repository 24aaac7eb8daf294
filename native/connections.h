/* The connection of a descriptor, and the bytes, calls and times of its traffic.  A table beside
 * the table of files, with equal rules: no lock, no allocation by libc, gone in a forked child,
 * which counts its own part.  Knows addresses; knows no libc call and no content.  Only TCP counts.
 * Two threads receiving from a connection in the same nanoseconds may lose a count: a stream read
 * so has no meaning. */
#ifndef PENSTOCK_CONNECTIONS_H
#define PENSTOCK_CONNECTIONS_H

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "files.h"
#include "log.h"

#pragma GCC visibility push(hidden)

struct connection {
    uint32_t file;        /* the endpoint's id; 0: not a connection */
    uint16_t is_low_mark; /* SO_RCVLOWAT was set: a call without waiting may bring less */
    uint16_t greeting;    /* enum greeting; 0: sent bytes are not examined */
    uint64_t asked;    /* ticks of the latest send's end, if nothing came since; 0: something did */
    uint64_t answered; /* ticks of an answer's first bytes, until the next send */
    uint64_t heard;    /* ticks of the latest bytes */
    uint64_t due;      /* ticks when the next record is written */
    uint64_t shaken;   /* ticks of the latest send of a TLS handshake */
    struct connection_record so_far;
};

/* Why the first byte of a send is examined, on a connection opened by the process. */
enum greeting {
    GREETING_FIRST = 1,    /* nothing was sent yet: the send may be a TLS client's hello */
    GREETING_NAMELESS = 2, /* the address has no known name: the hello may have the name */
    GREETING_TLS = 4       /* a handshake is under way: ended by the first application data */
};

/* Closed connections past MOST_SINGLE, summed by endpoint and kind. */
#define CONNECTION_SUMS 64
struct connection_sum {
    uint64_t key;     /* the endpoint's id and flags; 0: free */
    uint64_t due;     /* ticks when the next record is written */
    uint64_t connect; /* ticks from connect to open, of all */
    struct connection_record so_far;
};

struct connections;
extern struct connections *connections_state; /* wiped by fork; NULL: not started */
struct connections {
    struct connection *chunks[FD_CHUNKS];
    uint64_t last_number;
    struct connection_sum sums[CONNECTION_SUMS];
};

int connections_start(bool is_new_log);

/* A call connected or accepted fd.  start: ticks at the call's begin.  error: the call's error. */
void connections_connected(int fd, const struct sockaddr *to, socklen_t length, uint64_t start,
                           int error, const void *caller);
void connections_accepted(int fd, const void *caller);

/* A socket with an unseen opening has got the id, and is a connection if the name says so. */
void connections_met(int fd, uint32_t file);

/* Write "socket:HOST:PORT" instead of "socket:", of SCRATCH_BYTES; false: not a connection. */
bool connections_name(int fd, char *name);

/* Before a descriptor is closed; is_gone: the number may already be another file's. */
void connections_closed(int fd, bool is_gone);
void connections_closed_range(unsigned first, unsigned last);
void connections_copied(int from, int to);

/* Write the counts of all connections: at the end of the process, or of the recording. */
void connections_tell(void);

/* A thread was blocked for the connection: return the phase, if NET_NOT_KNOWN was given as now
 * known. */
enum net_phase connections_waited(int fd, enum net_phase phase, uint64_t ticks);

void connections_answered(struct connection *connection, uint64_t now); /* first bytes */
void connections_tell_again(struct connection *connection);

/* The first bytes sent on a connection, and later sends during a TLS handshake: the client's hello
 * names the server.  Of later sends only the type of the record is examined. */
void connections_greeted(struct connection *connection, int fd, struct iovec first, size_t sent);
void connections_polled(struct connection *connection, bool is_answer);

/* Reading and writing of a connection like a file: where a read begins (see struct event), and the
 * result of the call. */
int64_t connections_offset(int fd, bool is_write);
void connections_moved(const struct call *call, int fd, ssize_t got, bool is_write);

/* Return the connection of a descriptor; NULL: not a connection, or not known yet. */
__attribute__((always_inline)) static inline struct connection *connections_peek(int fd)
{
    struct connection *chunk;

    if (UNLIKELY((unsigned)fd >= FDS_PER_CHUNK * FD_CHUNKS))
        return NULL;
    chunk =
        __atomic_load_n(&connections_state->chunks[(unsigned)fd / FDS_PER_CHUNK], __ATOMIC_ACQUIRE);
    if (!chunk)
        return NULL;
    chunk += (unsigned)fd % FDS_PER_CHUNK;
    return LIKELY(chunk->file) ? chunk : NULL;
}

/* Return the connection of a descriptor; after an unseen opening, ask the kernel. */
__attribute__((always_inline)) static inline struct connection *connections_of(int fd)
{
    struct connection *connection = connections_peek(fd);
    struct slot_of_fd *slot;

    if (LIKELY(connection != NULL))
        return connection;
    slot = files_slot(fd);
    return slot && slot->flags & SLOT_CONNECTION ? connections_peek(fd) : NULL;
}

static inline enum net_phase connections_phase(const struct connection *connection)
{
    return connection->asked ? NET_FIRST_BYTE : NET_TRANSFER;
}

__attribute__((always_inline)) static inline void
connections_received(struct connection *connection, uint64_t bytes, uint64_t now)
{
    struct thread *thread = log_self;
    bool is_answer = connection->asked != 0;

    connection->so_far.received += bytes;
    connection->so_far.receives++;
    connection->heard = now;
    if (UNLIKELY(thread && thread->is_polled))
        connections_polled(connection, is_answer);
    if (UNLIKELY(is_answer))
        connections_answered(connection, now);
    if (UNLIKELY(now >= connection->due))
        connections_tell_again(connection);
}

__attribute__((always_inline)) static inline void connections_sent(struct connection *connection,
                                                                   uint64_t bytes, uint64_t now)
{
    connection->so_far.sent += bytes;
    connection->so_far.sends++;
    if (connection->answered) {
        connection->so_far.transfer += connection->heard - connection->answered;
        connection->answered = 0;
    }
    if (UNLIKELY(!connection->so_far.connected))
        connection->so_far.connected = now;
    connection->asked = now;
}

#pragma GCC visibility pop

#endif
