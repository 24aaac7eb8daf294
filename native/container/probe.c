/* Ends with 0 if the recorder was preloaded into it: by the loader of whatever it runs in. */
#include <dlfcn.h>

int main(void)
{
    return !dlsym(RTLD_DEFAULT, "penstock_state");
}
