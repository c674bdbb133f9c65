/*
 * Launches into several streams with events between them. All work must be done and nothing refused, with and without a
 * limit.
 */
#include "program.h"

int main(void) {
    enum { STREAMS = 6, LAUNCHES = 60 };
    CUstream streams[STREAMS];
    CUevent start, end;
    use_device();
    CUfunction kernel = spin_kernel();
    REQUIRE(cuEventCreate(&start, 0));
    REQUIRE(cuEventCreate(&end, 0));
    for (int i = 0; i < STREAMS; i++)
        REQUIRE(cuStreamCreate(&streams[i], i % 2 ? CU_STREAM_NON_BLOCKING : 0));
    REQUIRE(cuEventRecord(start, streams[0]));
    for (int i = 0; i < STREAMS * LAUNCHES; i++)
        REQUIRE(spin(kernel, streams[i % STREAMS], 50000));
    REQUIRE(spin(kernel, NULL, 50000));
    REQUIRE(cuEventRecord(end, streams[0]));
    for (int i = 0; i < STREAMS; i++)
        REQUIRE(cuStreamSynchronize(streams[i]));
    REQUIRE(cuEventSynchronize(end));
    float milliseconds;
    REQUIRE(cuEventElapsedTime(&milliseconds, start, end));
    printf("%d kernels in %d streams; the first took long enough: %s\n", STREAMS * LAUNCHES + 1, STREAMS,
           milliseconds >= LAUNCHES * 0.05F - 0.05F ? "yes" : "no");
    for (int i = 0; i < STREAMS; i++)
        REQUIRE(cuStreamDestroy(streams[i]));
    printf("a destroyed stream: %s\n", spin(kernel, streams[0], 1) ? "refused" : "accepted");
    return 0;
}
