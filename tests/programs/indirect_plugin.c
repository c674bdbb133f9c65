/* A plugin linked to a library that is linked to the driver. It finds the driver's functions by RTLD_DEFAULT. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

CUresult take_one(size_t bytes);

__attribute__((visibility("default"))) void look(void) {
    /* A call that keeps the library in the list of needed libraries. */
    EXPECT(take_one(1) == CUDA_SUCCESS);
    printf("the plugin finds cuMemAlloc_v2: %s\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? "yes" : "no");
    printf("message: %s\n", dlerror() ? "yes" : "no");
}
