/*
 * Allocates and frees memory as fast as it can, often more than there is, for a given time and at least 100 times.
 * Arguments: bytes of a piece; milliseconds.
 */
#include "program.h"

#include <time.h>

#define PIECES 32

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int count, char **arguments) {
    EXPECT(count == 3);
    size_t bytes = strtoull(arguments[1], NULL, 0);
    long end = now_ms() + atol(arguments[2]);
    CUdeviceptr pieces[PIECES];
    long granted = 0, refused = 0;
    use_device();
    for (int round = 0; round < 100 || now_ms() < end; round++) {
        int held = 0;
        CUresult result;
        while (held < PIECES && (result = cuMemAlloc(&pieces[held], bytes)) == CUDA_SUCCESS)
            held++;
        EXPECT(held == PIECES || result == CUDA_ERROR_OUT_OF_MEMORY);
        granted += held;
        refused += held < PIECES;
        while (held > 0)
            REQUIRE(cuMemFree(pieces[--held]));
    }
    printf("granted %ld refused %ld\n", granted, refused);
    return 0;
}
