/* Allocates all memory that each device reports, then one byte more, and launches on it. */
#include "program.h"

int main(void) {
    int count;
    REQUIRE(cuInit(0));
    REQUIRE(cuDeviceGetCount(&count));
    for (CUdevice device = 0; device < count; device++) {
        CUcontext context;
        CUdeviceptr memory;
        size_t total, free, of;
        CUresult made = cuDevicePrimaryCtxRetain(&context, device);
        if (made != CUDA_SUCCESS) {
            printf("device %d: context %d\n", device, made);
            continue;
        }
        REQUIRE(cuCtxSetCurrent(context));
        REQUIRE(cuDeviceTotalMem(&total, device));
        REQUIRE(cuMemGetInfo(&free, &of));
        EXPECT(of == total);
        printf("device %d: total %zu, free %zu", device, total, free);
        printf(", all %d", cuMemAlloc(&memory, total));
        printf(", then %d", cuMemAlloc(&memory, 1));
        printf(", launch %d\n", spin(spin_kernel(), NULL, 1000));
    }
    return 0;
}
