/*
 * A driver, as libcuda.so.1, that prints the name of each function that gives memory back, and carries it out at
 * SIGUSR1. It forwards its functions to the driver in the file named by DRIVER_BEHIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent)  \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuMemAlloc_v2) X(cuMemCreate) X(cuMemAddressReserve) X(cuMemMap)
/* Some take only the first argument. */
#define LATE(X) X(cuMemFree_v2) X(cuMemUnmap) X(cuMemRelease)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

typedef int GiveBack(uint64_t what, size_t bytes);

static int when_told(const char *name, GiveBack *function, uint64_t what, size_t bytes) {
    sigset_t signals;
    int signal;
    printf("%s\n", name);
    fflush(stdout);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    if (sigwait(&signals, &signal) != 0)
        abort();
    return function(what, bytes);
}

#define DEFINE_LATE(name)                                                                                              \
    static GiveBack *behind_##name;                                                                                    \
    int name(uint64_t what, size_t bytes) {                                                                            \
        return when_told(#name, behind_##name, what, bytes);                                                           \
    }
LATE(DEFINE_LATE)

__attribute__((constructor)) static void find_behind(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) behind_##name = dlsym(behind, #name);
    FORWARDED(FIND)
#define FIND_LATE(name) behind_##name = (GiveBack *)dlsym(behind, #name);
    LATE(FIND_LATE)
}
