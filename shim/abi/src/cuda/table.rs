//! The table of CUDA driver functions.
//!
//! Each driver function is one line here, and everything that must agree about it expands from that line: the shim's
//! exports and real-function slots, `cuGetProcAddress` of the simulated GPU, the simulated GPU's exports, and the tests that
//! compare the table with NVIDIA's headers. Adding a function is adding a line.
//!
//! A line reads
//!
//! ```text
//! class policy: symbol | per-thread symbol = name @ version (arguments);
//! ```
//!
//! * `class` says what the function can do to a slice: `start` (start-up and look-up), `memory` (takes or gives back
//!   device memory), `launch` (makes the device work), `view` (shows the size of the device), `context` (ends a context
//!   and all it holds), `forward` (none of these: the shim does not touch it).
//! * `policy` names the one rule that the function shares with its other versions; the shim has one function for each.
//! * `symbol` is the exported symbol; `| per-thread symbol` the form with per-thread default streams, where there is one.
//! * `name @ version` is how `cuGetProcAddress` knows it: the unversioned name and the first CUDA version (`11020` is
//!   11.2) whose callers get this symbol. The per-thread forms exist from 7000 on.

/// Hands the whole table to the macro `$consumer`, which receives the lines described in the [module](self) text.
///
/// Every function returns [`CUresult`](crate::cuda::CUresult).
#[macro_export]
macro_rules! cuda_api {
    ($consumer:path) => {
        $consumer! {
            // Initialisation and look-up
            start init: cuInit = cuInit @ 2000 (flags: c_uint);
            forward call: cuDriverGetVersion = cuDriverGetVersion @ 2020 (driver_version: *mut c_int);
            forward call: cuGetErrorString = cuGetErrorString @ 6000 (error: CUresult, p_str: *mut *const c_char);
            forward call: cuGetErrorName = cuGetErrorName @ 6000 (error: CUresult, p_str: *mut *const c_char);
            start get_proc_address: cuGetProcAddress = cuGetProcAddress @ 11030 (symbol: *const c_char, pfn: *mut *mut c_void, driver_version: c_int, flags: u64);
            start get_proc_address_v2: cuGetProcAddress_v2 = cuGetProcAddress @ 12000 (symbol: *const c_char, pfn: *mut *mut c_void, driver_version: c_int, flags: u64, symbol_found: *mut c_uint);
            forward call: cuGetExportTable = cuGetExportTable @ 3000 (pp_export_table: *mut *const c_void, p_export_table_id: *const CUuuid);
            // Devices
            forward call: cuDeviceGet = cuDeviceGet @ 2000 (device: *mut CUdevice, ordinal: c_int);
            forward call: cuDeviceGetCount = cuDeviceGetCount @ 2000 (count: *mut c_int);
            forward call: cuDeviceGetName = cuDeviceGetName @ 2000 (name: *mut c_char, len: c_int, dev: CUdevice);
            forward call: cuDeviceGetUuid = cuDeviceGetUuid @ 9020 (uuid: *mut CUuuid, dev: CUdevice);
            forward call: cuDeviceGetUuid_v2 = cuDeviceGetUuid @ 11040 (uuid: *mut CUuuid, dev: CUdevice);
            view total_mem: cuDeviceTotalMem = cuDeviceTotalMem @ 2000 (bytes: *mut c_uint, dev: CUdevice);
            view total_mem: cuDeviceTotalMem_v2 = cuDeviceTotalMem @ 3020 (bytes: *mut usize, dev: CUdevice);
            forward call: cuDeviceGetAttribute = cuDeviceGetAttribute @ 2000 (pi: *mut c_int, attrib: c_uint, dev: CUdevice);
            forward call: cuDeviceGetProperties = cuDeviceGetProperties @ 2000 (prop: *mut CUdevprop, dev: CUdevice);
            forward call: cuDeviceComputeCapability = cuDeviceComputeCapability @ 2000 (major: *mut c_int, minor: *mut c_int, dev: CUdevice);
            forward call: cuDeviceGetPCIBusId = cuDeviceGetPCIBusId @ 4010 (pci_bus_id: *mut c_char, len: c_int, dev: CUdevice);
            forward call: cuDeviceGetByPCIBusId = cuDeviceGetByPCIBusId @ 4010 (dev: *mut CUdevice, pci_bus_id: *const c_char);
            forward call: cuDeviceCanAccessPeer = cuDeviceCanAccessPeer @ 4000 (can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice);
            forward call: cuDeviceGetP2PAttribute = cuDeviceGetP2PAttribute @ 8000 (value: *mut c_int, attrib: c_uint, src_device: CUdevice, dst_device: CUdevice);
            forward call: cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool @ 11020 (pool_out: *mut CUmemoryPool, dev: CUdevice);
            forward call: cuDeviceGetMemPool = cuDeviceGetMemPool @ 11020 (pool: *mut CUmemoryPool, dev: CUdevice);
            forward call: cuDeviceSetMemPool = cuDeviceSetMemPool @ 11020 (dev: CUdevice, pool: CUmemoryPool);
            forward call: cuDeviceGetExecAffinitySupport = cuDeviceGetExecAffinitySupport @ 11040 (pi: *mut c_int, kind: c_uint, dev: CUdevice);
            forward call: cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain @ 7000 (pctx: *mut CUcontext, dev: CUdevice);
            context primary_release: cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease @ 7000 (dev: CUdevice);
            context primary_release: cuDevicePrimaryCtxRelease_v2 = cuDevicePrimaryCtxRelease @ 11000 (dev: CUdevice);
            forward call: cuDevicePrimaryCtxSetFlags = cuDevicePrimaryCtxSetFlags @ 7000 (dev: CUdevice, flags: c_uint);
            forward call: cuDevicePrimaryCtxSetFlags_v2 = cuDevicePrimaryCtxSetFlags @ 11000 (dev: CUdevice, flags: c_uint);
            forward call: cuDevicePrimaryCtxGetState = cuDevicePrimaryCtxGetState @ 7000 (dev: CUdevice, flags: *mut c_uint, active: *mut c_int);
            context primary_reset: cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset @ 7000 (dev: CUdevice);
            context primary_reset: cuDevicePrimaryCtxReset_v2 = cuDevicePrimaryCtxReset @ 11000 (dev: CUdevice);
            forward call: cuDeviceGetGraphMemAttribute = cuDeviceGetGraphMemAttribute @ 11040 (device: CUdevice, attr: c_uint, value: *mut c_void);
            forward call: cuDeviceSetGraphMemAttribute = cuDeviceSetGraphMemAttribute @ 11040 (device: CUdevice, attr: c_uint, value: *mut c_void);
            forward call: cuDeviceGraphMemTrim = cuDeviceGraphMemTrim @ 11040 (device: CUdevice);
            // Contexts
            forward call: cuCtxCreate = cuCtxCreate @ 2000 (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
            forward call: cuCtxCreate_v2 = cuCtxCreate @ 3020 (pctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
            forward call: cuCtxCreate_v3 = cuCtxCreate @ 11040 (pctx: *mut CUcontext, params_array: *mut c_void, num_params: c_int, flags: c_uint, dev: CUdevice);
            forward call: cuCtxCreate_v4 = cuCtxCreate @ 12050 (pctx: *mut CUcontext, ctx_create_params: *mut c_void, flags: c_uint, dev: CUdevice);
            context destroy: cuCtxDestroy = cuCtxDestroy @ 2000 (ctx: CUcontext);
            context destroy: cuCtxDestroy_v2 = cuCtxDestroy @ 4000 (ctx: CUcontext);
            forward call: cuCtxPushCurrent = cuCtxPushCurrent @ 2000 (ctx: CUcontext);
            forward call: cuCtxPushCurrent_v2 = cuCtxPushCurrent @ 4000 (ctx: CUcontext);
            forward call: cuCtxPopCurrent = cuCtxPopCurrent @ 2000 (pctx: *mut CUcontext);
            forward call: cuCtxPopCurrent_v2 = cuCtxPopCurrent @ 4000 (pctx: *mut CUcontext);
            forward call: cuCtxSetCurrent = cuCtxSetCurrent @ 4000 (ctx: CUcontext);
            forward call: cuCtxGetCurrent = cuCtxGetCurrent @ 4000 (pctx: *mut CUcontext);
            forward call: cuCtxGetDevice = cuCtxGetDevice @ 2000 (device: *mut CUdevice);
            forward call: cuCtxGetDevice_v2 = cuCtxGetDevice @ 13000 (device: *mut CUdevice, ctx: CUcontext);
            forward call: cuCtxGetFlags = cuCtxGetFlags @ 7000 (flags: *mut c_uint);
            forward call: cuCtxSetFlags = cuCtxSetFlags @ 12010 (flags: c_uint);
            forward call: cuCtxGetId = cuCtxGetId @ 12000 (ctx: CUcontext, ctx_id: *mut u64);
            forward call: cuCtxSynchronize = cuCtxSynchronize @ 2000 ();
            forward call: cuCtxSynchronize_v2 = cuCtxSynchronize @ 13000 (ctx: CUcontext);
            forward call: cuCtxSetLimit = cuCtxSetLimit @ 3010 (limit: c_uint, value: usize);
            forward call: cuCtxGetLimit = cuCtxGetLimit @ 3010 (pvalue: *mut usize, limit: c_uint);
            forward call: cuCtxGetCacheConfig = cuCtxGetCacheConfig @ 3020 (pconfig: *mut c_uint);
            forward call: cuCtxSetCacheConfig = cuCtxSetCacheConfig @ 3020 (config: c_uint);
            forward call: cuCtxGetSharedMemConfig = cuCtxGetSharedMemConfig @ 4020 (p_config: *mut c_uint);
            forward call: cuCtxSetSharedMemConfig = cuCtxSetSharedMemConfig @ 4020 (config: c_uint);
            forward call: cuCtxGetApiVersion = cuCtxGetApiVersion @ 3020 (ctx: CUcontext, version: *mut c_uint);
            forward call: cuCtxGetStreamPriorityRange = cuCtxGetStreamPriorityRange @ 5050 (least_priority: *mut c_int, greatest_priority: *mut c_int);
            forward call: cuCtxAttach = cuCtxAttach @ 2000 (pctx: *mut CUcontext, flags: c_uint);
            forward call: cuCtxDetach = cuCtxDetach @ 2000 (ctx: CUcontext);
            forward call: cuCtxEnablePeerAccess = cuCtxEnablePeerAccess @ 4000 (peer_context: CUcontext, flags: c_uint);
            forward call: cuCtxDisablePeerAccess = cuCtxDisablePeerAccess @ 4000 (peer_context: CUcontext);
            forward call: cuCtxResetPersistingL2Cache = cuCtxResetPersistingL2Cache @ 11000 ();
            // Modules, libraries, functions
            forward call: cuModuleLoad = cuModuleLoad @ 2000 (module: *mut CUmodule, fname: *const c_char);
            forward call: cuModuleLoadData = cuModuleLoadData @ 2000 (module: *mut CUmodule, image: *const c_void);
            forward call: cuModuleLoadDataEx = cuModuleLoadDataEx @ 2010 (module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut c_uint, option_values: *mut *mut c_void);
            forward call: cuModuleLoadFatBinary = cuModuleLoadFatBinary @ 2000 (module: *mut CUmodule, fat_cubin: *const c_void);
            forward call: cuModuleUnload = cuModuleUnload @ 2000 (hmod: CUmodule);
            forward call: cuModuleGetLoadingMode = cuModuleGetLoadingMode @ 11070 (mode: *mut c_uint);
            forward call: cuModuleGetFunction = cuModuleGetFunction @ 2000 (hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char);
            forward call: cuModuleGetFunctionCount = cuModuleGetFunctionCount @ 12040 (count: *mut c_uint, hmod: CUmodule);
            forward call: cuModuleEnumerateFunctions = cuModuleEnumerateFunctions @ 12040 (functions: *mut CUfunction, num_functions: c_uint, module: CUmodule);
            forward call: cuModuleGetGlobal = cuModuleGetGlobal @ 2000 (dptr: *mut CUdeviceptrV1, bytes: *mut c_uint, hmod: CUmodule, name: *const c_char);
            forward call: cuModuleGetGlobal_v2 = cuModuleGetGlobal @ 3020 (dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char);
            forward call: cuLibraryLoadData = cuLibraryLoadData @ 12000 (library: *mut CUlibrary, code: *const c_void, jit_options: *mut c_uint, jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut c_uint, library_option_values: *mut *mut c_void, num_library_options: c_uint);
            forward call: cuLibraryLoadFromFile = cuLibraryLoadFromFile @ 12000 (library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut c_uint, jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut c_uint, library_option_values: *mut *mut c_void, num_library_options: c_uint);
            forward call: cuLibraryUnload = cuLibraryUnload @ 12000 (library: CUlibrary);
            forward call: cuLibraryGetKernel = cuLibraryGetKernel @ 12000 (p_kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
            forward call: cuLibraryGetKernelCount = cuLibraryGetKernelCount @ 12040 (count: *mut c_uint, lib: CUlibrary);
            forward call: cuLibraryEnumerateKernels = cuLibraryEnumerateKernels @ 12040 (kernels: *mut CUkernel, num_kernels: c_uint, lib: CUlibrary);
            forward call: cuLibraryGetModule = cuLibraryGetModule @ 12000 (p_mod: *mut CUmodule, library: CUlibrary);
            forward call: cuLibraryGetGlobal = cuLibraryGetGlobal @ 12000 (dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char);
            forward call: cuKernelGetFunction = cuKernelGetFunction @ 12000 (p_func: *mut CUfunction, kernel: CUkernel);
            forward call: cuKernelGetLibrary = cuKernelGetLibrary @ 12050 (p_lib: *mut CUlibrary, kernel: CUkernel);
            forward call: cuKernelGetAttribute = cuKernelGetAttribute @ 12000 (pi: *mut c_int, attrib: c_uint, kernel: CUkernel, dev: CUdevice);
            forward call: cuKernelSetAttribute = cuKernelSetAttribute @ 12000 (attrib: c_uint, val: c_int, kernel: CUkernel, dev: CUdevice);
            forward call: cuKernelSetCacheConfig = cuKernelSetCacheConfig @ 12000 (kernel: CUkernel, config: c_uint, dev: CUdevice);
            forward call: cuKernelGetName = cuKernelGetName @ 12030 (name: *mut *const c_char, hfunc: CUkernel);
            forward call: cuKernelGetParamInfo = cuKernelGetParamInfo @ 12040 (kernel: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize);
            forward call: cuFuncGetAttribute = cuFuncGetAttribute @ 2020 (pi: *mut c_int, attrib: c_uint, hfunc: CUfunction);
            forward call: cuFuncSetAttribute = cuFuncSetAttribute @ 9000 (hfunc: CUfunction, attrib: c_uint, value: c_int);
            forward call: cuFuncSetCacheConfig = cuFuncSetCacheConfig @ 3000 (hfunc: CUfunction, config: c_uint);
            forward call: cuFuncSetSharedMemConfig = cuFuncSetSharedMemConfig @ 4020 (hfunc: CUfunction, config: c_uint);
            forward call: cuFuncGetModule = cuFuncGetModule @ 11000 (hmod: *mut CUmodule, hfunc: CUfunction);
            forward call: cuFuncGetName = cuFuncGetName @ 12030 (name: *mut *const c_char, hfunc: CUfunction);
            forward call: cuFuncGetParamInfo = cuFuncGetParamInfo @ 12040 (func: CUfunction, param_index: usize, param_offset: *mut usize, param_size: *mut usize);
            forward call: cuFuncIsLoaded = cuFuncIsLoaded @ 12040 (state: *mut c_uint, hfunc: CUfunction);
            forward call: cuFuncLoad = cuFuncLoad @ 12040 (hfunc: CUfunction);
            forward call: cuOccupancyMaxActiveBlocksPerMultiprocessor = cuOccupancyMaxActiveBlocksPerMultiprocessor @ 6050 (num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_smem_size: usize);
            forward call: cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags @ 7000 (num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_smem_size: usize, flags: c_uint);
            forward call: cuOccupancyMaxPotentialBlockSize = cuOccupancyMaxPotentialBlockSize @ 6050 (min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction, block_size_to_dynamic_smem_size: *mut c_void, dynamic_smem_size: usize, block_size_limit: c_int);
            forward call: cuOccupancyMaxPotentialBlockSizeWithFlags = cuOccupancyMaxPotentialBlockSizeWithFlags @ 7000 (min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction, block_size_to_dynamic_smem_size: *mut c_void, dynamic_smem_size: usize, block_size_limit: c_int, flags: c_uint);
            forward call: cuOccupancyAvailableDynamicSMemPerBlock = cuOccupancyAvailableDynamicSMemPerBlock @ 10020 (dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int, block_size: c_int);
            // Linear memory
            view mem_info: cuMemGetInfo = cuMemGetInfo @ 2000 (free: *mut c_uint, total: *mut c_uint);
            view mem_info: cuMemGetInfo_v2 = cuMemGetInfo @ 3020 (free: *mut usize, total: *mut usize);
            memory alloc: cuMemAlloc = cuMemAlloc @ 2000 (dptr: *mut CUdeviceptrV1, bytesize: c_uint);
            memory alloc: cuMemAlloc_v2 = cuMemAlloc @ 3020 (dptr: *mut CUdeviceptr, bytesize: usize);
            memory alloc_pitch: cuMemAllocPitch = cuMemAllocPitch @ 2000 (dptr: *mut CUdeviceptrV1, p_pitch: *mut c_uint, width_in_bytes: c_uint, height: c_uint, element_size_bytes: c_uint);
            memory alloc_pitch: cuMemAllocPitch_v2 = cuMemAllocPitch @ 3020 (dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize, element_size_bytes: c_uint);
            memory alloc_managed: cuMemAllocManaged = cuMemAllocManaged @ 6000 (dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
            memory free: cuMemFree = cuMemFree @ 2000 (dptr: CUdeviceptrV1);
            memory free: cuMemFree_v2 = cuMemFree @ 3020 (dptr: CUdeviceptr);
            forward call: cuMemGetAddressRange = cuMemGetAddressRange @ 2000 (pbase: *mut CUdeviceptrV1, psize: *mut c_uint, dptr: CUdeviceptrV1);
            forward call: cuMemGetAddressRange_v2 = cuMemGetAddressRange @ 3020 (pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr);
            forward call: cuMemAllocHost = cuMemAllocHost @ 2000 (pp: *mut *mut c_void, bytesize: c_uint);
            forward call: cuMemAllocHost_v2 = cuMemAllocHost @ 3020 (pp: *mut *mut c_void, bytesize: usize);
            forward call: cuMemFreeHost = cuMemFreeHost @ 2000 (p: *mut c_void);
            forward call: cuMemHostAlloc = cuMemHostAlloc @ 2020 (pp: *mut *mut c_void, bytesize: usize, flags: c_uint);
            forward call: cuMemHostGetDevicePointer = cuMemHostGetDevicePointer @ 2020 (pdptr: *mut CUdeviceptrV1, p: *mut c_void, flags: c_uint);
            forward call: cuMemHostGetDevicePointer_v2 = cuMemHostGetDevicePointer @ 3020 (pdptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint);
            forward call: cuMemHostGetFlags = cuMemHostGetFlags @ 2030 (p_flags: *mut c_uint, p: *mut c_void);
            forward call: cuMemHostRegister = cuMemHostRegister @ 4000 (p: *mut c_void, bytesize: usize, flags: c_uint);
            forward call: cuMemHostRegister_v2 = cuMemHostRegister @ 6050 (p: *mut c_void, bytesize: usize, flags: c_uint);
            forward call: cuMemHostUnregister = cuMemHostUnregister @ 4000 (p: *mut c_void);
            forward call: cuPointerGetAttribute = cuPointerGetAttribute @ 4000 (data: *mut c_void, attribute: c_uint, ptr: CUdeviceptr);
            forward call: cuPointerGetAttributes = cuPointerGetAttributes @ 7000 (num_attributes: c_uint, attributes: *mut c_uint, data: *mut *mut c_void, ptr: CUdeviceptr);
            forward call: cuPointerSetAttribute = cuPointerSetAttribute @ 6000 (value: *const c_void, attribute: c_uint, ptr: CUdeviceptr);
            forward call: cuMemAdvise = cuMemAdvise @ 8000 (dev_ptr: CUdeviceptr, count: usize, advice: c_uint, device: CUdevice);
            forward call: cuMemAdvise_v2 = cuMemAdvise @ 12020 (dev_ptr: CUdeviceptr, count: usize, advice: c_uint, location: CUmemLocation);
            forward call: cuMemPrefetchAsync | cuMemPrefetchAsync_ptsz = cuMemPrefetchAsync @ 8000 (dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream);
            forward call: cuMemPrefetchAsync_v2 | cuMemPrefetchAsync_v2_ptsz = cuMemPrefetchAsync @ 12020 (dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, h_stream: CUstream);
            forward call: cuMemRangeGetAttribute = cuMemRangeGetAttribute @ 8000 (data: *mut c_void, data_size: usize, attribute: c_uint, dev_ptr: CUdeviceptr, count: usize);
            forward call: cuMemRangeGetAttributes = cuMemRangeGetAttributes @ 8000 (data: *mut *mut c_void, data_sizes: *mut usize, attributes: *mut c_uint, num_attributes: usize, dev_ptr: CUdeviceptr, count: usize);
            // Arrays
            memory array_create: cuArrayCreate = cuArrayCreate @ 2000 (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR_V1);
            memory array_create: cuArrayCreate_v2 = cuArrayCreate @ 3020 (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR);
            memory array3d_create: cuArray3DCreate = cuArray3DCreate @ 2000 (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR_V1);
            memory array3d_create: cuArray3DCreate_v2 = cuArray3DCreate @ 3020 (p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR);
            memory array_destroy: cuArrayDestroy = cuArrayDestroy @ 2000 (h_array: CUarray);
            forward call: cuArrayGetDescriptor = cuArrayGetDescriptor @ 2000 (p_array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR_V1, h_array: CUarray);
            forward call: cuArrayGetDescriptor_v2 = cuArrayGetDescriptor @ 3020 (p_array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR, h_array: CUarray);
            forward call: cuArray3DGetDescriptor = cuArray3DGetDescriptor @ 2000 (p_array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_V1, h_array: CUarray);
            forward call: cuArray3DGetDescriptor_v2 = cuArray3DGetDescriptor @ 3020 (p_array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, h_array: CUarray);
            memory mipmap_create: cuMipmappedArrayCreate = cuMipmappedArrayCreate @ 5000 (p_handle: *mut CUmipmappedArray, p_mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR, num_mipmap_levels: c_uint);
            forward call: cuMipmappedArrayGetLevel = cuMipmappedArrayGetLevel @ 5000 (p_level_array: *mut CUarray, h_mipmapped_array: CUmipmappedArray, level: c_uint);
            memory mipmap_destroy: cuMipmappedArrayDestroy = cuMipmappedArrayDestroy @ 5000 (h_mipmapped_array: CUmipmappedArray);
            // Virtual memory management
            forward call: cuMemAddressReserve = cuMemAddressReserve @ 10020 (ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64);
            forward call: cuMemAddressFree = cuMemAddressFree @ 10020 (ptr: CUdeviceptr, size: usize);
            memory vmm_create: cuMemCreate = cuMemCreate @ 10020 (handle: *mut u64, size: usize, prop: *const CUmemAllocationProp, flags: u64);
            memory vmm_release: cuMemRelease = cuMemRelease @ 10020 (handle: u64);
            memory vmm_map: cuMemMap = cuMemMap @ 10020 (ptr: CUdeviceptr, size: usize, offset: usize, handle: u64, flags: u64);
            memory vmm_unmap: cuMemUnmap = cuMemUnmap @ 10020 (ptr: CUdeviceptr, size: usize);
            memory vmm_retain: cuMemRetainAllocationHandle = cuMemRetainAllocationHandle @ 11000 (handle: *mut u64, addr: *mut c_void);
            forward call: cuMemSetAccess = cuMemSetAccess @ 10020 (ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize);
            forward call: cuMemGetAccess = cuMemGetAccess @ 10020 (flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr);
            forward call: cuMemGetAllocationGranularity = cuMemGetAllocationGranularity @ 10020 (granularity: *mut usize, prop: *const CUmemAllocationProp, option: c_uint);
            forward call: cuMemGetAllocationPropertiesFromHandle = cuMemGetAllocationPropertiesFromHandle @ 10020 (prop: *mut CUmemAllocationProp, handle: u64);
            // Stream-ordered memory
            memory alloc_async: cuMemAllocAsync | cuMemAllocAsync_ptsz = cuMemAllocAsync @ 11020 (dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream);
            memory alloc_from_pool_async: cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz = cuMemAllocFromPoolAsync @ 11020 (dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream);
            memory free_async: cuMemFreeAsync | cuMemFreeAsync_ptsz = cuMemFreeAsync @ 11020 (dptr: CUdeviceptr, h_stream: CUstream);
            forward call: cuMemPoolTrimTo = cuMemPoolTrimTo @ 11020 (pool: CUmemoryPool, min_bytes_to_keep: usize);
            forward call: cuMemPoolSetAttribute = cuMemPoolSetAttribute @ 11020 (pool: CUmemoryPool, attr: c_uint, value: *mut c_void);
            forward call: cuMemPoolGetAttribute = cuMemPoolGetAttribute @ 11020 (pool: CUmemoryPool, attr: c_uint, value: *mut c_void);
            forward call: cuMemPoolSetAccess = cuMemPoolSetAccess @ 11020 (pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
            forward call: cuMemPoolGetAccess = cuMemPoolGetAccess @ 11020 (flags: *mut c_uint, mem_pool: CUmemoryPool, location: *mut CUmemLocation);
            forward call: cuMemPoolCreate = cuMemPoolCreate @ 11020 (pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps);
            forward call: cuMemPoolDestroy = cuMemPoolDestroy @ 11020 (pool: CUmemoryPool);
            // Copies and sets
            forward call: cuMemcpy | cuMemcpy_ptds = cuMemcpy @ 4000 (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
            forward call: cuMemcpyPeer | cuMemcpyPeer_ptds = cuMemcpyPeer @ 4000 (dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize);
            forward call: cuMemcpyHtoD = cuMemcpyHtoD @ 2000 (dst_device: CUdeviceptrV1, src_host: *const c_void, byte_count: c_uint);
            forward call: cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds = cuMemcpyHtoD @ 3020 (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
            forward call: cuMemcpyDtoH = cuMemcpyDtoH @ 2000 (dst_host: *mut c_void, src_device: CUdeviceptrV1, byte_count: c_uint);
            forward call: cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds = cuMemcpyDtoH @ 3020 (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
            forward call: cuMemcpyDtoD = cuMemcpyDtoD @ 2000 (dst_device: CUdeviceptrV1, src_device: CUdeviceptrV1, byte_count: c_uint);
            forward call: cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds = cuMemcpyDtoD @ 3020 (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
            forward call: cuMemcpy2D = cuMemcpy2D @ 2000 (p_copy: *const c_void);
            forward call: cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds = cuMemcpy2D @ 3020 (p_copy: *const CUDA_MEMCPY2D);
            forward call: cuMemcpy2DUnaligned = cuMemcpy2DUnaligned @ 2000 (p_copy: *const c_void);
            forward call: cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds = cuMemcpy2DUnaligned @ 3020 (p_copy: *const CUDA_MEMCPY2D);
            forward call: cuMemcpy3D = cuMemcpy3D @ 2000 (p_copy: *const c_void);
            forward call: cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds = cuMemcpy3D @ 3020 (p_copy: *const CUDA_MEMCPY3D);
            forward call: cuMemcpyAsync | cuMemcpyAsync_ptsz = cuMemcpyAsync @ 4000 (dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream);
            forward call: cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz = cuMemcpyPeerAsync @ 4000 (dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream);
            forward call: cuMemcpyHtoDAsync = cuMemcpyHtoDAsync @ 2000 (dst_device: CUdeviceptrV1, src_host: *const c_void, byte_count: c_uint, h_stream: CUstream);
            forward call: cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz = cuMemcpyHtoDAsync @ 3020 (dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream);
            forward call: cuMemcpyDtoHAsync = cuMemcpyDtoHAsync @ 2000 (dst_host: *mut c_void, src_device: CUdeviceptrV1, byte_count: c_uint, h_stream: CUstream);
            forward call: cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz = cuMemcpyDtoHAsync @ 3020 (dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream);
            forward call: cuMemcpyDtoDAsync = cuMemcpyDtoDAsync @ 3000 (dst_device: CUdeviceptrV1, src_device: CUdeviceptrV1, byte_count: c_uint, h_stream: CUstream);
            forward call: cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz = cuMemcpyDtoDAsync @ 3020 (dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream);
            forward call: cuMemcpy2DAsync = cuMemcpy2DAsync @ 2000 (p_copy: *const c_void, h_stream: CUstream);
            forward call: cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz = cuMemcpy2DAsync @ 3020 (p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream);
            forward call: cuMemcpy3DAsync = cuMemcpy3DAsync @ 2000 (p_copy: *const c_void, h_stream: CUstream);
            forward call: cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz = cuMemcpy3DAsync @ 3020 (p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream);
            forward call: cuMemsetD8 = cuMemsetD8 @ 2000 (dst_device: CUdeviceptrV1, uc: u8, n: c_uint);
            forward call: cuMemsetD8_v2 | cuMemsetD8_v2_ptds = cuMemsetD8 @ 3020 (dst_device: CUdeviceptr, uc: u8, n: usize);
            forward call: cuMemsetD16 = cuMemsetD16 @ 2000 (dst_device: CUdeviceptrV1, us: u16, n: c_uint);
            forward call: cuMemsetD16_v2 | cuMemsetD16_v2_ptds = cuMemsetD16 @ 3020 (dst_device: CUdeviceptr, us: u16, n: usize);
            forward call: cuMemsetD32 = cuMemsetD32 @ 2000 (dst_device: CUdeviceptrV1, ui: c_uint, n: c_uint);
            forward call: cuMemsetD32_v2 | cuMemsetD32_v2_ptds = cuMemsetD32 @ 3020 (dst_device: CUdeviceptr, ui: c_uint, n: usize);
            forward call: cuMemsetD2D8 = cuMemsetD2D8 @ 2000 (dst_device: CUdeviceptrV1, dst_pitch: c_uint, uc: u8, width: c_uint, height: c_uint);
            forward call: cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds = cuMemsetD2D8 @ 3020 (dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize);
            forward call: cuMemsetD2D16 = cuMemsetD2D16 @ 2000 (dst_device: CUdeviceptrV1, dst_pitch: c_uint, us: u16, width: c_uint, height: c_uint);
            forward call: cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds = cuMemsetD2D16 @ 3020 (dst_device: CUdeviceptr, dst_pitch: usize, us: u16, width: usize, height: usize);
            forward call: cuMemsetD2D32 = cuMemsetD2D32 @ 2000 (dst_device: CUdeviceptrV1, dst_pitch: c_uint, ui: c_uint, width: c_uint, height: c_uint);
            forward call: cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds = cuMemsetD2D32 @ 3020 (dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize);
            forward call: cuMemsetD8Async | cuMemsetD8Async_ptsz = cuMemsetD8Async @ 3020 (dst_device: CUdeviceptr, uc: u8, n: usize, h_stream: CUstream);
            forward call: cuMemsetD16Async | cuMemsetD16Async_ptsz = cuMemsetD16Async @ 3020 (dst_device: CUdeviceptr, us: u16, n: usize, h_stream: CUstream);
            forward call: cuMemsetD32Async | cuMemsetD32Async_ptsz = cuMemsetD32Async @ 3020 (dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream);
            forward call: cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz = cuMemsetD2D8Async @ 3020 (dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize, h_stream: CUstream);
            forward call: cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz = cuMemsetD2D16Async @ 3020 (dst_device: CUdeviceptr, dst_pitch: usize, us: u16, width: usize, height: usize, h_stream: CUstream);
            forward call: cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz = cuMemsetD2D32Async @ 3020 (dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize, h_stream: CUstream);
            // Streams
            forward call: cuStreamCreate = cuStreamCreate @ 2000 (ph_stream: *mut CUstream, flags: c_uint);
            forward call: cuStreamCreateWithPriority = cuStreamCreateWithPriority @ 5050 (ph_stream: *mut CUstream, flags: c_uint, priority: c_int);
            forward call: cuStreamGetPriority | cuStreamGetPriority_ptsz = cuStreamGetPriority @ 5050 (h_stream: CUstream, priority: *mut c_int);
            forward call: cuStreamGetFlags | cuStreamGetFlags_ptsz = cuStreamGetFlags @ 5050 (h_stream: CUstream, flags: *mut c_uint);
            forward call: cuStreamGetId | cuStreamGetId_ptsz = cuStreamGetId @ 12000 (h_stream: CUstream, stream_id: *mut u64);
            forward call: cuStreamGetCtx | cuStreamGetCtx_ptsz = cuStreamGetCtx @ 9020 (h_stream: CUstream, pctx: *mut CUcontext);
            forward call: cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz = cuStreamGetCtx @ 12050 (h_stream: CUstream, pctx: *mut CUcontext, p_green_ctx: *mut c_void);
            forward call: cuStreamWaitEvent | cuStreamWaitEvent_ptsz = cuStreamWaitEvent @ 3020 (h_stream: CUstream, h_event: CUevent, flags: c_uint);
            forward call: cuStreamAddCallback | cuStreamAddCallback_ptsz = cuStreamAddCallback @ 5000 (h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint);
            forward call: cuStreamBeginCapture | cuStreamBeginCapture_ptsz = cuStreamBeginCapture @ 10000 (h_stream: CUstream);
            forward call: cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz = cuStreamBeginCapture @ 10010 (h_stream: CUstream, mode: c_uint);
            forward call: cuThreadExchangeStreamCaptureMode = cuThreadExchangeStreamCaptureMode @ 10010 (mode: *mut c_uint);
            forward call: cuStreamEndCapture | cuStreamEndCapture_ptsz = cuStreamEndCapture @ 10000 (h_stream: CUstream, ph_graph: *mut CUgraph);
            forward call: cuStreamIsCapturing | cuStreamIsCapturing_ptsz = cuStreamIsCapturing @ 10000 (h_stream: CUstream, capture_status: *mut c_uint);
            forward call: cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz = cuStreamGetCaptureInfo @ 10010 (h_stream: CUstream, capture_status_out: *mut c_uint, id_out: *mut u64);
            forward call: cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz = cuStreamGetCaptureInfo @ 11030 (h_stream: CUstream, capture_status_out: *mut c_uint, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize);
            forward call: cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz = cuStreamGetCaptureInfo @ 12030 (h_stream: CUstream, capture_status_out: *mut c_uint, id_out: *mut u64, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const c_void, num_dependencies_out: *mut usize);
            forward call: cuStreamQuery | cuStreamQuery_ptsz = cuStreamQuery @ 2000 (h_stream: CUstream);
            forward call: cuStreamSynchronize | cuStreamSynchronize_ptsz = cuStreamSynchronize @ 2000 (h_stream: CUstream);
            forward call: cuStreamDestroy = cuStreamDestroy @ 2000 (h_stream: CUstream);
            forward call: cuStreamDestroy_v2 = cuStreamDestroy @ 4000 (h_stream: CUstream);
            forward call: cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz = cuStreamCopyAttributes @ 11000 (dst_stream: CUstream, src_stream: CUstream);
            forward call: cuStreamGetAttribute | cuStreamGetAttribute_ptsz = cuStreamGetAttribute @ 11000 (h_stream: CUstream, attr: c_uint, value: *mut c_void);
            forward call: cuStreamSetAttribute | cuStreamSetAttribute_ptsz = cuStreamSetAttribute @ 11000 (h_stream: CUstream, attr: c_uint, param: *const c_void);
            forward call: cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz = cuStreamAttachMemAsync @ 6000 (h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint);
            forward call: cuStreamWaitValue32 | cuStreamWaitValue32_ptsz = cuStreamWaitValue32 @ 8000 (stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);
            forward call: cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz = cuStreamWaitValue32 @ 11070 (stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);
            forward call: cuStreamWaitValue64 | cuStreamWaitValue64_ptsz = cuStreamWaitValue64 @ 9000 (stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);
            forward call: cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz = cuStreamWaitValue64 @ 11070 (stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);
            forward call: cuStreamWriteValue32 | cuStreamWriteValue32_ptsz = cuStreamWriteValue32 @ 8000 (stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);
            forward call: cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz = cuStreamWriteValue32 @ 11070 (stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);
            forward call: cuStreamWriteValue64 | cuStreamWriteValue64_ptsz = cuStreamWriteValue64 @ 9000 (stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);
            forward call: cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz = cuStreamWriteValue64 @ 11070 (stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);
            forward call: cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz = cuStreamBatchMemOp @ 8000 (stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint);
            forward call: cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz = cuStreamBatchMemOp @ 11070 (stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint);
            // Events
            forward call: cuEventCreate = cuEventCreate @ 2000 (ph_event: *mut CUevent, flags: c_uint);
            forward call: cuEventRecord | cuEventRecord_ptsz = cuEventRecord @ 2000 (h_event: CUevent, h_stream: CUstream);
            forward call: cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz = cuEventRecordWithFlags @ 11010 (h_event: CUevent, h_stream: CUstream, flags: c_uint);
            forward call: cuEventQuery = cuEventQuery @ 2000 (h_event: CUevent);
            forward call: cuEventSynchronize = cuEventSynchronize @ 2000 (h_event: CUevent);
            forward call: cuEventDestroy = cuEventDestroy @ 2000 (h_event: CUevent);
            forward call: cuEventDestroy_v2 = cuEventDestroy @ 4000 (h_event: CUevent);
            forward call: cuEventElapsedTime = cuEventElapsedTime @ 2000 (p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent);
            forward call: cuEventElapsedTime_v2 = cuEventElapsedTime @ 12080 (p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent);
            // Launches
            launch kernel: cuLaunchKernel | cuLaunchKernel_ptsz = cuLaunchKernel @ 4000 (f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
            launch kernel_ex: cuLaunchKernelEx | cuLaunchKernelEx_ptsz = cuLaunchKernelEx @ 11060 (config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void);
            launch cooperative: cuLaunchCooperativeKernel | cuLaunchCooperativeKernel_ptsz = cuLaunchCooperativeKernel @ 9000 (f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void);
            launch cooperative_multi: cuLaunchCooperativeKernelMultiDevice = cuLaunchCooperativeKernelMultiDevice @ 9000 (launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint);
            forward call: cuLaunchHostFunc | cuLaunchHostFunc_ptsz = cuLaunchHostFunc @ 10000 (h_stream: CUstream, callback: CUhostFn, user_data: *mut c_void);
            forward call: cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz = cuLaunchHostFunc @ 13010 (h_stream: CUstream, callback: CUhostFn, user_data: *mut c_void, sync_mode: c_uint);
            forward call: cuFuncSetBlockShape = cuFuncSetBlockShape @ 2000 (hfunc: CUfunction, x: c_int, y: c_int, z: c_int);
            forward call: cuFuncSetSharedSize = cuFuncSetSharedSize @ 2000 (hfunc: CUfunction, bytes: c_uint);
            forward call: cuParamSetSize = cuParamSetSize @ 2000 (hfunc: CUfunction, numbytes: c_uint);
            forward call: cuParamSeti = cuParamSeti @ 2000 (hfunc: CUfunction, offset: c_int, value: c_uint);
            forward call: cuParamSetf = cuParamSetf @ 2000 (hfunc: CUfunction, offset: c_int, value: f32);
            forward call: cuParamSetv = cuParamSetv @ 2000 (hfunc: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint);
            launch legacy: cuLaunch = cuLaunch @ 2000 (f: CUfunction);
            launch legacy_grid: cuLaunchGrid = cuLaunchGrid @ 2000 (f: CUfunction, grid_width: c_int, grid_height: c_int);
            launch legacy_grid_async: cuLaunchGridAsync = cuLaunchGridAsync @ 2000 (f: CUfunction, grid_width: c_int, grid_height: c_int, h_stream: CUstream);
            // Graphs
            forward call: cuGraphCreate = cuGraphCreate @ 10000 (ph_graph: *mut CUgraph, flags: c_uint);
            forward call: cuGraphDestroy = cuGraphDestroy @ 10000 (h_graph: CUgraph);
            forward call: cuGraphClone = cuGraphClone @ 10000 (ph_graph_clone: *mut CUgraph, original_graph: CUgraph);
            forward call: cuGraphAddKernelNode = cuGraphAddKernelNode @ 10000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS_V1);
            forward call: cuGraphAddKernelNode_v2 = cuGraphAddKernelNode @ 12000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS);
            forward call: cuGraphKernelNodeGetParams = cuGraphKernelNodeGetParams @ 10000 (h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_V1);
            forward call: cuGraphKernelNodeGetParams_v2 = cuGraphKernelNodeGetParams @ 12000 (h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS);
            forward call: cuGraphKernelNodeSetParams = cuGraphKernelNodeSetParams @ 10000 (h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_V1);
            forward call: cuGraphKernelNodeSetParams_v2 = cuGraphKernelNodeSetParams @ 12000 (h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS);
            forward call: cuGraphAddMemcpyNode = cuGraphAddMemcpyNode @ 10000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext);
            forward call: cuGraphAddMemsetNode = cuGraphAddMemsetNode @ 10000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext);
            forward call: cuGraphAddHostNode = cuGraphAddHostNode @ 10000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_HOST_NODE_PARAMS);
            forward call: cuGraphAddChildGraphNode = cuGraphAddChildGraphNode @ 10000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, child_graph: CUgraph);
            forward call: cuGraphAddEmptyNode = cuGraphAddEmptyNode @ 10000 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize);
            forward call: cuGraphAddEventRecordNode = cuGraphAddEventRecordNode @ 11010 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent);
            forward call: cuGraphAddEventWaitNode = cuGraphAddEventWaitNode @ 11010 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent);
            forward call: cuGraphAddMemAllocNode = cuGraphAddMemAllocNode @ 11040 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS);
            forward call: cuGraphAddMemFreeNode = cuGraphAddMemFreeNode @ 11040 (ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, dptr: CUdeviceptr);
            forward call: cuGraphGetNodes = cuGraphGetNodes @ 10000 (h_graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
            forward call: cuGraphGetRootNodes = cuGraphGetRootNodes @ 10000 (h_graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize);
            forward call: cuGraphGetEdges = cuGraphGetEdges @ 10000 (h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
            forward call: cuGraphGetEdges_v2 = cuGraphGetEdges @ 12030 (h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edge_data: *mut c_void, num_edges: *mut usize);
            forward call: cuGraphNodeGetType = cuGraphNodeGetType @ 10000 (h_node: CUgraphNode, kind: *mut c_uint);
            forward call: cuGraphNodeGetDependencies = cuGraphNodeGetDependencies @ 10000 (h_node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize);
            forward call: cuGraphNodeGetDependencies_v2 = cuGraphNodeGetDependencies @ 12030 (h_node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut c_void, num_dependencies: *mut usize);
            forward call: cuGraphAddDependencies = cuGraphAddDependencies @ 10000 (h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize);
            forward call: cuGraphAddDependencies_v2 = cuGraphAddDependencies @ 12030 (h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const c_void, num_dependencies: usize);
            forward call: cuGraphDestroyNode = cuGraphDestroyNode @ 10000 (h_node: CUgraphNode);
            forward call: cuGraphInstantiate = cuGraphInstantiate @ 10000 (ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode, log_buffer: *mut c_char, buffer_size: usize);
            forward call: cuGraphInstantiate_v2 = cuGraphInstantiate @ 11000 (ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode, log_buffer: *mut c_char, buffer_size: usize);
            forward call: cuGraphInstantiateWithFlags = cuGraphInstantiateWithFlags @ 11040 (ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: u64);
            forward call: cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams @ 12000 (ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, instantiate_params: *mut c_void);
            forward call: cuGraphUpload | cuGraphUpload_ptsz = cuGraphUpload @ 11010 (h_graph: CUgraphExec, h_stream: CUstream);
            forward call: cuGraphExecDestroy = cuGraphExecDestroy @ 10000 (h_graph_exec: CUgraphExec);
            forward call: cuGraphExecUpdate = cuGraphExecUpdate @ 10020 (h_graph_exec: CUgraphExec, h_graph: CUgraph, h_error_node_out: *mut CUgraphNode, update_result_out: *mut c_uint);
            forward call: cuGraphExecUpdate_v2 = cuGraphExecUpdate @ 12000 (h_graph_exec: CUgraphExec, h_graph: CUgraph, result_info: *mut c_void);
            forward call: cuGraphExecKernelNodeSetParams = cuGraphExecKernelNodeSetParams @ 10010 (h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_V1);
            forward call: cuGraphExecKernelNodeSetParams_v2 = cuGraphExecKernelNodeSetParams @ 12000 (h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS);
            launch graph: cuGraphLaunch | cuGraphLaunch_ptsz = cuGraphLaunch @ 10000 (h_graph: CUgraphExec, h_stream: CUstream);
            // Profiler
            forward call: cuProfilerStart = cuProfilerStart @ 4000 ();
            forward call: cuProfilerStop = cuProfilerStop @ 4000 ();
        }
    };
}
