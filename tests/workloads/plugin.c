/* The plug-in of plugin_host.c.  By hand: { open, 5 reads of 40, close } of "data" a call. */
#include "known.h"

int plugin_read(void)
{
    char data[40];
    int fd = open("data", O_RDONLY);

    MUST(fd >= 0);
    for (int i = 0; i < 5; i++)
        MUST(read(fd, data, sizeof data) == sizeof data);
    MUST(close(fd) == 0);
    return 5;
}
