/*
 * Prints whether the C library runs it in secure mode, as for set-user-ID programs, and the free memory of the device.
 * Argument: the driver's library, which must be loaded by path, because secure mode ignores LD_LIBRARY_PATH.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <sys/auxv.h>

int main(int count, char **arguments) {
    EXPECT(count == 2);
    void *library = dlopen(arguments[1], RTLD_NOW);
    EXPECT(library != NULL);
    __typeof__(cuInit) *init = dlsym(library, "cuInit");
    __typeof__(cuDevicePrimaryCtxRetain) *retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    __typeof__(cuCtxSetCurrent) *set_current = dlsym(library, "cuCtxSetCurrent");
    __typeof__(cuMemGetInfo) *info = dlsym(library, "cuMemGetInfo_v2");
    __typeof__(cuMemAlloc) *alloc = dlsym(library, "cuMemAlloc_v2");
    EXPECT(init && retain && set_current && info && alloc);
    CUcontext context;
    CUdeviceptr memory;
    size_t free, total;
    REQUIRE(init(0));
    REQUIRE(retain(&context, 0));
    REQUIRE(set_current(context));
    REQUIRE(info(&free, &total));
    printf("secure: %s, free %zu MiB, one byte more: %d\n", getauxval(AT_SECURE) ? "yes" : "no", free / MIB,
           alloc(&memory, free + 1));
    return 0;
}
