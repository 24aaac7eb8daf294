/* Folds single events past the budget into counters of (file, op), kept in the log's own units.
 * Knows the meaning of events for a count; knows no call and no descriptor. */
#ifndef PENSTOCK_COUNTERS_H
#define PENSTOCK_COUNTERS_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

struct block;

/* Count the block's finished events of calls.  Each event is voided when counted, so that a kill in
 * between counts none twice.  False: the recording ended.  Signals are blocked. */
bool counters_fold(struct block *block);

#pragma GCC visibility pop

#endif
