/*
 * Difficult uses of physical memory: adjacent mappings, failing steps, second handles, and threads that release it at
 * once.
 */
#include "program.h"

#include <pthread.h>

#define PIECE (2 * MIB)
#define ROUNDS 400

static CUdeviceptr range;
static size_t before;
static pthread_barrier_t together;
static CUmemGenericAllocationHandle shared;

static void show(const char *when) {
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

static CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    REQUIRE(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

static void steps_that_fail(void) {
    CUmemGenericAllocationHandle handle = create(2 * PIECE), again;
    REQUIRE(cuMemMap(range, 2 * PIECE, 0, handle, 0));
    printf("mapped where something is: %d\n", cuMemMap(range + PIECE, PIECE, 0, handle, 0) != CUDA_SUCCESS);
    printf("more than there is of it: %d\n", cuMemMap(range + 4 * PIECE, 4 * PIECE, 0, handle, 0) != CUDA_SUCCESS);
    printf("a part unmapped: %d\n", cuMemUnmap(range, PIECE) != CUDA_SUCCESS);
    printf("too much unmapped: %d\n", cuMemUnmap(range, 4 * PIECE) != CUDA_SUCCESS);
    printf("unmapped where nothing is: %d\n", cuMemUnmap(range + 8 * PIECE, PIECE) != CUDA_SUCCESS);
    printf("retained where nothing is: %d\n",
           cuMemRetainAllocationHandle(&again, (void *)(range + 8 * PIECE)) != CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle));
    printf("released twice: %d\n", cuMemRelease(handle) != CUDA_SUCCESS);
    show("after steps that failed");
    REQUIRE(cuMemUnmap(range, 2 * PIECE));
    printf("unmapped twice: %d\n", cuMemUnmap(range, 2 * PIECE) != CUDA_SUCCESS);
    show("unmapped");
}

static void side_by_side(void) {
    CUmemGenericAllocationHandle small = create(PIECE), large = create(3 * PIECE);
    /* Half of the large piece stays unmapped, but is charged in full. */
    REQUIRE(cuMemMap(range, PIECE, 0, small, 0));
    REQUIRE(cuMemMap(range + PIECE, 2 * PIECE, 0, large, 0));
    REQUIRE(cuMemMap(range + 3 * PIECE, PIECE, 0, small, 0));
    REQUIRE(cuMemRelease(small));
    REQUIRE(cuMemRelease(large));
    show("three mappings");
    REQUIRE(cuMemUnmap(range + PIECE, 3 * PIECE));
    show("two of them gone with one call");
    large = create(3 * PIECE);
    REQUIRE(cuMemMap(range + PIECE, 3 * PIECE, 0, large, 0));
    REQUIRE(cuMemRelease(large));
    show("their place taken by one");
    REQUIRE(cuMemUnmap(range, 4 * PIECE));
    show("all gone");
}

static void by_its_mapping(void) {
    CUmemGenericAllocationHandle handle = create(2 * PIECE), again, third;
    REQUIRE(cuMemMap(range, 2 * PIECE, 0, handle, 0));
    REQUIRE(cuMemRelease(handle));
    REQUIRE(cuMemRetainAllocationHandle(&again, (void *)(range + PIECE + 12345)));
    REQUIRE(cuMemRetainAllocationHandle(&third, (void *)range));
    REQUIRE(cuMemUnmap(range, 2 * PIECE));
    show("two new names, no mapping");
    REQUIRE(cuMemRelease(again));
    show("one name");
    REQUIRE(cuMemMap(range, 2 * PIECE, 0, third, 0));
    REQUIRE(cuMemRelease(third));
    REQUIRE(cuMemUnmap(range, 2 * PIECE));
    show("none");
}

/* Releases one of two handles, or the mapping, of a piece that the other thread releases at the same time. */
static void *give_back(void *argument) {
    intptr_t number = (intptr_t)argument;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&together);
        if (round % 2 && number)
            REQUIRE(cuMemUnmap(range, PIECE));
        else
            REQUIRE(cuMemRelease(shared));
        pthread_barrier_wait(&together);
    }
    return NULL;
}

static void at_once(void) {
    pthread_t threads[2];
    pthread_barrier_init(&together, NULL, 3);
    for (intptr_t i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, give_back, (void *)i) == 0);
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        CUmemGenericAllocationHandle again;
        shared = create(PIECE);
        REQUIRE(cuMemMap(range, PIECE, 0, shared, 0));
        if (round % 2 == 0) {
            REQUIRE(cuMemRetainAllocationHandle(&again, (void *)range));
            EXPECT(again == shared);
            REQUIRE(cuMemUnmap(range, PIECE));
        }
        wrong += before - free_bytes() != PIECE;
        pthread_barrier_wait(&together);
        pthread_barrier_wait(&together);
        wrong += before != free_bytes();
    }
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    printf("given back by two threads at once, and wrong: %d\n", wrong);
}

int main(void) {
    use_device();
    before = free_bytes();
    REQUIRE(cuMemAddressReserve(&range, 16 * PIECE, 0, 0, 0));
    steps_that_fail();
    side_by_side();
    by_its_mapping();
    at_once();
    show("at the end");
    return 0;
}
