/*
 * Takes ten pieces of which the driver could have rounded each up, and asks for memory of a kind of which the driver
 * gives about 32 MiB whatever the request. Then asks for 4 MiB. The argument selects the kind: "pool" or "pitch".
 */
#include "program.h"

enum { PIECES = 10, ROWS = 64 << 10 };

int main(int count, char **arguments) {
    EXPECT(count == 2);
    CUdeviceptr memory;
    size_t pitch;
    use_device();
    for (int i = 0; i < PIECES; i++)
        REQUIRE(cuMemAlloc(&memory, MIB + 4096));
    if (!strcmp(arguments[1], "pool"))
        printf("pool: %d\n", cuMemAllocAsync(&memory, 2 * MIB, NULL));
    if (!strcmp(arguments[1], "pitch"))
        printf("pitch: %d\n", cuMemAllocPitch(&memory, &pitch, 1, ROWS, 4));
    printf("and 4 MiB: %d\n", cuMemAlloc(&memory, 4 * MIB));
    return 0;
}
