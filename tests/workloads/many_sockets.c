/* As a client that lives long: pairs of sockets, argv[1] of them, and as many pipes, one after another.
 * By hand, for n: 2 n bytes written to and 2 n read from sockets, n to and from pipes, a byte a call; each
 * of the 4 n descriptors closed. */
#include "known.h"

#include <sys/socket.h>

static void pass_a_byte(int from, int to)
{
    char byte = 0;

    MUST(write(from, &byte, 1) == 1 && read(to, &byte, 1) == 1);
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 1;
    int ends[2];

    for (int i = 0; i < n; i++) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        pass_a_byte(ends[0], ends[1]);
        pass_a_byte(ends[1], ends[0]);
        MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
        MUST(pipe(ends) == 0);
        pass_a_byte(ends[1], ends[0]);
        MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
    return 0;
}
