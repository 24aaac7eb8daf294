/* The words of a command line as a log keeps them: values of secrets become "…".
 * Knows words; knows no log, no file and no environment.
 */
#ifndef PENSTOCK_SECRETS_H
#define PENSTOCK_SECRETS_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* words: `bytes` bytes of words, each ended by NUL.  out: the words as far as `room` goes, the
 * values of secrets replaced.  more: further parts of names, between commas; may be NULL.  Returns
 * the used bytes of out.  Allocates nothing. */
size_t secrets_hide(const char *words, size_t bytes, char *out, size_t room, const char *more);

#pragma GCC visibility pop

#endif
