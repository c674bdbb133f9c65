//! NVML's lists of processes, and of their utilisation.

use super::c_uint;

/// A process that uses a device, first version.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessInfo_v1_t {
    /// Process id.
    pub pid: c_uint,
    /// Bytes of device memory.
    pub used_gpu_memory: u64,
}

/// A process that uses a device, second and third version.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessInfo_t {
    /// Process id.
    pub pid: c_uint,
    /// Bytes of device memory.
    pub used_gpu_memory: u64,
    /// MIG GPU instance, or `0xFFFF_FFFF`.
    pub gpu_instance_id: c_uint,
    /// MIG compute instance, or `0xFFFF_FFFF`.
    pub compute_instance_id: c_uint,
}

/// A process's utilisation over one sample period.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessUtilizationSample_t {
    /// Process id.
    pub pid: c_uint,
    /// End of the sample period in microseconds since 1970.
    pub time_stamp: u64,
    /// Percent of time in which a kernel of the process ran.
    pub sm_util: c_uint,
    /// Percent of time in which the process used memory.
    pub mem_util: c_uint,
    /// Percent of the encoder's time.
    pub enc_util: c_uint,
    /// Percent of the decoder's time.
    pub dec_util: c_uint,
}

/// A process that uses a device, in a [`nvmlProcessDetailList_v1_t`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessDetail_v1_t {
    /// Process id.
    pub pid: c_uint,
    /// Bytes of device memory.
    pub used_gpu_memory: u64,
    /// MIG GPU instance, or `0xFFFF_FFFF`.
    pub gpu_instance_id: c_uint,
    /// MIG compute instance, or `0xFFFF_FFFF`.
    pub compute_instance_id: c_uint,
    /// Bytes of memory that confidential computing protects.
    pub used_gpu_cc_protected_memory: u64,
}

/// A query for the processes that use a device, with room for the answer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlProcessDetailList_v1_t {
    /// Size and version: [`NVML_PROCESS_DETAIL_LIST_V1`].
    pub version: c_uint,
    /// `nvmlProcessMode_t`: which processes are listed.
    pub mode: c_uint,
    /// In: room in the array. Out: the number of processes.
    pub num_proc_array_entries: c_uint,
    /// The array.
    pub proc_array: *mut nvmlProcessDetail_v1_t,
}

/// `nvmlProcessDetailList_v1`: the required value of [`nvmlProcessDetailList_v1_t::version`].
pub const NVML_PROCESS_DETAIL_LIST_V1: c_uint = size_of::<nvmlProcessDetailList_v1_t>() as c_uint | 1 << 24;
/// `NVML_PROCESS_MODE_COMPUTE`: processes that compute.
pub const NVML_PROCESS_MODE_COMPUTE: c_uint = 0;
/// `NVML_PROCESS_MODE_GRAPHICS`: processes that draw.
pub const NVML_PROCESS_MODE_GRAPHICS: c_uint = 1;
/// `NVML_PROCESS_MODE_MPS`: processes that compute through the MPS server.
pub const NVML_PROCESS_MODE_MPS: c_uint = 2;
/// `NVML_PROCESS_MODE_ALL`: all processes.
pub const NVML_PROCESS_MODE_ALL: c_uint = 3;

/// A process's utilisation, in a [`nvmlProcessesUtilizationInfo_v1_t`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlProcessUtilizationInfo_v1_t {
    /// End of the sample period in microseconds since 1970.
    pub time_stamp: u64,
    /// Process id.
    pub pid: c_uint,
    /// Percent of time in which a kernel of the process ran.
    pub sm_util: c_uint,
    /// Percent of time in which the process used memory.
    pub mem_util: c_uint,
    /// Percent of the encoder's time.
    pub enc_util: c_uint,
    /// Percent of the decoder's time.
    pub dec_util: c_uint,
    /// Percent of the JPEG decoder's time.
    pub jpg_util: c_uint,
    /// Percent of the optical-flow engine's time.
    pub ofa_util: c_uint,
}

/// A query for the utilisation of all processes, with room for the answer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlProcessesUtilizationInfo_v1_t {
    /// Size and version: [`NVML_PROCESSES_UTILIZATION_INFO_V1`].
    pub version: c_uint,
    /// In: room in the array. Out: the number of samples.
    pub process_samples_count: c_uint,
    /// Only samples after this time are wanted, in microseconds since 1970.
    pub last_seen_time_stamp: u64,
    /// The array.
    pub proc_util_array: *mut nvmlProcessUtilizationInfo_v1_t,
}

/// `nvmlProcessesUtilizationInfo_v1`: the required value of [`nvmlProcessesUtilizationInfo_v1_t::version`].
pub const NVML_PROCESSES_UTILIZATION_INFO_V1: c_uint =
    size_of::<nvmlProcessesUtilizationInfo_v1_t>() as c_uint | 1 << 24;

const _: () = {
    assert!(size_of::<nvmlProcessInfo_t>() == 24 && size_of::<nvmlProcessUtilizationSample_t>() == 32);
    assert!(size_of::<nvmlProcessDetail_v1_t>() == 32 && size_of::<nvmlProcessDetailList_v1_t>() == 24);
    assert!(size_of::<nvmlProcessUtilizationInfo_v1_t>() == 40 && size_of::<nvmlProcessesUtilizationInfo_v1_t>() == 24);
};
