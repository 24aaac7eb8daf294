/* How the recorder reaches the programs started by a recorded process, and the Python inside. */
#ifndef PENSTOCK_SPREAD_H
#define PENSTOCK_SPREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define SPREAD_ENTRIES 11 /* most variables added by spread_fill, and the end */

/* Prepare the variables for children: our library, the run folder, the budget.  Once a window. */
void spread_setup(const char *folder, uint64_t budget_bytes);

/* Whether an environment by itself starts a process with the recorder. */
bool spread_has_all(char *const *environment);

/* Copy `environment` with the missing variables, into room for the entries and SPREAD_ENTRIES more,
 * and `preload` for joined values (LD_PRELOAD, ASAN_OPTIONS) of spread_preload_bytes. */
void spread_fill(char *const *environment, char **copy, char *preload);
size_t spread_preload_bytes(char *const *environment);

/* Hide the added variables from a program with an environment cleaned by the caller. */
void spread_hide(void);

/* Python loaded a framework, or only an HTTP client: run the package's bootstrap at the
 * interpreter's next safe point. */
void spread_into_python(bool has_framework);

#pragma GCC visibility pop

#endif
