//! Compares the structures of the contract with those of the headers.

use std::collections::BTreeSet;
use std::mem::offset_of;

#[allow(clippy::wildcard_imports, reason = "all of the structures")]
use aliquot_abi::{cuda::*, nvml::*};

/// A number on which the header and the contract must agree.
pub(crate) struct Agreement {
    /// A C expression with the number in the header.
    pub(crate) in_header: String,
    /// The same number in the contract.
    pub(crate) in_contract: usize,
}

pub(crate) struct Layout {
    /// Its name in the contract.
    pub(crate) name: &'static str,
    /// The first version of CUDA whose headers have it.
    pub(crate) since: u32,
    /// Its size and its fields' offsets.
    pub(crate) agreements: Vec<Agreement>,
}

/// The C expressions of these layouts.
pub(crate) fn expressions<'a>(layouts: impl Iterator<Item = &'a Layout>) -> BTreeSet<String> {
    layouts.flat_map(|layout| &layout.agreements).map(|agreement| agreement.in_header.clone()).collect()
}

/// Each line: the structure; the C type and the first version of CUDA whose headers have it; the fields and their names
/// in C.
macro_rules! layouts {
    ($function:ident: $($name:ident = $c_name:literal @ $since:literal {
        $($field:ident $(. $inner:ident)? = $c_field:literal),*
    };)*) => {
        /// The structures.
        pub(crate) fn $function() -> Vec<Layout> {
            vec![$(Layout {
                name: stringify!($name),
                since: $since,
                agreements: vec![
                    Agreement {
                        in_header: concat!("sizeof(", $c_name, ")").to_owned(),
                        in_contract: size_of::<$name>(),
                    },
                    $(Agreement {
                        in_header: concat!("offsetof(", $c_name, ", ", $c_field, ")").to_owned(),
                        in_contract: offset_of!($name, $field $(. $inner)?),
                    }),*
                ],
            }),*]
        }
    };
}

layouts! { cuda:
    CUuuid = "CUuuid" @ 0 { bytes = "bytes" };
    CUmemLocation = "CUmemLocation_v1" @ 0 { kind = "type", id = "id" };
    CUmemAccessDesc = "CUmemAccessDesc_v1" @ 0 { location = "location", flags = "flags" };
    CUmemAllocationProp = "CUmemAllocationProp_v1" @ 0 {
        kind = "type", requested_handle_types = "requestedHandleTypes", location = "location",
        win32_handle_meta_data = "win32HandleMetaData", alloc_flags = "allocFlags"
    };
    CUmemPoolProps = "CUmemPoolProps_v1" @ 12020 {
        alloc_kind = "allocType", handle_types = "handleTypes", location = "location",
        win32_security_attributes = "win32SecurityAttributes", max_size_bytes = "maxSize"
    };
    CUDA_ARRAY_DESCRIPTOR_V1 = "CUDA_ARRAY_DESCRIPTOR_v1" @ 0 {
        width = "Width", height = "Height", format = "Format", num_channels = "NumChannels"
    };
    CUDA_ARRAY_DESCRIPTOR = "CUDA_ARRAY_DESCRIPTOR_v2" @ 0 {
        width = "Width", height = "Height", format = "Format", num_channels = "NumChannels"
    };
    CUDA_ARRAY3D_DESCRIPTOR_V1 = "CUDA_ARRAY3D_DESCRIPTOR_v1" @ 0 {
        width = "Width", height = "Height", depth = "Depth", format = "Format", num_channels = "NumChannels",
        flags = "Flags"
    };
    CUDA_ARRAY3D_DESCRIPTOR = "CUDA_ARRAY3D_DESCRIPTOR_v2" @ 0 {
        width = "Width", height = "Height", depth = "Depth", format = "Format", num_channels = "NumChannels",
        flags = "Flags"
    };
    CUlaunchConfig = "CUlaunchConfig" @ 11080 {
        grid_dim = "gridDimX", block_dim = "blockDimX", shared_mem_bytes = "sharedMemBytes", stream = "hStream",
        attrs = "attrs", num_attrs = "numAttrs"
    };
    CUDA_LAUNCH_PARAMS = "CUDA_LAUNCH_PARAMS_v1" @ 0 {
        function = "function", grid_dim = "gridDimX", block_dim = "blockDimX", shared_mem_bytes = "sharedMemBytes",
        stream = "hStream", kernel_params = "kernelParams"
    };
    CUDA_KERNEL_NODE_PARAMS_V1 = "CUDA_KERNEL_NODE_PARAMS_v1" @ 0 {
        func = "func", grid_dim = "gridDimX", block_dim = "blockDimX", shared_mem_bytes = "sharedMemBytes",
        kernel_params = "kernelParams", extra = "extra"
    };
    CUDA_KERNEL_NODE_PARAMS = "CUDA_KERNEL_NODE_PARAMS_v2" @ 12000 {
        v1 = "func", v1.kernel_params = "kernelParams", v1.extra = "extra", kern = "kern", ctx = "ctx"
    };
    CUDA_MEMSET_NODE_PARAMS = "CUDA_MEMSET_NODE_PARAMS_v1" @ 0 {
        dst = "dst", pitch = "pitch", value = "value", element_size = "elementSize", width = "width", height = "height"
    };
    CUDA_HOST_NODE_PARAMS = "CUDA_HOST_NODE_PARAMS_v1" @ 0 { callback = "fn", user_data = "userData" };
    CUDA_MEM_ALLOC_NODE_PARAMS = "CUDA_MEM_ALLOC_NODE_PARAMS" @ 0 {
        pool_props = "poolProps", access_descs = "accessDescs", access_desc_count = "accessDescCount",
        bytesize = "bytesize", dptr = "dptr"
    };
    CUDA_MEMCPY2D = "CUDA_MEMCPY2D_v2" @ 0 {
        src_x_in_bytes = "srcXInBytes", src_y = "srcY", src_memory_type = "srcMemoryType", src_host = "srcHost",
        src_device = "srcDevice", src_array = "srcArray", src_pitch = "srcPitch", dst_x_in_bytes = "dstXInBytes",
        dst_y = "dstY", dst_memory_type = "dstMemoryType", dst_host = "dstHost", dst_device = "dstDevice",
        dst_array = "dstArray", dst_pitch = "dstPitch", width_in_bytes = "WidthInBytes", height = "Height"
    };
    CUDA_MEMCPY3D = "CUDA_MEMCPY3D_v2" @ 0 {
        src_x_in_bytes = "srcXInBytes", src_y = "srcY", src_z = "srcZ", src_lod = "srcLOD",
        src_memory_type = "srcMemoryType", src_host = "srcHost", src_device = "srcDevice", src_array = "srcArray",
        reserved0 = "reserved0", src_pitch = "srcPitch", src_height = "srcHeight", dst_x_in_bytes = "dstXInBytes",
        dst_y = "dstY", dst_z = "dstZ", dst_lod = "dstLOD", dst_memory_type = "dstMemoryType", dst_host = "dstHost",
        dst_device = "dstDevice", dst_array = "dstArray", reserved1 = "reserved1", dst_pitch = "dstPitch",
        dst_height = "dstHeight", width_in_bytes = "WidthInBytes", height = "Height", depth = "Depth"
    };
    CUdevprop = "CUdevprop_v1" @ 0 {
        max_threads_per_block = "maxThreadsPerBlock", max_threads_dim = "maxThreadsDim",
        max_grid_size = "maxGridSize", shared_mem_per_block = "sharedMemPerBlock",
        total_constant_memory = "totalConstantMemory", simd_width = "SIMDWidth", mem_pitch = "memPitch",
        regs_per_block = "regsPerBlock", clock_rate = "clockRate", texture_align = "textureAlign"
    };
    CUstreamBatchMemOpParams = "CUstreamBatchMemOpParams_v1" @ 0 {
        operation = "operation", address = "writeValue.address", value64 = "writeValue.value64",
        flags = "writeValue.flags", alias = "writeValue.alias"
    };
    CUgraphNodeParams = "CUgraphNodeParams" @ 12020 {
        kind = "type", reserved0 = "reserved0", of_kind = "kernel", reserved2 = "reserved2"
    };
    CUDA_MEMCPY_NODE_PARAMS = "CUDA_MEMCPY_NODE_PARAMS" @ 12020 {
        flags = "flags", copy_ctx = "copyCtx", copy_params = "copyParams"
    };
    CUDA_CHILD_GRAPH_NODE_PARAMS = "CUDA_CHILD_GRAPH_NODE_PARAMS" @ 12090 { graph = "graph", ownership = "ownership" };
    CUDA_BATCH_MEM_OP_NODE_PARAMS = "CUDA_BATCH_MEM_OP_NODE_PARAMS_v2" @ 12020 {
        ctx = "ctx", count = "count", param_array = "paramArray", flags = "flags"
    };
    CUDA_CONDITIONAL_NODE_PARAMS = "CUDA_CONDITIONAL_NODE_PARAMS" @ 12030 {
        handle = "handle", kind = "type", size = "size", graph_out = "phGraph_out", ctx = "ctx"
    };
    CUmemPoolPtrExportData = "CUmemPoolPtrExportData_v1" @ 0 { reserved = "reserved" };
    CUipcMemHandle = "CUipcMemHandle_v1" @ 0 { reserved = "reserved" };
    CUipcEventHandle = "CUipcEventHandle_v1" @ 0 { reserved = "reserved" };
    CUmulticastObjectProp = "CUmulticastObjectProp_v1" @ 12010 {
        num_devices = "numDevices", size = "size", handle_types = "handleTypes", flags = "flags"
    };
    CUarrayMapInfo = "CUarrayMapInfo_v1" @ 0 {
        resource_type = "resourceType", resource = "resource", subresource_type = "subresourceType",
        subresource = "subresource", mem_operation_type = "memOperationType", mem_handle_type = "memHandleType",
        mem_handle = "memHandle", offset = "offset", device_bit_mask = "deviceBitMask", flags = "flags",
        reserved = "reserved"
    };
    CUdevResource = "CUdevResource" @ 12040 { kind = "type" };
    CUDA_MEMCPY3D_PEER = "CUDA_MEMCPY3D_PEER_v1" @ 0 { copy = "srcXInBytes" };
}

layouts! { nvml:
    nvmlMemory_t = "nvmlMemory_t" @ 0 { total = "total", free = "free", used = "used" };
    nvmlMemory_v2_t = "nvmlMemory_v2_t" @ 0 {
        version = "version", total = "total", reserved = "reserved", free = "free", used = "used"
    };
    nvmlBAR1Memory_t = "nvmlBAR1Memory_t" @ 0 { total = "bar1Total", free = "bar1Free", used = "bar1Used" };
    nvmlUtilization_t = "nvmlUtilization_t" @ 0 { gpu = "gpu", memory = "memory" };
    nvmlPciInfo_t = "nvmlPciInfo_t" @ 0 {
        bus_id_legacy = "busIdLegacy", domain = "domain", bus = "bus", device = "device", pci_device_id = "pciDeviceId",
        pci_sub_system_id = "pciSubSystemId", bus_id = "busId"
    };
    nvmlProcessInfo_v1_t = "nvmlProcessInfo_v1_t" @ 0 { pid = "pid", used_gpu_memory = "usedGpuMemory" };
    nvmlProcessInfo_t = "nvmlProcessInfo_v2_t" @ 0 {
        pid = "pid", used_gpu_memory = "usedGpuMemory", gpu_instance_id = "gpuInstanceId",
        compute_instance_id = "computeInstanceId"
    };
    nvmlProcessUtilizationSample_t = "nvmlProcessUtilizationSample_t" @ 0 {
        pid = "pid", time_stamp = "timeStamp", sm_util = "smUtil", mem_util = "memUtil", enc_util = "encUtil",
        dec_util = "decUtil"
    };
    nvmlProcessDetail_v1_t = "nvmlProcessDetail_v1_t" @ 12020 {
        pid = "pid", used_gpu_memory = "usedGpuMemory", gpu_instance_id = "gpuInstanceId",
        compute_instance_id = "computeInstanceId", used_gpu_cc_protected_memory = "usedGpuCcProtectedMemory"
    };
    nvmlProcessDetailList_v1_t = "nvmlProcessDetailList_v1_t" @ 12020 {
        version = "version", mode = "mode", num_proc_array_entries = "numProcArrayEntries", proc_array = "procArray"
    };
    nvmlProcessUtilizationInfo_v1_t = "nvmlProcessUtilizationInfo_v1_t" @ 12040 {
        time_stamp = "timeStamp", pid = "pid", sm_util = "smUtil", mem_util = "memUtil", enc_util = "encUtil",
        dec_util = "decUtil", jpg_util = "jpgUtil", ofa_util = "ofaUtil"
    };
    nvmlProcessesUtilizationInfo_v1_t = "nvmlProcessesUtilizationInfo_v1_t" @ 12040 {
        version = "version", process_samples_count = "processSamplesCount",
        last_seen_time_stamp = "lastSeenTimeStamp", proc_util_array = "procUtilArray"
    };
    nvmlSample_t = "nvmlSample_t" @ 0 { time_stamp = "timeStamp", sample_value = "sampleValue" };
    nvmlGpuDynamicPstatesInfo_t = "nvmlGpuDynamicPstatesInfo_t" @ 0 { flags = "flags", utilization = "utilization" };
    nvmlDeviceAttributes_t = "nvmlDeviceAttributes_t" @ 0 {
        multiprocessor_count = "multiprocessorCount", shared_engine_counts = "sharedCopyEngineCount",
        gpu_instance_slice_count = "gpuInstanceSliceCount", compute_instance_slice_count = "computeInstanceSliceCount",
        memory_size_mib = "memorySizeMB"
    };
    nvmlAccountingStats_t = "nvmlAccountingStats_t" @ 0 {
        gpu_utilization = "gpuUtilization", memory_utilization = "memoryUtilization",
        max_memory_usage = "maxMemoryUsage", time = "time", start_time = "startTime", is_running = "isRunning",
        reserved = "reserved"
    };
    nvmlGpuDynamicPstatesUtilization_t = "__typeof__(((nvmlGpuDynamicPstatesInfo_t *)0)->utilization[0])" @ 0 {
        is_present = "bIsPresent", percentage = "percentage", inc_threshold = "incThreshold",
        dec_threshold = "decThreshold"
    };
    nvmlFieldValue_t = "nvmlFieldValue_t" @ 0 {
        field_id = "fieldId", scope_id = "scopeId", timestamp = "timestamp", latency_usec = "latencyUsec",
        value_type = "valueType", nvml_return = "nvmlReturn", value = "value"
    };
    nvmlEventData_t = "nvmlEventData_t" @ 0 {
        device = "device", event_type = "eventType", event_data = "eventData", gpu_instance_id = "gpuInstanceId",
        compute_instance_id = "computeInstanceId"
    };
}
