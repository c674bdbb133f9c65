//! MIG: the parts of a GPU. A *GPU instance* has its own memory slices and compute slices. Programs run on a *compute
//! instance*, which is a part of a GPU instance.

use core::ffi::{c_uint, c_void};

use super::nvmlDevice_t;

/// A GPU instance's handle.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlGpuInstance_t(pub *mut c_void);

/// A compute instance's handle.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlComputeInstance_t(pub *mut c_void);

/// Number of kinds of GPU instances that NVML knows: `NVML_GPU_INSTANCE_PROFILE_COUNT`.
pub const NVML_GPU_INSTANCE_PROFILE_COUNT: c_uint = 0x12;
/// Number of kinds of compute instances that NVML knows: `NVML_COMPUTE_INSTANCE_PROFILE_COUNT`.
pub const NVML_COMPUTE_INSTANCE_PROFILE_COUNT: c_uint = 9;
/// Number of ways to share engines that NVML knows: `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT`.
pub const NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT: c_uint = 1;

/// The position of a GPU instance on its GPU.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlGpuInstancePlacement_t {
    /// Its first memory slice.
    pub start: c_uint,
    /// Number of its memory slices.
    pub size: c_uint,
}

/// A kind of GPU instance.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlGpuInstanceProfileInfo_v2_t {
    /// Size and version: [`NVML_GPU_INSTANCE_PROFILE_INFO_V2`].
    pub version: c_uint,
    /// The GPU's id of this kind.
    pub id: c_uint,
    /// Whether peer access is supported.
    pub is_p2p_supported: c_uint,
    /// Number of compute slices.
    pub slice_count: c_uint,
    /// Number of instances of this kind that a GPU can have.
    pub instance_count: c_uint,
    /// Number of multiprocessors.
    pub multiprocessor_count: c_uint,
    /// Number of copy engines.
    pub copy_engine_count: c_uint,
    /// Video decoders.
    pub decoder_count: c_uint,
    /// Video encoders.
    pub encoder_count: c_uint,
    /// JPEG engines.
    pub jpeg_count: c_uint,
    /// Optical-flow engines.
    pub ofa_count: c_uint,
    /// Memory in MiB.
    pub memory_size_mib: u64,
    /// Name, for example `1g.10gb`, NUL-terminated.
    pub name: [u8; 96],
}

/// `nvmlGpuInstanceProfileInfo_v2`: the required value of [`nvmlGpuInstanceProfileInfo_v2_t::version`].
pub const NVML_GPU_INSTANCE_PROFILE_INFO_V2: c_uint = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | 2 << 24;

/// A GPU instance.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct nvmlGpuInstanceInfo_t {
    /// The GPU that it is a part of.
    pub device: nvmlDevice_t,
    /// Its number on the GPU.
    pub id: c_uint,
    /// The id of its kind.
    pub profile_id: c_uint,
    /// Its position.
    pub placement: nvmlGpuInstancePlacement_t,
}

/// A kind of compute instance.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct nvmlComputeInstanceProfileInfo_t {
    /// The GPU instance's id of this kind.
    pub id: c_uint,
    /// Number of compute slices.
    pub slice_count: c_uint,
    /// Number of instances of this kind that a GPU instance can have.
    pub instance_count: c_uint,
    /// Number of multiprocessors.
    pub multiprocessor_count: c_uint,
    /// Numbers of the engines that it shares: copy, decoder, encoder, JPEG, optical flow.
    pub shared_engine_counts: [c_uint; 5],
}

const _: () = {
    assert!(size_of::<nvmlGpuInstanceProfileInfo_v2_t>() == 152 && size_of::<nvmlGpuInstanceInfo_t>() == 24);
    assert!(size_of::<nvmlComputeInstanceProfileInfo_t>() == 36 && size_of::<nvmlGpuInstancePlacement_t>() == 8);
};
