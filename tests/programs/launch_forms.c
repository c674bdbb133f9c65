/*
 * Launches a kernel of 1 ms with the function named by the argument. Without an argument, lists the possible functions.
 */
#include "program.h"

#include <dlfcn.h>

/* Kinds of launch functions. */
enum form { KERNEL, ATTRIBUTES, COOPERATIVE, SEVERAL_DEVICES, PREPARED, GRID, GRID_IN_STREAM, GRAPH };

static const struct {
    const char *name;
    enum form form;
} functions[] = {
    {"cuLaunchKernel", KERNEL},
    {"cuLaunchKernel_ptsz", KERNEL},
    {"cuLaunchKernelEx", ATTRIBUTES},
    {"cuLaunchKernelEx_ptsz", ATTRIBUTES},
    {"cuLaunchCooperativeKernel", COOPERATIVE},
    {"cuLaunchCooperativeKernel_ptsz", COOPERATIVE},
    {"cuLaunchCooperativeKernelMultiDevice", SEVERAL_DEVICES},
    {"cuLaunch", PREPARED},
    {"cuLaunchGrid", GRID},
    {"cuLaunchGridAsync", GRID_IN_STREAM},
    {"cuGraphLaunch", GRAPH},
    {"cuGraphLaunch_ptsz", GRAPH},
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

struct config {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
};

static uint64_t duration_ns = 1000000;
static void *parameters[] = {&duration_ns};

static CUgraphExec graph_of(CUfunction kernel) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUDA_KERNEL_NODE_PARAMS only = {
        .function = kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}, .parameters = parameters};
    REQUIRE(cuGraphCreate(&graph, 0));
    REQUIRE(cuGraphAddKernelNode(&node, graph, NULL, 0, &only));
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

/* Sets shape and parameters for the launch functions that have no arguments for them. */
static void prepare(CUfunction kernel) {
    CUresult (*set_shape)(CUfunction, int, int, int) = dlsym(RTLD_DEFAULT, "cuFuncSetBlockShape");
    CUresult (*set_size)(CUfunction, unsigned) = dlsym(RTLD_DEFAULT, "cuParamSetSize");
    CUresult (*set_parameter)(CUfunction, int, void *, unsigned) = dlsym(RTLD_DEFAULT, "cuParamSetv");
    REQUIRE(set_shape(kernel, 1, 1, 1));
    REQUIRE(set_size(kernel, sizeof duration_ns));
    REQUIRE(set_parameter(kernel, 0, &duration_ns, sizeof duration_ns));
}

static CUresult launch(void *function, enum form form, CUfunction kernel, CUgraphExec graph, CUstream stream) {
    struct config config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream};
    CUDA_LAUNCH_PARAMS device = {
        .function = kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream, .parameters = parameters};
    switch (form) {
    case KERNEL:
        return ((__typeof__(&cuLaunchKernel))function)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
    case ATTRIBUTES:
        return ((CUresult(*)(const struct config *, CUfunction, void **, void **))function)(&config, kernel,
                                                                                            parameters, NULL);
    case COOPERATIVE:
        return ((CUresult(*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void **))function)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters);
    case SEVERAL_DEVICES:
        return ((CUresult(*)(CUDA_LAUNCH_PARAMS *, unsigned, unsigned))function)(&device, 1, 0);
    case PREPARED:
        return ((CUresult(*)(CUfunction))function)(kernel);
    case GRID:
        return ((CUresult(*)(CUfunction, int, int))function)(kernel, 1, 1);
    case GRID_IN_STREAM:
        return ((CUresult(*)(CUfunction, int, int, CUstream))function)(kernel, 1, 1, stream);
    case GRAPH:
        return ((CUresult(*)(CUgraphExec, CUstream))function)(graph, stream);
    }
    return -1;
}

int main(int count, char **arguments) {
    if (count == 1) {
        for (size_t i = 0; i < FUNCTIONS; i++)
            printf("%s\n", functions[i].name);
        return 0;
    }
    CUstream stream;
    use_device();
    CUfunction kernel = spin_kernel();
    CUgraphExec graph = graph_of(kernel);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    prepare(kernel);
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!strcmp(functions[i].name, arguments[1])) {
            void *function = dlsym(RTLD_DEFAULT, functions[i].name);
            EXPECT(function);
            printf("launches\n");
            fflush(stdout);
            REQUIRE(launch(function, functions[i].form, kernel, graph, stream));
            REQUIRE(cuCtxSynchronize());
            printf("done\n");
        }
    return 0;
}
