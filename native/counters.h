/* Past the budget, single events are folded into counters of (file, op), kept in the log's own
 * units. Knows what events mean to a count; knows no call and no descriptor. */
#ifndef PENSTOCK_COUNTERS_H
#define PENSTOCK_COUNTERS_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

struct block;

/* Counts the block's finished events of calls and voids each one as it is counted, so that a kill
 * in between counts none twice.  False: the recording ended. Signals are blocked. */
bool counters_fold(struct block *block);

#pragma GCC visibility pop

#endif
