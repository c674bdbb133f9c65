/* Takes 40 MiB twice from each of two pools of managed memory that prefer the host: an own one, and the default one. */
#include "program.h"

static void take_twice(const char *name, CUmemoryPool pool) {
    CUdeviceptr memory[2] = {0};
    printf("%s:", name);
    for (int i = 0; i < 2; i++)
        printf(" %d", cuMemAllocFromPoolAsync(&memory[i], 40 * MIB, pool, NULL));
    printf("\n");
    for (int i = 0; i < 2; i++)
        if (memory[i])
            REQUIRE(cuMemFree(memory[i]));
}

int main(void) {
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0};
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = host};
    CUmemoryPool pool;
    use_device();
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    take_twice("own", pool);
    REQUIRE(cuMemPoolDestroy(pool));
    REQUIRE(cuMemGetDefaultMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_MANAGED));
    take_twice("default", pool);
    return 0;
}
