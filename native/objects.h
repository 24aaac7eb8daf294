/* Finds the loaded program or library that holds an address.  patch.c reports what is loaded and
 * unloaded; this file knows no ELF.  Wrappers ask: no lock, and no search once a call site is
 * known. */
#ifndef PENSTOCK_OBJECTS_H
#define PENSTOCK_OBJECTS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

int objects_start(void);

/* Signals are blocked and the lock of the slots is held; an empty path is the program's. */
void objects_add(uintptr_t start, uintptr_t end, const char *path);
void objects_remove(uintptr_t start);

/* The id in this log of the object that a call returns to; 0: not known. */
uint32_t objects_file(const void *address);

#pragma GCC visibility pop

#endif
