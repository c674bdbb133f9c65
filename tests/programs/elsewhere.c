/*
 * Launches onto devices that are not the calling thread's current one. Argument: "cooperative" (one launch on both
 * devices), or "graph" (a graph that runs in a stream of the second device).
 */
#include "program.h"

#define DEVICES 2

static CUcontext contexts[DEVICES];
static CUstream streams[DEVICES];
static CUfunction kernels[DEVICES];
static uint64_t duration_ns = 1000000;
static void *parameters[] = {&duration_ns};

static void cooperative(void) {
    CUDA_LAUNCH_PARAMS launches[DEVICES];
    for (int i = 0; i < DEVICES; i++)
        launches[i] = (CUDA_LAUNCH_PARAMS){
            .function = kernels[i], .grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = streams[i], .parameters = parameters};
    REQUIRE(cuLaunchCooperativeKernelMultiDevice(launches, DEVICES, 0));
}

static void graph(void) {
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS kernel = {.function = kernels[1],
                                      .grid = {1, 1, 1},
                                      .block = {1, 1, 1},
                                      .parameters = parameters,
                                      .context = contexts[1]};
    REQUIRE(cuGraphCreate(&graph, 0));
    REQUIRE(cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    REQUIRE(cuGraphLaunch(executable, streams[1]));
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    REQUIRE(cuInit(0));
    for (int i = 0; i < DEVICES; i++) {
        REQUIRE(cuDevicePrimaryCtxRetain(&contexts[i], i));
        REQUIRE(cuCtxSetCurrent(contexts[i]));
        REQUIRE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        kernels[i] = spin_kernel();
    }
    REQUIRE(cuCtxSetCurrent(contexts[0]));
    printf("launches\n");
    fflush(stdout);
    if (strcmp(arguments[1], "cooperative") == 0)
        cooperative();
    else
        graph();
    for (int i = 0; i < DEVICES; i++)
        REQUIRE(cuStreamSynchronize(streams[i]));
    printf("done\n");
    return 0;
}
