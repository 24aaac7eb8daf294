/* By the CPU's instruction, three parts at once because the instruction takes three cycles; on
 * other CPUs, by tables. */
#include "sums.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#ifdef __clang__ /* has another name for the instruction's feature than gcc */
#define INSTRUCTION __attribute__((target("crc32")))
#else
#define INSTRUCTION __attribute__((target("sse4.2")))
#endif
#define add8(sum, word) __builtin_ia32_crc32di(sum, word)
#define add1(sum, byte) __builtin_ia32_crc32qi((uint32_t)(sum), byte)
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifdef __clang__
#define INSTRUCTION __attribute__((target("crc")))
#define add8(sum, word) __builtin_arm_crc32cd((uint32_t)(sum), word)
#define add1(sum, byte) __builtin_arm_crc32cb((uint32_t)(sum), byte)
#else
#define INSTRUCTION __attribute__((target("+crc")))
#define add8(sum, word) __builtin_aarch64_crc32cx((uint32_t)(sum), word)
#define add1(sum, byte) __builtin_aarch64_crc32cb((uint32_t)(sum), byte)
#endif
#define HWCAP_HAS_CRC32 (1u << 7)
#endif

#define POLYNOMIAL 0x82f63b78u
#define PART 2048 /* bytes; a block of events is thirty parts */

static uint32_t table[256];    /* of a byte */
static uint32_t moved[4][256]; /* a sum, each of its bytes, as if PART zeros had followed */
static int state;              /* 0: not looked yet, 1: by tables, 2: by the instruction */

static uint32_t by_table(uint32_t sum, const uint8_t *data, size_t bytes)
{
    while (bytes--)
        sum = sum >> 8 ^ table[(sum ^ *data++) & 0xff];
    return sum;
}

static bool has_instruction(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_HAS_CRC32;
#else
    return false;
#endif
}

#ifdef INSTRUCTION
static uint32_t move(uint32_t sum)
{
    return moved[0][sum & 0xff] ^ moved[1][sum >> 8 & 0xff] ^ moved[2][sum >> 16 & 0xff] ^
           moved[3][sum >> 24];
}

static uint64_t word_at(const uint8_t *data)
{
    uint64_t word;

    memcpy(&word, data, sizeof word);
    return word;
}

INSTRUCTION static uint32_t by_instruction(uint32_t first, const uint8_t *data, size_t bytes)
{
    uint64_t sum = first;
    size_t i;

    for (; bytes >= 3 * PART; bytes -= 3 * PART, data += 3 * PART) {
        uint64_t second = 0, third = 0;

        for (i = 0; i < PART; i += 8) {
            sum = add8(sum, word_at(data + i));
            second = add8(second, word_at(data + PART + i));
            third = add8(third, word_at(data + 2 * PART + i));
        }
        sum = move(move((uint32_t)sum) ^ (uint32_t)second) ^ third;
    }
    for (; bytes >= 8; bytes -= 8, data += 8)
        sum = add8(sum, word_at(data));
    while (bytes--)
        sum = add1(sum, *data++);
    return (uint32_t)sum;
}
#endif

/* Up to two parts need no table of moved sums. */
static uint32_t of(int how, uint32_t sum, const void *data, size_t bytes)
{
#ifdef INSTRUCTION
    if (how == 2)
        return by_instruction(sum, data, bytes);
#endif
    (void)how;
    return by_table(sum, data, bytes);
}

/* Two threads at once store equal words. */
static int prepare(void)
{
    static const uint8_t zeros[PART];
    uint32_t basis[32]; /* a sum of a single bit, as if PART zeros had followed */
    uint32_t i, bit, byte;
    int found;

    for (i = 0; i < 256; i++) {
        uint32_t sum = i;

        for (bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? POLYNOMIAL : 0);
        table[i] = sum;
    }
    found = has_instruction() ? 2 : 1;
    for (bit = 0; bit < 32; bit++)
        basis[bit] = of(found, 1u << bit, zeros, sizeof zeros);
    for (byte = 0; byte < 4; byte++)
        for (i = 0; i < 256; i++) {
            uint32_t sum = 0;

            for (bit = 0; bit < 8; bit++)
                sum ^= i >> bit & 1 ? basis[8 * byte + bit] : 0;
            moved[byte][i] = sum;
        }
    __atomic_store_n(&state, found, __ATOMIC_RELEASE);
    return found;
}

uint32_t sums_add(uint32_t sum, const void *data, size_t bytes)
{
    int how = __atomic_load_n(&state, __ATOMIC_ACQUIRE);

    return ~of(how ? how : prepare(), ~sum, data, bytes);
}
