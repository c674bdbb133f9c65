/*
 * A driver, as libcuda.so.1, whose device has a fault at the host's first synchronisation. From then on queries return
 * that error, until the primary context is reset. If RUINED_IS_INACTIVE is set, the state of the primary context is
 * still told: it is not active. The library forwards its functions to the driver in the file named by
 * DRIVER_BEHIND. At the end of the process it prints how many queries about addresses there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { ILLEGAL_ADDRESS = 700 };

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain)                     \
    X(cuDevicePrimaryCtxRelease_v2) X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent_v2)     \
    X(cuCtxPopCurrent_v2) X(cuMemAlloc_v2)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

static int (*attribute_behind)(void *, unsigned, unsigned long long);
static int (*state_behind)(int, unsigned *, int *);
static int (*reset_behind)(int);
static atomic_int questions, faulted;

int cuPointerGetAttribute(void *value, unsigned attribute, unsigned long long address) {
    atomic_fetch_add(&questions, 1);
    return atomic_load(&faulted) ? ILLEGAL_ADDRESS : attribute_behind(value, attribute, address);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (!atomic_load(&faulted))
        return state_behind(device, flags, active);
    *active = 0;
    return getenv("RUINED_IS_INACTIVE") ? 0 : ILLEGAL_ADDRESS;
}

int cuCtxSynchronize(void) {
    atomic_store(&faulted, 1);
    return ILLEGAL_ADDRESS;
}

int cuDevicePrimaryCtxReset_v2(int device) {
    atomic_store(&faulted, 0);
    return reset_behind(device);
}

__attribute__((constructor)) static void find_behind(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) behind_##name = dlsym(behind, #name);
    FORWARDED(FIND)
    *(void **)&attribute_behind = dlsym(behind, "cuPointerGetAttribute");
    *(void **)&state_behind = dlsym(behind, "cuDevicePrimaryCtxGetState");
    *(void **)&reset_behind = dlsym(behind, "cuDevicePrimaryCtxReset_v2");
}

__attribute__((destructor)) static void tell(void) {
    printf("%d questions\n", atomic_load(&questions));
}
