/* Writes the bytes of a file in memory, with holes where the source has holes.  Knows no name. */
#ifndef PENSTOCK_COPIER_WRITE_H
#define PENSTOCK_COPIER_WRITE_H

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COPIER_BLOCK 4096 /* bytes; a file system of smaller blocks keeps fewer holes */
#define COPIER_SECTOR 512 /* bytes in st_blocks, on every file system */

/* Whether a file occupies less than its size: the file has holes, or is compressed. */
static inline bool copier_is_sparse(const struct stat *found)
{
    return found->st_blocks * COPIER_SECTOR < found->st_size;
}

static inline bool copier_is_zero(const char *bytes, size_t size)
{
    return !bytes[0] && !memcmp(bytes, bytes + 1, size - 1);
}

static inline bool copier_write_span(int copy, const char *bytes, size_t start, size_t end)
{
    while (start < end) {
        long put = syscall(SYS_pwrite64, copy, bytes + start, end - start, (long)start);

        if (put <= 0)
            return false;
        start += (size_t)put;
    }
    return true;
}

/* Write a new file.  In a sparse file, blocks of zeros stay holes, except the last block: the last
 * block gives the file its size, and a hole there would count as a missing end (verify.py). */
static inline bool copier_write(int copy, const char *bytes, size_t size, bool is_sparse)
{
    size_t start = 0;

    for (size_t at = 0; is_sparse && at + COPIER_BLOCK < size; at += COPIER_BLOCK) {
        if (!copier_is_zero(bytes + at, COPIER_BLOCK))
            continue;
        if (!copier_write_span(copy, bytes, start, at))
            return false;
        start = at + COPIER_BLOCK;
    }
    return copier_write_span(copy, bytes, start, size);
}

#endif
