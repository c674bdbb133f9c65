/*
 * Two devices with access to each other's memory. Allocates and frees memory of one device while the other one is
 * current.
 */
#include "program.h"

static CUcontext contexts[2];

static void show(const char *when) {
    size_t free[2];
    for (int device = 0; device < 2; device++) {
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        free[device] = free_bytes();
    }
    printf("%s: free %zu MiB and %zu MiB\n", when, free[0] / MIB, free[1] / MIB);
}

int main(void) {
    CUdeviceptr memory[2], more;
    REQUIRE(cuInit(0));
    for (CUdevice device = 0; device < 2; device++)
        REQUIRE(cuDevicePrimaryCtxRetain(&contexts[device], device));
    show("at first");
    for (int device = 0; device < 2; device++) {
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        printf("device %d reaches the other: %d\n", device, cuCtxEnablePeerAccess(contexts[1 - device], 0));
        REQUIRE(cuMemAlloc(&memory[device], (size_t)(device + 1) * 16 * MIB));
    }
    show("16 MiB and 32 MiB taken");
    for (int device = 0; device < 2; device++) {
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        printf("device %d: one byte more than is left: %d\n", device, cuMemAlloc(&more, free_bytes() + 1));
    }
    REQUIRE(cuMemcpyPeer(memory[1], contexts[1], memory[0], contexts[0], MIB));
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    REQUIRE(cuMemFree(memory[1]));
    show("the second device's given back while the first is current");
    REQUIRE(cuCtxSetCurrent(contexts[1]));
    REQUIRE(cuCtxDisablePeerAccess(contexts[0]));
    REQUIRE(cuDevicePrimaryCtxReset(0));
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    show("the first device's context reset");
    return 0;
}
