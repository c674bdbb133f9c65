/*
 * A driver, as libcuda.so.1, that calls a callback before it answers queries about its devices, as drivers do for
 * profilers. The callback queries the free memory. The driver has one device without a name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static void call_back(void) {
    size_t free, total;
    int (*get_info)(size_t *, size_t *);
    void *found = dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2");
    memcpy(&get_info, &found, sizeof get_info);
    get_info(&free, &total);
}

int cuInit(unsigned flags) {
    return flags == 0 ? 0 : 1;
}

int cuDeviceGetCount(int *count) {
    call_back();
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    call_back();
    *device = ordinal;
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    call_back();
    memset(uuid, device, 16);
    return 0;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = 1000;
    *total = 2000;
    return 0;
}
