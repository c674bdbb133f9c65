/* A plugin that is linked to the driver and asks for its functions by RTLD_DEFAULT: found among the libraries that it needs. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

CUresult cuDriverGetVersion(int *version);

__attribute__((visibility("default"))) void look(void) {
    int version = 0;
    /* Keeps the driver in the list of needed libraries. */
    EXPECT(cuDriverGetVersion(&version) == 0 && version > 0);
    printf("the plugin finds cuMemAlloc_v2: %s\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? "yes" : "no");
    printf("the plugin finds cuNoSuchFunction: %s\n", dlsym(RTLD_DEFAULT, "cuNoSuchFunction") ? "yes" : "no");
    printf("message: %s\n", dlerror() ? "yes" : "no");
}
