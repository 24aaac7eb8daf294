/* Ends with 0 if a loader of any kind preloaded the recorder into the program. */
#include <dlfcn.h>

int main(void)
{
    return !dlsym(RTLD_DEFAULT, "penstock_state");
}
