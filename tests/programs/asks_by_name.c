/*
 * Prints whether it gets a context, and the free memory then. Arguments: the driver's library; optionally a user to
 * become before it uses the driver.
 */
#define NOT_LINKED
#include "program.h"

#include <dlfcn.h>
#include <grp.h>

int main(int count, char **arguments) {
    EXPECT(count == 2 || count == 3);
    if (count == 3) {
        unsigned id = strtoul(arguments[2], NULL, 10);
        EXPECT(setgroups(0, NULL) == 0 && setresgid(id, id, id) == 0 && setresuid(id, id, id) == 0);
    }
    void *library = dlopen(arguments[1], RTLD_NOW);
    EXPECT(library != NULL);
    __typeof__(cuInit) *init = dlsym(library, "cuInit");
    __typeof__(cuDevicePrimaryCtxRetain) *retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    __typeof__(cuCtxSetCurrent) *set_current = dlsym(library, "cuCtxSetCurrent");
    __typeof__(cuMemGetInfo) *info = dlsym(library, "cuMemGetInfo_v2");
    EXPECT(init && retain && set_current && info);
    CUcontext context;
    size_t free, total;
    REQUIRE(init(0));
    CUresult retained = retain(&context, 0);
    printf("context: %d\n", retained);
    if (!retained) {
        REQUIRE(set_current(context));
        REQUIRE(info(&free, &total));
        printf("free: %zu MiB\n", free / MIB);
    }
    return 0;
}
