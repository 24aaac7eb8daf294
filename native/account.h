/* What a thread did inside a call that took long: how long it was on a CPU, and how long it was
 * ready and had none.  A call's length alone does not tell a slow disk from a busy CPU. */
#ifndef PENSTOCK_ACCOUNT_H
#define PENSTOCK_ACCOUNT_H

#include "log.h"

#pragma GCC visibility push(hidden)

/* A call of this length and more has an account.  The scheduler takes a CPU away for the length of
 * another thread's slice: 1 ms is less than the shortest one of Linux' default settings. */
#define ACCOUNT_NS 1000000

/* Whether the kernel tells run-queue delay; the calling thread's so far, in ns. */
bool account_delay(uint64_t *ns);

/* Whether all threads' delay was asked for before a wait, and not after it since. */
bool account_is_awaited(void);

/* After a call has ended that took `ticks`, ACCOUNT_NS or more: writes its account, unless nearly
 * all of it was neither on a CPU nor waiting for one.  Keeps errno. */
void account_call(const struct call *call, uint64_t ticks);

#pragma GCC visibility pop

#endif
