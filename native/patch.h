/* Finds import slots by name in every loaded object and rewrites them.  Knows ELF; knows no I/O. */
#ifndef PENSTOCK_PATCH_H
#define PENSTOCK_PATCH_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* One imported function.  A wrapper registers itself with HOOK in hooks.c. */
struct hook {
    const char *name;
    void *wrapper;
    void **real;          /* what the wrapper calls; NULL inside: this libc has no such function */
    const char *provider; /* begins the file name of the library that has it; NULL: libc */
    const char *version;  /* the wrapper stands for that of several; NULL: for any */
};

struct patch_counts {
    uint32_t objects, slots, failed;
};

/* The hooks between first and end, sorted here by name.  Looks up the originals: not under any
 * lock. */
int patch_setup(const struct hook **first, const struct hook **end);

/* Rewrites the slots of all objects not yet seen and looks again at those of the others. */
void patch_apply(struct patch_counts *counts);

/* Puts every slot and page protection back as it was. */
void patch_restore(void);

/* After dlopen or dlclose; cheap when nothing changed.  True when new objects were patched. */
bool patch_rescan(void);

/* The hook of a name, NULL when it is not hooked. */
const struct hook *patch_find(const char *name);

/* Whether a function is libc's own. */
bool patch_is_libc(const void *function);

/* Whether a framework that an adapter knows was loaded since this was asked last. */
extern bool patch_saw_framework;

#pragma GCC visibility pop

#endif
