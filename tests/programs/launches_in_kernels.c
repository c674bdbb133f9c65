/* Makes room for more launches by kernels, which takes 20 MiB. Asks for 50 MiB, and for 40. */
#include "program.h"

enum { CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4 };

int main(void) {
    CUdeviceptr memory;
    size_t launches;
    use_device();
    REQUIRE(cuCtxGetLimit(&launches, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT));
    REQUIRE(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, launches + 80 * 1024));
    printf("50 MiB: %d\n", cuMemAlloc(&memory, 50 * MIB));
    printf("40 MiB: %d\n", cuMemAlloc(&memory, 40 * MIB));
    return 0;
}
