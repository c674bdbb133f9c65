/*
 * A driver, as libcuda.so.1, that calls the program's function `while_asked` at each query of a pool's reserve, before
 * it reads the reserve. If the program has a function `while_destroyed`, it calls that when a pool is to be destroyed,
 * and refuses. It forwards its functions to the driver in the file named by DRIVER_BEHIND.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORWARDED(X)                                                                                                   \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent)  \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuStreamCreate) X(cuStreamIsCapturing) X(cuStreamSynchronize)               \
    X(cuThreadExchangeStreamCaptureMode) X(cuDeviceGetDefaultMemPool) X(cuMemPoolCreate) X(cuMemPoolTrimTo)            \
    X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) X(cuMemGetInfo_v2)

/* A jump, so that arguments and results need no handling here. */
#define DEFINE(name)                                                                                                   \
    __attribute__((visibility("hidden"))) void *behind_##name;                                                         \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ": jmp *behind_" #name "(%rip)\n");
FORWARDED(DEFINE)

enum { RESERVED_MEM_CURRENT = 5, NOT_PERMITTED = 800 };

typedef int GetAttribute(void *pool, int attribute, void *value);
static GetAttribute *get_attribute_behind;
static int (*destroy_behind)(void *pool);
static void (*while_asked)(void);
static void (*while_destroyed)(void);

int cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    if (attribute == RESERVED_MEM_CURRENT)
        while_asked();
    return get_attribute_behind(pool, attribute, value);
}

int cuMemPoolDestroy(void *pool) {
    if (!while_destroyed)
        return destroy_behind(pool);
    while_destroyed();
    return NOT_PERMITTED;
}

/* Stores the address of `name` in `library`. */
static void find(void *library, const char *name, void *pointer) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "there is no %s\n", name);
        abort();
    }
    memcpy(pointer, &found, sizeof found);
}

__attribute__((constructor)) static void find_all(void) {
    void *behind = dlopen(getenv("DRIVER_BEHIND"), RTLD_NOW | RTLD_LOCAL);
    if (!behind) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define FIND(name) find(behind, #name, &behind_##name);
    FORWARDED(FIND)
    find(behind, "cuMemPoolGetAttribute", &get_attribute_behind);
    find(behind, "cuMemPoolDestroy", &destroy_behind);
    find(RTLD_DEFAULT, "while_asked", &while_asked);
    *(void **)&while_destroyed = dlsym(RTLD_DEFAULT, "while_destroyed");
}
