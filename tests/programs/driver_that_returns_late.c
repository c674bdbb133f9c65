/*
 * A driver, as libcuda.so.1, that returns from a launch of two blocks only after 3 ms, as if the program had been kept
 * from running. It forwards its functions to the driver in the file named by DRIVER_BEHIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent)  \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuStreamIsCapturing)             \
    X(cuThreadExchangeStreamCaptureMode) X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuEventQuery)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

typedef int Launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra);
static Launch *launch_behind;

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra) {
    int result = launch_behind(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                               parameters, extra);
    if (grid_x == 2)
        usleep(3000);
    return result;
}

__attribute__((constructor)) static void find_behind(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) behind_##name = dlsym(behind, #name);
    FORWARDED(FIND)
    launch_behind = (Launch *)dlsym(behind, "cuLaunchKernel");
}
