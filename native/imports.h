/* Python's imports, as spans. */
#ifndef PENSTOCK_IMPORTS_H
#define PENSTOCK_IMPORTS_H

#include <stdbool.h>

#include "log.h"

#pragma GCC visibility push(hidden)

/* True from the process' start until Python can be followed; never where there is no Python. */
extern bool imports_are_awaited;

/* Once a process, before the program runs: await an interpreter if the program has an
 * interpreter. */
void imports_await(void);

/* After an open: has the interpreter got so far? */
void imports_look_slowly(void);

static inline void imports_look(void)
{
    if (UNLIKELY(__atomic_load_n(&imports_are_awaited, __ATOMIC_RELAXED)))
        imports_look_slowly();
}

#pragma GCC visibility pop

#endif
