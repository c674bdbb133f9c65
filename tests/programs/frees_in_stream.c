/*
 * Allocates pieces and has a stream free each, while a host function holds the stream. When a piece is refused, lets
 * the stream go on, waits for it, and allocates as many bytes as all pieces had. Does so with linear memory, and then
 * with managed memory.
 */
#include "program.h"

enum { PIECE = 8 << 20, PIECES_MAX = 64 };

static volatile int goes_on;

static void hold_up(void *unused) {
    (void)unused;
    while (!goes_on)
        usleep(100);
}

static CUresult linear(CUdeviceptr *memory, size_t bytes) {
    return cuMemAlloc(memory, bytes);
}

static CUresult managed(CUdeviceptr *memory, size_t bytes) {
    return cuMemAllocManaged(memory, bytes, CU_MEM_ATTACH_GLOBAL);
}

static void fill(const char *kind, CUresult (*allocate)(CUdeviceptr *, size_t), CUstream stream) {
    CUdeviceptr memory;
    CUresult result;
    int count = 0;
    goes_on = 0;
    REQUIRE(cuLaunchHostFunc(stream, hold_up, NULL));
    while ((result = allocate(&memory, PIECE)) == CUDA_SUCCESS && count < PIECES_MAX) {
        REQUIRE(cuMemFreeAsync(memory, stream));
        count++;
    }
    printf("%s: %d pieces, then %d\n", kind, count, result);
    goes_on = 1;
    REQUIRE(cuStreamSynchronize(stream));
    result = allocate(&memory, (size_t)count * PIECE);
    printf("freed, and all in one: %d\n", result);
    if (result == CUDA_SUCCESS)
        REQUIRE(cuMemFree(memory));
}

int main(void) {
    CUstream stream;
    use_device();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill("linear", linear, stream);
    fill("managed", managed, stream);
    return 0;
}
