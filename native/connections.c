#include "connections.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hello.h"
#include "hosts.h"
#include "objects.h"
#include "waits.h"

/* A connection is written at the close, and while open after 1 s, 2 s, 4 s … and each minute: the
 * counts of a killed process are at most so old. */
#define MOST_BETWEEN_S 64

/* Later connections of a process get no separate record at the close, but a record by endpoint: a
 * record is 272 bytes of the log.  While open, such a connection is written each minute. */
#define MOST_SINGLE 10000

/* Clients get ports from here on (the kernel's default range): where only one end's port is below,
 * that end is the server. */
#define FIRST_OWN_PORT 32768

/* Types of TLS records (RFC 8446, 5.1). */
#define TLS_CHANGE_CIPHER 20
#define TLS_HANDSHAKE 22
#define TLS_DATA 23

HOT struct connections *connections_state;

int connections_start(bool is_new_log)
{
    if (!connections_state || is_new_log) {
        struct connections *fresh = log_map_wiped(sizeof *fresh);

        if (!fresh)
            return -ENOMEM;
        __atomic_store_n(&connections_state, fresh, __ATOMIC_RELEASE);
    } else {
        connections_closed_range(0, ~0u); /* the table changed unseen while no window was open */
    }
    return 0;
}

/* As files.c maps its descriptors: a call under way when a signal handler forks finds the slot, and
 * finds the slot empty. */
static struct connection *slot_for(int fd)
{
    size_t bytes = FDS_PER_CHUNK * sizeof(struct connection);
    struct connection **chunk, *ours, *expected = NULL;

    if ((unsigned)fd >= FDS_PER_CHUNK * FD_CHUNKS)
        return NULL;
    chunk = &connections_state->chunks[fd / FDS_PER_CHUNK];
    if (!__atomic_load_n(chunk, __ATOMIC_ACQUIRE)) {
        ours = (void *)own_call(SYS_mmap, NULL, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
        if (ours == MAP_FAILED)
            return NULL;
        own_call(SYS_madvise, ours, bytes, MADV_WIPEONFORK);
        if (!__atomic_compare_exchange_n(chunk, &expected, ours, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE))
            own_call(SYS_munmap, ours, bytes);
    }
    return &(*chunk)[fd % FDS_PER_CHUNK];
}

/* --- questions to the kernel ------------------------------------------------------------------ */

/* which: SYS_getpeername or SYS_getsockname. */
static bool ask_address(int which, int fd, uint8_t address[16], uint16_t *port)
{
    struct sockaddr_storage name;
    socklen_t length = sizeof name;

    return !own_call(which, fd, &name, &length) &&
           hosts_address((struct sockaddr *)&name, length, address, port);
}

static bool is_stream(int fd)
{
    int type = 0;
    socklen_t length = sizeof type;

    return !own_call(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) &&
           type == SOCK_STREAM;
}

static void ask_kernel(int fd, struct connection_record *record)
{
    struct tcp_info info;
    socklen_t length = sizeof info;

    memset(&info, 0, sizeof info);
    if (own_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        return;
    record->rtt_us = info.tcpi_rtt;
    record->retransmits = info.tcpi_total_retrans;
    if (length >=
        offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) {
        record->kernel_received = info.tcpi_bytes_received;
        record->kernel_sent = info.tcpi_bytes_acked;
    }
    if (length >= offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt)
        record->rtt_min_us = info.tcpi_min_rtt;
}

/* --- telling ---------------------------------------------------------------------------------- */

static void tell(struct connection *connection, uint64_t closed, bool has_kernel)
{
    struct connection_record *record = &connection->so_far;
    struct connection_record copy;
    int error = errno;

    if (has_kernel)
        ask_kernel((int)record->fd, record);
    copy = *record;
    copy.told = clock_ticks();
    copy.closed = closed;
    if (connection->answered)
        copy.transfer += connection->heard - connection->answered;
    log_text_with(TEXT_CONNECTION, connection->file, 0, "", "", &copy, sizeof copy);
    errno = error;
}

static uint64_t until_next(uint64_t age)
{
    uint64_t least = clock_ticks_per_s, most = MOST_BETWEEN_S * clock_ticks_per_s;

    return age < least ? least : age < most ? age : most;
}

void connections_tell_again(struct connection *connection)
{
    connection->due = connection->heard + until_next(connection->heard - connection->so_far.opened);
    connection->so_far.told = connection->heard;
    tell(connection, 0, true);
}

/* Return the sum of the key; past CONNECTION_SUMS sums, all other keys share the last sum. */
static struct connection_sum *sum_of(uint64_t key)
{
    struct connection_sum *sums = connections_state->sums;
    uint64_t found;
    int i;

    for (i = 0; i < CONNECTION_SUMS - 1; i++) {
        found = 0;
        if (__atomic_load_n(&sums[i].key, __ATOMIC_RELAXED) == key ||
            __atomic_compare_exchange_n(&sums[i].key, &found, key, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED) ||
            found == key)
            break;
    }
    return &sums[i];
}

static void tell_sum(struct connection_sum *sum)
{
    struct connection_record copy = sum->so_far;
    bool is_rest = sum == &connections_state->sums[CONNECTION_SUMS - 1];
    uint64_t expected = 0;

    if (!copy.number) {
        uint64_t number = __atomic_add_fetch(&connections_state->last_number, 1, __ATOMIC_RELAXED);

        copy.number = __atomic_compare_exchange_n(&sum->so_far.number, &expected, number, false,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED)
                          ? number
                          : expected;
    }
    copy.told = clock_ticks();
    copy.connected = sum->connect ? copy.opened + sum->connect : 0;
    log_text_with(TEXT_CONNECTION, is_rest ? 0 : (uint32_t)(sum->key >> 8), 0, "", "", &copy,
                  sizeof copy);
}

#define ADD(name) __atomic_add_fetch(&sum->so_far.name, one->name, __ATOMIC_RELAXED)
#define SET_FIRST(name)                                                                            \
    do {                                                                                           \
        uint64_t none = 0;                                                                         \
        __atomic_compare_exchange_n(&sum->so_far.name, &none, one->name, false, __ATOMIC_RELAXED,  \
                                    __ATOMIC_RELAXED);                                             \
    } while (0)

static void add_to_sum(struct connection *connection, uint64_t closed)
{
    struct connection_record *one = &connection->so_far;
    bool is_open = one->connected != 0;
    uint64_t key = (uint64_t)connection->file << 8 | 128 |
                   (one->flags & (CONNECTION_ACCEPTED | CONNECTION_EARLIER)) | (is_open ? 8u : 0);
    struct connection_sum *sum = sum_of(key);
    uint64_t due = __atomic_load_n(&sum->due, __ATOMIC_RELAXED);
    int phase;

    if (connection->answered)
        one->transfer += connection->heard - connection->answered;
    SET_FIRST(opened);
    if (is_open)
        __atomic_add_fetch(&sum->connect, one->connected - one->opened, __ATOMIC_RELAXED);
    ADD(received);
    ADD(sent);
    ADD(receives);
    ADD(sends);
    ADD(answers);
    ADD(first_byte);
    ADD(transfer);
    ADD(handshake);
    for (phase = 0; phase < NET_PHASES; phase++)
        ADD(waited[phase]);
    ADD(kernel_received);
    ADD(kernel_sent);
    ADD(retransmits);
    sum->so_far.closed = closed;
    sum->so_far.rtt_us = one->rtt_us;
    if (!sum->so_far.rtt_min_us || one->rtt_min_us < sum->so_far.rtt_min_us)
        sum->so_far.rtt_min_us = one->rtt_min_us;
    sum->so_far.flags = one->flags & (CONNECTION_ACCEPTED | CONNECTION_EARLIER);
    sum->so_far.object = one->object;
    sum->so_far.peer_port = one->peer_port;
    memcpy(sum->so_far.peer, one->peer, sizeof one->peer);
    if (!(one->flags & CONNECTION_COPY))
        __atomic_add_fetch(&sum->so_far.summed, 1, __ATOMIC_RELAXED);
    if (closed >= due && __atomic_compare_exchange_n(
                             &sum->due, &due, closed + until_next(closed - sum->so_far.opened),
                             false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        tell_sum(sum);
}

void connections_tell(void)
{
    int chunk, i;

    if (!connections_state || !recorder_on || log_is_borrowed())
        return;
    for (chunk = 0; chunk < FD_CHUNKS; chunk++)
        for (i = 0; connections_state->chunks[chunk] && i < FDS_PER_CHUNK; i++)
            if (connections_state->chunks[chunk][i].file)
                tell(&connections_state->chunks[chunk][i], 0, true);
    for (i = 0; i < CONNECTION_SUMS; i++)
        if (connections_state->sums[i].so_far.closed)
            tell_sum(&connections_state->sums[i]);
}

/* --- opening and closing ---------------------------------------------------------------------- */

/* is_accepted: all clients of a port of ours are an endpoint, as the clients' own ports are many.
 * Returns whether the result is a name, and not an address. */
static bool write_name(char *name, const uint8_t peer[16], uint16_t peer_port, uint16_t local_port,
                       bool is_accepted)
{
    bool is_named = false;
    char host[HOST_BYTES];
    char *end = name;

    if (is_accepted) {
        strcpy(name, "socket:accepted");
    } else if (hosts_find(peer, host)) {
        strcat(strcpy(name, "socket:"), host);
        is_named = strspn(host, "0123456789.") < strlen(host) && !strchr(host, ':');
    } else {
        hosts_write(strcpy(name, "socket:") + 7, peer);
    }
    end += strlen(name);
    *end++ = ':';
    hosts_write_number(end, is_accepted ? local_port : peer_port);
    return is_named;
}

static bool is_server(uint16_t local_port, uint16_t peer_port)
{
    return local_port < FIRST_OWN_PORT && peer_port >= FIRST_OWN_PORT;
}

bool connections_name(int fd, char *name)
{
    uint16_t peer_port, local_port;
    uint8_t peer[16], local[16];

    if (!is_stream(fd) || !ask_address(SYS_getpeername, fd, peer, &peer_port) ||
        !ask_address(SYS_getsockname, fd, local, &local_port))
        return false;
    write_name(name, peer, peer_port, local_port, is_server(local_port, peer_port));
    return true;
}

static struct connection *begin(int fd, uint32_t file, uint64_t now)
{
    struct connection *connection = file ? slot_for(fd) : NULL;
    struct slot_of_fd *slot = connection ? files_peek(fd) : NULL;

    if (!slot)
        return NULL;
    memset(connection, 0, sizeof *connection);
    connection->heard = now;
    connection->so_far.fd = (uint32_t)fd;
    connection->so_far.number =
        __atomic_add_fetch(&connections_state->last_number, 1, __ATOMIC_RELAXED);
    connection->due =
        now + clock_ticks_per_s * (connection->so_far.number > MOST_SINGLE ? MOST_BETWEEN_S : 1);
    __atomic_store_n(&connection->file, file, __ATOMIC_RELEASE);
    slot->flags |= SLOT_CONNECTION;
    return connection;
}

/* A call on a connecting socket asks about the progress. */
static bool is_asking(int fd, int error)
{
    struct connection *connection = connections_peek(fd);

    if (!connection || connection->so_far.connected)
        return false;
    if (!error || error == EISCONN)
        connection->so_far.connected = clock_ticks();
    return !error || error == EISCONN || error == EALREADY || error == EINPROGRESS;
}

void connections_connected(int fd, const struct sockaddr *to, socklen_t length, uint64_t start,
                           int error, const void *caller)
{
    char name[HOST_BYTES + 32];
    struct connection_record peer;
    struct connection *connection;
    uint64_t now = clock_ticks();
    int kept = errno;
    bool is_named;

    if (log_is_borrowed() || is_asking(fd, error) ||
        !hosts_address(to, length, peer.peer, &peer.peer_port) || !is_stream(fd))
        goto keep_errno;
    if (connections_peek(fd))
        connections_closed(fd, false);
    is_named = write_name(name, peer.peer, peer.peer_port, 0, false);
    connection = begin(fd, files_named(fd, name), now);
    if (!connection)
        goto keep_errno;
    connection->greeting = GREETING_FIRST | (is_named ? 0 : GREETING_NAMELESS);
    memcpy(connection->so_far.peer, peer.peer, sizeof peer.peer);
    connection->so_far.peer_port = peer.peer_port;
    ask_address(SYS_getsockname, fd, connection->so_far.local, &connection->so_far.local_port);
    connection->so_far.opened = start;
    connection->so_far.connected = error ? 0 : now;
    connection->so_far.object = objects_file(caller);
    if (error && error != EINPROGRESS && error != EINTR)
        connections_closed(fd, true);
keep_errno:
    errno = kept;
}

/* Later sends of a TLS client, by the type of the first record.  TLS 1.3 ends the handshake with
 * the client's last message, after a change of ciphers; TLS 1.2 with the server's. */
static void shake(struct connection *connection, uint8_t type)
{
    struct connection_record *record = &connection->so_far;
    uint64_t end = connection->shaken > connection->heard ? connection->shaken : connection->heard;

    connection->shaken = clock_ticks();
    if (type == TLS_HANDSHAKE || type == TLS_CHANGE_CIPHER)
        return;
    connection->greeting = 0;
    if (type == TLS_DATA && record->connected && end > record->connected)
        record->handshake = end - record->connected;
}

void connections_greeted(struct connection *connection, int fd, struct iovec first, size_t sent)
{
    size_t size = first.iov_len < sent ? first.iov_len : sent;
    uint32_t greeting = connection->greeting;
    uint8_t type = size ? *(const uint8_t *)first.iov_base : 0;
    char name[HOST_BYTES + 32], host[HOST_BYTES];
    struct connection_record *record = &connection->so_far;
    struct slot_of_fd *slot;
    uint32_t file, flags;
    int error = errno;

    if (greeting & GREETING_TLS) {
        shake(connection, type);
        return;
    }
    connection->greeting = type == TLS_HANDSHAKE ? GREETING_TLS : 0;
    connection->shaken = clock_ticks();
    if (!(greeting & GREETING_NAMELESS) || log_is_borrowed() ||
        !hello_server_name(first.iov_base, size, host))
        return;
    hosts_keep(record->peer, host);
    slot = files_peek(fd);
    if (!slot || !write_name(name, record->peer, record->peer_port, 0, false))
        goto keep_errno;
    flags = slot->flags;
    file = files_named(fd, name);
    if (file)
        __atomic_store_n(&connection->file, file, __ATOMIC_RELEASE);
    slot->flags |= flags & SLOT_CONNECTION;
keep_errno:
    errno = error;
}

/* Begin an accepted connection, or a connection with an unseen opening: both addresses come from
 * the kernel. */
static struct connection *begin_as_asked(int fd, uint32_t file, uint32_t flags)
{
    struct connection *connection = begin(fd, file, clock_ticks());

    if (connection) {
        struct connection_record *record = &connection->so_far;

        ask_address(SYS_getpeername, fd, record->peer, &record->peer_port);
        ask_address(SYS_getsockname, fd, record->local, &record->local_port);
        record->flags = flags;
        if (flags & CONNECTION_EARLIER && is_server(record->local_port, record->peer_port))
            record->flags |= CONNECTION_ACCEPTED;
    }
    return connection;
}

void connections_accepted(int fd, const void *caller)
{
    char name[HOST_BYTES + 32];
    struct connection *connection;
    uint16_t peer_port, local_port;
    uint8_t peer[16], local[16];
    int error = errno;

    if (log_is_borrowed() || !is_stream(fd) ||
        !ask_address(SYS_getpeername, fd, peer, &peer_port) ||
        !ask_address(SYS_getsockname, fd, local, &local_port))
        goto keep_errno;
    write_name(name, peer, peer_port, local_port, true);
    connection = begin_as_asked(fd, files_named(fd, name), CONNECTION_ACCEPTED);
    if (connection) {
        connection->so_far.opened = connection->so_far.connected = clock_ticks();
        connection->so_far.object = objects_file(caller);
    }
keep_errno:
    errno = error;
}

void connections_met(int fd, uint32_t file)
{
    uint16_t port;
    uint8_t peer[16];

    if (is_stream(fd) && ask_address(SYS_getpeername, fd, peer, &port)) {
        struct connection *connection = begin_as_asked(fd, file, CONNECTION_EARLIER);

        if (connection)
            connection->so_far.connected = clock_ticks();
    }
}

void connections_closed(int fd, bool is_gone)
{
    struct connection *connection = connections_peek(fd);

    if (!connection || log_is_borrowed())
        return;
    if (connection->so_far.number <= MOST_SINGLE || connection->so_far.told) {
        tell(connection, clock_ticks(), !is_gone);
    } else {
        int error = errno;

        if (!is_gone)
            ask_kernel(fd, &connection->so_far);
        add_to_sum(connection, clock_ticks());
        errno = error;
    }
    __atomic_store_n(&connection->file, 0, __ATOMIC_RELEASE);
}

void connections_closed_range(unsigned first, unsigned last)
{
    unsigned chunk, i;

    for (chunk = first / FDS_PER_CHUNK; chunk < FD_CHUNKS && chunk <= last / FDS_PER_CHUNK; chunk++)
        for (i = 0; connections_state->chunks[chunk] && i < FDS_PER_CHUNK; i++)
            if (chunk * FDS_PER_CHUNK + i >= first && chunk * FDS_PER_CHUNK + i <= last)
                connections_closed((int)(chunk * FDS_PER_CHUNK + i), !recorder_on);
}

/* The copy counts separately, and has the number of the original. */
void connections_copied(int from, int to)
{
    struct connection *source = connections_peek(from), *copy;

    if (from == to)
        return;
    connections_closed(to, true);
    if (!source)
        return;
    copy = begin(to, source->file, clock_ticks());
    if (!copy)
        return;
    copy->so_far.number = source->so_far.number;
    copy->so_far.opened = source->so_far.opened;
    copy->so_far.connected = source->so_far.connected;
    copy->so_far.flags = source->so_far.flags | CONNECTION_COPY;
    copy->so_far.local_port = source->so_far.local_port;
    copy->so_far.peer_port = source->so_far.peer_port;
    copy->so_far.object = source->so_far.object;
    memcpy(copy->so_far.local, source->so_far.local, sizeof copy->so_far.local);
    memcpy(copy->so_far.peer, source->so_far.peer, sizeof copy->so_far.peer);
}

/* --- times ------------------------------------------------------------------------------------ */

void connections_answered(struct connection *connection, uint64_t now)
{
    connection->so_far.first_byte += now - connection->asked;
    connection->so_far.answers++;
    connection->asked = 0;
    connection->answered = now;
}

void connections_polled(struct connection *connection, bool is_answer)
{
    struct thread *thread = log_self;
    enum net_phase phase = is_answer ? NET_FIRST_BYTE : NET_TRANSFER;

    connection->so_far.waited[phase] += thread->polled_ticks;
    waits_polled_for(thread, connection->file, phase);
}

enum net_phase connections_waited(int fd, enum net_phase phase, uint64_t ticks)
{
    struct connection *connection = connections_peek(fd);

    if (!connection)
        return phase;
    if (!phase) {
        if (!connection->so_far.connected) {
            phase = NET_CONNECT;
            connection->so_far.connected = clock_ticks();
        } else {
            phase = connections_phase(connection);
        }
    }
    connection->so_far.waited[phase] += ticks;
    return phase;
}

/* --- as files --------------------------------------------------------------------------------- */

int64_t connections_offset(int fd, bool is_write)
{
    struct connection *connection = connections_peek(fd);

    return connection && !is_write ? -2 - (int64_t)connections_phase(connection) : -1;
}

void connections_moved(const struct call *call, int fd, ssize_t got, bool is_write)
{
    struct connection *connection = connections_peek(fd);
    uint64_t ticks = event_ticks(call->event), now;
    enum net_phase phase;

    if (!connection)
        return;
    if (call->is_wide || !ticks || call->thread->block != call->block ||
        call->block->round != call->round)
        ticks = clock_ticks() - call->start; /* the event has moved */
    now = call->start + ticks;
    phase = is_write ? NET_SEND : connections_phase(connection);
    if (ticks >= waits_recorded_ticks)
        connection->so_far.waited[phase] += ticks;
    if (got > 0 && is_write)
        connections_sent(connection, (uint64_t)got, now);
    else if (got > 0)
        connections_received(connection, (uint64_t)got, now);
}
