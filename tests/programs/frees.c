/* Gives back 32 MiB of linear memory, and 32 MiB of mapped physical memory. The driver waits for SIGUSR1 each time. */
#include "program.h"

#include <signal.h>

#define BYTES (32 * MIB)

int main(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr linear, range;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    use_device();
    REQUIRE(cuMemAlloc(&linear, BYTES));
    REQUIRE(cuMemCreate(&handle, BYTES, &properties, 0));
    REQUIRE(cuMemAddressReserve(&range, BYTES, 0, 0, 0));
    REQUIRE(cuMemMap(range, BYTES, 0, handle, 0));
    REQUIRE(cuMemFree(linear));
    REQUIRE(cuMemUnmap(range, BYTES));
    REQUIRE(cuMemRelease(handle));
    printf("done\n");
    return 0;
}
