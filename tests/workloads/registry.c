/* Loads the plug-in of argv[1] (registering.c), which registers itself, and calls it: once directly after
 * dlopen, and once after a dlsym of anything. */
#include "known.h"

#include <dlfcn.h>

static void (*registered)(void);

void register_reader(void (*reader)(void))
{
    registered = reader;
}

int main(int argc, char **argv)
{
    MUST(argc == 2);
    MUST(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL));
    MUST(registered);
    registered();
    MUST(dlsym(RTLD_DEFAULT, "getpid"));
    registered();
    return 0;
}
