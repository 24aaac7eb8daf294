#include "hello.h"

#include <string.h>

/* RFC 8446 (4.1.2) and RFC 6066 (3): a handshake record contains a ClientHello, with extensions; an
 * extension is a list of names. */
#define HANDSHAKE 22
#define CLIENT_HELLO 1
#define SERVER_NAME 0
#define HOST_NAME 0
#define VERSION_AND_RANDOM 34

/* The bytes left to read; every step takes bytes or fails. */
struct rest {
    const uint8_t *data;
    size_t size;
};

static bool take(struct rest *rest, size_t size, struct rest *part)
{
    if (size > rest->size)
        return false;
    part->data = rest->data;
    part->size = size;
    rest->data += size;
    rest->size -= size;
    return true;
}

static bool take_number(struct rest *rest, int bytes, size_t *number)
{
    struct rest part;
    int i;

    if (!take(rest, (size_t)bytes, &part))
        return false;
    for (*number = 0, i = 0; i < bytes; i++)
        *number = *number << 8 | part.data[i];
    return true;
}

/* Take a part with the length in front, a number of so many bytes. */
static bool take_counted(struct rest *rest, int bytes, struct rest *part)
{
    size_t size;

    return take_number(rest, bytes, &size) && take(rest, size, part);
}

static bool is_of_host(uint8_t letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '-' || letter == '.' || letter == '_';
}

static bool copy_name(struct rest extension, char name[HOST_BYTES])
{
    struct rest names, host;
    size_t kind, i;

    if (!take_counted(&extension, 2, &names) || !take_number(&names, 1, &kind) ||
        kind != HOST_NAME || !take_counted(&names, 2, &host) || !host.size ||
        host.size >= HOST_BYTES)
        return false;
    for (i = 0; i < host.size; i++)
        if (!is_of_host(host.data[i]))
            return false;
    memcpy(name, host.data, host.size);
    name[host.size] = 0;
    return true;
}

bool hello_server_name(const uint8_t *data, size_t size, char name[HOST_BYTES])
{
    struct rest rest = {data, size}, part, extensions, extension;
    size_t kind, length;

    if (!take_number(&rest, 1, &kind) || kind != HANDSHAKE || !take_number(&rest, 2, &length) ||
        length >> 8 != 3 || !take_number(&rest, 2, &length) || !take_number(&rest, 1, &kind) ||
        kind != CLIENT_HELLO || !take_number(&rest, 3, &length))
        return false;
    if (!take(&rest, VERSION_AND_RANDOM, &part) || !take_counted(&rest, 1, &part) ||
        !take_counted(&rest, 2, &part) || !take_counted(&rest, 1, &part) ||
        !take_number(&rest, 2, &length))
        return false;
    extensions.data = rest.data; /* some may be in a later send */
    extensions.size = length < rest.size ? length : rest.size;
    while (take_number(&extensions, 2, &kind) && take_counted(&extensions, 2, &extension))
        if (kind == SERVER_NAME)
            return copy_name(extension, name);
    return false;
}
