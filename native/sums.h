/* CRC-32C (Castagnoli), as in iSCSI, ext4 and TFRecord.  Knows bytes alone. */
#ifndef PENSTOCK_SUMS_H
#define PENSTOCK_SUMS_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)
uint32_t sums_add(uint32_t sum, const void *data, size_t bytes); /* of nothing: 0 */
#pragma GCC visibility pop

#endif
