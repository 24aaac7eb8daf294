/* A command line, any bytes: what is kept of it stays inside the room, and no word is longer. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#include "../../../native/secrets.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t room = size ? data[0] * 9 : 0;
    char *out = malloc(room ? room : 1);
    char *more = strndup((const char *)data, size < 40 ? size : 40);

    if (secrets_hide((const char *)data, size, out, room, more) > room)
        abort();
    if (secrets_hide((const char *)data, size, out, room, NULL) > room)
        abort();
    free(more);
    free(out);
    return 0;
}

#ifdef PENSTOCK_MUTATE
size_t seed_input(uint8_t *data, size_t room)
{
    static const char words[] = "python\0train.py\0--api-key=abc\0--token\0hunter2\0"
                                "https://user:pw@host/x?X-Amz-Signature=abc&a=b\0-p\0secret\0";

    if (sizeof words > room)
        return 0;
    memcpy(data, words, sizeof words);
    return sizeof words;
}
#endif
