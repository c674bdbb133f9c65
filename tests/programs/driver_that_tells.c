/*
 * A driver, as libcuda.so.1, that prints a message when host memory is registered and when a kernel is launched. It
 * forwards its functions to the driver in the file named by DRIVER_BEHIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent)  \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuStreamIsCapturing)             \
    X(cuThreadExchangeStreamCaptureMode) X(cuMemHostGetDevicePointer_v2) X(cuStreamWriteValue64_v2) X(cuMemAlloc_v2)   \
    X(cuMemFree_v2) X(cuMemGetInfo_v2) X(cuCtxSynchronize)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

typedef int Register(void *start, size_t bytes, unsigned flags);
typedef int Launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra);
static Register *register_behind;
static Launch *launch_behind;

int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    printf("registers %zu bytes\n", bytes);
    return register_behind(start, bytes, flags);
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra) {
    printf("launches\n");
    return launch_behind(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                         extra);
}

__attribute__((constructor)) static void find_behind(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) behind_##name = dlsym(behind, #name);
    FORWARDED(FIND)
    register_behind = (Register *)dlsym(behind, "cuMemHostRegister_v2");
    launch_behind = (Launch *)dlsym(behind, "cuLaunchKernel");
}
