/* A library that finds its plug-in by bare name, which only its own RUNPATH of $ORIGIN/plugins
 * leads to: what the loaders of some accelerator libraries do.  A dlopen with another caller's
 * address does not find it. */
#include "known.h"
#include <dlfcn.h>

int load_and_read(void)
{
    void *plugin = dlopen("libplugin.so", RTLD_NOW | RTLD_LOCAL);
    int (*plugin_read)(void);
    int n;

    MUST(plugin);
    plugin_read = (int (*)(void))(uintptr_t)dlsym(plugin, "plugin_read");
    MUST(plugin_read);
    n = plugin_read();
    MUST(dlclose(plugin) == 0);
    return n;
}
