/*
 * Launches short kernels of two blocks, then long ones of one block, without waiting. Prints how many milliseconds the
 * launches of the long ones took.
 */
#include "program.h"

#include <time.h>

enum { LAUNCHES = 60, SHORT_NS = 100000, LONG_NS = 5000000 };

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void launch(CUfunction kernel, unsigned blocks, uint64_t duration_ns) {
    void *parameters[] = {&duration_ns};
    REQUIRE(cuLaunchKernel(kernel, blocks, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

int main(void) {
    use_device();
    CUfunction kernel = spin_kernel();
    for (int i = 0; i < LAUNCHES; i++)
        launch(kernel, 2, SHORT_NS);
    long start_ms = now_ms();
    for (int i = 0; i < LAUNCHES; i++)
        launch(kernel, 1, LONG_NS);
    printf("%ld\n", now_ms() - start_ms);
    return 0;
}
