/* Retains and releases the primary context, meets a fault in a kernel, and makes the device usable again by a reset. */
#include "program.h"

enum { PIECES = 40, ROUNDS = 1000 };

static void take_all(void) {
    CUdeviceptr memory;
    for (int i = 0; i < PIECES; i++)
        REQUIRE(cuMemAlloc(&memory, MIB));
}

int main(void) {
    CUcontext context;
    use_device();
    take_all();
    for (int i = 0; i < ROUNDS; i++) {
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
        REQUIRE(cuDevicePrimaryCtxRelease(0));
    }
    EXPECT(cuCtxSynchronize() != CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxReset(0));
    use_device();
    take_all();
    printf("took all again\n");
    return 0;
}
