/*
 * Makes a context and queries the free memory. With the argument "allocates" it then allocates; with "launches" it
 * loads a module and launches a kernel.
 */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 2);
    use_device();
    free_bytes();
    if (!strcmp(arguments[1], "allocates")) {
        CUdeviceptr memory;
        REQUIRE(cuMemAlloc(&memory, MIB));
        REQUIRE(cuMemFree(memory));
    }
    if (!strcmp(arguments[1], "launches")) {
        CUfunction kernel = spin_kernel();
        REQUIRE(spin(kernel, NULL, 1000));
        REQUIRE(cuCtxSynchronize());
    }
    printf("done\n");
    return 0;
}
