// A program of the CUDA runtime: the memory cap, and kernels in a second, by plain launches and by a graph.
//
// Built by aliquot-gpu-check with nvcc, once with the static runtime library and once with the shared one, and run as
// `check_runtime SECONDS LIMIT_BYTES [WAY]` (0: no limit; WAY: the one way in which it uses the device). Its output is JSON.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

// Duration of a kernel.
static const unsigned long long kernel_ns = 1000000;

static std::string findings;

static void expect(const char *what, bool holds, const std::string &saw) {
    findings += (findings.empty() ? "" : ",") + std::string("{\"what\":\"") + what + "\",\"verdict\":\"" +
                (holds ? "holds" : "fails") + "\",\"saw\":\"" + saw + "\"}";
}

static void expect_ok(const char *what, cudaError_t error) { expect(what, error == cudaSuccess, cudaGetErrorName(error)); }

// Runs for so long by the clock. Arithmetic would not do for rates: it may take so much power that the device slows its
// clock down, and a slice that rests for a part of the time gets too much done. Its name tells a
// simulated GPU how long it runs.
extern "C" __global__ void spin_ns(unsigned long long duration_ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < duration_ns);
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Launch> static double per_second(double seconds, cudaStream_t stream, Launch launch) {
    cudaEvent_t done[4];
    for (auto &event : done)
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    long count = 0;
    double start = now();
    while (now() - start < seconds)
        for (auto &event : done) {
            cudaEventSynchronize(event);
            count += launch();
            cudaEventRecord(event, stream);
        }
    cudaStreamSynchronize(stream);
    return count / (now() - start);
}

static void check_cap(size_t limit) {
    size_t free_bytes, total;
    expect_ok("cudaMemGetInfo answers", cudaMemGetInfo(&free_bytes, &total));
    expect("cudaMemGetInfo shows the slice", total == limit, std::to_string(total));
    cudaDeviceProp properties;
    expect_ok("cudaGetDeviceProperties answers", cudaGetDeviceProperties(&properties, 0));
    expect("cudaGetDeviceProperties shows the slice", properties.totalGlobalMem == limit,
           std::to_string(properties.totalGlobalMem));
    void *memory;
    cudaError_t error = cudaMalloc(&memory, limit + 1);
    expect("cudaMalloc refuses more than the slice has", error == cudaErrorMemoryAllocation, cudaGetErrorName(error));
    error = cudaMallocAsync(&memory, limit + 1, (cudaStream_t)0);
    expect("cudaMallocAsync refuses more than the slice has", error == cudaErrorMemoryAllocation, cudaGetErrorName(error));
    error = cudaMallocManaged(&memory, limit + 1);
    expect("cudaMallocManaged refuses more than the slice has", error == cudaErrorMemoryAllocation,
           cudaGetErrorName(error));
    cudaGetLastError();
    const size_t piece = 64 << 20;
    std::vector<void *> pieces;
    while (pieces.size() * piece <= limit && cudaMalloc(&memory, piece) == cudaSuccess)
        pieces.push_back(memory);
    cudaGetLastError();
    expect("cudaMalloc gives no more than the slice has", pieces.size() * piece <= limit,
           std::to_string(pieces.size() * piece));
    for (void *each : pieces)
        cudaFree(each);
}

// Uses the device in one way only, says so, and holds what it has taken until standard input ends, as src/hooks.rs does by
// the driver API.
static int use_device(const std::string &way) {
    const size_t bytes = 256 << 20;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable = nullptr;
    void *memory;
    bool ok = cudaStreamCreate(&stream) == cudaSuccess;
    if (way == "malloc")
        ok = ok && cudaMalloc(&memory, bytes) == cudaSuccess;
    if (way == "malloc-async")
        ok = ok && cudaMallocAsync(&memory, bytes, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess;
    if (way == "graph") {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        for (int i = 0; i < 10; i++)
            spin_ns<<<1, 1, 0, stream>>>(kernel_ns);
        ok = ok && cudaStreamEndCapture(stream, &graph) == cudaSuccess;
        ok = ok && cudaGraphInstantiateWithFlags(&executable, graph, 0) == cudaSuccess;
    }
    long launches = 0;
    for (double start = now(); ok && now() - start < 1;) {
        if (way == "launch")
            spin_ns<<<1, 1, 0, stream>>>(kernel_ns);
        else if (way == "graph")
            ok = cudaGraphLaunch(executable, stream) == cudaSuccess;
        else {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            continue;
        }
        ok = ok && cudaStreamSynchronize(stream) == cudaSuccess;
        launches++;
    }
    printf("{\"launches\":%ld}\n", launches);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return ok && cudaGetLastError() == cudaSuccess ? 0 : 1;
}

int main(int count, char **arguments) {
    if (count > 3)
        return use_device(arguments[3]);
    double seconds = atof(arguments[1]);
    size_t limit = strtoull(arguments[2], nullptr, 10);
    cudaStream_t stream;
    expect_ok("cudaStreamCreate", cudaStreamCreate(&stream));
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    if (limit > 0)
        check_cap(limit);
    auto kernel = [&] {
        for (int i = 0; i < 8; i++)
            spin_ns<<<1, 1, 0, stream>>>(kernel_ns);
        return 8;
    };
    double launched = per_second(seconds, stream, kernel);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    kernel();
    expect_ok("a capture ends", cudaStreamEndCapture(stream, &graph));
    expect_ok("a graph is instantiated", cudaGraphInstantiateWithFlags(&executable, graph, 0));
    double in_graphs = per_second(seconds, stream, [&] {
        cudaGraphLaunch(executable, stream);
        return 8;
    });
    expect_ok("nothing has failed", cudaGetLastError());
    printf("{\"runtime_version\":%d,\"kernels_per_second\":%f,\"graph_kernels_per_second\":%f,\"findings\":[%s]}\n", runtime,
           launched, in_graphs, findings.c_str());
}
