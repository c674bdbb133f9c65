/* Makes the stacks of kernels larger than the slice's memory, and then larger by 20 MiB. Asks for 50 MiB, and for 40. */
#include "program.h"

enum { CU_LIMIT_STACK_SIZE = 0 };

int main(void) {
    CUdeviceptr memory;
    size_t stack;
    use_device();
    REQUIRE(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    printf("too large: %d\n", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack + 15 * 1024));
    printf("larger: %d\n", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack + 1024));
    printf("50 MiB: %d\n", cuMemAlloc(&memory, 50 * MIB));
    printf("40 MiB: %d\n", cuMemAlloc(&memory, 40 * MIB));
    return 0;
}
