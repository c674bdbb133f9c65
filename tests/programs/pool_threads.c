/*
 * Threads allocate memory from two pools and free it, each in its own stream, with as much of the device as they can
 * get. With "at once" they free it at once, not in stream order; with "one stream" all do everything in one stream.
 */
#include "program.h"

#include <pthread.h>

#define THREADS 6
#define STEPS 400
#define PIECES 8

static CUcontext context;
static CUmemoryPool pools[2];
static int granted[THREADS], refused[THREADS], at_once, one_stream;

static void *take_and_give_back(void *argument) {
    int number = (int)(intptr_t)argument;
    uint64_t state = (uint64_t)number * 2 + 1;
    CUdeviceptr pieces[PIECES] = {0};
    CUstream stream = NULL;
    REQUIRE(cuCtxSetCurrent(context));
    if (!one_stream)
        REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int step = 0; step < STEPS; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned random = (unsigned)(state >> 33), which = random % PIECES;
        if (pieces[which]) {
            REQUIRE(random / 8 % 4 && !at_once ? cuMemFreeAsync(pieces[which], stream) : cuMemFree(pieces[which]));
            pieces[which] = 0;
        } else {
            size_t bytes = (1 + random / 8 % 48) * (MIB / 8);
            CUresult result = cuMemAllocFromPoolAsync(&pieces[which], bytes, pools[random / 512 % 2], stream);
            EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
            if (result != CUDA_SUCCESS)
                pieces[which] = 0;
            *(result == CUDA_SUCCESS ? &granted[number] : &refused[number]) += 1;
        }
        if (random % 64 == 0)
            REQUIRE(cuStreamSynchronize(stream));
    }
    for (int i = 0; i < PIECES; i++)
        if (pieces[i])
            REQUIRE(at_once ? cuMemFree(pieces[i]) : cuMemFreeAsync(pieces[i], stream));
    REQUIRE(cuStreamSynchronize(stream));
    return NULL;
}

int main(int argc, char **argv) {
    at_once = argc > 1 && strcmp(argv[1], "at once") == 0;
    one_stream = argc > 1 && strcmp(argv[1], "one stream") == 0;
    pthread_t threads[THREADS];
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    uint64_t threshold = 4 * MIB;
    int all_granted = 0, all_refused = 0;
    context = use_device();
    size_t before = free_bytes();
    REQUIRE(cuDeviceGetDefaultMemPool(&pools[0], 0));
    REQUIRE(cuMemPoolCreate(&pools[1], &properties));
    REQUIRE(cuMemPoolSetAttribute(pools[1], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    for (intptr_t i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, take_and_give_back, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
        all_granted += granted[i];
        all_refused += refused[i];
    }
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuMemPoolDestroy(pools[1]));
    printf("%d %d\n", all_granted, all_refused);
    printf("all given back: %s\n", free_bytes() == before ? "yes" : "no");
    return 0;
}
