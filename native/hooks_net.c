/* A short wrapper for each call on a socket.  A possibly blocking call is tried without blocking
 * first, so that available bytes cost no event: the bytes are counted.  Knows libc calls; knows no
 * ELF and no content. */
#include <fcntl.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "connections.h"
#include "hook.h"
#include "hook_wait.h"
#include "hosts.h"

/* The file of a descriptor, where known at once. */
static int64_t known_file(int fd)
{
    struct slot_of_fd *slot = files_peek(fd);

    return slot && slot->file ? (int64_t)slot->file : -1;
}

/* --- receiving -------------------------------------------------------------------------------- */

static inline void received(struct connection *connection, ssize_t bytes, int flags)
{
    if (bytes <= 0 || flags & MSG_PEEK)
        return;
    waits_received(bytes);
    if (connection)
        connections_received(connection, (uint64_t)bytes, clock_ticks());
}

/* Whether the call can be tried without waiting, with an unchanged result: MSG_WAITALL waits for
 * more bytes than are there, and so does a socket with a low-water mark. */
static inline bool can_be_tried(const struct connection *connection, int flags)
{
    return !(flags & MSG_WAITALL) && !(connection && connection->is_low_mark);
}

/* Whether the result of the try is final: the program's call would not have waited either. */
static bool is_answer(int fd, int flags)
{
    int error = errno;
    bool is_final =
        error != EAGAIN || flags & MSG_DONTWAIT || (own_call(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK);

    errno = error;
    return is_final;
}

#define HOOK_RECEIVE(function, parameters, arguments, at_once)                                     \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct connection *connection;                                                             \
        struct waiting waiting;                                                                    \
        enum net_phase phase;                                                                      \
        uint64_t number;                                                                           \
        ssize_t result;                                                                            \
        int error = errno;                                                                         \
                                                                                                   \
        if (!recorder_on)                                                                          \
            return real_##function arguments;                                                      \
        connection = connections_of(fd);                                                           \
        if (LIKELY(can_be_tried(connection, flags))) {                                             \
            result = real_##function at_once;                                                      \
            if (LIKELY(result >= 0))                                                               \
                received(connection, result, flags);                                               \
            if (result >= 0 || is_answer(fd, flags))                                               \
                return result;                                                                     \
            errno = error;                                                                         \
        }                                                                                          \
        phase = connection ? connections_phase(connection) : NET_NOT_KNOWN;                        \
        number = connection ? connection->so_far.number : 0;                                       \
        waits_begin(&waiting, OP_RECEIVE, 0, known_file(fd), CALLER);                              \
        result = real_##function arguments;                                                        \
        if (connection && connection->so_far.number != number)                                     \
            connection = NULL; /* closed meanwhile, and the number is another's */                 \
        received(connection, result, flags);                                                       \
        waits_end_net(&waiting, result < 0 ? errno : 0, fd, phase);                                \
        return result;                                                                             \
    }
HOOK_RECEIVE(recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags),
             (fd, data, size, flags | MSG_DONTWAIT))
HOOK_RECEIVE(__recv_chk, (int fd, void *data, size_t size, size_t room, int flags),
             (fd, data, size, room, flags), (fd, data, size, room, flags | MSG_DONTWAIT))
HOOK_RECEIVE(recvfrom,
             (int fd, void *data, size_t size, int flags, struct sockaddr *from, socklen_t *length),
             (fd, data, size, flags, from, length),
             (fd, data, size, flags | MSG_DONTWAIT, from, length))
HOOK_RECEIVE(__recvfrom_chk,
             (int fd, void *data, size_t size, size_t room, int flags, struct sockaddr *from,
              socklen_t *length),
             (fd, data, size, room, flags, from, length),
             (fd, data, size, room, flags | MSG_DONTWAIT, from, length))
HOOK_RECEIVE(recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags),
             (fd, message, flags | MSG_DONTWAIT))

HOOK(int, recvmmsg,
     (int fd, struct mmsghdr *messages, unsigned n, int flags, struct timespec *timeout))
{
    struct waiting waiting;
    int result;

    if (!recorder_on || flags & MSG_DONTWAIT)
        return real_recvmmsg(fd, messages, n, flags, timeout);
    waits_begin(&waiting, OP_RECEIVE, 0, known_file(fd), CALLER);
    result = real_recvmmsg(fd, messages, n, flags, timeout);
    waits_end_fd(&waiting, result < 0 ? errno : 0, fd);
    return result;
}

HOOK(int, setsockopt, (int fd, int level, int option, const void *value, socklen_t length))
{
    struct connection *connection;

    if (UNLIKELY(level == SOL_SOCKET && option == SO_RCVLOWAT) && recorder_on &&
        (connection = connections_of(fd)))
        connection->is_low_mark = 1;
    return real_setsockopt(fd, level, option, value, length);
}

/* --- sending ---------------------------------------------------------------------------------- */

/* An empty socket buffer always has so much room: less than the smallest buffer of the kernel
 * (SOCK_MIN_SNDBUF). */
#define SURELY_ROOM 4096

/* Whether a long send may have waited for room.  A request into an empty buffer does not wait, nor
 * does a non-blocking socket: there the thread has lost the CPU. */
static bool may_have_waited(int fd, ssize_t bytes, bool is_empty)
{
    return !(is_empty && bytes <= SURELY_ROOM) && !(own_call(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK);
}

/* An answer no larger than the bytes sent before brings no data: metrics and their acknowledgement,
 * or gradients and weights. */
static void sent(struct connection *connection, int fd, struct iovec first, ssize_t bytes,
                 uint64_t start, const void *caller)
{
    uint64_t now = clock_ticks();
    bool is_empty = !connection->asked; /* all earlier sends have been answered */
    int error = errno;

    if (bytes > 0) {
        if (UNLIKELY(connection->greeting))
            connections_greeted(connection, fd, first, (size_t)bytes);
        waits_received(-bytes);
        connections_sent(connection, (uint64_t)bytes, now);
    }
    if (UNLIKELY(now - start >= waits_recorded_ticks) && may_have_waited(fd, bytes, is_empty))
        waits_past(OP_SEND, connection, start, now - start, bytes < 0 ? error : 0, NET_SEND,
                   caller);
    errno = error;
}

/* Most sends are copies into the kernel, so a send gets an event only after a wait.  first: the
 * bytes, or the first part. */
#define HOOK_SEND(function, parameters, arguments, first)                                          \
    HOOK(ssize_t, function, parameters)                                                            \
    {                                                                                              \
        struct connection *connection = recorder_on ? connections_of(fd) : NULL;                   \
        uint64_t start = connection ? clock_ticks() : 0;                                           \
        ssize_t result = real_##function arguments;                                                \
                                                                                                   \
        if (connection)                                                                            \
            sent(connection, fd, first, result, start, CALLER);                                    \
        else if (recorder_on && result > 0)                                                        \
            waits_received(-result);                                                               \
        return result;                                                                             \
    }
HOOK_SEND(send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags),
          ((struct iovec){(void *)data, size}))
HOOK_SEND(sendto,
          (int fd, const void *data, size_t size, int flags, const struct sockaddr *to,
           socklen_t length),
          (fd, data, size, flags, to, length), ((struct iovec){(void *)data, size}))
HOOK_SEND(sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
          (result > 0 ? message->msg_iov[0] : (struct iovec){0}))

/* --- opening ---------------------------------------------------------------------------------- */

HOOK(int, connect, (int fd, const struct sockaddr *to, socklen_t length))
{
    struct waiting waiting;
    uint64_t start;
    int result, error;

    if (!recorder_on)
        return real_connect(fd, to, length);
    start = clock_ticks();
    waits_begin(&waiting, OP_RECEIVE, 0, known_file(fd), CALLER);
    result = real_connect(fd, to, length);
    error = result < 0 ? errno : 0;
    connections_connected(fd, to, length, start, error, CALLER);
    if (error == EINPROGRESS)
        waits_forget(&waiting); /* connect does not wait: a long call has lost the CPU */
    else
        waits_end_net(&waiting, error, fd, NET_CONNECT);
    return result;
}

#define HOOK_ACCEPT(function, parameters, arguments)                                               \
    HOOK(int, function, parameters)                                                                \
    {                                                                                              \
        struct waiting waiting;                                                                    \
        int result;                                                                                \
                                                                                                   \
        if (!recorder_on)                                                                          \
            return real_##function arguments;                                                      \
        waits_begin(&waiting, OP_RECEIVE, 0, known_file(fd), CALLER);                              \
        result = real_##function arguments;                                                        \
        if (result >= 0)                                                                           \
            connections_accepted(result, CALLER);                                                  \
        waits_end_fd(&waiting, result < 0 ? errno : 0, fd);                                        \
        return result;                                                                             \
    }
HOOK_ACCEPT(accept, (int fd, struct sockaddr *from, socklen_t *length), (fd, from, length))
HOOK_ACCEPT(accept4, (int fd, struct sockaddr *from, socklen_t *length, int flags),
            (fd, from, length, flags))

/* Keep the name of the addresses: a connection is reported by name. */
HOOK(int, getaddrinfo,
     (const char *node, const char *service, const struct addrinfo *hints,
      struct addrinfo **addresses))
{
    const struct addrinfo *one;
    uint8_t address[16];
    uint16_t port;
    int status;

    if (!recorder_on)
        return real_getaddrinfo(node, service, hints, addresses);
    status = BLOCKING(int, OP_RESOLVE, NULL, real_getaddrinfo(node, service, hints, addresses),
                      result ? (result == EAI_SYSTEM ? errno : EIO) : 0);
    for (one = status || !node ? NULL : *addresses; one; one = one->ai_next)
        if (hosts_address(one->ai_addr, one->ai_addrlen, address, &port))
            hosts_keep(address, node);
    return status;
}
