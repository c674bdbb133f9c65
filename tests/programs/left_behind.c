/*
 * Launches nine kernels on the second device, and then one on the first. The argument selects the stream on the second
 * device:
 *
 *   stream     a stream
 *   default    the default stream
 *   destroyed  a stream that is destroyed before the last launch
 *   captured   a stream that captures launches, from before the last launch until after it
 */
#include "program.h"

enum { WAITED_FOR = 3, MORE = 6, KERNEL_NS = 1000000 };

int main(int count, char **arguments) {
    EXPECT(count == 2);
    const char *way = arguments[1];
    CUcontext contexts[2];
    CUfunction kernels[2];
    CUstream first, stream = NULL;
    REQUIRE(cuInit(0));
    for (int device = 0; device < 2; device++) {
        REQUIRE(cuDevicePrimaryCtxRetain(&contexts[device], device));
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        kernels[device] = spin_kernel();
        REQUIRE(cuStreamCreate(device ? &stream : &first, CU_STREAM_NON_BLOCKING));
    }
    if (!strcmp(way, "default")) {
        REQUIRE(cuStreamDestroy(stream));
        stream = NULL;
    }
    for (int i = 0; i < WAITED_FOR; i++) {
        REQUIRE(spin(kernels[1], stream, KERNEL_NS));
        REQUIRE(cuStreamSynchronize(stream));
    }
    for (int i = 0; i < MORE; i++)
        REQUIRE(spin(kernels[1], stream, KERNEL_NS));
    if (!strcmp(way, "destroyed"))
        REQUIRE(cuStreamDestroy(stream));
    if (!strcmp(way, "captured"))
        REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    printf("launches\n");
    fflush(stdout);
    REQUIRE(spin(kernels[0], first, KERNEL_NS));
    REQUIRE(cuCtxSetCurrent(contexts[1]));
    if (!strcmp(way, "captured")) {
        CUgraph graph;
        REQUIRE(spin(kernels[1], stream, KERNEL_NS));
        REQUIRE(cuStreamEndCapture(stream, &graph));
    }
    REQUIRE(cuCtxSynchronize());
    printf("done\n");
    return 0;
}
