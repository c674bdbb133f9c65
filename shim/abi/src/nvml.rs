//! NVML, as far as this project touches it: types, result codes, and the table of functions.
//!
//! Names and values are those of NVIDIA's NVML API reference.

#![allow(non_camel_case_types, reason = "the names are those of NVML")]

mod forwarded;
mod partition;
mod processes;

pub use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
pub use forwarded::FORWARDED;
pub use partition::*;
pub use processes::*;

/// A result of NVML. Every `u32` is a valid value.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlReturn_t(pub u32);

macro_rules! results {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl nvmlReturn_t {
            $(#[doc = $text] pub const $name: nvmlReturn_t = nvmlReturn_t($value);)*

            /// NVML's description of the code with a closing NUL.
            #[must_use]
            pub const fn text_with_nul(self) -> &'static str {
                match self.0 {
                    $($value => concat!($text, "\0"),)*
                    _ => "Unknown Error\0",
                }
            }
        }
    };
}

impl nvmlReturn_t {
    /// Whether the call did what was asked.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

results! {
    SUCCESS = 0, "Success";
    UNINITIALIZED = 1, "Uninitialized";
    INVALID_ARGUMENT = 2, "Invalid Argument";
    NOT_SUPPORTED = 3, "Not Supported";
    NO_PERMISSION = 4, "Insufficient Permissions";
    NOT_FOUND = 6, "Not Found";
    INSUFFICIENT_SIZE = 7, "Insufficient Size";
    DRIVER_NOT_LOADED = 9, "Driver Not Loaded";
    TIMEOUT = 10, "Timeout";
    LIBRARY_NOT_FOUND = 12, "Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, "Function Not Found";
    GPU_IS_LOST = 15, "GPU is lost";
    IN_USE = 19, "In use by another client";
    MEMORY = 20, "Insufficient Memory";
    NO_DATA = 21, "No data";
    INSUFFICIENT_RESOURCES = 23, "Insufficient Resources";
    ARGUMENT_VERSION_MISMATCH = 25, "Argument version mismatch";
    UNKNOWN = 999, "Unknown Error";
}

/// A device's handle.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlDevice_t(pub *mut c_void);

/// A set of events.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlEventSet_t(pub *mut c_void);

/// Memory of a device, first version.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlMemory_t {
    /// Total bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Used bytes, including those that the driver keeps for itself.
    pub used: u64,
}

/// Memory of a device, second version.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlMemory_v2_t {
    /// Size and version: [`NVML_MEMORY_V2`].
    pub version: c_uint,
    /// Total bytes.
    pub total: u64,
    /// Bytes that the driver or firmware keeps.
    pub reserved: u64,
    /// Free bytes.
    pub free: u64,
    /// Used bytes.
    pub used: u64,
}

/// `nvmlMemory_v2`: the required value of [`nvmlMemory_v2_t::version`].
pub const NVML_MEMORY_V2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;

/// BAR1 memory of a device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlBAR1Memory_t {
    /// Total bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Used bytes.
    pub used: u64,
}

/// Utilisation in percent over the last sample period.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlUtilization_t {
    /// Percent of time in which a kernel ran.
    pub gpu: c_uint,
    /// Percent of time in which memory was read or written.
    pub memory: c_uint,
}

/// A device's place on the PCI bus.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlPciInfo_t {
    /// `domain:bus:device.function` with a domain of four digits, NUL-terminated.
    pub bus_id_legacy: [u8; 16],
    /// PCI domain.
    pub domain: c_uint,
    /// Bus.
    pub bus: c_uint,
    /// Device on the bus.
    pub device: c_uint,
    /// Device and vendor id.
    pub pci_device_id: c_uint,
    /// Subsystem id.
    pub pci_sub_system_id: c_uint,
    /// `domain:bus:device.function` with a domain of eight digits, NUL-terminated.
    pub bus_id: [u8; 32],
}

/// A sample of `nvmlDeviceGetSamples`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlSample_t {
    /// When it was taken, in microseconds since 1970.
    pub time_stamp: u64,
    /// The value. A 32-bit value, as all are today, is in the lower half.
    pub sample_value: u64,
}

/// `NVML_GPU_UTILIZATION_SAMPLES`: percent of time in which a kernel ran.
pub const NVML_GPU_UTILIZATION_SAMPLES: c_uint = 1;
/// `NVML_MEMORY_UTILIZATION_SAMPLES`: percent of time in which memory was read or written.
pub const NVML_MEMORY_UTILIZATION_SAMPLES: c_uint = 2;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`: a sample's value is a 32-bit number.
pub const NVML_VALUE_TYPE_UNSIGNED_INT: c_uint = 1;

/// One engine's entry in [`nvmlGpuDynamicPstatesInfo_t`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlGpuDynamicPstatesUtilization_t {
    /// Not zero if the device has such an engine.
    pub is_present: c_uint,
    /// Percent of the last second in which it was busy.
    pub percentage: c_uint,
    /// Above this percentage the device raises its clock.
    pub inc_threshold: c_uint,
    /// Below this percentage the device lowers its clock.
    pub dec_threshold: c_uint,
}

/// How busy the engines of a device are. The first one is the compute engine, the second the memory.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlGpuDynamicPstatesInfo_t {
    /// Reserved.
    pub flags: c_uint,
    /// The engines.
    pub utilization: [nvmlGpuDynamicPstatesUtilization_t; 8],
}

/// The part of its GPU that a MIG device has.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlDeviceAttributes_t {
    /// Multiprocessors.
    pub multiprocessor_count: c_uint,
    /// Engines that it shares: copies, decoders, encoders, JPEG, optical flow.
    pub shared_engine_counts: [c_uint; 5],
    /// Slices of the GPU instance.
    pub gpu_instance_slice_count: c_uint,
    /// Slices of the compute instance.
    pub compute_instance_slice_count: c_uint,
    /// Memory in MiB.
    pub memory_size_mib: u64,
}

/// NVML's accounting record of a process.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlAccountingStats_t {
    /// Percent of its life in which a kernel ran.
    pub gpu_utilization: c_uint,
    /// Percent of its life in which memory was read or written.
    pub memory_utilization: c_uint,
    /// The most bytes that the process held.
    pub max_memory_usage: u64,
    /// Lifetime in milliseconds; 0 while the process lives.
    pub time: u64,
    /// When it was started, in microseconds since 1970.
    pub start_time: u64,
    /// Whether the process lives.
    pub is_running: c_uint,
    /// Reserved.
    pub reserved: [c_uint; 5],
}

/// An event of a device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlEventData_t {
    /// The device.
    pub device: nvmlDevice_t,
    /// The kind of event.
    pub event_type: u64,
    /// The XID of an XID event.
    pub event_data: u64,
    /// MIG GPU instance, or `0xFFFF_FFFF`.
    pub gpu_instance_id: c_uint,
    /// MIG compute instance, or `0xFFFF_FFFF`.
    pub compute_instance_id: c_uint,
}

/// The value of a field of a device; the field is named by a number.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlFieldValue_t {
    /// Which field: `NVML_FI_…`.
    pub field_id: c_uint,
    /// The part of the device, for example an NVLink, if the field has parts.
    pub scope_id: c_uint,
    /// When the value was taken, in microseconds since 1970.
    pub timestamp: i64,
    /// How long the measurement took, in microseconds.
    pub latency_usec: i64,
    /// The type of `value`: 1 stands for `unsigned int`.
    pub value_type: c_uint,
    /// `SUCCESS` if there is a value.
    pub nvml_return: nvmlReturn_t,
    /// The value, as it lies in memory.
    pub value: [u8; 8],
}

const _: () = {
    assert!(size_of::<nvmlFieldValue_t>() == 40);
    assert!(size_of::<nvmlMemory_v2_t>() == 40 && size_of::<nvmlPciInfo_t>() == 68);
    assert!(size_of::<nvmlEventData_t>() == 32 && size_of::<nvmlAccountingStats_t>() == 56);
    assert!(size_of::<nvmlSample_t>() == 16 && size_of::<nvmlGpuDynamicPstatesInfo_t>() == 132);
    assert!(size_of::<nvmlDeviceAttributes_t>() == 40);
};

/// Hands the table of NVML functions to the macro `$consumer`.
///
/// A line reads `class policy: symbol(arguments);`, with the classes of the [driver's table](crate::cuda_api). Every
/// function returns [`nvmlReturn_t`]; `nvmlErrorString`, which does not, is not in the table. A function that is
/// neither in the table nor in [`FORWARDED`](crate::nvml::FORWARDED) has not been examined.
///
/// A function that reports memory, device time or processes is a `view`: it shows a container its slice. If such a
/// function is forwarded all the same, the reason stands beside it.
#[macro_export]
macro_rules! nvml_api {
    ($consumer:path) => {
        $consumer! {
            // Start and end, the system
            forward call: nvmlInit();
            forward call: nvmlInit_v2();
            forward call: nvmlInitWithFlags(flags: c_uint);
            forward call: nvmlShutdown();
            forward call: nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint);
            forward call: nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint);
            forward call: nvmlSystemGetCudaDriverVersion(cuda_driver_version: *mut c_int);
            forward call: nvmlSystemGetCudaDriverVersion_v2(cuda_driver_version: *mut c_int);
            // Reads the caller's own /proc, which shows only the container's processes, by the same ids as the lists
            // below.
            forward call: nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint);
            // Devices
            forward call: nvmlDeviceGetCount(device_count: *mut c_uint);
            forward call: nvmlDeviceGetCount_v2(device_count: *mut c_uint);
            forward call: nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetHandleByPciBusId(pci_bus_id: *const c_char, device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id: *const c_char, device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint);
            forward call: nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint);
            forward call: nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint);
            forward call: nvmlDeviceGetSerial(device: nvmlDevice_t, serial: *mut c_char, length: c_uint);
            forward call: nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor_number: *mut c_uint);
            forward call: nvmlDeviceGetBrand(device: nvmlDevice_t, kind: *mut c_uint);
            forward call: nvmlDeviceGetArchitecture(device: nvmlDevice_t, arch: *mut c_uint);
            forward call: nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int);
            forward call: nvmlDeviceGetNumGpuCores(device: nvmlDevice_t, num_cores: *mut c_uint);
            forward call: nvmlDeviceGetPciInfo(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
            forward call: nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
            forward call: nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
            view attributes: nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);
            // Memory
            view memory_info: nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t);
            view memory_info_v2: nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);
            view bar1_memory_info: nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, bar1_memory: *mut nvmlBAR1Memory_t);
            view memory_info: nvmlDeviceGetConfComputeProtectedMemoryUsage(device: nvmlDevice_t, memory: *mut nvmlMemory_t);
            // Reports how the device's memory is divided, not which process uses it.
            forward call: nvmlDeviceGetConfComputeMemSizeInfo(device: nvmlDevice_t, mem_info: *mut c_void);
            // Use
            view utilization_rates: nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, utilization: *mut nvmlUtilization_t);
            view dynamic_pstates: nvmlDeviceGetDynamicPstatesInfo(device: nvmlDevice_t, info: *mut nvmlGpuDynamicPstatesInfo_t);
            // A slice has no part of these engines: shows the device's own figure, for all containers together.
            forward call: nvmlDeviceGetEncoderUtilization(device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint);
            forward call: nvmlDeviceGetDecoderUtilization(device: nvmlDevice_t, utilization: *mut c_uint, sampling_period_us: *mut c_uint);
            view process_utilization: nvmlDeviceGetProcessUtilization(device: nvmlDevice_t, utilization: *mut nvmlProcessUtilizationSample_t, process_samples_count: *mut c_uint, last_seen_time_stamp: u64);
            view processes_utilization: nvmlDeviceGetProcessesUtilizationInfo(device: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_v1_t);
            view samples: nvmlDeviceGetSamples(device: nvmlDevice_t, kind: c_uint, last_seen_time_stamp: u64, sample_val_type: *mut c_uint, sample_count: *mut c_uint, samples: *mut nvmlSample_t);
            // Processes
            view compute_processes: nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t);
            view compute_processes: nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            view compute_processes_v3: nvmlDeviceGetComputeRunningProcesses_v3(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            view no_processes: nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t);
            view no_processes: nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            view no_processes: nvmlDeviceGetGraphicsRunningProcesses_v3(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            view no_processes: nvmlDeviceGetMPSComputeRunningProcesses(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t);
            view no_processes: nvmlDeviceGetMPSComputeRunningProcesses_v2(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            view no_processes: nvmlDeviceGetMPSComputeRunningProcesses_v3(device: nvmlDevice_t, info_count: *mut c_uint, infos: *mut nvmlProcessInfo_t);
            view process_details: nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, list: *mut nvmlProcessDetailList_v1_t);
            view no_processes: nvmlDeviceGetEncoderSessions(device: nvmlDevice_t, session_count: *mut c_uint, session_infos: *mut c_void);
            view no_processes: nvmlDeviceGetFBCSessions(device: nvmlDevice_t, session_count: *mut c_uint, session_infos: *mut c_void);
            view accounting_mode: nvmlDeviceGetAccountingMode(device: nvmlDevice_t, mode: *mut c_uint);
            view accounting: nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, buffer_size: *mut c_uint);
            view accounting_list: nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint);
            view accounting_list: nvmlDeviceGetAccountingStats(device: nvmlDevice_t, pid: c_uint, stats: *mut nvmlAccountingStats_t);
            view accounting: nvmlDeviceGetAccountingStats_v2(device: nvmlDevice_t, stats: *mut c_void);
            // State
            forward call: nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor_type: c_uint, temp: *mut c_uint);
            forward call: nvmlDeviceGetTemperatureV(device: nvmlDevice_t, temperature: *mut c_void);
            forward call: nvmlDeviceGetTemperatureThreshold(device: nvmlDevice_t, threshold_type: c_uint, temp: *mut c_uint);
            forward call: nvmlDeviceGetFanSpeed(device: nvmlDevice_t, speed: *mut c_uint);
            forward call: nvmlDeviceGetPowerUsage(device: nvmlDevice_t, power: *mut c_uint);
            forward call: nvmlDeviceGetEnforcedPowerLimit(device: nvmlDevice_t, limit: *mut c_uint);
            forward call: nvmlDeviceGetPowerManagementLimit(device: nvmlDevice_t, limit: *mut c_uint);
            forward call: nvmlDeviceGetPerformanceState(device: nvmlDevice_t, p_state: *mut c_uint);
            forward call: nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, mode: *mut c_uint);
            forward call: nvmlDeviceGetDisplayActive(device: nvmlDevice_t, is_active: *mut c_uint);
            forward call: nvmlDeviceGetDisplayMode(device: nvmlDevice_t, display: *mut c_uint);
            forward call: nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: *mut c_uint);
            forward call: nvmlDeviceGetTotalEccErrors(device: nvmlDevice_t, error_type: c_uint, counter_type: c_uint, ecc_counts: *mut u64);
            forward call: nvmlDeviceGetEccMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint);
            forward call: nvmlDeviceGetFieldValues(device: nvmlDevice_t, values_count: c_int, values: *mut nvmlFieldValue_t);
            forward call: nvmlDeviceGetDriverModel(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint);
            forward call: nvmlDeviceGetDriverModel_v2(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint);
            forward call: nvmlDeviceGetClockInfo(device: nvmlDevice_t, kind: c_uint, clock: *mut c_uint);
            forward call: nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, kind: c_uint, clock: *mut c_uint);
            forward call: nvmlDeviceGetClock(device: nvmlDevice_t, clock_type: c_uint, clock_id: c_uint, clock_mhz: *mut c_uint);
            forward call: nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, curr_link_gen: *mut c_uint);
            forward call: nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, curr_link_width: *mut c_uint);
            forward call: nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, max_link_gen: *mut c_uint);
            forward call: nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, max_link_width: *mut c_uint);
            forward call: nvmlDeviceGetPcieThroughput(device: nvmlDevice_t, counter: c_uint, value: *mut c_uint);
            // MIG
            forward call: nvmlDeviceGetMigMode(device: nvmlDevice_t, current_mode: *mut c_uint, pending_mode: *mut c_uint);
            forward call: nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig_device: *mut c_uint);
            forward call: nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint);
            forward call: nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, mig_device: *mut nvmlDevice_t);
            forward call: nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: *mut c_uint);
            forward call: nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: *mut c_uint);
            forward call: nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig_device: nvmlDevice_t, device: *mut nvmlDevice_t);
            // MIG: the possible and the existing parts of a GPU; only administrators can change them
            forward call: nvmlDeviceGetGpuInstanceProfileInfoV(device: nvmlDevice_t, profile: c_uint, info: *mut nvmlGpuInstanceProfileInfo_v2_t);
            forward call: nvmlDeviceGetGpuInstancePossiblePlacements_v2(device: nvmlDevice_t, profile_id: c_uint, placements: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint);
            forward call: nvmlDeviceCreateGpuInstanceWithPlacement(device: nvmlDevice_t, profile_id: c_uint, placement: *const nvmlGpuInstancePlacement_t, gpu_instance: *mut nvmlGpuInstance_t);
            forward call: nvmlDeviceGetGpuInstances(device: nvmlDevice_t, profile_id: c_uint, gpu_instances: *mut nvmlGpuInstance_t, count: *mut c_uint);
            forward call: nvmlGpuInstanceGetInfo(gpu_instance: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t);
            forward call: nvmlGpuInstanceDestroy(gpu_instance: nvmlGpuInstance_t);
            forward call: nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance: nvmlGpuInstance_t, profile: c_uint, engine_profile: c_uint, info: *mut nvmlComputeInstanceProfileInfo_t);
            forward call: nvmlGpuInstanceCreateComputeInstance(gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, compute_instance: *mut nvmlComputeInstance_t);
            forward call: nvmlGpuInstanceGetComputeInstances(gpu_instance: nvmlGpuInstance_t, profile_id: c_uint, compute_instances: *mut nvmlComputeInstance_t, count: *mut c_uint);
            forward call: nvmlComputeInstanceDestroy(compute_instance: nvmlComputeInstance_t);
            // Topology
            forward call: nvmlDeviceGetTopologyCommonAncestor(device1: nvmlDevice_t, device2: nvmlDevice_t, path_info: *mut c_uint);
            forward call: nvmlDeviceGetP2PStatus(device1: nvmlDevice_t, device2: nvmlDevice_t, p2p_index: c_uint, p2p_status: *mut c_uint);
            forward call: nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, is_active: *mut c_uint);
            forward call: nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, version: *mut c_uint);
            forward call: nvmlDeviceGetNvLinkCapability(device: nvmlDevice_t, link: c_uint, capability: c_uint, cap_result: *mut c_uint);
            forward call: nvmlDeviceGetNvLinkRemotePciInfo_v2(device: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t);
            forward call: nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, cpu_set_size: c_uint, cpu_set: *mut c_ulong);
            forward call: nvmlDeviceGetMemoryAffinity(device: nvmlDevice_t, node_set_size: c_uint, node_set: *mut c_ulong, scope: c_uint);
            // Events
            forward call: nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, event_types: *mut u64);
            forward call: nvmlEventSetCreate(set: *mut nvmlEventSet_t);
            forward call: nvmlDeviceRegisterEvents(device: nvmlDevice_t, event_types: u64, set: nvmlEventSet_t);
            forward call: nvmlEventSetWait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeoutms: c_uint);
            forward call: nvmlEventSetWait_v2(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeoutms: c_uint);
            forward call: nvmlEventSetFree(set: nvmlEventSet_t);
        }
    };
}
