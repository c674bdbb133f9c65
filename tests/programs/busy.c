/*
 * Keeps the device busy until it is killed. Arguments: duration of a kernel in ns; number of kernels between two
 * synchronisations (0: never synchronises, and relies on the driver's queue being bounded).
 */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 3);
    uint64_t duration_ns = strtoull(arguments[1], NULL, 0);
    int batch = atoi(arguments[2]);
    use_device();
    CUfunction kernel = spin_kernel();
    printf("busy\n");
    fflush(stdout);
    for (int launched = 1;; launched++) {
        REQUIRE(spin(kernel, NULL, duration_ns));
        if (batch && launched % batch == 0)
            REQUIRE(cuCtxSynchronize());
    }
}
