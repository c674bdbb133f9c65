/* The end of a context frees what was allocated in it, and nothing else. */
#include "program.h"

static size_t before;

static void show(const char *when) {
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

static void take_some(void) {
    CUdeviceptr memory;
    size_t pitch;
    CUarray array;
    void *host;
    CUDA_ARRAY_DESCRIPTOR descriptor = {1024, 1024, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    REQUIRE(cuMemAllocHost(&host, MIB));
    for (int i = 0; i < 100; i++)
        REQUIRE(cuMemAlloc(&memory, MIB / 4));
    REQUIRE(cuMemAllocPitch(&memory, &pitch, 1024, 1024, 4));
    REQUIRE(cuMemAllocManaged(&memory, MIB, CU_MEM_ATTACH_GLOBAL));
    REQUIRE(cuArrayCreate(&array, &descriptor));
}

int main(void) {
    CUcontext primary = use_device(), second, third;
    CUdeviceptr kept;
    before = free_bytes();
    REQUIRE(cuMemAlloc(&kept, MIB));
    show("in the primary context");
    REQUIRE(cuCtxCreate(&second, 0, 0));
    take_some();
    show("in a second context, too");
    REQUIRE(cuCtxSetCurrent(primary));
    REQUIRE(cuCtxDestroy(second));
    show("the second context destroyed");
    /* In a thread without a context: the driver then answers no queries about memory that lives on elsewhere. */
    REQUIRE(cuCtxCreate(&third, 0, 0));
    take_some();
    REQUIRE(cuCtxSetCurrent(NULL));
    REQUIRE(cuCtxDestroy(third));
    REQUIRE(cuCtxSetCurrent(primary));
    show("a third context destroyed with none current");
    REQUIRE(cuCtxCreate(&third, 0, 0));
    take_some();
    REQUIRE(cuCtxAttach(&second, 0));
    EXPECT(second == third);
    REQUIRE(cuCtxDetach(third));
    show("a fourth context attached and detached");
    REQUIRE(cuCtxDetach(third));
    REQUIRE(cuCtxSetCurrent(primary));
    show("and detached for good");
    take_some();
    show("more in the primary context");
    REQUIRE(cuDevicePrimaryCtxReset(0));
    use_device();
    show("the primary context reset");
    take_some();
    show("and used again");
    return 0;
}
