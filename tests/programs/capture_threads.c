/*
 * Captures in the mode given by the argument (0 global, 1 thread local, 2 relaxed) while another thread makes the
 * process's first launches that really run. Their set-up must not affect the capture. Then the graph is launched, and
 * the threads change roles.
 */
#include "program.h"

#include <pthread.h>

static CUcontext context;
static CUfunction kernel;
static unsigned mode;
static pthread_barrier_t barrier;

static void meet(void) {
    pthread_barrier_wait(&barrier);
}

static void capture(CUstream stream) {
    CUgraph graph;
    CUgraphExec executable;
    size_t nodes = 0;
    REQUIRE(cuStreamBeginCapture(stream, mode));
    REQUIRE(spin(kernel, stream, 20000));
    meet();
    for (int i = 0; i < 20; i++)
        REQUIRE(spin(kernel, stream, 20000));
    meet();
    REQUIRE(cuStreamEndCapture(stream, &graph));
    REQUIRE(cuGraphGetNodes(graph, NULL, &nodes));
    printf("%zu nodes\n", nodes);
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    meet();
    for (int i = 0; i < 5; i++)
        REQUIRE(cuGraphLaunch(executable, stream));
    REQUIRE(cuStreamSynchronize(stream));
    REQUIRE(cuGraphExecDestroy(executable));
    REQUIRE(cuGraphDestroy(graph));
}

static void launch(CUstream stream) {
    meet();
    for (int i = 0; i < 300; i++)
        REQUIRE(spin(kernel, stream, 20000));
    meet();
    meet();
    REQUIRE(cuStreamSynchronize(stream));
}

static void *other(void *stream) {
    REQUIRE(cuCtxSetCurrent(context));
    launch(stream);
    meet();
    capture(stream);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    CUstream streams[2];
    EXPECT(count == 2);
    mode = (unsigned)atoi(arguments[1]);
    context = use_device();
    kernel = spin_kernel();
    EXPECT(pthread_barrier_init(&barrier, NULL, 2) == 0);
    for (int i = 0; i < 2; i++)
        REQUIRE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    EXPECT(pthread_create(&thread, NULL, other, streams[1]) == 0);
    capture(streams[0]);
    meet();
    launch(streams[0]);
    EXPECT(pthread_join(thread, NULL) == 0);
    return 0;
}
