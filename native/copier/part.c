/* The small files of a checkpoint folder, copied into an unfinished copy (small/partfiles.py). */
#include "copier.h"
#include "write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The three names of a file: in the source's folder, of the draft, and at the end. */
struct names {
    const char *source, *draft, *final;
};

static struct names names_at(const char **at)
{
    struct names names;

    names.source = *at;
    names.draft = names.source + strlen(names.source) + 1;
    names.final = names.draft + strlen(names.draft) + 1;
    *at = names.final + strlen(names.final) + 1;
    return names;
}

static void fail(struct copier_part_file *file)
{
    file->error = errno;
    file->state = COPIER_FAILED;
}

static int open_to_read(int folder, const char *name)
{
    return (int)syscall(SYS_openat, folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

static void read_opened(struct copier_part_file *file, int source, char *bytes)
{
    struct stat found;
    long got;

    if (syscall(SYS_fstat, source, &found)) {
        fail(file);
    } else if (!S_ISREG(found.st_mode) || found.st_size != file->size_bytes) {
        file->state = COPIER_CHANGED;
    } else {
        got = syscall(SYS_pread64, source, bytes, (size_t)found.st_size + 1, 0L);
        file->mtime_ns = found.st_mtim.tv_sec * INT64_C(1000000000) + found.st_mtim.tv_nsec;
        file->times[0] = found.st_atim;
        file->times[1] = found.st_mtim;
        file->is_sparse = copier_is_sparse(&found);
        /* As private_mode() of places/stores/local.py. */
        file->mode = (found.st_mode & file->mode & 0777) | 0600;
        if (got < 0)
            fail(file);
        else
            file->state = got == found.st_size ? COPIER_READ : COPIER_CHANGED;
    }
}

static void read_file(struct copier_part_file *file, const char *name, char *bytes)
{
    int source = open_to_read(file->from, name);

    if (source < 0) {
        fail(file);
        return;
    }
    read_opened(file, source, bytes);
    syscall(SYS_close, source);
}

void penstock_copier_part_read(const char *names, struct copier_part_file *files, uint32_t n,
                               char *bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        struct names own = names_at(&names);

        read_file(&files[i], own.source, bytes + files[i].offset);
    }
}

static void write_draft(struct copier_part_file *file, const char *draft, const char *bytes)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int copy = (int)syscall(SYS_openat, file->to, draft, flags, file->mode);

    /* The draft of a killed drain. */
    if (copy < 0 && errno == EEXIST && !syscall(SYS_unlinkat, file->to, draft, 0))
        copy = (int)syscall(SYS_openat, file->to, draft, flags, file->mode);
    if (copy < 0) {
        fail(file);
        return;
    }
    file->state = COPIER_WRITTEN;
    if (!copier_write(copy, bytes, (size_t)file->size_bytes, file->is_sparse) ||
        syscall(SYS_utimensat, copy, NULL, file->times, 0))
        fail(file);
    syscall(SYS_close, copy);
    if (file->state == COPIER_FAILED)
        syscall(SYS_unlinkat, file->to, draft, 0);
}

void penstock_copier_part_write(const char *names, struct copier_part_file *files, uint32_t n,
                                const char *bytes)
{
    for (uint32_t i = 0; i < n; i++) {
        struct names own = names_at(&names);

        if (files[i].state == COPIER_READ)
            write_draft(&files[i], own.draft, bytes + files[i].offset);
    }
}

/* Drop a file's pages and begin to read them from the device again. */
static void begin_reading_again(int fd)
{
    syscall(SYS_fadvise64, fd, 0L, 0L, (long)POSIX_FADV_DONTNEED);
    syscall(SYS_fadvise64, fd, 0L, 0L, (long)POSIX_FADV_WILLNEED);
}

static int opened_again(const struct copier_part_file *file, const char *draft)
{
    int copy = open_to_read(file->to, draft);

    if (copy >= 0)
        begin_reading_again(copy);
    return copy;
}

static void place(struct copier_part_file *file, const struct names *own, const char *bytes,
                  char *room)
{
    size_t size = (size_t)file->size_bytes;
    long got = -1;

    if (file->copy >= 0)
        got = syscall(SYS_pread64, file->copy, room, size + 1, 0L);
    if (got < 0)
        fail(file);
    else if (got != file->size_bytes || memcmp(room, bytes, size) != 0)
        file->state = COPIER_DIFFERS;
    else if (syscall(SYS_renameat, file->to, own->draft, file->to, own->final))
        fail(file);
    else
        file->state = COPIER_PLACED;
    if (file->copy >= 0)
        syscall(SYS_close, file->copy);
    file->copy = -1;
}

void penstock_copier_part_place(const char *names, struct copier_part_file *files, uint32_t n,
                                const char *bytes)
{
    char *room = malloc(COPIER_LARGEST + 1);
    const char *at = names;

    for (uint32_t i = 0; i < n; i++) {
        struct names own = names_at(&at);

        files[i].copy =
            room && files[i].state == COPIER_WRITTEN ? opened_again(&files[i], own.draft) : -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct names own = names_at(&names);

        if (files[i].state == COPIER_WRITTEN)
            place(&files[i], &own, bytes + files[i].offset, room);
    }
    free(room);
}

void penstock_copier_part_look(const char *names, struct copier_part_file *files, uint32_t n,
                               char *bytes, uint32_t is_from_device)
{
    for (uint32_t i = 0; i < n; i++) {
        files[i].copy = open_to_read(files[i].from, names);
        if (files[i].copy < 0)
            fail(&files[i]);
        else if (is_from_device)
            begin_reading_again(files[i].copy);
        names += strlen(names) + 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct copier_part_file *file = &files[i];

        if (file->copy < 0)
            continue;
        read_opened(file, file->copy, bytes + file->offset);
        file->is_cut = file->state == COPIER_READ && file->size_bytes &&
                       syscall(SYS_lseek, file->copy, file->size_bytes - 1, (long)SEEK_DATA) < 0 &&
                       errno == ENXIO;
        syscall(SYS_close, file->copy);
        file->copy = -1;
    }
}
