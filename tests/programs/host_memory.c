/* Page-locked host memory: prints the driver's answers to various requests. */
#include "program.h"

#include <sys/mman.h>

#define PAGE 4096

static CUmemGenericAllocationHandle create(size_t bytes, CUresult *result) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CUmemGenericAllocationHandle handle = 0;
    *result = cuMemCreate(&handle, bytes, &properties, 0);
    return handle;
}

int main(void) {
    void *first, *second;
    CUcontext other;
    CUresult result;
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
    CUmemoryPool pool;
    CUdeviceptr pooled;
    char *own = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(own != MAP_FAILED);
    use_device();

    printf("allocate 12 MiB: %d\n", cuMemAllocHost(&first, 12 * MIB));
    printf("and 4 MiB and one byte: %d\n", cuMemHostAlloc(&second, 4 * MIB + 1, 0));
    printf("and 4 MiB: %d\n", cuMemHostAlloc(&second, 4 * MIB, 0));
    printf("free 4 MiB: %d\n", cuMemFreeHost(second));
    printf("free them twice: %d\n", cuMemFreeHost(second));
    /* Two bytes on two pages. */
    printf("register two bytes: %d\n", cuMemHostRegister(own + PAGE - 1, 2, 0));
    printf("and 4 MiB: %d\n", cuMemHostRegister(own + 4 * MIB, 4 * MIB, 0));
    printf("and 4 MiB less two pages: %d\n", cuMemHostRegister(own + 4 * MIB, 4 * MIB - 2 * PAGE, 0));
    printf("unregister what is not: %d\n", cuMemHostUnregister(own + PAGE));
    printf("unregister: %d %d\n", cuMemHostUnregister(own + PAGE - 1), cuMemHostUnregister(own + 4 * MIB));
    REQUIRE(cuMemFreeHost(first));

    CUmemGenericAllocationHandle handle = create(16 * MIB, &result);
    printf("physical memory of 16 MiB: %d\n", result);
    create(2 * MIB, &result);
    printf("and 2 MiB: %d\n", result);
    REQUIRE(cuMemRelease(handle));

    printf("a pool: %d\n", cuMemPoolCreate(&pool, &properties));
    printf("18 MiB of it: %d\n", cuMemAllocFromPoolAsync(&pooled, 18 * MIB, pool, NULL));
    printf("14 MiB of it: %d\n", cuMemAllocFromPoolAsync(&pooled, 14 * MIB, pool, NULL));
    REQUIRE(cuMemFreeAsync(pooled, NULL));
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuMemPoolDestroy(pool));

    REQUIRE(cuCtxCreate(&other, 0, 0));
    printf("16 MiB in a context: %d\n", cuMemAllocHost(&first, 16 * MIB));
    REQUIRE(cuDevicePrimaryCtxReset(0));
    printf("a page after another one's end: %d\n", cuMemAllocHost(&second, PAGE));
    REQUIRE(cuCtxSetCurrent(NULL));
    REQUIRE(cuCtxDestroy(other));
    use_device();
    printf("16 MiB after it: %d\n", cuMemAllocHost(&first, 16 * MIB));
    REQUIRE(cuMemFreeHost(first));
    return 0;
}
