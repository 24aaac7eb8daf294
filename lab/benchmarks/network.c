/* CPU time of calls on a connection, seen from C: the work is nothing but the calls. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rounds.h"

#define CALL_BYTES 64

static int client, server, file;
static char bytes[1 << 16];
static long n_calls, n_ready;

/* The bytes that a round receives are sent before its clock starts. */
static void fill(void)
{
    for (n_ready = 0; n_ready < n_calls * CALL_BYTES;) {
        ssize_t put = send(server, bytes, sizeof bytes, MSG_DONTWAIT);

        if (put <= 0)
            fail("the socket's buffers are too small for a round");
        n_ready += put;
    }
}

static void drain(void)
{
    while (recv(client, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    while (recv(server, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

static void receive(void)
{
    if (recv(client, bytes, CALL_BYTES, 0) <= 0)
        fail("recv");
}

static void read_socket(void)
{
    if (read(client, bytes, CALL_BYTES) <= 0)
        fail("read");
}

static void send_some(void)
{
    if (send(client, bytes, CALL_BYTES, 0) <= 0)
        fail("send");
}

static void read_file(void)
{
    if (pread(file, bytes, CALL_BYTES, 4096) != CALL_BYTES)
        fail("pread");
}

static const struct {
    const char *name;
    void (*call)(void);
    int is_receiving;
} cases[] = {
    {"recv", receive, 1},
    {"read", read_socket, 1},
    {"send", send_some, 0},
    {"pread", read_file, 0},
};

static size_t chosen;

static double round_ns(void)
{
    double start_ns;

    if (cases[chosen].is_receiving)
        fill();
    start_ns = cpu_ns();
    for (long i = 0; i < n_calls; i++)
        cases[chosen].call();
    start_ns = cpu_ns() - start_ns;
    drain();
    return start_ns / (double)n_calls;
}

static void connect_both(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int large = 8 << 20, listener = socket(AF_INET, SOCK_STREAM, 0);

    client = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(client, SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof large);
    setsockopt(listener, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof large);
    setsockopt(client, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        fail("listen");
    if (connect(client, (struct sockaddr *)&address, sizeof address))
        fail("connect");
    server = accept(listener, NULL, NULL);
    if (server < 0)
        fail("accept");
}

int main(int argc, char **argv)
{
    if (argc != ARGUMENTS)
        return 2;
    n_calls = atol(argv[CALLS]);
    for (chosen = 0;
         chosen < sizeof cases / sizeof *cases && strcmp(cases[chosen].name, argv[CASE]); chosen++)
        ;
    if (chosen == sizeof cases / sizeof *cases)
        return 2;
    connect_both();
    file = open(argv[LIBRARY], O_RDONLY);
    run_rounds(argv, round_ns);
    return 0;
}
