/*
 * Threads make contexts, allocate memory in them and destroy them, while other threads retain and release the primary
 * context, in which the first thread keeps memory. The end of one context must not be taken for the end of another.
 */
#include "program.h"

#include <pthread.h>

enum { THREADS = 3, ROUNDS = 200, PIECES = 16 };

static volatile int stop;

static void *destroy(void *unused) {
    for (int round = 0; round < ROUNDS; round++) {
        CUcontext context;
        CUdeviceptr memory[PIECES];
        REQUIRE(cuCtxCreate(&context, 0, 0));
        for (int i = 0; i < PIECES; i++)
            REQUIRE(cuMemAlloc(&memory[i], 4096));
        /* Some are freed before the context ends. */
        for (int i = 0; i < round % PIECES; i++)
            REQUIRE(cuMemFree(memory[i]));
        REQUIRE(cuCtxDestroy(context));
    }
    return unused;
}

static void *release(void *unused) {
    while (!stop) {
        CUcontext context;
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
        REQUIRE(cuDevicePrimaryCtxRelease(0));
    }
    return unused;
}

int main(void) {
    pthread_t destroying[THREADS], releasing[THREADS];
    CUdeviceptr kept[PIECES];
    use_device();
    size_t before = free_bytes();
    for (int i = 0; i < PIECES; i++)
        REQUIRE(cuMemAlloc(&kept[i], MIB));
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&destroying[i], NULL, destroy, NULL) == 0);
        EXPECT(pthread_create(&releasing[i], NULL, release, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(destroying[i], NULL) == 0);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(releasing[i], NULL) == 0);
    printf("%d contexts destroyed, %zu MiB in use\n", THREADS * ROUNDS, (before - free_bytes()) / MIB);
    for (int i = 0; i < PIECES; i++)
        REQUIRE(cuMemFree(kept[i]));
    printf("all given back: %s\n", free_bytes() == before ? "yes" : "no");
    return 0;
}
