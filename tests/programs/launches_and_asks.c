/*
 * Launches, and makes other calls between the launches. The argument selects the way:
 *
 *   queries  160 short kernels, each followed by a query of an event
 *   frees    160 short kernels, each followed by the free of stream-ordered memory
 *   copies   160 short kernels, each followed by copies that do not wait
 *   polls    five long kernels, with repeated queries of an event until they are done
 *   graphs   160 short graphs
 *
 * Before that it makes a few launches and waits for each. At the end it waits for SIGUSR1.
 */
#include "program.h"

#include <signal.h>

enum { WAITED_FOR = 4, SHORT = 160, LONG = 5, SHORT_NS = 10000, LONG_NS = 2000000 };

static CUgraphExec short_graph(CUfunction kernel, CUstream stream) {
    CUgraph graph;
    CUgraphExec instance;
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 3; i++)
        REQUIRE(spin(kernel, stream, SHORT_NS / 3));
    REQUIRE(cuStreamEndCapture(stream, &graph));
    REQUIRE(cuGraphInstantiateWithFlags(&instance, graph, 0));
    return instance;
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    int queries = !strcmp(arguments[1], "queries"), polls = !strcmp(arguments[1], "polls");
    int graphs = !strcmp(arguments[1], "graphs"), frees = !strcmp(arguments[1], "frees");
    int copies = !strcmp(arguments[1], "copies");
    sigset_t signals;
    int signal;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &signals, NULL) == 0);
    use_device();
    CUfunction kernel = spin_kernel();
    CUstream stream;
    CUevent event;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuEventCreate(&event, 0));
    CUgraphExec graph = short_graph(kernel, stream);
    CUdeviceptr copied;
    void *page_locked;
    REQUIRE(cuMemAlloc(&copied, MIB));
    REQUIRE(cuMemHostAlloc(&page_locked, MIB, 0));
    for (int i = 0; i < WAITED_FOR; i++) {
        REQUIRE(graphs ? cuGraphLaunch(graph, stream) : spin(kernel, stream, SHORT_NS));
        REQUIRE(cuStreamSynchronize(stream));
    }
    REQUIRE(cuEventRecord(event, stream));
    for (int i = 0; i < SHORT * (queries || graphs || frees || copies); i++) {
        CUdeviceptr memory;
        if (frees)
            REQUIRE(cuMemAllocAsync(&memory, MIB, stream));
        REQUIRE(graphs ? cuGraphLaunch(graph, stream) : spin(kernel, stream, SHORT_NS));
        if (frees)
            REQUIRE(cuMemFreeAsync(memory, stream));
        if (copies) {
            REQUIRE(cuMemcpyDtoHAsync(page_locked, copied, MIB, stream));
            REQUIRE(cuMemcpyHtoDAsync(copied, page_locked, MIB, stream));
            REQUIRE(cuMemcpyHtoDAsync(copied, &i, sizeof i, stream));
        }
        if (queries)
            cuEventQuery(event);
    }
    for (int i = 0; i < LONG * polls; i++)
        REQUIRE(spin(kernel, stream, LONG_NS));
    REQUIRE(cuEventRecord(event, stream));
    while (polls && cuEventQuery(event) == CUDA_ERROR_NOT_READY)
        ;
    printf("asked\n");
    fflush(stdout);
    EXPECT(sigwait(&signals, &signal) == 0);
    REQUIRE(cuStreamSynchronize(stream));
    printf("done\n");
    return 0;
}
