/* A very old driver, as libcuda.so.1: it has few functions, and none of the later ones. */
#include <stdlib.h>

int cuInit(unsigned flags) {
    return flags == 0 ? 0 : 1;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuMemAlloc(unsigned *address, unsigned bytes) {
    (void)bytes;
    *address = 256;
    return 0;
}
