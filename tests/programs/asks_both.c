/* Tries to allocate memory and to launch a kernel, and prints the results. */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 2);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel = NULL;
    CUdeviceptr memory;
    int started = cuInit(0);
    if (!started)
        started = cuDeviceGet(&device, 0);
    if (!started)
        started = cuDevicePrimaryCtxRetain(&context, device);
    if (!started)
        started = cuCtxSetCurrent(context);
    if (!started)
        started = cuModuleLoadData(&module, SPIN_PTX);
    if (!started)
        started = cuModuleGetFunction(&kernel, module, "spin_ns");
    printf("started %d\n", started);
    if (!started) {
        printf("memory %d\n", cuMemAlloc(&memory, strtoull(arguments[1], NULL, 0)));
        printf("launch %d\n", spin(kernel, NULL, 1000));
        printf("done %d\n", cuCtxSynchronize());
    }
    return 0;
}
