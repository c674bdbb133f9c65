/*
 * Captures launches into a graph in each of the three modes while other work runs, and launches the graph. A capture
 * must contain only the program's own work, and must not be invalidated.
 */
#include "program.h"

#include <pthread.h>

static CUcontext context;
static CUfunction kernel;
static volatile int stop;

/*
 * Launches continuously from another thread, whose own calls a capture in mode "thread local" or "relaxed" must not
 * hinder.
 */
static void *launch(void *stream) {
    REQUIRE(cuCtxSetCurrent(context));
    while (!stop) {
        REQUIRE(spin(kernel, stream, 20000));
        REQUIRE(cuStreamSynchronize(stream));
    }
    return NULL;
}

static void capture(const char *mode_name, unsigned mode) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    size_t nodes = 0;
    unsigned status;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(cuStreamBeginCapture(stream, mode));
    for (int i = 0; i < 40; i++)
        REQUIRE(spin(kernel, stream, 20000));
    REQUIRE(cuStreamIsCapturing(stream, &status));
    REQUIRE(cuStreamEndCapture(stream, &graph));
    REQUIRE(cuGraphGetNodes(graph, NULL, &nodes));
    printf("%s: capturing %u, %zu nodes\n", mode_name, status, nodes);
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 10; i++)
        REQUIRE(cuGraphLaunch(executable, stream));
    REQUIRE(cuStreamSynchronize(stream));
    REQUIRE(cuGraphExecDestroy(executable));
    REQUIRE(cuGraphDestroy(graph));
    REQUIRE(cuStreamDestroy(stream));
}

int main(void) {
    pthread_t other;
    CUstream stream;
    context = use_device();
    kernel = spin_kernel();
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    /* The first capture comes before any other work, as in programs that capture at once. */
    capture("global", CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(pthread_create(&other, NULL, launch, stream) == 0);
    capture("thread local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    capture("relaxed", CU_STREAM_CAPTURE_MODE_RELAXED);
    stop = 1;
    EXPECT(pthread_join(other, NULL) == 0);
    capture("global", CU_STREAM_CAPTURE_MODE_GLOBAL);
    return 0;
}
