/*
 * The part of the CUDA driver API that the host programs use, declared by hand from its public documentation.
 *
 * Each function is one line: the name that programs call, the symbol behind this name, the first CUDA version with that
 * symbol, and the arguments. A program linked to the driver calls the names; a program that looks the driver up itself
 * uses the table.
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
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
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
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_READY = 600,
    CU_AD_FORMAT_UNSIGNED_INT32 = 3,
    CU_DEV_RESOURCE_TYPE_SM = 1,
    CU_GREEN_CTX_DEFAULT_STREAM = 1,
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD = 2,
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
    size_t source_x, source_y;
    unsigned source_type;
    const void *source_host;
    CUdeviceptr source_device;
    CUarray source_array;
    size_t source_pitch, target_x, target_y;
    unsigned target_type;
    void *target_host;
    CUdeviceptr target_device;
    CUarray target_array;
    size_t target_pitch, width, height;
} CUDA_MEMCPY2D;

/* A part of a device. The programs only pass it on. */
typedef struct {
    uint64_t words[18];
} CUdevResource;

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
    unsigned char before[16], after[16];
} CUcheckpointGpuPair;

typedef struct {
    CUcheckpointGpuPair *pairs;
    unsigned count, padding;
    char reserved[48];
} CUcheckpointRestoreArgs;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    void *kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    CUmemPoolProps properties;
    const CUmemAccessDesc *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr address;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    uint64_t flags;
    CUstream upload_stream;
    CUgraphNode error_node;
    unsigned result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    unsigned resource_type;
    void *resource;
    unsigned subresource_type, gap;
    /* Level, layer, offsets and extents. */
    unsigned box[8];
    unsigned operation, handle_type;
    CUmemGenericAllocationHandle memory;
    unsigned long long offset;
    unsigned device_mask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
} CUmulticastObjectProp;

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
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, (CUdevice device))                                          \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, (CUmemoryPool *pool, CUdevice device))                          \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, (CUdevice device, CUmemoryPool pool))                           \
    X(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040,                                                         \
      (CUdevice device, CUdevResource *resource, unsigned type))                                                       \
    X(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040,                                                   \
      (CUdevResourceDesc *description, CUdevResource *resources, unsigned count))                                      \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040,                                                                     \
      (CUgreenCtx *context, CUdevResourceDesc description, CUdevice device, unsigned flags))                           \
    X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040, (CUcontext *context, CUgreenCtx green))                           \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, (CUgreenCtx context))                                             \
    X(cuCtxCreate, "cuCtxCreate_v2", 3020, (CUcontext *context, unsigned flags, CUdevice device))                      \
    X(cuCtxDestroy, "cuCtxDestroy_v2", 4000, (CUcontext context))                                                      \
    X(cuCtxAttach, "cuCtxAttach", 2000, (CUcontext *context, unsigned flags))                                          \
    X(cuCtxDetach, "cuCtxDetach", 2000, (CUcontext context))                                                           \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, (CUcontext context))                                                   \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, (CUcontext *context))                                                  \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, (CUdevice *device))                                                      \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", 4000, (CUcontext context))                                              \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", 4000, (CUcontext *context))                                               \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                                                              \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, (CUcontext peer, unsigned flags))                          \
    X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, (CUcontext peer))                                        \
    X(cuMemcpyPeer, "cuMemcpyPeer", 4000,                                                                              \
      (CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context, size_t bytes))      \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, (CUmodule *module, const void *image))                               \
    X(cuModuleUnload, "cuModuleUnload", 2000, (CUmodule module))                                                       \
    X(cuCtxGetLimit, "cuCtxGetLimit", 3010, (size_t *value, unsigned limit))                                           \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, (unsigned limit, size_t value))                                            \
    X(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, (int pid, CUcheckpointRestoreArgs *arguments))  \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, (CUfunction *function, CUmodule module, const char *name))     \
    X(cuMemGetInfo, "cuMemGetInfo_v2", 3020, (size_t *free, size_t *total))                                            \
    X(cuMemAlloc, "cuMemAlloc_v2", 3020, (CUdeviceptr *address, size_t bytes))                                         \
    X(cuMemFree, "cuMemFree_v2", 3020, (CUdeviceptr address))                                                          \
    X(cuMemGetAddressRange, "cuMemGetAddressRange_v2", 3020, (CUdeviceptr *base, size_t *bytes, CUdeviceptr address))  \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, (void *value, unsigned attribute, CUdeviceptr address))    \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, (void **address, size_t bytes, unsigned flags))                          \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, (void *address))                                                           \
    X(cuMemHostRegister, "cuMemHostRegister_v2", 6050, (void *address, size_t bytes, unsigned flags))                  \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, (void *address))                                               \
    X(cuMemAllocPitch, "cuMemAllocPitch_v2", 3020,                                                                     \
      (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element))                            \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, (CUdeviceptr *address, size_t bytes, unsigned flags))              \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, (CUdeviceptr *address, size_t bytes, CUstream stream))                \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020,                                                       \
      (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream))                                        \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr address, CUstream stream))                                 \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, (CUmemoryPool *pool, const CUmemPoolProps *properties))               \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, (CUmemoryPool pool))                                                \
    X(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000,                                                         \
      (CUmemoryPool *pool, CUmemLocation *location, unsigned type))                                                    \
    X(cuMemAllocHost, "cuMemAllocHost_v2", 3020, (void **start, size_t bytes))                                         \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, (CUmemoryPool pool, size_t kept_bytes))                               \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, (CUmemoryPool pool, unsigned attribute, void *value))     \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, (CUmemoryPool pool, unsigned attribute, void *value))     \
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
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000,                                               \
      (CUmemGenericAllocationHandle *handle, void *address))                                                           \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                                             \
      (void *shared, CUmemGenericAllocationHandle handle, unsigned type, unsigned long long flags))                    \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,                                         \
      (CUmemGenericAllocationHandle *handle, void *shared, unsigned type))                                             \
    X(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010, (CUarrayMapInfo *list, unsigned count, CUstream stream))        \
    X(cuMulticastCreate, "cuMulticastCreate", 12010,                                                                   \
      (CUmemGenericAllocationHandle *object, const CUmulticastObjectProp *properties))                                 \
    X(cuMulticastAddDevice, "cuMulticastAddDevice", 12010, (CUmemGenericAllocationHandle object, CUdevice device))     \
    X(cuMulticastBindMem, "cuMulticastBindMem", 12010,                                                                 \
      (CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory, size_t from,           \
       size_t bytes, unsigned long long flags))                                                                        \
    X(cuMulticastBindAddr, "cuMulticastBindAddr", 12010,                                                               \
      (CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t bytes,                          \
       unsigned long long flags))                                                                                      \
    X(cuMulticastUnbind, "cuMulticastUnbind", 12010,                                                                   \
      (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t bytes))                             \
    X(cuMemMap, "cuMemMap", 10020,                                                                                     \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
    X(cuMemUnmap, "cuMemUnmap", 10020, (CUdeviceptr address, size_t bytes))                                            \
    X(cuMemSetAccess, "cuMemSetAccess", 10020,                                                                         \
      (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count))                                \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", 3020, (CUdeviceptr target, const void *source, size_t bytes))                   \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", 3020, (void *target, CUdeviceptr source, size_t bytes))                         \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020,                                                                 \
      (CUdeviceptr target, const void *source, size_t bytes, CUstream stream))                                         \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020,                                                                 \
      (void *target, CUdeviceptr source, size_t bytes, CUstream stream))                                               \
    X(cuMemcpyAtoHAsync, "cuMemcpyAtoHAsync_v2", 3020,                                                                 \
      (void *target, CUarray source, size_t offset, size_t bytes, CUstream stream))                                    \
    X(cuMemcpyHtoAAsync, "cuMemcpyHtoAAsync_v2", 3020,                                                                 \
      (CUarray target, size_t offset, const void *source, size_t bytes, CUstream stream))                              \
    X(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", 3020, (const CUDA_MEMCPY2D *copy, CUstream stream))                       \
    X(cuMemcpyAsync, "cuMemcpyAsync", 4000, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream))   \
    X(cuMemcpyBatchAsync, "cuMemcpyBatchAsync_v2", 13000,                                                              \
      (CUdeviceptr *targets, CUdeviceptr *sources, size_t *bytes, size_t count, void *attributes,                      \
       size_t *indices, size_t attribute_count, CUstream stream))                                                      \
    X(cuMemsetD8, "cuMemsetD8_v2", 3020, (CUdeviceptr target, unsigned char value, size_t bytes))                      \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020,                                                                        \
      (CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream))                                        \
    X(cuMemcpyDtoD, "cuMemcpyDtoD_v2", 3020, (CUdeviceptr target, CUdeviceptr source, size_t bytes))                   \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", 3020,                                                                 \
      (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream))                                         \
    X(cuStreamCreate, "cuStreamCreate", 2000, (CUstream *stream, unsigned flags))                                      \
    X(cuStreamDestroy, "cuStreamDestroy_v2", 4000, (CUstream stream))                                                  \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, (CUstream stream))                                             \
    X(cuStreamQuery, "cuStreamQuery", 2000, (CUstream stream))                                                         \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, (CUstream stream, CUevent event, unsigned flags))                  \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", 10010, (CUstream stream, unsigned mode))                        \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, (CUstream stream, CUgraph *graph))                              \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, (CUstream stream, unsigned *status))                          \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, (unsigned *mode))                 \
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
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040,                                                         \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters))\
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040,                                                           \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address))                 \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000,                                             \
      (CUgraphExec *graph_exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))                             \
    X(cuGraphUpload, "cuGraphUpload", 11010, (CUgraphExec graph_exec, CUstream stream))                                \
    X(cuGraphGetNodes, "cuGraphGetNodes", 10000, (CUgraph graph, CUgraphNode *nodes, size_t *count))                   \
    X(cuGraphAddEmptyNode, "cuGraphAddEmptyNode", 10000,                                                               \
      (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count))                               \
    X(cuGraphClone, "cuGraphClone", 10000, (CUgraph *clone, CUgraph graph))                                            \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040,                                               \
      (CUgraphExec *graph_exec, CUgraph graph, unsigned long long flags))                                              \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, (CUgraphExec graph_exec))                                       \
    X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000,                              \
      (CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags))                                                  \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, (CUgraphExec graph_exec, CUstream stream))

#define CUDA_DECLARE(name, symbol, version, arguments) extern CUresult name arguments __asm__(symbol);
CUDA_SUBSET(CUDA_DECLARE)
#undef CUDA_DECLARE

/* The driver for a program that looks it up: one pointer for each function. */
#define CUDA_FIELD(name, symbol, version, arguments) __typeof__(name) *name;
struct driver {
    CUDA_SUBSET(CUDA_FIELD)
};
#undef CUDA_FIELD

typedef CUresult get_proc_address_v1(const char *name, void **address, int version, uint64_t flags);
typedef CUresult get_proc_address_v2(const char *name, void **address, int version, uint64_t flags, unsigned *status);

#endif
