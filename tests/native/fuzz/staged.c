/* The map of a tier (docs/FORMAT-stage.md), any bytes: no look-up reads beside it. */
#include "driver.h"

/* Its own functions: a program would map a file for each input. */
#include "../../../native/staged.c"

#define LOOKED_UP 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct staged_map map = {.bytes = (char *)data, .size = size};
    uint64_t i;

    if (!size || check(&map))
        return 0;
    find(&map, "/data/a.jpg");
    find(&map, "");
    strcpy(map.copies, "/tier/staged");
    map.copies_bytes = strlen(map.copies);
    for (i = 0; i <= map.mask && i < LOOKED_UP; i++) {
        const struct staged_slot *slot = &map.slots[i];

        if (is_text(&map, slot->path_at, slot->path_bytes))
            find(&map, map.bytes + slot->path_at);
        if (is_text(&map, slot->copy_at, slot->copy_bytes))
            below_copies(&map, map.bytes + slot->copy_at);
    }
    return 0;
}

#ifdef PENSTOCK_MUTATE
size_t seed_input(uint8_t *data, size_t room)
{
    static const char blob[] = "\0fast\0/data/a.jpg\0/tier/staged/data/a.jpg";
    struct staged_header *header = (struct staged_header *)data;
    struct staged_slot *slots = (struct staged_slot *)(header + 1);
    const size_t blob_at = sizeof *header + 8 * sizeof *slots, bytes = blob_at + sizeof blob;
    uint64_t hash = HASH_BASIS;
    const char *c;

    if (bytes > room)
        return 0;
    memset(data, 0, bytes);
    *header = (struct staged_header){
        .magic = STAGED_MAGIC,
        .version = STAGED_VERSION,
        .byte_order = STAGED_BYTE_ORDER,
        .map_bytes = bytes,
        .slots = 8,
        .slots_at = sizeof *header,
        .entries = 1,
        .blob_at = blob_at,
        .blob_bytes = sizeof blob,
        .tier_at = blob_at + 1,
        .tier_bytes = 4,
        .slot_bytes = sizeof *slots,
    };
    for (c = "/data/a.jpg"; *c; c++)
        hash = (hash ^ (uint8_t)*c) * HASH_PRIME;
    slots[(hash ^ hash >> 32) & 7] = (struct staged_slot){
        .hash = hash,
        .path_at = blob_at + 6,
        .copy_at = blob_at + 18,
        .path_bytes = 11,
        .copy_bytes = 23,
        .size_bytes = 1,
        .is_staged = 1,
    };
    memcpy(data + blob_at, blob, sizeof blob);
    return bytes;
}
#endif
