/* Allocates and frees memory of one device while another device is current. */
#include "program.h"

static CUcontext contexts[2];
static size_t before[2];

static void show(const char *when) {
    printf("%s:", when);
    for (int device = 0; device < 2; device++) {
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        REQUIRE(cuCtxSynchronize());
        printf(" %zu", (before[device] - free_bytes()) / MIB);
    }
    printf(" MiB in use\n");
}

int main(void) {
    CUdeviceptr linear, ordered, pooled, managed, range;
    CUstream streams[2];
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle;
    CUmemPoolProps pool_properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    REQUIRE(cuInit(0));
    for (int device = 0; device < 2; device++) {
        REQUIRE(cuDevicePrimaryCtxRetain(&contexts[device], device));
        REQUIRE(cuCtxSetCurrent(contexts[device]));
        REQUIRE(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING));
        before[device] = free_bytes();
    }
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    REQUIRE(cuMemAllocAsync(&ordered, 4 * MIB, streams[1]));
    show("4 MiB in a stream of the second");
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    REQUIRE(cuMemPoolCreate(&pool, &pool_properties));
    REQUIRE(cuMemAllocFromPoolAsync(&pooled, 6 * MIB, pool, streams[0]));
    show("6 MiB of a pool of the second in a stream of the first");
    REQUIRE(cuCtxSetCurrent(NULL));
    REQUIRE(cuMemCreate(&handle, 2 * MIB, &properties, 0));
    show("2 MiB of physical memory of the second with none current");
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    REQUIRE(cuMemAlloc(&linear, MIB));
    REQUIRE(cuMemAllocManaged(&managed, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    show("linear and managed memory of the first");
    REQUIRE(cuCtxSetCurrent(contexts[1]));
    REQUIRE(cuMemFree(linear));
    REQUIRE(cuMemFree(managed));
    show("freed with the second current");
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    REQUIRE(cuMemFree(ordered));
    REQUIRE(cuMemFreeAsync(pooled, streams[0]));
    REQUIRE(cuStreamSynchronize(streams[0]));
    REQUIRE(cuMemPoolDestroy(pool));
    REQUIRE(cuMemAddressReserve(&range, 2 * MIB, 0, 0, 0));
    REQUIRE(cuMemMap(range, 2 * MIB, 0, handle, 0));
    REQUIRE(cuMemRelease(handle));
    REQUIRE(cuMemUnmap(range, 2 * MIB));
    show("all given back with the first current");
    return 0;
}
