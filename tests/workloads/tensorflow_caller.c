/* Stands for the library that fetches batches: `fetched` tells the other one of a batch. */
#include <stdint.h>

void _ZN10tensorflow7metrics27RecordTFDataGetNextDurationEm(uint64_t us);
void fetched(uint64_t us);

void fetched(uint64_t us)
{
    _ZN10tensorflow7metrics27RecordTFDataGetNextDurationEm(us);
}
