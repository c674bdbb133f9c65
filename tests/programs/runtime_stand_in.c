/*
 * A stand-in for NVIDIA's runtime library, which does not run on the simulated GPU: the functions that a program from
 * nvcc calls, each by the function of the driver that NVIDIA's uses. It knows one kernel, spin_ns. The errors that it
 * gives have the same numbers in both.
 */
#include "program.h"

#define API __attribute__((visibility("default")))

typedef int cudaError_t;
typedef struct {
    unsigned x, y, z;
} dim3;

static CUfunction kernel;
static cudaError_t last_error;
/* The configuration of the launch that is being made. */
static dim3 launch_grid, launch_block;
static size_t launch_shared_bytes;
static CUstream launch_stream;

static cudaError_t checked(CUresult result) {
    if (result != CUDA_SUCCESS)
        last_error = result;
    return result;
}

/* Opens the device at the first call, as NVIDIA's does. */
static void begin(void) {
    if (!kernel) {
        use_device();
        kernel = spin_kernel();
    }
}

#define CALL(call) (begin(), checked(call))

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = CUDA_SUCCESS;
    return error;
}

API const char *cudaGetErrorName(cudaError_t error) {
    const char *name = "unknown";
    if (error == CUDA_SUCCESS)
        return "cudaSuccess";
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        return "cudaErrorMemoryAllocation";
    cuGetErrorName(error, &name);
    return name;
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 13050;
    return CUDA_SUCCESS;
}

API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    return CALL(cuMemGetInfo(free, total));
}

API cudaError_t cudaGetDeviceProperties(char *properties, int device) {
    /* Where the runtime's header has totalGlobalMem. */
    return CALL(cuDeviceTotalMem((size_t *)(properties + 288), device));
}

API cudaError_t cudaMalloc(CUdeviceptr *address, size_t bytes) {
    return CALL(cuMemAlloc(address, bytes));
}

API cudaError_t cudaMallocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return CALL(cuMemAllocAsync(address, bytes, stream));
}

API cudaError_t cudaMallocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    return CALL(cuMemAllocManaged(address, bytes, flags));
}

API cudaError_t cudaFree(CUdeviceptr address) {
    return CALL(cuMemFree(address));
}

API cudaError_t cudaStreamCreate(CUstream *stream) {
    return CALL(cuStreamCreate(stream, 0));
}

API cudaError_t cudaStreamSynchronize(CUstream stream) {
    return CALL(cuStreamSynchronize(stream));
}

API cudaError_t cudaStreamBeginCapture(CUstream stream, unsigned mode) {
    return CALL(cuStreamBeginCapture(stream, mode));
}

API cudaError_t cudaStreamEndCapture(CUstream stream, CUgraph *graph) {
    return CALL(cuStreamEndCapture(stream, graph));
}

API cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    return CALL(cuGraphInstantiateWithFlags(executable, graph, flags));
}

API cudaError_t cudaGraphLaunch(CUgraphExec executable, CUstream stream) {
    return CALL(cuGraphLaunch(executable, stream));
}

API cudaError_t cudaEventCreateWithFlags(CUevent *event, unsigned flags) {
    return CALL(cuEventCreate(event, flags));
}

API cudaError_t cudaEventRecord(CUevent event, CUstream stream) {
    return CALL(cuEventRecord(event, stream));
}

API cudaError_t cudaEventSynchronize(CUevent event) {
    return CALL(cuEventSynchronize(event));
}

/* What nvcc makes of a program's kernels, and of `kernel<<<...>>>(...)`. */

API void **__cudaRegisterFatBinary(void *code) {
    (void)code;
    static void *registered;
    return &registered;
}

API void __cudaRegisterFatBinaryEnd(void **registered) {
    (void)registered;
}

API void __cudaUnregisterFatBinary(void **registered) {
    (void)registered;
}

API void __cudaRegisterFunction(void **registered, const char *function, char *device_function, const char *name) {
    (void)registered, (void)function, (void)device_function;
    EXPECT(!strcmp(name, "spin_ns"));
}

API cudaError_t __cudaGetKernel(CUfunction *found, const void *function) {
    (void)function;
    begin();
    *found = kernel;
    return CUDA_SUCCESS;
}

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream stream) {
    launch_grid = grid, launch_block = block, launch_shared_bytes = shared_bytes, launch_stream = stream;
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, CUstream *stream) {
    *grid = launch_grid, *block = launch_block, *shared_bytes = launch_shared_bytes, *stream = launch_stream;
    return CUDA_SUCCESS;
}

API cudaError_t __cudaLaunchKernel(CUfunction function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                   CUstream stream) {
    return CALL(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared_bytes, stream,
                               arguments, NULL));
}
