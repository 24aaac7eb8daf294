/* Mapped files of the recording, possibly cut by another program: a touch of a missing part would
 * end the program by SIGBUS.  Knows memory and a single signal; knows no log. */
#ifndef PENSTOCK_GUARD_H
#define PENSTOCK_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/* Whether a forked child has the mapping too. */
enum guard_of { GUARD_PROCESS, GUARD_FAMILY };

/* From now on a touch of a missing part finds zeros in the whole mapping, and is_cut (NULL:
 * nothing) is called, in a signal handler.  Mappings past the table's end are not guarded. */
void guard_add(enum guard_of kind, void *start, size_t bytes, void (*is_cut)(void));
void guard_remove(const void *start);
void guard_start(void); /* a window begins: the program may have taken the signal since the last */

/* The program's own action for SIGBUS, as from sigaction(): the kernel has our action.  False: the
 * kernel's action is not ours; call sigaction(). */
bool guard_action(const struct sigaction *action, struct sigaction *before);

#pragma GCC visibility pop

#endif
