/*
 * A driver, as libcuda.so.1, that needs 200 ms for a reference to the primary context. It forwards its functions to the
 * driver in the file named by DRIVER_BEHIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxGetState)                   \
    X(cuCtxGetCurrent) X(cuCtxGetDevice)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

static int (*retain_behind)(void **, int);

int cuDevicePrimaryCtxRetain(void **context, int device) {
    usleep(200000);
    return retain_behind(context, device);
}

__attribute__((constructor)) static void find_behind(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) behind_##name = dlsym(behind, #name);
    FORWARDED(FIND)
    *(void **)&retain_behind = dlsym(behind, "cuDevicePrimaryCtxRetain");
}
