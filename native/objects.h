/* Finds the loaded program or library that holds an address.  patch.c reports loading and
 * unloading; objects.c knows no ELF.  Wrappers ask: no lock, and no search once a call site is
 * known. */
#ifndef PENSTOCK_OBJECTS_H
#define PENSTOCK_OBJECTS_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

int objects_start(void);

/* Signals are blocked and the lock of the slots is held; an empty path is the program's. */
void objects_add(uintptr_t start, uintptr_t end, const char *path);
void objects_remove(uintptr_t start);

/* Return the id in the log of the object around a return address; 0: not known. */
uint32_t objects_file(const void *address);

#pragma GCC visibility pop

#endif
