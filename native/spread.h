/* How the recorder reaches the programs that a recorded process starts, and Python inside it. */
#ifndef PENSTOCK_SPREAD_H
#define PENSTOCK_SPREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define SPREAD_ENTRIES 11 /* variables that spread_fill may add, and the end */

/* What children need to find: our library, the run folder, the budget.  Once a window. */
void spread_setup(const char *folder, uint64_t budget_bytes);

/* Whether an environment brings its process under the recorder by itself. */
bool spread_has_all(char *const *environment);

/* Copies `environment` with what is missing, into room for its entries and SPREAD_ENTRIES more, and
 * `preload` for joined values (LD_PRELOAD, ASAN_OPTIONS) of spread_preload_bytes. */
void spread_fill(char *const *environment, char **copy, char *preload);
size_t spread_preload_bytes(char *const *environment);

/* A program whose caller had cleaned its environment does not see what we added to it. */
void spread_hide(void);

/* Python loaded a framework, or only an HTTP client: run the package's bootstrap at the
 * interpreter's next safe point. */
void spread_into_python(bool has_framework);

#pragma GCC visibility pop

#endif
