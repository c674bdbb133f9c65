/*
 * Repeatedly resets the primary context while threads allocate memory in it, which the driver's documentation tells
 * programs to avoid. Their memory is freed by the reset, and the driver refuses their calls until they have made the
 * new context current.
 */
#include "program.h"

#include <pthread.h>

enum { THREADS = 4, RESETS = 100 };

static CUcontext context;
static volatile int stop;
static long granted;

static void *take(void *unused) {
    while (!stop) {
        CUdeviceptr memory;
        cuCtxSetCurrent(context);
        if (cuMemAlloc(&memory, 4096) == CUDA_SUCCESS) {
            __atomic_fetch_add(&granted, 1, __ATOMIC_RELAXED);
            /* Every second one is freed, if it still exists. */
            if (memory & 4096)
                cuMemFree(memory);
        }
    }
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    context = use_device();
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, take, NULL) == 0);
    for (int i = 0; i < RESETS; i++) {
        long seen = __atomic_load_n(&granted, __ATOMIC_RELAXED);
        while (__atomic_load_n(&granted, __ATOMIC_RELAXED) < seen + 50)
            usleep(50);
        REQUIRE(cuDevicePrimaryCtxReset(0));
        context = use_device();
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    REQUIRE(cuDevicePrimaryCtxReset(0));
    use_device();
    CUdeviceptr memory;
    printf("reset %d times, and then took 32 MiB: %d\n", RESETS + 1, cuMemAlloc(&memory, 32 * MIB));
    REQUIRE(cuMemFree(memory));
    return 0;
}
