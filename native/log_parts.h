/* Shared by the files of the log. */
#ifndef PENSTOCK_LOG_PARTS_H
#define PENSTOCK_LOG_PARTS_H

#include <stdint.h>

#include "log.h"

#pragma GCC visibility push(hidden)

extern uint64_t log_budget; /* bytes of events, before calls are folded */

void log_make_key(void); /* the key shows the end of a thread */
long log_read_small(const char *path, char *data, size_t size);
long log_open_file(void);
uint64_t log_next_unit(void);
uint64_t log_unit_offset(uint64_t unit);
struct block log_closed_head(const struct block *block);

#pragma GCC visibility pop

#endif
