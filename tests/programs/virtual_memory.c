/* Physical memory lives until its last handle and its last mapping are gone, in whichever order they go. */
#include "program.h"

#define PIECE (2 * MIB)

static CUdeviceptr range;

static CUmemGenericAllocationHandle create(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    REQUIRE(cuMemCreate(&handle, 2 * PIECE, &properties, 0));
    return handle;
}

static void map(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE(cuMemMap(address, 2 * PIECE, 0, handle, 0));
    REQUIRE(cuMemSetAccess(address, 2 * PIECE, &access, 1));
    REQUIRE(cuMemsetD8(address, 1, 2 * PIECE));
    /* The set may still be running, and its memory must stay mapped until then. */
    REQUIRE(cuCtxSynchronize());
}

static void show(const char *when) {
    static size_t before;
    if (!before)
        before = free_bytes();
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

int main(void) {
    use_device();
    show("nothing");
    REQUIRE(cuMemAddressReserve(&range, 8 * PIECE, 0, 0, 0));
    show("addresses only");

    CUmemGenericAllocationHandle handle = create();
    show("created");
    REQUIRE(cuMemRelease(handle));
    show("released without a mapping");

    handle = create();
    map(range, handle);
    show("created and mapped");
    REQUIRE(cuMemUnmap(range, 2 * PIECE));
    show("unmapped, the handle is left");
    REQUIRE(cuMemRelease(handle));
    show("released");

    handle = create();
    map(range, handle);
    REQUIRE(cuMemRelease(handle));
    show("released, the mapping is left");
    REQUIRE(cuMemUnmap(range, 2 * PIECE));
    show("unmapped");

    handle = create();
    map(range, handle);
    map(range + 4 * PIECE, handle);
    REQUIRE(cuMemRelease(handle));
    show("two mappings left");
    REQUIRE(cuMemUnmap(range, 2 * PIECE));
    show("one mapping left");
    printf("a second release: %d\n", cuMemRelease(handle));
    REQUIRE(cuMemUnmap(range + 4 * PIECE, 2 * PIECE));
    show("none left");

    CUmemGenericAllocationHandle other = create();
    handle = create();
    map(range, handle);
    map(range + 2 * PIECE, other);
    REQUIRE(cuMemRelease(handle));
    REQUIRE(cuMemRelease(other));
    show("two pieces side by side");
    REQUIRE(cuMemUnmap(range, 4 * PIECE));
    show("unmapped with one call");
    REQUIRE(cuMemAddressFree(range, 8 * PIECE));
    return 0;
}
