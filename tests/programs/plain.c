/*
 * A plain program linked to the driver. It must behave and print the same on a device as in a slice of the same size.
 */
#include "program.h"

int main(void) {
    int version, count;
    char name[96];
    size_t total, free, of;
    REQUIRE(cuInit(0));
    REQUIRE(cuDriverGetVersion(&version));
    REQUIRE(cuDeviceGetCount(&count));
    REQUIRE(cuDeviceGetName(name, sizeof name, 0));
    REQUIRE(cuDeviceTotalMem(&total, 0));
    printf("driver %d, %d device(s), the first: %s, %zu bytes\n", version, count, name, total);

    CUcontext context = use_device();
    REQUIRE(cuMemGetInfo(&free, &of));
    printf("free: %zu of %zu bytes\n", free, of);

    char sent[4096], received[4096] = {0};
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (char)(i * 7);
    CUdeviceptr memory;
    REQUIRE(cuMemAlloc(&memory, sizeof sent));
    REQUIRE(cuMemcpyHtoD(memory, sent, sizeof sent));
    REQUIRE(cuMemcpyDtoH(received, memory, sizeof received));
    printf("copied there and back: %s\n", memcmp(sent, received, sizeof sent) ? "changed" : "unchanged");
    REQUIRE(cuMemFree(memory));

    CUfunction kernel = spin_kernel();
    for (int i = 0; i < 100; i++)
        REQUIRE(spin(kernel, NULL, 10000));
    REQUIRE(cuCtxSynchronize());
    printf("100 kernels ran\n");

    /* The driver's own errors must be passed on unchanged. */
    printf("a bad address: %d\n", cuMemFree(0xdead000));
    printf("0 bytes: %d\n", cuMemAlloc(&memory, 0));
    printf("no target: %d\n", cuMemAlloc(NULL, 16));
    printf("no kernel: %d\n", spin(NULL, NULL, 1));
    printf("no such device: %d\n", cuDeviceTotalMem(&total, 99));
    REQUIRE(cuCtxSetCurrent(NULL));
    printf("no context: %d %d\n", cuMemAlloc(&memory, 16), spin(kernel, NULL, 1));
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    return 0;
}
