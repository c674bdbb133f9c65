/* Repeats a few times: allocates memory, launches, frees. Ignores the results. */
#include "program.h"

int main(void) {
    use_device();
    CUfunction kernel = spin_kernel();
    for (int i = 0; i < 100; i++) {
        CUdeviceptr memory;
        size_t free, total;
        if (cuMemAlloc(&memory, 65536) == CUDA_SUCCESS)
            cuMemFree(memory);
        cuMemGetInfo(&free, &total);
        spin(kernel, NULL, 1000);
    }
    return cuCtxSynchronize();
}
