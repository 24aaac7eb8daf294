#include "hosts.h"

#include <netinet/in.h>
#include <string.h>

/* The latest name of an address is kept where the address' hash points: 256 hosts at once, as a
 * rule.  `turn` is odd while an entry is written; a reader of an odd or a changed turn finds no
 * name.  A forked child has the parent's table. */
#define HOSTS 256

static struct host {
    uint32_t turn;
    uint8_t address[16];
    char name[HOST_BYTES];
} hosts[HOSTS];

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool hosts_address(const struct sockaddr *given, socklen_t length, uint8_t address[16],
                   uint16_t *port)
{
    struct sockaddr_in6 six;
    struct sockaddr_in four;

    if (!given || length < sizeof four.sin_family)
        return false;
    if (given->sa_family == AF_INET && length >= sizeof four) {
        memcpy(&four, given, sizeof four);
        memcpy(address, mapped, sizeof mapped);
        memcpy(address + 12, &four.sin_addr, 4);
        *port = ntohs(four.sin_port);
        return true;
    }
    if (given->sa_family == AF_INET6 && length >= sizeof six - sizeof six.sin6_scope_id) {
        memset(&six, 0, sizeof six);
        memcpy(&six, given, length < sizeof six ? length : sizeof six);
        memcpy(address, &six.sin6_addr, 16);
        *port = ntohs(six.sin6_port);
        return true;
    }
    return false;
}

static struct host *place_of(const uint8_t address[16])
{
    uint64_t words[2];

    memcpy(words, address, sizeof words);
    return &hosts[((words[0] ^ words[1] * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu) >> 56];
}

void hosts_keep(const uint8_t address[16], const char *name)
{
    struct host *host = place_of(address);
    uint32_t turn = __atomic_load_n(&host->turn, __ATOMIC_RELAXED);
    size_t length = strnlen(name, HOST_BYTES);

    if (!length || length == HOST_BYTES || turn & 1 ||
        !__atomic_compare_exchange_n(&host->turn, &turn, turn + 1, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return;
    memcpy(host->address, address, sizeof host->address);
    memcpy(host->name, name, length + 1);
    __atomic_store_n(&host->turn, turn + 2, __ATOMIC_RELEASE);
}

bool hosts_find(const uint8_t address[16], char name[HOST_BYTES])
{
    struct host *host = place_of(address);
    uint32_t turn = __atomic_load_n(&host->turn, __ATOMIC_ACQUIRE);
    bool is_it = turn && !(turn & 1) && !memcmp(host->address, address, sizeof host->address);

    if (!is_it)
        return false;
    memcpy(name, host->name, HOST_BYTES);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    name[HOST_BYTES - 1] = 0;
    return __atomic_load_n(&host->turn, __ATOMIC_RELAXED) == turn;
}

char *hosts_write_number(char *end, unsigned number)
{
    char digits[12];
    int n = 0;

    do
        digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    while (n)
        *end++ = digits[--n];
    *end = 0;
    return end;
}

static unsigned group_of(const uint8_t address[16], int i)
{
    return (unsigned)address[2 * i] << 8 | address[2 * i + 1];
}

static char *write_group(char *end, unsigned group)
{
    int shift = 12;

    while (shift && !(group >> shift))
        shift -= 4;
    for (; shift >= 0; shift -= 4)
        *end++ = "0123456789abcdef"[group >> shift & 15];
    return end;
}

/* As in RFC 5952: the longest stretch of zeros, of two and more, is "::". */
static char *write_six(char *end, const uint8_t address[16])
{
    int first = 8, longest = 1, i, n;

    for (i = 0; i < 8; i += n ? n : 1) {
        for (n = 0; i + n < 8 && !group_of(address, i + n); n++)
            ;
        if (n > longest) {
            longest = n;
            first = i;
        }
    }
    *end++ = '[';
    for (i = 0; i < 8; i++) {
        if (i == first) {
            *end++ = ':';
            *end++ = ':';
            i += longest - 1;
            continue;
        }
        end = write_group(end, group_of(address, i));
        if (i < 7 && i + 1 != first)
            *end++ = ':';
    }
    *end++ = ']';
    *end = 0;
    return end;
}

char *hosts_write(char *end, const uint8_t address[16])
{
    int i;

    if (memcmp(address, mapped, sizeof mapped))
        return write_six(end, address);
    for (i = 12; i < 16; i++) {
        end = hosts_write_number(end, address[i]);
        if (i < 15)
            *end++ = '.';
    }
    *end = 0;
    return end;
}
