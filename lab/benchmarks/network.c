/* CPU time of calls on a connection, seen from C: the work is nothing but the calls.
 *
 * network CASE CALLS LIBRARY FOLDER PAIRS
 *
 * Prints a line a round: nanoseconds of CPU time a call.  Rounds without and with a window
 * alternate in this one process, beginning and ending without. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUDGET_BYTES (16ull << 30)
#define CALL_BYTES 64

static int client, server, file;
static char bytes[1 << 16];
static long n_calls, n_ready;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double cpu_ns(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return ((double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec) * 1e9 +
           ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) * 1e3;
}

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

static double round_ns(void (*call)(void), int is_receiving)
{
    double start_ns;

    if (is_receiving)
        fill();
    start_ns = cpu_ns();
    for (long i = 0; i < n_calls; i++)
        call();
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
    int (*start)(const char *, uint64_t);
    int (*stop)(void);
    void *recorder;
    size_t i;

    if (argc != 6)
        return 2;
    n_calls = atol(argv[2]);
    for (i = 0; i < sizeof cases / sizeof *cases && strcmp(cases[i].name, argv[1]); i++)
        ;
    if (i == sizeof cases / sizeof *cases)
        return 2;
    connect_both();
    file = open(argv[3], O_RDONLY);
    recorder = dlopen(argv[3], RTLD_NOW);
    if (!recorder)
        fail(argv[3]);
    start = (int (*)(const char *, uint64_t))(uintptr_t)dlsym(recorder, "penstock_start");
    stop = (int (*)(void))(uintptr_t)dlsym(recorder, "penstock_stop");
    round_ns(cases[i].call, cases[i].is_receiving);
    printf("%.3f\n", round_ns(cases[i].call, cases[i].is_receiving));
    for (int pair = 0; pair < atoi(argv[5]); pair++) {
        double ns;

        if (start(argv[4], BUDGET_BYTES))
            fail(argv[4]);
        ns = round_ns(cases[i].call, cases[i].is_receiving);
        if (stop())
            fail("stop");
        printf("%.3f\n%.3f\n", ns, round_ns(cases[i].call, cases[i].is_receiving));
    }
    return 0;
}
