/* A pointer into the first pages is EFAULT's business, recorded or not. */
#include "known.h"

int main(void)
{
    const char *volatile low = (const char *)8;
    const char *volatile higher = (const char *)0x1000;
    const struct iovec *volatile parts = (const struct iovec *)8;

    MUST(open(low, O_RDONLY) == -1 && errno == EFAULT);
    MUST(access(higher, F_OK) == -1 && errno == EFAULT);
    MUST(readv(open("data", O_RDONLY), parts, 2) == -1 && errno == EFAULT);
    return 0;
}
