/* How long a thread was on a CPU inside a long call, and how long the thread was ready and had no
 * CPU.  A call's length alone does not distinguish a slow disk from a busy CPU. */
#ifndef PENSTOCK_ACCOUNT_H
#define PENSTOCK_ACCOUNT_H

#include "log.h"

#pragma GCC visibility push(hidden)

/* Calls of at least ACCOUNT_NS have an account.  The scheduler takes a CPU away for the length of
 * another thread's slice: 1 ms is less than the shortest slice of Linux' default settings. */
#define ACCOUNT_NS 1000000

/* Whether the kernel tells run-queue delay; the calling thread's so far, in ns. */
bool account_delay(uint64_t *ns);

/* Whether all threads' delay was read before a wait, and not again since the wait. */
bool account_is_awaited(void);

/* Call after a call of `ticks`, at least ACCOUNT_NS, has ended.  Writes the account, unless the
 * thread was neither on a CPU nor waiting for a CPU during nearly all of the call.  Keeps errno. */
void account_call(const struct call *call, uint64_t ticks);

#pragma GCC visibility pop

#endif
