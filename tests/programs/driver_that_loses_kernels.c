/*
 * A driver, as libcuda.so.1, whose device has a fault in the first kernel: no kernel ends, and no stream memory
 * operation behind one is carried out. From the first launch on the calls that tell of a fault do so, until the primary
 * context is reset. The library forwards its functions to the driver in the file named by DRIVER_BEHIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { ILLEGAL_ADDRESS = 700 };

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain)                     \
    X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxGetState) X(cuCtxSetCurrent) X(cuCtxGetCurrent)                \
    X(cuCtxGetDevice) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuModuleLoadData) X(cuModuleGetFunction)          \
    X(cuEventCreate) X(cuStreamIsCapturing) X(cuMemHostRegister_v2) X(cuMemHostGetDevicePointer_v2)                    \
    X(cuDeviceGetMemPool) X(cuDeviceGetDefaultMemPool) X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute)               \
    X(cuDeviceGetDevResource) X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuCtxFromGreenCtx)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

static atomic_int launched;

int cuLaunchKernel(void) {
    atomic_store(&launched, 1);
    return 0;
}

int cuStreamWriteValue64_v2(void) {
    return 0;
}

/* Tells of the fault after the first launch. Before that the function behind is called, which takes up to five arguments. */
#define TELLS(name)                                                                                                    \
    static int (*behind_##name)(void *, void *, void *, void *, void *);                                               \
    int name(void *a, void *b, void *c, void *d, void *e) {                                                            \
        return atomic_load(&launched) ? ILLEGAL_ADDRESS : behind_##name(a, b, c, d, e);                                \
    }
#define TELLING(X)                                                                                                     \
    X(cuMemcpyDtoH_v2) X(cuEventQuery) X(cuStreamQuery) X(cuStreamCreate) X(cuCtxSynchronize) X(cuMemAlloc_v2)         \
    X(cuMemAllocPitch_v2) X(cuMemAllocAsync) X(cuMemHostAlloc) X(cuMemFree_v2) X(cuMemFreeAsync) X(cuMemGetInfo_v2)
TELLING(TELLS)

static int (*reset_behind)(int);

int cuDevicePrimaryCtxReset_v2(int device) {
    atomic_store(&launched, 0);
    return reset_behind(device);
}

__attribute__((constructor)) static void find_behind(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) *(void **)&behind_##name = dlsym(behind, #name);
    FORWARDED(FIND)
    TELLING(FIND)
    *(void **)&reset_behind = dlsym(behind, "cuDevicePrimaryCtxReset_v2");
}
