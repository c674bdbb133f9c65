/*
 * A pool grows in one thread at the moment at which the driver is asked for the pool's reserve on behalf of another
 * thread, which waits for its stream.
 */
#include "program.h"

#include <pthread.h>

static CUcontext context;
static CUmemoryPool pool;
static CUdeviceptr grown;
static int is_armed;

static void *grow(void *argument) {
    CUstream stream;
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuMemAllocFromPoolAsync(&grown, 16 * MIB, pool, stream));
    return argument;
}

/* Called by the driver. */
void while_asked(void) {
    pthread_t thread;
    if (!is_armed)
        return;
    is_armed = 0;
    EXPECT(pthread_create(&thread, NULL, grow, NULL) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
}

int main(void) {
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUstream stream;
    CUdeviceptr first;
    context = use_device();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    REQUIRE(cuMemAllocFromPoolAsync(&first, 2 * MIB, pool, stream));
    REQUIRE(cuMemFreeAsync(first, stream));
    is_armed = 1;
    REQUIRE(cuStreamSynchronize(stream));
    EXPECT(grown);
    printf("grown\n");
    fflush(stdout);
    pause();
    return 0;
}
