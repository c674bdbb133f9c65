/* Host functions and events of a stream must go on while a kernel of another thread waits for the device. */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>

static CUcontext context;
static CUfunction kernel;
static CUstream waits, runs;
static atomic_int calls;

static void called(void *unused) {
    (void)unused;
    atomic_fetch_add(&calls, 1);
}

static void *launch(void *unused) {
    (void)unused;
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(spin(kernel, waits, 1000));
    return NULL;
}

int main(void) {
    pthread_t thread;
    CUevent event;
    CUdeviceptr memory;
    context = use_device();
    kernel = spin_kernel();
    REQUIRE(cuStreamCreate(&waits, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuStreamCreate(&runs, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuMemAlloc(&memory, MIB));
    EXPECT(pthread_create(&thread, NULL, launch, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        REQUIRE(cuMemsetD8Async(memory, 0, MIB, runs));
        REQUIRE(cuLaunchHostFunc(runs, called, NULL));
        REQUIRE(cuEventCreate(&event, 0));
        REQUIRE(cuEventRecord(event, runs));
        REQUIRE(cuEventSynchronize(event));
        REQUIRE(cuEventDestroy(event));
    }
    printf("%d calls\n", atomic_load(&calls));
    fflush(stdout);
    EXPECT(pthread_join(thread, NULL) == 0);
    REQUIRE(cuCtxSynchronize());
    printf("launched\n");
    return 0;
}
