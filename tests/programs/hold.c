/* Allocates a number of bytes, prints a message, and holds them until it is killed. */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 2);
    CUdeviceptr memory;
    use_device();
    REQUIRE(cuMemAlloc(&memory, strtoull(arguments[1], NULL, 0)));
    printf("held\n");
    fflush(stdout);
    for (;;)
        pause();
}
