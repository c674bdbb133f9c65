/*
 * A driver, as libcuda.so.1, whose device cannot write into host memory, so that progress is visible only by events. It
 * forwards its functions to the driver in the file named by DRIVER_BEHIND. At the end of the process it prints the
 * number of events that were not destroyed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) X(cuCtxCreate_v2)   \
    X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuModuleLoadData) X(cuModuleGetFunction)                 \
    X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemGetInfo_v2)                                                                \
    X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuStreamIsCapturing)   \
    X(cuThreadExchangeStreamCaptureMode) X(cuEventRecord) X(cuEventQuery) X(cuLaunchKernel) X(cuGraphGetNodes)         \
    X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

static int (*create_behind)(void **, unsigned);
static int (*destroy_behind)(void *);
static atomic_int events;

int cuEventCreate(void **event, unsigned flags) {
    int result = create_behind(event, flags);
    atomic_fetch_add(&events, result == 0);
    return result;
}

int cuEventDestroy_v2(void *event) {
    int result = destroy_behind(event);
    atomic_fetch_sub(&events, result == 0);
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
    *(void **)&create_behind = dlsym(behind, "cuEventCreate");
    *(void **)&destroy_behind = dlsym(behind, "cuEventDestroy_v2");
}

__attribute__((destructor)) static void tell(void) {
    printf("%d events\n", atomic_load(&events));
}
