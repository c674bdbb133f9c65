/*
 * Allocates memory of one kind after the other until there is no more, and prints how much it got of each. In a slice
 * this must be as much as on a device of the slice's size.
 */
#include "program.h"

#define PIECE (4 * MIB)
#define PIECES_MAX 1024

static union piece {
    CUdeviceptr address;
    CUarray array;
    CUmipmappedArray mipmapped;
    CUmemGenericAllocationHandle handle;
} pieces[PIECES_MAX];

static CUmemoryPool pool;

static CUresult linear(union piece *piece) {
    return cuMemAlloc(&piece->address, PIECE);
}

static CUresult pitched(union piece *piece) {
    size_t pitch;
    /* A row of 1000 bytes takes 1024. */
    return cuMemAllocPitch(&piece->address, &pitch, 1000, PIECE / 1024, 4);
}

static CUresult managed(union piece *piece) {
    return cuMemAllocManaged(&piece->address, PIECE, CU_MEM_ATTACH_GLOBAL);
}

static CUresult freed(union piece *piece) {
    return cuMemFree(piece->address);
}

static CUresult stream_ordered(union piece *piece) {
    return cuMemAllocAsync(&piece->address, PIECE, NULL);
}

static CUresult pooled(union piece *piece) {
    return cuMemAllocFromPoolAsync(&piece->address, PIECE, pool, NULL);
}

static CUresult freed_in_stream(union piece *piece) {
    return cuMemFreeAsync(piece->address, NULL);
}

static CUresult array(union piece *piece) {
    CUDA_ARRAY_DESCRIPTOR descriptor = {1024, PIECE / 4096, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    return cuArrayCreate(&piece->array, &descriptor);
}

static CUresult array_3d(union piece *piece) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {64, 64, PIECE / (64 * 64 * 16), CU_AD_FORMAT_UNSIGNED_INT32, 4, 0};
    return cuArray3DCreate(&piece->array, &descriptor);
}

static CUresult destroyed(union piece *piece) {
    return cuArrayDestroy(piece->array);
}

static CUresult mipmapped(union piece *piece) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {1024, PIECE / 4096, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
    return cuMipmappedArrayCreate(&piece->mipmapped, &descriptor, 1);
}

static CUresult mipmapped_destroyed(union piece *piece) {
    return cuMipmappedArrayDestroy(piece->mipmapped);
}

static CUresult physical(union piece *piece) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    return cuMemCreate(&piece->handle, PIECE, &properties, 0);
}

static CUresult released(union piece *piece) {
    return cuMemRelease(piece->handle);
}

static void fill(const char *kind, CUresult (*take)(union piece *), CUresult (*give_back)(union piece *)) {
    size_t before = free_bytes();
    for (int round = 1; round <= 2; round++) {
        int taken = 0;
        CUresult result = CUDA_SUCCESS;
        while (taken < PIECES_MAX && (result = take(&pieces[taken])) == CUDA_SUCCESS)
            taken++;
        printf("%s, round %d: %d pieces, then %d; free: %zu\n", kind, round, taken, result, free_bytes());
        while (taken > 0)
            REQUIRE(give_back(&pieces[--taken]));
        REQUIRE(cuCtxSynchronize());
    }
    printf("%s: all given back: %s\n", kind, free_bytes() == before ? "yes" : "no");
}

int main(void) {
    use_device();
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    fill("linear", linear, freed);
    fill("pitched", pitched, freed);
    fill("managed", managed, freed);
    fill("stream-ordered", stream_ordered, freed_in_stream);
    fill("stream-ordered, freed at once", stream_ordered, freed);
    fill("pooled", pooled, freed_in_stream);
    fill("array", array, destroyed);
    fill("3D array", array_3d, destroyed);
    fill("mipmapped array", mipmapped, mipmapped_destroyed);
    fill("physical", physical, released);
    return 0;
}
