/* The name resolved by the program, for an address from getaddrinfo.  Knows no socket. */
#ifndef PENSTOCK_HOSTS_H
#define PENSTOCK_HOSTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#pragma GCC visibility push(hidden)

#define HOST_BYTES 256 /* no resolvable name is longer */

/* IPv6 unchanged, IPv4 as ::ffff:a.b.c.d; the port separately.  false: another family. */
bool hosts_address(const struct sockaddr *given, socklen_t length, uint8_t address[16],
                   uint16_t *port);

void hosts_keep(const uint8_t address[16], const char *name);
bool hosts_find(const uint8_t address[16], char name[HOST_BYTES]);

/* "1.2.3.4" or "[::1]"; returns where the text ends.  Room: 48 bytes. */
char *hosts_write(char *end, const uint8_t address[16]);
char *hosts_write_number(char *end, unsigned number);

#pragma GCC visibility pop

#endif
