/* Many short threads, each of which allocates memory and launches once or twice. */
#include "program.h"

#include <pthread.h>

static CUcontext context;
static CUfunction kernel;

static void *once(void *unused) {
    CUdeviceptr memory;
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(cuMemAlloc(&memory, 4096));
    for (int i = 0; i < 2; i++)
        REQUIRE(spin(kernel, NULL, 1000));
    REQUIRE(cuMemFree(memory));
    return unused;
}

int main(void) {
    enum { ROUNDS = 40, THREADS = 25 };
    context = use_device();
    kernel = spin_kernel();
    size_t before = free_bytes();
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++)
            EXPECT(pthread_create(&threads[i], NULL, once, NULL) == 0);
        for (int i = 0; i < THREADS; i++)
            EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    REQUIRE(cuCtxSynchronize());
    printf("%d threads, all given back: %s\n", ROUNDS * THREADS, free_bytes() == before ? "yes" : "no");
    return 0;
}
