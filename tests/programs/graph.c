/* A graph built node by node and launched many times, with host functions between: all of it must run, in order. */
#include "program.h"

static int calls, out_of_order;

static void called(void *number) {
    out_of_order += (int)(intptr_t)number != calls;
    calls++;
}

int main(void) {
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode node = NULL;
    CUstream stream;
    use_device();
    uint64_t duration_ns = 10000;
    void *parameters[] = {&duration_ns};
    CUDA_KERNEL_NODE_PARAMS kernel = {
        .function = spin_kernel(), .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameters = parameters};
    REQUIRE(cuStreamCreate(&stream, 0));
    REQUIRE(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 20; i++) {
        CUgraphNode before = node;
        REQUIRE(cuGraphAddKernelNode(&node, graph, i ? &before : NULL, i > 0, &kernel));
    }
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (intptr_t i = 0; i < 50; i++) {
        REQUIRE(cuGraphLaunch(executable, stream));
        REQUIRE(cuLaunchHostFunc(stream, called, (void *)i));
    }
    REQUIRE(cuStreamSynchronize(stream));
    printf("host functions called: %d, out of order: %d\n", calls, out_of_order);
    REQUIRE(cuGraphExecDestroy(executable));
    REQUIRE(cuGraphDestroy(graph));
    return 0;
}
