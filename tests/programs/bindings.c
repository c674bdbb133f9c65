/*
 * Physical memory lives as long as it is bound to arrays or multicast objects, and as long as an imported handle of it
 * exists.
 */
#include "program.h"

#define PIECE (2 * MIB)
#define ARRAY_SPARSE 0x40
#define POSIX_FILE_DESCRIPTOR 1

static size_t before;

static void show(const char *when) {
    REQUIRE(cuCtxSynchronize());
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

static CUmemGenericAllocationHandle create(unsigned handle_types, int for_tiles) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requested_handle_types = handle_types,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                      .flags = {0, 0, (unsigned char)for_tiles}};
    CUmemGenericAllocationHandle handle;
    REQUIRE(cuMemCreate(&handle, PIECE, &properties, 0));
    return handle;
}

static void to_an_array(void) {
    CUstream stream;
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {512, 512, 0, 1, 1, ARRAY_SPARSE};
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuArray3DCreate(&array, &descriptor));
    show("a sparse array");
    CUarrayMapInfo info = {.resource = array, .box = {0, 0, 256, 0, 0, 256, 512, 1}, .operation = 1, .device_mask = 1};
    info.memory = create(0, 1);
    REQUIRE(cuMemMapArrayAsync(&info, 1, stream));
    info.box[2] = 0;
    REQUIRE(cuMemMapArrayAsync(&info, 1, stream));
    REQUIRE(cuMemRelease(info.memory));
    show("mapped into it twice, and released");
    REQUIRE(cuArrayDestroy(array));
    show("the array destroyed");
}

static void to_a_multicast_object(void) {
    CUmulticastObjectProp properties = {.devices = 2, .size = 4 * PIECE};
    CUmemGenericAllocationHandle object, memory;
    CUdeviceptr range;
    REQUIRE(cuMulticastCreate(&object, &properties));
    for (CUdevice device = 0; device < 2; device++)
        REQUIRE(cuMulticastAddDevice(object, device));
    memory = create(0, 0);
    REQUIRE(cuMulticastBindMem(object, 0, memory, 0, PIECE, 0));
    REQUIRE(cuMemRelease(memory));
    show("bound, and released");
    memory = create(0, 0);
    REQUIRE(cuMemAddressReserve(&range, PIECE, 0, 0, 0));
    REQUIRE(cuMemMap(range, PIECE, 0, memory, 0));
    REQUIRE(cuMulticastBindAddr(object, 2 * PIECE, range, PIECE, 0));
    REQUIRE(cuMemUnmap(range, PIECE));
    REQUIRE(cuMemRelease(memory));
    show("another one bound by its address");
    printf("unbound where nothing is: %d\n", cuMulticastUnbind(object, 0, PIECE, PIECE) != CUDA_SUCCESS);
    REQUIRE(cuMulticastUnbind(object, 0, 0, PIECE));
    show("the first one unbound");
    REQUIRE(cuMulticastUnbind(object, 0, 2 * PIECE, PIECE));
    show("both unbound");
    memory = create(0, 0);
    REQUIRE(cuMulticastBindMem(object, 0, memory, 0, PIECE, 0));
    REQUIRE(cuMemRelease(memory));
    show("bound again");
    REQUIRE(cuMemRelease(object));
    show("the object released");
}

static void by_an_import(void) {
    CUmemGenericAllocationHandle handle = create(POSIX_FILE_DESCRIPTOR, 0), again;
    int descriptor;
    REQUIRE(cuMemExportToShareableHandle(&descriptor, handle, POSIX_FILE_DESCRIPTOR, 0));
    REQUIRE(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)descriptor, POSIX_FILE_DESCRIPTOR));
    EXPECT(close(descriptor) == 0);
    show("imported by its maker");
    REQUIRE(cuMemRelease(again));
    REQUIRE(cuMemRelease(handle));
    show("released as often");
}

int main(void) {
    use_device();
    before = free_bytes();
    to_an_array();
    to_a_multicast_object();
    by_an_import();
    return 0;
}
