/* The primary context lives as long as any reference to it exists, including a green context. */
#include "program.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 50 };

static size_t before;
static CUdevResource sms;

static void show(const char *when) {
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

static void take_some(void) {
    CUdeviceptr memory;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR descriptor = {1024, 1024, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    REQUIRE(cuMemAlloc(&memory, MIB));
    REQUIRE(cuArrayCreate(&array, &descriptor));
}

static CUgreenCtx green_context(void) {
    CUdevResourceDesc description;
    CUgreenCtx green;
    REQUIRE(cuDevResourceGenerateDesc(&description, &sms, 1));
    REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static void *retain_and_release(void *unused) {
    CUcontext context;
    for (int round = 0; round < ROUNDS; round++) {
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
        REQUIRE(cuDevicePrimaryCtxRelease(0));
    }
    return unused;
}

/* Whichever thread releases the last reference, all memory must be freed. */
static void release_at_once(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, retain_and_release, NULL) == 0);
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
}

int main(void) {
    CUcontext context = use_device();
    before = free_bytes();
    REQUIRE(cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM));
    CUgreenCtx green = green_context();
    take_some();
    REQUIRE(cuGreenCtxDestroy(green));
    show("a green context destroyed");
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    show("one of two references released");
    green = green_context();
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    show("a green context holds the last");
    REQUIRE(cuGreenCtxDestroy(green));
    use_device();
    show("and is destroyed");
    for (int round = 0; round < 20; round++) {
        take_some();
        release_at_once();
        use_device();
    }
    show("released by many threads at once");
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    return 0;
}
