/*
 * Prints "ready", waits for SIGUSR1, and then keeps the device busy until it is killed. Arguments have the form
 * name=value:
 *
 *   kernels=NS,NS,...  durations of kernels in ns, chosen at random [1000000]
 *   blocks=N           blocks of a kernel [1]
 *   sync=N             kernels between two synchronisations; 0: none, the driver's queue is bounded [0]
 *   last_ns=N          duration of the last kernel before a synchronisation in ns; 0: like the others [0]
 *   poll=N             not 0: waits by polling; 2: polls without pauses [0]
 *   gap_us=N           mean of the random pause after each synchronisation in µs; the longest is twice that [0]
 *   for_ms=N           ends after this time, and prints the amount of launched work and the time; 0: never [0]
 *   streams=N          number of streams, used in turn [1]
 *   graph=N            launches graphs with this number of kernels instead of kernels; 0: no graphs [0]
 *   on_ms=N off_ms=N   launches for on_ms, waits for all, pauses for off_ms, prints when it goes on; 0: no pauses [0]
 *   seed=N             seed of the random numbers [1]
 */
#include "program.h"

#include <signal.h>
#include <time.h>

enum { KERNELS_MAX = 16, STREAMS_MAX = 32 };

static uint64_t kernels_ns[KERNELS_MAX] = {1000000};
static int kernel_count = 1;
static unsigned long blocks = 1, sync_after, last_ns, poll, stream_count = 1, graph_kernels, on_ms, off_ms, seed = 1;
static unsigned long gap_us, for_ms;

static CUfunction kernel;
static CUstream streams[STREAMS_MAX];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void read_kernels(char *list) {
    kernel_count = 0;
    for (char *piece = strtok(list, ","); piece; piece = strtok(NULL, ",")) {
        EXPECT(kernel_count < KERNELS_MAX);
        kernels_ns[kernel_count++] = strtoull(piece, NULL, 0);
    }
    EXPECT(kernel_count > 0);
}

static void read_arguments(int count, char **arguments) {
    const struct {
        const char *name;
        unsigned long *value;
    } numbers[] = {{"blocks", &blocks}, {"sync", &sync_after}, {"last_ns", &last_ns}, {"poll", &poll}, {"streams", &stream_count},
                   {"graph", &graph_kernels}, {"on_ms", &on_ms}, {"off_ms", &off_ms}, {"seed", &seed},
                   {"gap_us", &gap_us}, {"for_ms", &for_ms}};
    for (int i = 1; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        EXPECT(value != NULL);
        *value++ = '\0';
        int known = !strcmp(arguments[i], "kernels");
        if (known)
            read_kernels(value);
        for (size_t number = 0; number < sizeof numbers / sizeof *numbers; number++) {
            if (strcmp(arguments[i], numbers[number].name))
                continue;
            *numbers[number].value = strtoul(value, NULL, 0);
            known = 1;
        }
        EXPECT(known);
    }
    EXPECT(stream_count >= 1 && stream_count <= STREAMS_MAX);
}

/* The next pseudo-random number. A seed always gives the same sequence. */
static uint64_t next_random(void) {
    static uint64_t state;
    state = state ? state : seed;
    state = state * 6364136223846793005 + 1442695040888963407;
    return state >> 33;
}

static uint64_t next_ns(void) {
    return kernels_ns[next_random() % kernel_count];
}

static CUresult launch_kernel(CUstream stream, uint64_t duration_ns) {
    void *parameters[] = {&duration_ns};
    return cuLaunchKernel(kernel, blocks, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

static CUgraphExec make_graph(void) {
    CUgraph graph;
    CUgraphExec executable;
    REQUIRE(cuStreamBeginCapture(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (unsigned long i = 0; i < graph_kernels; i++)
        REQUIRE(launch_kernel(streams[0], next_ns()));
    REQUIRE(cuStreamEndCapture(streams[0], &graph));
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

static void wait_for_all(void) {
    for (unsigned long i = 0; i < stream_count; i++) {
        CUresult result = CUDA_ERROR_NOT_READY;
        while (poll && (result = cuStreamQuery(streams[i])) == CUDA_ERROR_NOT_READY)
            if (poll != 2)
                usleep(100);
        REQUIRE(poll ? result : cuStreamSynchronize(streams[i]));
    }
}

static void wait_for_signal(void) {
    sigset_t wanted;
    int signal;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    printf("ready\n");
    fflush(stdout);
    EXPECT(sigwait(&wanted, &signal) == 0);
}

static void block_signal(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
}

int main(int count, char **arguments) {
    CUgraphExec graph = NULL;
    read_arguments(count, arguments);
    block_signal();
    use_device();
    kernel = spin_kernel();
    for (unsigned long i = 0; i < stream_count; i++)
        REQUIRE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    if (graph_kernels)
        graph = make_graph();
    wait_for_signal();
    uint64_t start_ns = now_ns(), pause_ns = start_ns + on_ms * 1000000;
    for (unsigned long launched = 1;; launched++) {
        CUstream stream = streams[launched % stream_count];
        int is_last = sync_after && launched % sync_after == 0;
        uint64_t duration_ns = is_last && last_ns ? last_ns : next_ns();
        REQUIRE(graph ? cuGraphLaunch(graph, stream) : launch_kernel(stream, duration_ns));
        if (is_last)
            wait_for_all();
        if (for_ms && now_ns() > start_ns + for_ms * 1000000) {
            wait_for_all();
            printf("%lu launches in %llu ns\n", launched, (unsigned long long)(now_ns() - start_ns));
            return 0;
        }
        if (is_last && gap_us)
            usleep(next_random() % (2 * gap_us + 1));
        if (!off_ms || now_ns() < pause_ns)
            continue;
        wait_for_all();
        usleep(off_ms * 1000);
        uint64_t now = now_ns();
        printf("goes on %llu\n", (unsigned long long)now);
        fflush(stdout);
        pause_ns = now + on_ms * 1000000;
    }
}
