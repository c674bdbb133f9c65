/* Tries to allocate and to launch, prints the results, and then tries to allocate until it succeeds. */
#include "program.h"

int main(void) {
    CUdeviceptr memory;
    use_device();
    CUfunction kernel = spin_kernel();
    CUresult allocated = cuMemAlloc(&memory, MIB);
    CUresult launched = spin(kernel, NULL, 1000);
    printf("memory: %d, launch: %d\n", allocated, launched);
    fflush(stdout);
    while ((allocated = cuMemAlloc(&memory, MIB)) == CUDA_ERROR_OUT_OF_MEMORY)
        usleep(10000);
    REQUIRE(allocated);
    REQUIRE(spin(kernel, NULL, 1000));
    REQUIRE(cuCtxSynchronize());
    printf("held\n");
    fflush(stdout);
    for (;;)
        pause();
}
