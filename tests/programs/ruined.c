/*
 * Launches a kernel that has a fault, and makes the call that the first argument names, which tells of the fault or ends
 * the primary context. With a second argument the kernel runs in a green context.
 */
#include "program.h"

static CUdeviceptr memory, in_order;
static CUevent event;

static void use_green_context(void) {
    CUdevResource sms;
    CUdevResourceDesc description;
    CUgreenCtx green;
    CUcontext context;
    REQUIRE(cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE(cuDevResourceGenerateDesc(&description, &sms, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE(cuCtxFromGreenCtx(&context, green));
    REQUIRE(cuCtxSetCurrent(context));
}

static CUresult call(const char *name) {
    char byte;
    CUdeviceptr more;
    CUstream stream;
    void *host;
    size_t bytes, total;
    if (!strcmp(name, "cuMemcpyDtoH"))
        return cuMemcpyDtoH(&byte, memory, 1);
    if (!strcmp(name, "cuEventQuery"))
        return cuEventQuery(event);
    if (!strcmp(name, "cuStreamQuery"))
        return cuStreamQuery(NULL);
    if (!strcmp(name, "cuMemAlloc"))
        return cuMemAlloc(&more, MIB);
    if (!strcmp(name, "cuMemAllocPitch"))
        return cuMemAllocPitch(&more, &bytes, MIB, 1, 4);
    if (!strcmp(name, "cuMemAllocAsync"))
        return cuMemAllocAsync(&more, MIB, NULL);
    if (!strcmp(name, "cuMemHostAlloc"))
        return cuMemHostAlloc(&host, MIB, 0);
    if (!strcmp(name, "cuMemFree"))
        return cuMemFree(memory);
    if (!strcmp(name, "cuMemFreeAsync"))
        return cuMemFreeAsync(in_order, NULL);
    if (!strcmp(name, "cuMemGetInfo"))
        return cuMemGetInfo(&bytes, &total);
    if (!strcmp(name, "cuStreamCreate"))
        return cuStreamCreate(&stream, 0);
    if (!strcmp(name, "cuCtxSynchronize"))
        return cuCtxSynchronize();
    EXPECT(!strcmp(name, "cuDevicePrimaryCtxReset"));
    return cuDevicePrimaryCtxReset(0);
}

int main(int count, char **arguments) {
    EXPECT(count > 1);
    CUcontext primary = use_device();
    CUfunction kernel = spin_kernel();
    REQUIRE(cuMemAlloc(&memory, MIB));
    REQUIRE(cuMemAllocAsync(&in_order, MIB, NULL));
    REQUIRE(cuEventCreate(&event, 0));
    if (count > 2)
        use_green_context();
    REQUIRE(spin(kernel, NULL, 1000));
    REQUIRE(cuCtxSetCurrent(primary));
    printf("launched\n");
    fflush(stdout);
    printf("%d\n", call(arguments[1]));
    return 0;
}
