/* Finds import slots by name in every loaded object and rewrites the slots.  Knows ELF; knows no
 * I/O. */
#ifndef PENSTOCK_PATCH_H
#define PENSTOCK_PATCH_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* An imported function.  A wrapper registers itself with HOOK in hooks.c. */
struct hook {
    const char *name;
    void *wrapper;
    void **real;          /* for the wrapper's call; *real NULL: libc lacks the function */
    const char *provider; /* begins the file name of the library with the function; NULL: libc */
    const char *version;  /* the wrapped version of several; NULL: any */
};

struct patch_counts {
    uint32_t objects, slots, failed;
};

/* The hooks between first and end, sorted here by name.  Looks up the originals: not under any
 * lock. */
int patch_setup(const struct hook **first, const struct hook **end);

/* Rewrite the slots of all objects not yet seen and check the slots of the others again. */
void patch_apply(struct patch_counts *counts);

/* Restore every slot and page protection. */
void patch_restore(void);

/* After dlopen or dlclose; cheap when nothing changed.  True when new objects were patched. */
bool patch_rescan(void);

/* Return the hook of a name, NULL when the name is not hooked. */
const struct hook *patch_find(const char *name);

/* Whether a function is libc's own. */
bool patch_is_libc(const void *function);

/* Whether a framework with an adapter was loaded since the last question. */
extern bool patch_saw_framework;

#pragma GCC visibility pop

#endif
