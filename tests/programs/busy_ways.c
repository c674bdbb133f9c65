/*
 * Keeps the device busy with kernels of 0.5 ms until it is killed. The argument selects the way: "contexts" (two
 * contexts alternately), "per-thread" (two threads, each with its own default stream), "cooperative".
 */
#include "program.h"

#include <pthread.h>

#define KERNEL_NS 500000
/* The calling thread's default stream, as the driver's interface defines it. */
#define PER_THREAD_STREAM ((CUstream)2)

extern CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                          CUstream stream, void **parameters);

static CUcontext primary;
static CUfunction kernel;

static void in_contexts(void) {
    CUcontext contexts[2] = {primary};
    CUfunction kernels[2] = {kernel};
    REQUIRE(cuCtxCreate(&contexts[1], 0, 0));
    kernels[1] = spin_kernel();
    for (int i = 0;; i ^= 1) {
        REQUIRE(cuCtxSetCurrent(contexts[i]));
        REQUIRE(spin(kernels[i], NULL, KERNEL_NS));
    }
}

static void *in_own_stream(void *unused) {
    REQUIRE(cuCtxSetCurrent(primary));
    for (;;)
        REQUIRE(spin(kernel, PER_THREAD_STREAM, KERNEL_NS));
    return unused;
}

static void in_threads(void) {
    pthread_t other;
    EXPECT(pthread_create(&other, NULL, in_own_stream, NULL) == 0);
    in_own_stream(NULL);
}

static void cooperatively(void) {
    uint64_t duration_ns = KERNEL_NS;
    void *parameters[] = {&duration_ns};
    for (;;)
        REQUIRE(cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters));
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    primary = use_device();
    kernel = spin_kernel();
    printf("busy\n");
    fflush(stdout);
    if (!strcmp(arguments[1], "contexts"))
        in_contexts();
    if (!strcmp(arguments[1], "per-thread"))
        in_threads();
    if (!strcmp(arguments[1], "cooperative"))
        cooperatively();
    return 1;
}
