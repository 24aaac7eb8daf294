/* For programs whose I/O is known: a call that does not do exactly what was meant ends the
 * program. */
#ifndef KNOWN_H
#define KNOWN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Without stdio, so that a failing program adds no events of its own to what it is measured by. */
#define MUST(claim)                                                                                \
    do {                                                                                           \
        if (!(claim))                                                                              \
            known_fail(#claim, __FILE__, __LINE__);                                                \
    } while (0)

__attribute__((noreturn, unused)) static void known_fail(const char *claim, const char *file,
                                                         int line)
{
    char text[512];
    int size =
        snprintf(text, sizeof text, "%s:%d: not so: %s (errno %d)\n", file, line, claim, errno);

    if (write(STDERR_FILENO, text, (size_t)size) != size)
        _exit(99);
    _exit(98);
}

#endif
