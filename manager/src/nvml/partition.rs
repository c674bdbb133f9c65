//! Partitions GPUs in MIG mode: lists possible instances and placements, makes instances and destroys them. The wrapper
//! of NVML lacks all of this, so NVML is called directly.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_uint};
use std::mem::MaybeUninit;
use std::ptr;

use aliquot_node::{MigProfile, Partitioning, Placement};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NvmlLib, nvmlComputeInstance_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};

/// Upper bound of the profile numbers to ask for, greater than those that NVML knows today. NVML reports where they
/// end.
const KINDS_MAX: c_uint = 64;
/// Required value of `version` in [`nvmlGpuInstanceProfileInfo_v2_t`]: its size, and the version number in the highest
/// byte.
const PROFILE_INFO_VERSION: c_uint = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | 2 << 24;
/// NVML's prefix of profile names.
const NAME_PREFIX: &str = "MIG ";

/// How a GPU is partitioned.
pub(super) struct Divided {
    /// Possible instances, and occupied placements.
    pub partitioning: Partitioning,
    /// The placement of each GPU instance, by its number.
    pub placements: BTreeMap<u32, Placement>,
}

/// How `gpu`, which is in MIG mode, is partitioned; `None` if NVML does not say, or does not say it to this user.
pub(super) fn divided(gpu: &Device<'_>) -> Option<Divided> {
    let gpu = Gpu::of(gpu);
    let mut placements = BTreeMap::new();
    let mut profiles = Vec::new();
    for profile in gpu.profiles() {
        for (_, info) in gpu.instances(&profile).ok()? {
            placements.insert(info.id, placement(info.placement));
        }
        let possible = gpu.placements(profile.info.id).ok()?;
        profiles.push(profile.told(possible));
    }
    let occupied = placements.values().copied().collect();
    Some(Divided { partitioning: Partitioning { profiles, occupied }, placements })
}

/// Makes a GPU instance at its placement, and a compute instance that fills it. After an error neither exists.
pub(super) fn create(gpu: &Device<'_>, profile: &str, at: Placement) -> Result<(), NvmlError> {
    let gpu = Gpu::of(gpu);
    let profile = gpu.profile(profile)?;
    let create = nvml_sym(gpu.library.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let at = nvmlGpuInstancePlacement_t { start: at.start, size: at.size };
    let mut instance: nvmlGpuInstance_t = ptr::null_mut();
    // SAFETY: the device's handle is live, the placement is only read, and the handle is written to a live local.
    nvml_try(unsafe { create(gpu.handle, profile.info.id, &raw const at, &raw mut instance) })?;
    gpu.fill(instance, &profile).inspect_err(|_| {
        // The first error is returned. If the instance cannot be destroyed either, the inventory shows it.
        let _ = gpu.destroy(instance);
    })
}

/// Destroys the GPU instance with this profile and placement, and everything in it. It is no error if there is none,
/// also because the GPU is not in MIG mode any more.
pub(super) fn destroy(gpu: &Device<'_>, profile: &str, at: Placement) -> Result<(), NvmlError> {
    match gpu.mig_mode() {
        Ok(mode) if mode.current != 0 => {}
        Ok(_) | Err(NvmlError::NotSupported) => return Ok(()),
        Err(error) => return Err(error),
    }
    let gpu = Gpu::of(gpu);
    let profile = gpu.profile(profile)?;
    for (instance, info) in gpu.instances(&profile)? {
        if placement(info.placement) == at {
            for compute in gpu.compute_instances(instance)? {
                let destroy = nvml_sym(gpu.library.nvmlComputeInstanceDestroy.as_ref())?;
                // SAFETY: NVML has just given the handle.
                nvml_try(unsafe { destroy(compute) })?;
            }
            gpu.destroy(instance)?;
        }
    }
    Ok(())
}

fn placement(told: nvmlGpuInstancePlacement_t) -> Placement {
    Placement { start: told.start, size: told.size }
}

/// A profile as NVML describes it.
struct Profile {
    info: nvmlGpuInstanceProfileInfo_v2_t,
    /// The name without NVML's prefix, for example `1g.10gb`.
    name: String,
}

impl Profile {
    fn new(info: nvmlGpuInstanceProfileInfo_v2_t) -> Profile {
        let bytes: Vec<u8> = info.name.iter().map(|&byte| byte.to_ne_bytes()[0]).collect();
        let name = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy).unwrap_or_default();
        let name = name.strip_prefix(NAME_PREFIX).unwrap_or(&name).to_owned();
        Profile { info, name }
    }

    fn told(self, placements: Vec<Placement>) -> MigProfile {
        let info = &self.info;
        let units = [
            ("compute-slices", info.sliceCount),
            ("copy-engines", info.copyEngineCount),
            ("decoders", info.decoderCount),
            ("encoders", info.encoderCount),
            ("jpeg-engines", info.jpegCount),
            ("optical-flow-engines", info.ofaCount),
        ];
        MigProfile {
            memory_bytes: info.memorySizeMB << 20,
            units: units.into_iter().filter(|(_, count)| *count > 0).map(|(name, n)| (name.to_owned(), n)).collect(),
            placements,
            name: self.name,
        }
    }
}

/// A GPU, and the library that calls about it go through.
struct Gpu<'nvml> {
    library: &'nvml NvmlLib,
    handle: nvml_wrapper_sys::bindings::nvmlDevice_t,
}

impl<'nvml> Gpu<'nvml> {
    fn of(device: &'nvml Device<'_>) -> Gpu<'nvml> {
        // SAFETY: the handle is used only while `device`, and with it NVML, lives.
        Gpu { library: device.nvml().lib(), handle: unsafe { device.handle() } }
    }

    /// The profiles that the GPU has.
    fn profiles(&self) -> Vec<Profile> {
        let Ok(ask) = self.library.nvmlDeviceGetGpuInstanceProfileInfoV.as_ref() else { return Vec::new() };
        let mut profiles = Vec::new();
        for kind in 0..KINDS_MAX {
            // SAFETY: a plain structure, for which zeros are valid.
            let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { MaybeUninit::zeroed().assume_init() };
            info.version = PROFILE_INFO_VERSION;
            // SAFETY: the device's handle is live, and NVML writes to a live local, which names its own version.
            match nvml_try(unsafe { ask(self.handle, kind, &raw mut info) }) {
                Ok(()) => profiles.push(Profile::new(info)),
                Err(NvmlError::InvalidArg) => break,
                // This GPU lacks the profile.
                Err(_) => {}
            }
        }
        profiles
    }

    fn profile(&self, name: &str) -> Result<Profile, NvmlError> {
        self.profiles().into_iter().find(|profile| profile.name == name).ok_or(NvmlError::NotFound)
    }

    /// The possible placements of a profile's instances.
    fn placements(&self, profile: c_uint) -> Result<Vec<Placement>, NvmlError> {
        let ask = nvml_sym(self.library.nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
        let mut count = 0;
        // SAFETY: the device's handle is live; with a null array NVML writes only the count.
        nvml_try(unsafe { ask(self.handle, profile, ptr::null_mut(), &raw mut count) })?;
        let mut placements = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        // SAFETY: the device's handle is live, and the array has as many elements as NVML has just said.
        nvml_try(unsafe { ask(self.handle, profile, placements.as_mut_ptr(), &raw mut count) })?;
        placements.truncate(count as usize);
        Ok(placements.into_iter().map(placement).collect())
    }

    /// The existing instances of a profile.
    fn instances(&self, profile: &Profile) -> Result<Vec<(nvmlGpuInstance_t, nvmlGpuInstanceInfo_t)>, NvmlError> {
        let list = nvml_sym(self.library.nvmlDeviceGetGpuInstances.as_ref())?;
        let describe = nvml_sym(self.library.nvmlGpuInstanceGetInfo.as_ref())?;
        let mut instances: Vec<nvmlGpuInstance_t> = vec![ptr::null_mut(); profile.info.instanceCount as usize];
        let mut count = profile.info.instanceCount;
        // SAFETY: the device's handle is live, and the array has as many elements as the profile allows instances.
        nvml_try(unsafe { list(self.handle, profile.info.id, instances.as_mut_ptr(), &raw mut count) })?;
        instances.truncate(count as usize);
        let described = instances.into_iter().map(|instance| {
            let mut info = MaybeUninit::<nvmlGpuInstanceInfo_t>::zeroed();
            // SAFETY: NVML has just given the handle, and writes to a live local.
            nvml_try(unsafe { describe(instance, info.as_mut_ptr()) })?;
            // SAFETY: a plain structure that was zeroed, and zeros are valid for it.
            Ok((instance, unsafe { info.assume_init() }))
        });
        described.collect()
    }

    /// Makes the compute instance that fills a GPU instance.
    fn fill(&self, instance: nvmlGpuInstance_t, profile: &Profile) -> Result<(), NvmlError> {
        let create = nvml_sym(self.library.nvmlGpuInstanceCreateComputeInstance.as_ref())?;
        let kinds = self.compute_profiles(instance)?;
        let whole = kinds.into_iter().find(|(_, slices, _)| *slices == profile.info.sliceCount);
        let (id, ..) = whole.ok_or(NvmlError::NotFound)?;
        let mut compute: nvmlComputeInstance_t = ptr::null_mut();
        // SAFETY: the instance's handle is live, and the new one is written to a live local.
        nvml_try(unsafe { create(instance, id, &raw mut compute) })
    }

    /// Id, compute slices and maximum count of each compute profile of a GPU instance.
    fn compute_profiles(&self, instance: nvmlGpuInstance_t) -> Result<Vec<(c_uint, c_uint, c_uint)>, NvmlError> {
        let ask = nvml_sym(self.library.nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
        let mut kinds = Vec::new();
        for kind in 0..KINDS_MAX {
            let mut info = MaybeUninit::zeroed();
            // SAFETY: the instance's handle is live, and NVML writes to a live local.
            let outcome =
                unsafe { ask(instance, kind, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.as_mut_ptr()) };
            // SAFETY: a plain structure that was zeroed, and zeros are valid for it, whatever NVML wrote.
            let info = unsafe { info.assume_init() };
            match nvml_try(outcome) {
                Ok(()) => kinds.push((info.id, info.sliceCount, info.instanceCount)),
                Err(NvmlError::InvalidArg) => break,
                Err(_) => {}
            }
        }
        Ok(kinds)
    }

    fn compute_instances(&self, instance: nvmlGpuInstance_t) -> Result<Vec<nvmlComputeInstance_t>, NvmlError> {
        let list = nvml_sym(self.library.nvmlGpuInstanceGetComputeInstances.as_ref())?;
        let mut found = Vec::new();
        for (id, _, instances_max) in self.compute_profiles(instance)? {
            let mut of_kind: Vec<nvmlComputeInstance_t> = vec![ptr::null_mut(); instances_max as usize];
            let mut count = instances_max;
            // SAFETY: the instance's handle is live, and the array has as many elements as the profile allows
            // instances.
            nvml_try(unsafe { list(instance, id, of_kind.as_mut_ptr(), &raw mut count) })?;
            found.extend(of_kind.into_iter().take(count as usize));
        }
        Ok(found)
    }

    fn destroy(&self, instance: nvmlGpuInstance_t) -> Result<(), NvmlError> {
        let destroy = nvml_sym(self.library.nvmlGpuInstanceDestroy.as_ref())?;
        // SAFETY: the instance's handle is live.
        nvml_try(unsafe { destroy(instance) })
    }
}
