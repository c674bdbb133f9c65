/* Pools of stream-ordered memory: after each step, the memory missing on the device must be the pools' reserve. */
#include "program.h"

static size_t before;
static CUmemoryPool standard, own;
static CUdeviceptr pieces[64];

static void show(const char *when) {
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

static void set_threshold(CUmemoryPool pool, uint64_t bytes) {
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static CUmemoryPool make_pool(void) {
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static void from_standard_pool(void) {
    CUdeviceptr first, second;
    REQUIRE(cuMemAllocAsync(&first, MIB, NULL));
    show("one piece");
    REQUIRE(cuMemAllocAsync(&second, MIB / 2, NULL));
    show("a second that fits beside it");
    REQUIRE(cuMemFreeAsync(first, NULL));
    REQUIRE(cuMemFreeAsync(second, NULL));
    REQUIRE(cuStreamSynchronize(NULL));
    show("both freed");

    set_threshold(standard, 16 * MIB);
    REQUIRE(cuMemAllocAsync(&first, 24 * MIB, NULL));
    REQUIRE(cuMemFreeAsync(first, NULL));
    REQUIRE(cuCtxSynchronize());
    show("24 MiB freed, 16 kept");
    REQUIRE(cuMemAllocAsync(&first, 10 * MIB, NULL));
    show("10 MiB of these");
    REQUIRE(cuMemPoolTrimTo(standard, 0));
    show("trimmed");
    REQUIRE(cuMemFree(first));
    show("freed without a stream");
    REQUIRE(cuMemPoolTrimTo(standard, 4 * MIB));
    show("trimmed to 4 MiB");
    REQUIRE(cuMemPoolTrimTo(standard, 0));
    set_threshold(standard, 0);
    show("trimmed to nothing");
}

/* A stream can reuse memory that it has freed before it reaches the free. */
static void again_before_the_free(void) {
    CUfunction kernel = spin_kernel();
    CUdeviceptr memory;
    for (int round = 0; round < 3; round++) {
        REQUIRE(cuMemAllocAsync(&memory, 40 * MIB, NULL));
        REQUIRE(spin(kernel, NULL, 20000000));
        REQUIRE(cuMemFreeAsync(memory, NULL));
    }
    REQUIRE(cuCtxSynchronize());
    show("40 MiB three times, one after the other");
}

static void by_event(void) {
    CUstream stream;
    CUevent event;
    CUdeviceptr memory;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuEventCreate(&event, 0));
    REQUIRE(cuMemAllocAsync(&memory, 6 * MIB, stream));
    REQUIRE(cuMemFreeAsync(memory, stream));
    REQUIRE(cuEventRecord(event, stream));
    REQUIRE(cuEventSynchronize(event));
    show("freed, and an event after it waited for");
    REQUIRE(cuEventDestroy(event));
    REQUIRE(cuStreamDestroy(stream));
}

static void from_own_pools(void) {
    CUdeviceptr first, second;
    CUmemoryPool current;
    own = make_pool();
    set_threshold(own, UINT64_MAX);
    REQUIRE(cuMemAllocFromPoolAsync(&first, 8 * MIB, own, NULL));
    REQUIRE(cuMemAllocAsync(&second, 4 * MIB, NULL));
    show("8 MiB of an own pool and 4 of the standard one");
    REQUIRE(cuMemFreeAsync(first, NULL));
    REQUIRE(cuMemFreeAsync(second, NULL));
    REQUIRE(cuCtxSynchronize());
    show("freed; the own pool keeps all");
    REQUIRE(cuDeviceSetMemPool(0, own));
    REQUIRE(cuDeviceGetMemPool(&current, 0));
    EXPECT(current == own);
    REQUIRE(cuMemAllocAsync(&first, 12 * MIB, NULL));
    show("12 MiB of the own pool, which is the current one now");
    REQUIRE(cuMemPoolDestroy(own));
    show("the own pool destroyed, its memory in use");
    REQUIRE(cuMemFreeAsync(first, NULL));
    REQUIRE(cuCtxSynchronize());
    show("freed");
    own = make_pool();
    REQUIRE(cuMemAllocFromPoolAsync(&first, 8 * MIB, own, NULL));
    REQUIRE(cuMemFreeAsync(first, NULL));
    REQUIRE(cuStreamSynchronize(NULL));
    REQUIRE(cuMemPoolDestroy(own));
    show("another one, destroyed empty");
    printf("destroyed twice: %d\n", cuMemPoolDestroy(own));
}

/* Allocates until nothing is left. A pool must release its unused memory before an allocation is refused. */
static void to_the_brim(void) {
    int count = 0;
    CUresult result;
    CUdeviceptr memory;
    set_threshold(standard, UINT64_MAX);
    while ((result = cuMemAllocAsync(&pieces[count], 3 * MIB, NULL)) == CUDA_SUCCESS)
        count++;
    printf("%d pieces of 3 MiB, then %d\n", count, result);
    show("full");
    while (count > 0)
        REQUIRE(cuMemFreeAsync(pieces[--count], NULL));
    REQUIRE(cuCtxSynchronize());
    show("all freed and kept");
    own = make_pool();
    REQUIRE(cuMemAllocFromPoolAsync(&memory, 32 * MIB, own, NULL));
    REQUIRE(cuMemFreeAsync(memory, NULL));
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuMemPoolTrimTo(standard, 0));
    REQUIRE(cuMemPoolDestroy(own));
    show("given to another pool");
}

int main(void) {
    use_device();
    before = free_bytes();
    REQUIRE(cuDeviceGetDefaultMemPool(&standard, 0));
    printf("of a pool that is none: %d\n", cuMemAllocFromPoolAsync(&pieces[0], MIB, NULL, NULL));
    from_standard_pool();
    again_before_the_free();
    by_event();
    from_own_pools();
    to_the_brim();
    show("at the end");
    return 0;
}
