/*
 * Allocates and frees memory of every kind in an order decided by a seed, and prints the free memory after each step.
 * Its calls depend only on the seed and the driver's answers.
 */
#include "program.h"

#include <sys/mman.h>

#define STEPS 1500
#define PIECES 48
#define GRANULARITY (2 * MIB)

enum kind { NOTHING, LINEAR, PITCHED, MANAGED, ORDERED, POOLED, ARRAY, MIPMAPPED, PHYSICAL, LOCKED, REGISTERED, KINDS };

static struct piece {
    enum kind kind;
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    CUmipmappedArray mipmapped;
    void *host;
    size_t bytes;
    /* Number of handles, and mappings, of physical memory. */
    int handles, mapped[2];
} pieces[PIECES];

static uint64_t state;
static CUdeviceptr range;
static CUmemoryPool pool;
static CUcontext primary, second;

static unsigned pick(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

static CUresult take(struct piece *piece, enum kind kind) {
    size_t pitch, bytes = (1 + pick(64)) * (size_t)65536;
    CUDA_ARRAY_DESCRIPTOR plane = {256, bytes / 1024, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUDA_ARRAY3D_DESCRIPTOR cube = {64, 64, bytes / 65536, CU_AD_FORMAT_UNSIGNED_INT32, 4, 0};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    piece->bytes = bytes;
    switch (kind) {
    case LINEAR:
        return cuMemAlloc(&piece->address, bytes);
    case PITCHED:
        return cuMemAllocPitch(&piece->address, &pitch, 1 + pick(4096), 1 + pick(512), 4);
    case MANAGED:
        return cuMemAllocManaged(&piece->address, bytes, CU_MEM_ATTACH_GLOBAL);
    case ORDERED:
        return cuMemAllocAsync(&piece->address, bytes, NULL);
    case POOLED:
        return cuMemAllocFromPoolAsync(&piece->address, bytes, pool, NULL);
    case ARRAY:
        return pick(2) ? cuArrayCreate(&piece->array, &plane) : cuArray3DCreate(&piece->array, &cube);
    case MIPMAPPED:
        return cuMipmappedArrayCreate(&piece->mipmapped, &cube, 1);
    case PHYSICAL:
        piece->bytes = (1 + pick(2)) * GRANULARITY;
        piece->handles = 1;
        piece->mapped[0] = piece->mapped[1] = 0;
        return cuMemCreate(&piece->handle, piece->bytes, &properties, 0);
    case LOCKED:
        return cuMemAllocHost(&piece->host, bytes + pick(4096));
    default:
        piece->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT(piece->host != MAP_FAILED);
        return cuMemHostRegister(piece->host, bytes, 0);
    }
}

/* The address of one of a physical piece's two possible mappings. */
static CUdeviceptr place(struct piece *piece, int which) {
    return range + (CUdeviceptr)((piece - pieces) * 2 + which) * 2 * GRANULARITY;
}

/* One step with a physical piece: its handles and mappings are added and removed in any order. */
static CUresult turn(struct piece *piece) {
    int which = (int)pick(2), alive = piece->handles + piece->mapped[0] + piece->mapped[1];
    CUresult result = CUDA_SUCCESS;
    CUmemGenericAllocationHandle again;
    switch (pick(3)) {
    case 0:
        if (piece->mapped[which]) {
            result = cuMemUnmap(place(piece, which), piece->bytes);
            piece->mapped[which] = 0;
        } else if (piece->handles > 0) {
            result = cuMemMap(place(piece, which), piece->bytes, 0, piece->handle, 0);
            piece->mapped[which] = 1;
        }
        break;
    case 1:
        if (piece->mapped[which]) {
            result = cuMemRetainAllocationHandle(&again, (void *)(place(piece, which) + 4096));
            /* The same memory can get a second handle. */
            if (piece->handles > 0 && again != piece->handle)
                return cuMemRelease(again);
            piece->handle = again;
            piece->handles++;
        }
        break;
    default:
        if (piece->handles > 0 && (alive > 1 || pick(2))) {
            result = cuMemRelease(piece->handle);
            piece->handles--;
        }
    }
    if (piece->handles + piece->mapped[0] + piece->mapped[1] == 0)
        piece->kind = NOTHING;
    return result;
}

static CUresult give_back(struct piece *piece) {
    enum kind kind = piece->kind;
    CUresult result;
    if (kind == PHYSICAL)
        return turn(piece);
    piece->kind = NOTHING;
    switch (kind) {
    case ORDERED:
    case POOLED:
        if (pick(3))
            return cuMemFreeAsync(piece->address, NULL);
        /* fall through */
    case LINEAR:
    case PITCHED:
    case MANAGED:
        return cuMemFree(piece->address);
    case ARRAY:
        return cuArrayDestroy(piece->array);
    case MIPMAPPED:
        return cuMipmappedArrayDestroy(piece->mipmapped);
    case LOCKED:
        return cuMemFreeHost(piece->host);
    default:
        result = cuMemHostUnregister(piece->host);
        EXPECT(munmap(piece->host, piece->bytes) == 0);
        return result;
    }
}

/* Allocates in a second context. The memory is freed with that context. */
static void take_in_second_context(void) {
    CUdeviceptr address;
    void *host;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR plane = {256, 256, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    REQUIRE(cuCtxCreate(&second, 0, 0));
    for (int i = 0; i < 4; i++)
        printf(" %d%d%d", cuMemAlloc(&address, MIB), cuArrayCreate(&array, &plane), cuMemAllocHost(&host, 4096));
    REQUIRE(cuCtxSetCurrent(primary));
    printf(" with a second context: %zu;", free_bytes());
    REQUIRE(cuCtxDestroy(second));
}

/* Synchronises, at which pools release memory, so that the free memory does not depend on the device's progress. */
static void settle(void) {
    REQUIRE(cuCtxSynchronize());
}

int main(int argc, char **argv) {
    EXPECT(argc == 2);
    state = strtoull(argv[1], NULL, 10) * 2 + 1;
    primary = use_device();
    CUmemPoolProps properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    uint64_t threshold = 6 * MIB;
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    REQUIRE(cuMemAddressReserve(&range, PIECES * 4 * GRANULARITY, 0, 0, 0));
    for (int step = 0; step < STEPS; step++) {
        struct piece *piece = &pieces[pick(PIECES)];
        printf("step %d:", step);
        if (pick(100) == 0)
            take_in_second_context();
        if (pick(100) == 0)
            printf(" trim %d;", cuMemPoolTrimTo(pool, pick(4) * GRANULARITY));
        if (piece->kind != NOTHING) {
            printf(" back %d: %d", piece->kind, give_back(piece));
        } else {
            enum kind kind = (enum kind)(1 + pick(KINDS - 1));
            CUresult result = take(piece, kind);
            if (result == CUDA_SUCCESS)
                piece->kind = kind;
            else if (kind == REGISTERED)
                EXPECT(munmap(piece->host, piece->bytes) == 0);
            printf(" take %d: %d", kind, result);
        }
        settle();
        printf("; %zu free\n", free_bytes());
    }
    for (struct piece *piece = pieces; piece < pieces + PIECES; piece++)
        while (piece->kind != NOTHING)
            REQUIRE(give_back(piece));
    REQUIRE(cuMemPoolDestroy(pool));
    settle();
    printf("at the end: %zu free\n", free_bytes());
    return 0;
}
