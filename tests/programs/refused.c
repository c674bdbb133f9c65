/*
 * Prints what it gets of the first device: contexts, memory, page-locked memory, and work. It must end well whether it
 * gets all or nothing.
 */
#include "program.h"

static const char *said(CUresult result) { return result ? "refused" : "granted"; }

int main(void) {
    CUcontext primary, own;
    CUdeviceptr memory;
    CUmodule module;
    CUfunction function;
    void *host;
    REQUIRE(cuInit(0));
    CUresult retained = cuDevicePrimaryCtxRetain(&primary, 0);
    printf("primary context: %d\nown context: %d\n", retained, cuCtxCreate(&own, 0, 0));
    printf("memory: %s\n", said(cuMemAlloc(&memory, 4096)));
    printf("page-locked memory: %s\n", said(cuMemHostAlloc(&host, 4096, 0)));
    CUresult launched = cuModuleLoadData(&module, SPIN_PTX);
    if (!launched)
        launched = cuModuleGetFunction(&function, module, "spin_ns");
    printf("work: %s\n", said(launched ? launched : spin(function, NULL, 1000)));
    printf("done\n");
    return 0;
}
