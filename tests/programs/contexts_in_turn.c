/* Launches alternately in two contexts of one device. */
#include "program.h"

int main(void) {
    CUcontext contexts[2];
    CUstream streams[2];
    CUfunction kernels[2];
    contexts[0] = use_device();
    REQUIRE(cuCtxCreate(&contexts[1], 0, 0));
    for (int i = 0; i < 2; i++) {
        REQUIRE(cuCtxSetCurrent(contexts[i]));
        REQUIRE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        kernels[i] = spin_kernel();
    }
    for (int i = 0; i < 400; i++) {
        REQUIRE(cuCtxSetCurrent(contexts[i % 2]));
        REQUIRE(spin(kernels[i % 2], streams[i % 2], 100000));
        REQUIRE(cuStreamSynchronize(streams[i % 2]));
    }
    return 0;
}
