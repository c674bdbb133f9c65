/*
 * Launches short kernels and waits for each. Then launches a long kernel and many short ones without waiting, and
 * prints how many milliseconds these last launches took.
 */
#include "program.h"

#include <time.h>

enum { LAUNCHES = 100, SHORT_NS = 20000, LONG_NS = 400000000 };

static long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(void) {
    use_device();
    CUfunction kernel = spin_kernel();
    for (int i = 0; i < LAUNCHES; i++) {
        REQUIRE(spin(kernel, NULL, SHORT_NS));
        REQUIRE(cuCtxSynchronize());
    }
    long start_us = now_us();
    REQUIRE(spin(kernel, NULL, LONG_NS));
    for (int i = 0; i < LAUNCHES; i++)
        REQUIRE(spin(kernel, NULL, SHORT_NS));
    printf("%ld\n", (now_us() - start_us) / 1000);
    return 0;
}
