/* Writes one file by each way there is, N bytes each of a pattern that tells places apart:
 * way.pt below the folder.  Says on standard output which calls failed. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "known.h"

#define PIECE 50021 /* a prime, so that calls end anywhere */

static size_t size;
static uint8_t *data;

static int make(const char *name)
{
    int fd = open(name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0640);

    MUST(fd >= 0);
    return fd;
}

static size_t piece_at(size_t at)
{
    return size - at < PIECE ? size - at : PIECE;
}

static void by_write(void)
{
    int fd = make("write.pt");

    for (size_t at = 0; at < size;) {
        ssize_t put = write(fd, data + at, piece_at(at));

        MUST(put > 0);
        at += (size_t)put;
    }
    MUST(!close(fd));
}

static void by_pwrite(void)
{
    int fd = make("pwrite.pt");

    for (size_t at = 0; at < size;) {
        ssize_t put = pwrite(fd, data + at, piece_at(at), (off_t)at);

        MUST(put > 0);
        at += (size_t)put;
    }
    MUST(!fsync(fd) && !close(fd));
}

static void by_writev(void)
{
    int fd = make("writev.pt");

    for (size_t at = 0; at < size;) {
        struct iovec parts[2] = {{data + at, piece_at(at) / 2}, {data + at + piece_at(at) / 2, 1}};
        ssize_t put = writev(fd, parts, 2);

        MUST(put > 0);
        at += (size_t)put;
    }
    MUST(!close(fd));
}

static void by_stdio(const char *name, size_t buffer)
{
    FILE *file = fopen(name, "wb");

    MUST(file && !setvbuf(file, NULL, buffer ? _IOFBF : _IONBF, buffer));
    for (size_t at = 0; at < size; at += piece_at(at))
        MUST(fwrite(data + at, 1, piece_at(at), file) == piece_at(at));
    MUST(!fflush(file) && !fclose(file));
}

static void by_characters(void)
{
    FILE *file = fopen("putc.pt", "w+");

    MUST(file);
    for (size_t at = 0; at < size; at++)
        MUST(putc(data[at], file) != EOF);
    MUST(!fclose(file));
}

/* All of which pass into the buffer without a call. */
static void by_unlocked_characters(void)
{
    FILE *file = fopen("unlocked.pt", "w");

    MUST(file);
    for (size_t at = 0; at < size; at++)
        MUST(putc_unlocked(data[at], file) != EOF);
    MUST(!fclose(file));
}

static void by_format(void)
{
    int fd = make("fprintf.pt");
    FILE *file = fdopen(fd, "w");

    MUST(file);
    for (size_t at = 0; at < size; at++) {
        size_t letters = strnlen((char *)data + at, size - at);

        MUST(fprintf(file, "%.*s", (int)letters, (char *)data + at) == (int)letters);
        at += letters;
        if (at < size)
            MUST(fprintf(file, "%c", 0) == 1);
    }
    MUST(!fclose(file));
}

/* Half of it to a stream that goes on where another one has ended. */
static void by_appending_stream(void)
{
    for (int half = 0; half < 2; half++) {
        FILE *file = fopen("fopen-a.pt", "a");
        size_t from = half ? size / 2 : 0, to = half ? size : size / 2;

        MUST(file && fwrite(data + from, 1, to - from, file) == to - from);
        MUST(!fclose(file));
    }
}

/* Anew, by a stream that is another file's by then. */
static void by_reopened_stream(void)
{
    FILE *file = fopen("freopen.pt", "w");

    MUST(file && fputs("before", file) >= 0);
    MUST((file = freopen("/dev/null", "r", file)) && (file = freopen("freopen.pt", "w", file)));
    MUST(fwrite(data, 1, size, file) == size && !fclose(file));
}

static void by_map(void)
{
    int fd = make("mmap.pt");
    void *memory;

    MUST(!ftruncate(fd, (off_t)size));
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    memcpy(memory, data, size);
    MUST(!munmap(memory, size) && !close(fd));
}

static void by_allocation(void)
{
    int fd = make("fallocate.pt");

    MUST(!posix_fallocate(fd, 0, (off_t)size));
    MUST(pwrite(fd, data, size, 0) == (ssize_t)size && !close(fd));
}

static void by_append(void)
{
    int fd = open("append.pt", O_CREAT | O_EXCL | O_WRONLY | O_APPEND, 0600);

    MUST(fd >= 0);
    for (size_t at = 0; at < size;) {
        ssize_t put = write(fd, data + at, piece_at(at));

        MUST(put > 0);
        at += (size_t)put;
    }
    MUST(!close(fd));
}

static void by_sendfile(void)
{
    int from = open("write.pt", O_RDONLY), to = creat("sendfile.pt", 0600);
    size_t at = 0;

    MUST(from >= 0 && to >= 0);
    while (at < size) {
        ssize_t put = sendfile(to, from, NULL, PIECE);

        MUST(put > 0);
        at += (size_t)put;
    }
    MUST(!close(from) && !close(to));
}

int main(int n, char **words)
{
    MUST(n == 2 || n == 3); /* a third word: by streams only */
    size = (size_t)atol(words[1]);
    data = malloc(size);
    MUST(data);
    for (size_t at = 0; at < size; at++)
        data[at] = (uint8_t)(at * 2654435761u >> 13);
    by_unlocked_characters();
    by_format();
    by_appending_stream();
    if (n == 3)
        return 0;
    by_write();
    by_pwrite();
    by_writev();
    by_stdio("fwrite.pt", 4096);
    by_stdio("large-buffer.pt", 60000);
    by_stdio("unbuffered.pt", 0);
    by_characters();
    by_reopened_stream();
    by_map();
    by_allocation();
    by_append();
    by_sendfile();
    return 0;
}
