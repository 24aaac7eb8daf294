/* The server's name in the first bytes of a TLS client.  Reads no other content, keeps none; knows
 * no socket. */
#ifndef PENSTOCK_HELLO_H
#define PENSTOCK_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hosts.h"

#pragma GCC visibility push(hidden)

/* false: no ClientHello, a part of a ClientHello, no name, or a name with characters outside host
 * names. */
bool hello_server_name(const uint8_t *data, size_t size, char name[HOST_BYTES]);

#pragma GCC visibility pop

#endif
