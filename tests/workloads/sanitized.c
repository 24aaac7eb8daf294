/* Built with -fsanitize=address.  Reads its own file 100 times: open, 100 pread of 64 bytes, close.
 * With an argument it writes behind the end of an allocation, which the sanitizer reports. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "known.h"

int main(int count, char **arguments)
{
    char *buffer = malloc(64);
    int fd = open(arguments[0], O_RDONLY);
    volatile int behind = 63;
    int i;

    for (i = 0; i < 100; i++)
        MUST(pread(fd, buffer, 64, 0) == 64);
    MUST(!close(fd));
    if (count > 1)
        ((volatile char *)buffer)[behind + count] = 1;
    free(buffer);
    return 0;
}
