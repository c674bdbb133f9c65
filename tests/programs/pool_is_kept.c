/*
 * The driver refuses to destroy a pool, and until it does, the program makes another pool and waits for its stream.
 * Afterwards each pool is charged for what it has.
 */
#include "program.h"

static CUstream stream;
static CUmemoryPool first, second;

static CUdeviceptr take(CUmemoryPool pool, size_t bytes) {
    CUdeviceptr memory;
    REQUIRE(cuMemAllocFromPoolAsync(&memory, bytes, pool, stream));
    return memory;
}

static CUmemoryPool make_pool(void) {
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemoryPool pool;
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    return pool;
}

/* Called by the driver. */
void while_asked(void) {}

/* Called by the driver. */
void while_destroyed(void) {
    REQUIRE(cuStreamSynchronize(stream));
    second = make_pool();
    take(second, 8 * MIB);
}

int main(void) {
    use_device();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    first = make_pool();
    REQUIRE(cuMemFreeAsync(take(first, 4 * MIB), stream));
    EXPECT(cuMemPoolDestroy(first) != CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(take(first, 4 * MIB), stream));
    REQUIRE(cuStreamSynchronize(stream));
    printf("free while the second pool holds 8 MiB: %zu MiB\n", free_bytes() / MIB);
    return 0;
}
