/*
 * A driver of CUDA 11.3, as libcuda.so.1: its cuGetProcAddress has no second version. It has one device, with the UUID
 * in the environment variable DEVICE_UUID and unlimited memory. Compiled with SHARED_FUNCTIONS it has additional
 * symbols for the same functions: earlier versions, and forms with per-thread default streams.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };

typedef int CUresult;

CUresult cuInit(unsigned flags) {
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}

CUresult cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}

CUresult cuDeviceGetUuid(unsigned char uuid[16], int device) {
    const char *text = getenv("DEVICE_UUID");
    if (device != 0 || !text || strncmp(text, "GPU-", 4))
        return INVALID_VALUE;
    text += 4;
    for (int byte = 0; byte < 16; byte++) {
        text += *text == '-';
        char digits[3] = {text[0], text[1], 0};
        uuid[byte] = strtoul(digits, NULL, 16);
        text += 2;
    }
    return SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)1;
    return device == 0 ? SUCCESS : INVALID_VALUE;
}

CUresult cuCtxSetCurrent(void *context) {
    return context ? SUCCESS : INVALID_VALUE;
}

CUresult cuCtxGetDevice(int *device) {
    *device = 0;
    return SUCCESS;
}

CUresult cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    static unsigned long long next = (size_t)1 << 32;
    *address = next;
    next += bytes;
    return SUCCESS;
}

CUresult cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream) {
    (void)stream;
    return cuMemAlloc_v2(address, bytes);
}

CUresult cuMemFree_v2(unsigned long long address) {
    return address ? SUCCESS : INVALID_VALUE;
}

#ifdef SHARED_FUNCTIONS
#define ALIAS(symbol, of) __typeof__(of) symbol __attribute__((alias(#of)));
ALIAS(cuMemAlloc, cuMemAlloc_v2)
ALIAS(cuMemFree, cuMemFree_v2)
ALIAS(cuMemAllocAsync_ptsz, cuMemAllocAsync)
#endif

CUresult cuGetProcAddress(const char *name, void **address, int version, unsigned long long flags) {
    static const struct {
        const char *name;
        int version;
        void *function;
    } functions[] = {
        {"cuInit", 2000, cuInit},
#ifdef SHARED_FUNCTIONS
        {"cuMemAlloc", 2000, cuMemAlloc},
#endif
        {"cuMemAlloc", 3020, cuMemAlloc_v2},
        {"cuMemAllocAsync", 11020, cuMemAllocAsync},
        {"cuGetProcAddress", 11030, cuGetProcAddress},
    };
    if (!name || !address || flags > 2)
        return INVALID_VALUE;
    *address = NULL;
    for (size_t number = 0; number < sizeof functions / sizeof *functions; number++)
        if (!strcmp(functions[number].name, name) && functions[number].version <= version)
            *address = functions[number].function;
    return *address ? SUCCESS : NOT_FOUND;
}
