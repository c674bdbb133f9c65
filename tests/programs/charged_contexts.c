/* Prints the charge of contexts, in a slice whose limits contain the size of a context. */
#include "program.h"

static void show(const char *when) {
    size_t free, total;
    REQUIRE(cuMemGetInfo(&free, &total));
    printf("%s: %zu MiB\n", when, (total - free) / MIB);
}

int main(void) {
    CUcontext primary = use_device(), second, third, fourth, attached;
    show("the primary context");
    REQUIRE(cuCtxCreate(&second, 0, 0));
    REQUIRE(cuCtxCreate(&third, 0, 0));
    show("two more");
    printf("one that does not fit: %d\n", cuCtxCreate(&fourth, 0, 0));
    REQUIRE(cuCtxDestroy(third));
    REQUIRE(cuCtxSetCurrent(second));
    show("one destroyed");
    printf("one that the driver refuses: %d\n", cuCtxCreate(&fourth, 0xffff, 0));
    show("it costs nothing");
    REQUIRE(cuCtxAttach(&attached, 0));
    EXPECT(attached == second);
    REQUIRE(cuCtxDetach(second));
    show("attached and detached");
    REQUIRE(cuCtxDetach(second));
    REQUIRE(cuCtxSetCurrent(primary));
    show("detached for good");
    REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0));
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    show("retained and released");
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    use_device();
    show("released and made again");
    REQUIRE(cuDevicePrimaryCtxReset(0));
    use_device();
    show("reset and made again");
    REQUIRE(cuDevicePrimaryCtxRelease(0));
    return 0;
}
