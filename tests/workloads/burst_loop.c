/* Saves and saves, until it is killed: safetensors files of N bytes that all are the number of the
 * save.  last: written in place; best: written aside and renamed; step-NUMBER: a new name each.
 * Says NAME NUMBER when a file is closed and has its name. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "known.h"

static size_t size;
static char *data;

static void save(const char *path, int number)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    char header[128];
    unsigned long long bytes;

    bytes = (unsigned long long)snprintf(
        header + 8, sizeof header - 8,
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", size, size);
    memcpy(header, &bytes, 8);
    memset(data, number & 0xff, size);
    MUST(fd >= 0 && write(fd, header, bytes + 8) == (ssize_t)bytes + 8);
    for (int i = 0; i < 4; i++) {
        usleep(50); /* else it is in the middle of a save too seldom to be killed there */
        MUST(write(fd, data + i * (size / 4), size / 4) == (ssize_t)size / 4);
    }
    MUST(!close(fd));
}

static void say(const char *name, int number)
{
    char line[64];
    int bytes = snprintf(line, sizeof line, "%s %d\n", name, number);

    MUST(write(1, line, (size_t)bytes) == bytes);
}

int main(int n, char **words)
{
    char step[64];

    MUST(n == 3);
    size = (size_t)atol(words[1]);
    data = malloc(size);
    MUST(data);
    for (int number = atoi(words[2]);; number++) {
        save("last.safetensors", number);
        say("last", number);
        save("best.safetensors.tmp", number);
        MUST(!rename("best.safetensors.tmp", "best.safetensors"));
        say("best", number);
        snprintf(step, sizeof step, "step-%d.safetensors", number);
        save(step, number);
        say("step", number);
        snprintf(step, sizeof step, "step-%d.safetensors", number - 2);
        if (!unlink(step))
            say("gone", number - 2);
    }
}
