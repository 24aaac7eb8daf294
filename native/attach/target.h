/* Another process's memory: where its objects and their functions lie, what a stack holds.
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

/* What the call that a thread waits in excludes: that the thread is at work in these. */
enum outside {
    OUTSIDE_NOTHING,
    OUTSIDE_LOADER,    /* the loader makes its calls in its own code */
    OUTSIDE_ALLOCATOR, /* nor is it a call that the C library's allocator makes */
};

#define N_ALLOCATOR 14 /* functions */

struct target {
    pid_t pid;
    int mem; /* /proc/PID/mem */
    uint64_t dlopen, dlerror;
    uint64_t gadget;      /* a system call instruction of its C library */
    struct range *unsafe; /* code in which the loader's or the allocator's locks may be held */
    size_t n_unsafe;
    struct range allocator[N_ALLOCATOR]; /* of these the C library's allocator */
    size_t n_allocator;
    struct range libc; /* its C library's code, and the loader's */
    struct range loader;
};

/* 0, or -errno.  -ENOEXEC: no dynamic glibc program of this machine's kind. */
int target_open(struct target *target, pid_t pid);
void target_close(struct target *target);

/* 0 or -errno: a part that is not mapped is -EIO. */
int target_read(const struct target *target, uint64_t address, void *data, size_t size);
int target_write(const struct target *target, uint64_t address, const void *data, size_t size);

/* The address of a function that the object with this path exports; 0: none. */
uint64_t target_function(const struct target *target, const char *path, const char *name);

/* Whether a thread with this stack pointer and this next instruction may hold a lock that loading a
 * library needs: the loader, the allocator or a fork is on its stack.  Of what it is outside of, an
 * address on the stack is what an earlier call left there, and does not count. */
bool target_is_busy(const struct target *target, uint64_t stack, uint64_t next,
                    enum outside outside);

#endif
