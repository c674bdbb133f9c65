/*
 * A plugin linked to the driver that looks the driver's functions up by RTLD_DEFAULT, which finds them among its needed
 * libraries.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

CUresult cuDriverGetVersion(int *version);

__attribute__((visibility("default"))) void look(void) {
    int version = 0;
    /* A call that keeps the driver in the list of needed libraries. */
    EXPECT(cuDriverGetVersion(&version) == 0 && version > 0);
    printf("the plugin finds cuMemAlloc_v2: %s\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? "yes" : "no");
    printf("the plugin finds cuNoSuchFunction: %s\n", dlsym(RTLD_DEFAULT, "cuNoSuchFunction") ? "yes" : "no");
    printf("message: %s\n", dlerror() ? "yes" : "no");
}
