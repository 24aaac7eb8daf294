/* Another process's memory: the addresses of objects and functions, and the words on a stack.
 * Knows ELF and /proc; knows no ptrace. */
#ifndef PENSTOCK_TARGET_H
#define PENSTOCK_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct range {
    uint64_t begin, end;
};

/* The code excluded for a thread by its present system call. */
enum outside {
    OUTSIDE_NOTHING,
    OUTSIDE_LOADER,    /* the loader's calls are in the loader's code */
    OUTSIDE_ALLOCATOR, /* nor does the C library's allocator make the call */
};

#define N_ALLOCATOR 14 /* functions */

struct target {
    pid_t pid;
    int mem; /* /proc/PID/mem */
    uint64_t dlopen, dlerror;
    uint64_t gadget;      /* a system call instruction of the C library */
    struct range *unsafe; /* code with the loader's or the allocator's locks */
    size_t n_unsafe;
    struct range allocator[N_ALLOCATOR]; /* the part of `unsafe` in the C library's allocator */
    size_t n_allocator;
    struct range libc; /* the code of the C library, and of the loader */
    struct range loader;
};

/* 0, or -errno.  -ENOEXEC: not a dynamic glibc program of this machine's kind. */
int target_open(struct target *target, pid_t pid);
void target_close(struct target *target);

/* 0 or -errno: -EIO for a part without a mapping. */
int target_read(const struct target *target, uint64_t address, void *data, size_t size);
int target_write(const struct target *target, uint64_t address, const void *data, size_t size);

/* Return the address of a function exported by the object at a path; 0: no function. */
uint64_t target_function(const struct target *target, const char *path, const char *name);

/* Whether a thread with the stack pointer and the next instruction may hold a lock needed for
 * loading a library: the loader, the allocator or a fork is on its stack.  Addresses of code
 * excluded by `outside` do not count: an earlier call left the addresses on the stack. */
bool target_is_busy(const struct target *target, uint64_t stack, uint64_t next,
                    enum outside outside);

#endif
