/* Keeps the device busy until it is ended, by graphs of twenty kernels each. The argument is a kernel's nanoseconds. */
#include "program.h"

int main(int count, char **arguments) {
    EXPECT(count == 2);
    uint64_t duration_ns = strtoull(arguments[1], NULL, 0);
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    use_device();
    CUfunction kernel = spin_kernel();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 20; i++)
        REQUIRE(spin(kernel, stream, duration_ns));
    REQUIRE(cuStreamEndCapture(stream, &graph));
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    printf("busy\n");
    fflush(stdout);
    for (;;)
        REQUIRE(cuGraphLaunch(executable, stream));
}
