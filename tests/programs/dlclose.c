/* Loads the driver, uses it, closes it, and repeats this. */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>

int main(void) {
    for (int round = 1; round <= 3; round++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        EXPECT(library != NULL);
        __typeof__(cuInit) *init = dlsym(library, "cuInit");
        __typeof__(cuDevicePrimaryCtxRetain) *retain = dlsym(library, "cuDevicePrimaryCtxRetain");
        __typeof__(cuCtxSetCurrent) *set_current = dlsym(library, "cuCtxSetCurrent");
        __typeof__(cuMemAlloc) *alloc = dlsym(library, "cuMemAlloc_v2");
        __typeof__(cuMemFree) *give_back = dlsym(library, "cuMemFree_v2");
        EXPECT(init && retain && set_current && alloc && give_back);
        CUcontext context;
        CUdeviceptr memory;
        REQUIRE(init(0));
        REQUIRE(retain(&context, 0));
        REQUIRE(set_current(context));
        REQUIRE(alloc(&memory, 4 * MIB));
        printf("round %d: too much: %d\n", round, alloc(&memory, (size_t)1 << 50));
        REQUIRE(give_back(memory));
        EXPECT(dlclose(library) == 0);
        EXPECT(dlsym(RTLD_DEFAULT, "malloc") != NULL);
    }
    return 0;
}
