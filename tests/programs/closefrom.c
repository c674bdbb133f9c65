/* After it has started to use CUDA, closes every descriptor that it has not opened itself, as daemons do. */
#include "program.h"

static int open_descriptors(void) {
    int count = 0;
    for (int descriptor = 3; descriptor < 256; descriptor++)
        count += dup2(descriptor, descriptor) == descriptor;
    return count;
}

int main(void) {
    CUdeviceptr memory;
    use_device();
    CUfunction kernel = spin_kernel();
    REQUIRE(cuMemAlloc(&memory, MIB));
    closefrom(3);
    REQUIRE(cuMemFree(memory));
    printf("too much: %d\n", cuMemAlloc(&memory, (size_t)1 << 50));
    REQUIRE(cuMemAlloc(&memory, MIB));
    for (int i = 0; i < 50; i++)
        REQUIRE(spin(kernel, NULL, 10000));
    REQUIRE(cuCtxSynchronize());
    printf("it goes on; descriptors open: %d\n", open_descriptors());
    return 0;
}
