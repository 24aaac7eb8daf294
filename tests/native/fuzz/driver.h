/* A target for libFuzzer; without it (-DPENSTOCK_MUTATE) a program that changes its own seeds, so
 * that every compiler can run a target: TARGET [ROUNDS]. */
#ifndef PENSTOCK_FUZZ_DRIVER_H
#define PENSTOCK_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef PENSTOCK_MUTATE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The target's own: a sound input; its length. */
size_t seed_input(uint8_t *data, size_t room);

static uint64_t drawn;

static uint32_t draw(uint32_t below)
{
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (uint32_t)((drawn >> 11) % below);
}

static size_t change(uint8_t *data, size_t size)
{
    static const uint64_t numbers[] = {0, 1, 7, 255, 4096, 65535, 1u << 31, ~0u, 1ull << 40, ~0ull};
    static const size_t widths[] = {1, 2, 4, 8};
    size_t width = widths[draw(4)], at;
    uint64_t number = numbers[draw(10)] + draw(3) - 1;

    if (size < 16)
        return size;
    at = draw((uint32_t)(size - 8));
    switch (draw(4)) {
    case 0: data[at] ^= (uint8_t)(1 << draw(8)); return size;
    case 1: return draw(8) ? size : at + 8;
    case 2: memmove(data + at, data + draw((uint32_t)(size - 8)), 8); return size;
    default: memcpy(data + at / width * width, &number, width); return size;
    }
}

int main(int argc, char **argv)
{
    static uint8_t seed[65536];
    size_t size = seed_input(seed, sizeof seed);
    long rounds = argc > 1 ? atol(argv[1]) : 20000;
    long i;

    for (i = 0; i < rounds; i++) {
        uint8_t *data = malloc(size); /* of its own size: a read behind it is seen */
        size_t n = size;
        uint32_t changes;

        drawn = 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
        memcpy(data, seed, size);
        for (changes = i ? 1 + draw(6) : 0; changes-- > 0;)
            n = change(data, n);
        data = realloc(data, n ? n : 1);
        LLVMFuzzerTestOneInput(data, n);
        free(data);
    }
    printf("%ld inputs\n", rounds);
    return 0;
}
#endif

#endif
