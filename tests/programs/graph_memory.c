/* Memory of graphs: after each step, the memory missing on the device must be the graphs' reserve. */
#include "program.h"

static size_t before;

static void show(const char *when) {
    REQUIRE(cuCtxSynchronize());
    printf("%s: %zu MiB in use\n", when, (before - free_bytes()) / MIB);
}

/* A graph that allocates `bytes` and frees them. */
static CUgraph allocating_graph(size_t bytes) {
    CUgraph graph;
    CUgraphNode allocation, free_node;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytes = bytes,
    };
    REQUIRE(cuGraphCreate(&graph, 0));
    REQUIRE(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &parameters));
    REQUIRE(cuGraphAddMemFreeNode(&free_node, graph, &allocation, 1, parameters.address));
    return graph;
}

static CUgraphExec ready(CUgraph graph) {
    CUgraphExec exec;
    REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static CUgraph captured_graph(CUstream stream, size_t bytes) {
    CUgraph graph;
    CUdeviceptr memory;
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(cuMemAllocAsync(&memory, bytes, stream));
    REQUIRE(cuMemFreeAsync(memory, stream));
    REQUIRE(cuStreamEndCapture(stream, &graph));
    return graph;
}

int main(void) {
    CUstream stream;
    CUgraphExec first, second, large, uploaded;
    CUdeviceptr linear;
    use_device();
    before = free_bytes();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    first = ready(allocating_graph(24 * MIB));
    show("instantiated");
    REQUIRE(cuGraphLaunch(first, stream));
    show("launched");
    for (int i = 0; i < 5; i++)
        REQUIRE(cuGraphLaunch(first, stream));
    show("and five times more without a pause");
    second = ready(captured_graph(stream, 8 * MIB));
    show("a captured one instantiated");
    REQUIRE(cuGraphLaunch(second, stream));
    show("launched, in what the first one left");
    REQUIRE(cuDeviceGraphMemTrim(0));
    show("trimmed");
    REQUIRE(cuGraphUpload(second, stream));
    show("uploaded");
    REQUIRE(cuGraphLaunch(second, stream));
    show("launched");

    large = ready(allocating_graph(72 * MIB));
    printf("more than there is, launched: %d\n", cuGraphLaunch(large, stream));
    printf("more than there is, uploaded: %d\n", cuGraphUpload(large, stream));
    /* If there is enough memory, the graph runs now, and its used memory cannot be trimmed. */
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuDeviceGraphMemTrim(0));
    show("refused, and trimmed");
    REQUIRE(cuMemAlloc(&linear, 40 * MIB));
    printf("beside 40 MiB: %d\n", cuGraphLaunch(first, stream));
    show("launched beside them");
    REQUIRE(cuMemFree(linear));

    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .upload_stream = stream};
    REQUIRE(cuDeviceGraphMemTrim(0));
    REQUIRE(cuGraphInstantiateWithParams(&uploaded, allocating_graph(10 * MIB), &parameters));
    show("uploaded when it was instantiated");
    REQUIRE(cuGraphLaunch(uploaded, stream));
    for (int i = 0; i < 4; i++)
        REQUIRE(cuGraphExecDestroy(((CUgraphExec[]){first, second, large, uploaded})[i]));
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuDeviceGraphMemTrim(0));
    show("all destroyed, and trimmed");
    return 0;
}
