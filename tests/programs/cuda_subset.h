/*
 * The part of the CUDA driver API that the host programs use, declared by hand from its public documentation.
 *
 * Each function is one line: the name by which programs call it, the symbol that this name stands for, the first CUDA
 * version of that symbol, its arguments. A program linked to the driver calls the names; one that looks the driver up
 * by itself takes the table.
 */
#ifndef CUDA_SUBSET_H
#define CUDA_SUBSET_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef void (*CUhostFn)(void *);

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CU_AD_FORMAT_UNSIGNED_INT32 = 3,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

typedef struct {
    size_t width, height;
    unsigned format, channels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    unsigned type;
    int id;
} CUmemLocation;

typedef struct {
    unsigned type, requested_handle_types;
    CUmemLocation location;
    void *win32_metadata;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    unsigned flags;
} CUmemAccessDesc;

typedef struct {
    unsigned type, handle_types;
    CUmemLocation location;
    void *win32_attributes;
    size_t max_size;
    unsigned char reserved[56];
} CUmemPoolProps;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    void *kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

#define CUDA_SUBSET(X)                                                                                                 \
    X(cuInit, "cuInit", 2000, (unsigned flags))                                                                        \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *version))                                                  \
    X(cuGetErrorName, "cuGetErrorName", 6000, (CUresult error, const char **name))                                     \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *count))                                                        \
    X(cuDeviceGet, "cuDeviceGet", 2000, (CUdevice *device, int ordinal))                                               \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, (char *name, int length, CUdevice device))                             \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", 3020, (size_t *bytes, CUdevice device))                                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext *context, CUdevice device))               \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000, (CUdevice device))                             \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset_v2", 11000, (CUdevice device))                                 \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, (CUmemoryPool *pool, CUdevice device))            \
    X(cuCtxCreate, "cuCtxCreate_v2", 3020, (CUcontext *context, unsigned flags, CUdevice device))                      \
    X(cuCtxDestroy, "cuCtxDestroy_v2", 4000, (CUcontext context))                                                      \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, (CUcontext context))                                                   \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                                                              \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, (CUmodule *module, const void *image))                               \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, (CUfunction *function, CUmodule module, const char *name))     \
    X(cuMemGetInfo, "cuMemGetInfo_v2", 3020, (size_t *free, size_t *total))                                            \
    X(cuMemAlloc, "cuMemAlloc_v2", 3020, (CUdeviceptr *address, size_t bytes))                                         \
    X(cuMemFree, "cuMemFree_v2", 3020, (CUdeviceptr address))                                                          \
    X(cuMemAllocPitch, "cuMemAllocPitch_v2", 3020,                                                                     \
      (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element))                            \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, (CUdeviceptr *address, size_t bytes, unsigned flags))              \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, (CUdeviceptr *address, size_t bytes, CUstream stream))                \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020,                                                       \
      (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream))                                        \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr address, CUstream stream))                                 \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, (CUmemoryPool *pool, const CUmemPoolProps *properties))               \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, (CUmemoryPool pool))                                                \
    X(cuArrayCreate, "cuArrayCreate_v2", 3020, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor))              \
    X(cuArray3DCreate, "cuArray3DCreate_v2", 3020, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))        \
    X(cuArrayDestroy, "cuArrayDestroy", 2000, (CUarray array))                                                         \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000,                                                          \
      (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels))                           \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, (CUmipmappedArray array))                              \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020,                                                               \
      (CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags))              \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, (CUdeviceptr address, size_t bytes))                                \
    X(cuMemCreate, "cuMemCreate", 10020,                                                                               \
      (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,                      \
       unsigned long long flags))                                                                                      \
    X(cuMemRelease, "cuMemRelease", 10020, (CUmemGenericAllocationHandle handle))                                      \
    X(cuMemMap, "cuMemMap", 10020,                                                                                     \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
    X(cuMemUnmap, "cuMemUnmap", 10020, (CUdeviceptr address, size_t bytes))                                            \
    X(cuMemSetAccess, "cuMemSetAccess", 10020,                                                                         \
      (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count))                                \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", 3020, (CUdeviceptr target, const void *source, size_t bytes))                   \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", 3020, (void *target, CUdeviceptr source, size_t bytes))                         \
    X(cuMemsetD8, "cuMemsetD8_v2", 3020, (CUdeviceptr target, unsigned char value, size_t bytes))                      \
    X(cuStreamCreate, "cuStreamCreate", 2000, (CUstream *stream, unsigned flags))                                      \
    X(cuStreamDestroy, "cuStreamDestroy_v2", 4000, (CUstream stream))                                                  \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, (CUstream stream))                                             \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", 10010, (CUstream stream, unsigned mode))                        \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, (CUstream stream, CUgraph *graph))                              \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, (CUstream stream, unsigned *status))                          \
    X(cuEventCreate, "cuEventCreate", 2000, (CUevent *event, unsigned flags))                                          \
    X(cuEventRecord, "cuEventRecord", 2000, (CUevent event, CUstream stream))                                          \
    X(cuEventQuery, "cuEventQuery", 2000, (CUevent event))                                                             \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, (CUevent event))                                                 \
    X(cuEventElapsedTime, "cuEventElapsedTime", 2000, (float *milliseconds, CUevent start, CUevent end))               \
    X(cuEventDestroy, "cuEventDestroy_v2", 4000, (CUevent event))                                                      \
    X(cuLaunchKernel, "cuLaunchKernel", 4000,                                                                          \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
       unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra))                     \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, (CUstream stream, CUhostFn function, void *data))                   \
    X(cuGraphCreate, "cuGraphCreate", 10000, (CUgraph *graph, unsigned flags))                                         \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, (CUgraph graph))                                                        \
    X(cuGraphAddKernelNode, "cuGraphAddKernelNode_v2", 12000,                                                          \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,                                \
       const CUDA_KERNEL_NODE_PARAMS *parameters))                                                                     \
    X(cuGraphGetNodes, "cuGraphGetNodes", 10000, (CUgraph graph, CUgraphNode *nodes, size_t *count))                   \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040,                                               \
      (CUgraphExec *graph_exec, CUgraph graph, unsigned long long flags))                                              \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, (CUgraphExec graph_exec))                                       \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, (CUgraphExec graph_exec, CUstream stream))

#define CUDA_DECLARE(name, symbol, version, arguments) extern CUresult name arguments __asm__(symbol);
CUDA_SUBSET(CUDA_DECLARE)
#undef CUDA_DECLARE

/* The driver as a program finds it by itself: one pointer for each function. */
#define CUDA_FIELD(name, symbol, version, arguments) __typeof__(name) *name;
struct driver {
    CUDA_SUBSET(CUDA_FIELD)
};
#undef CUDA_FIELD

typedef CUresult get_proc_address_v1(const char *name, void **address, int version, uint64_t flags);
typedef CUresult get_proc_address_v2(const char *name, void **address, int version, uint64_t flags, unsigned *status);

#endif
