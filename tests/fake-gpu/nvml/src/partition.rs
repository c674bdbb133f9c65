//! MIG: the possible instances of a GPU, and their creation and destruction. Each GPU instance can have one compute
//! instance, which takes all of it.

use core::ffi::{c_uint, c_void};

use aliquot_abi::nvml::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT, NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_COUNT,
    NVML_GPU_INSTANCE_PROFILE_INFO_V2, nvmlComputeInstance_t, nvmlComputeInstanceProfileInfo_t, nvmlDevice_t,
    nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlReturn_t,
};
use aliquot_fake_machine::{DEVICES_MAX, InstanceError, Machine, MigProfile, Partition};

use crate::Done;
use crate::caller::{get, put};
use crate::session::{device, handle as handle_of, index_of, machine};

/// The targets of handles. Only their addresses matter; they are never read.
static GPU_INSTANCES: [u64; DEVICES_MAX] = [1; DEVICES_MAX];
static COMPUTE_INSTANCES: [u64; DEVICES_MAX] = [2; DEVICES_MAX];

fn place_of(handles: &'static [u64; DEVICES_MAX], handle: *mut c_void) -> Option<usize> {
    handles.iter().position(|place| core::ptr::eq(place, handle.cast_const().cast()))
}

fn handle_in(handles: &'static [u64; DEVICES_MAX], index: usize) -> *mut c_void {
    (&raw const handles[index]).cast_mut().cast()
}

/// NVML's code for an outcome.
fn answer(outcome: Result<(), InstanceError>) -> Done {
    outcome.map_err(|error| match error {
        InstanceError::NoRoom => nvmlReturn_t::INSUFFICIENT_RESOURCES,
        InstanceError::InUse => nvmlReturn_t::IN_USE,
        InstanceError::NotThere => nvmlReturn_t::INVALID_ARGUMENT,
    })
}

/// The index of a GPU that supports MIG mode.
fn gpu_of(handle: nvmlDevice_t) -> Done<usize> {
    if device(handle)?.has_mig_mode { index_of(handle) } else { Err(nvmlReturn_t::NOT_SUPPORTED) }
}

/// The index of a GPU that is in MIG mode now.
fn partitioned_gpu_of(handle: nvmlDevice_t) -> Done<usize> {
    let gpu = gpu_of(handle)?;
    if machine()?.is_in_mig_mode(gpu) { Ok(gpu) } else { Err(nvmlReturn_t::NOT_SUPPORTED) }
}

fn profile_of(handle: nvmlDevice_t, id: c_uint) -> Done<&'static MigProfile> {
    let profiles = &device(handle)?.mig_profiles;
    profiles.iter().find(|profile| profile.id == id).ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}

/// The possible instances of GPU `gpu`, each with its device index.
fn possible(machine: &'static Machine, gpu: usize) -> impl Iterator<Item = (usize, &'static Partition)> {
    let devices = machine.config().devices.iter().enumerate().filter(move |(_, device)| device.gpu == Some(gpu));
    devices.filter_map(|(index, device)| Some((index, device.partition.as_ref()?)))
}

/// The GPU instance of a handle, with its device index.
fn instance(handle: nvmlGpuInstance_t) -> Done<(usize, &'static Partition)> {
    let machine = machine()?;
    let index = place_of(&GPU_INSTANCES, handle.0).filter(|index| *index < machine.config().devices.len());
    // The handle of a destroyed instance is invalid.
    let index = index.filter(|index| machine.has_gpu_instance(*index)).ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    let partition = machine.config().devices[index].partition.as_ref();
    Ok((index, partition.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?))
}

/// The profile of the compute instance that takes all of a GPU instance with `compute_slices`.
fn whole_kind(compute_slices: u32) -> Option<c_uint> {
    [1, 2, 3, 4, 7, 8, 6].iter().position(|&slices| slices == compute_slices).map(|kind| kind as c_uint)
}

pub(crate) fn nvmlDeviceGetGpuInstanceProfileInfoV(
    handle: nvmlDevice_t,
    kind: c_uint,
    info: *mut nvmlGpuInstanceProfileInfo_v2_t,
) -> Done {
    gpu_of(handle)?;
    if kind >= NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // Only the version is read before it is checked.
    let version = get(info.cast::<c_uint>())?;
    if version != NVML_GPU_INSTANCE_PROFILE_INFO_V2 {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    let profiles = &device(handle)?.mig_profiles;
    let profile = profiles.iter().find(|profile| profile.kind == kind).ok_or(nvmlReturn_t::NOT_SUPPORTED)?;
    let [copy_engine_count, decoder_count, encoder_count, jpeg_count, ofa_count] = profile.engines;
    let mut name = [0; 96];
    let text = format!("MIG {}", profile.name);
    name.iter_mut().zip(text.bytes().take(95)).for_each(|(place, byte)| *place = byte);
    put(
        info,
        nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.compute_slices,
            instance_count: profile.instances_max,
            multiprocessor_count: profile.sm_count,
            copy_engine_count,
            decoder_count,
            encoder_count,
            jpeg_count,
            ofa_count,
            memory_size_mib: profile.memory_bytes >> 20,
            name,
        },
    )
}

pub(crate) fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    handle: nvmlDevice_t,
    profile_id: c_uint,
    placements: *mut nvmlGpuInstancePlacement_t,
    count: *mut c_uint,
) -> Done {
    gpu_of(handle)?;
    let MigProfile { size, starts, .. } = profile_of(handle, profile_id)?;
    put(count, starts.len() as c_uint)?;
    if placements.is_null() {
        return Ok(());
    }
    // By NVML's contract there is room for all of them.
    let all = starts.iter().enumerate();
    all.map(|(at, &start)| (at, nvmlGpuInstancePlacement_t { start, size: *size }))
        .try_for_each(|(at, placement)| put(placements.wrapping_add(at), placement))
}

pub(crate) fn nvmlDeviceCreateGpuInstanceWithPlacement(
    handle: nvmlDevice_t,
    profile_id: c_uint,
    placement: *const nvmlGpuInstancePlacement_t,
    target: *mut nvmlGpuInstance_t,
) -> Done {
    let gpu = partitioned_gpu_of(handle)?;
    let profile = profile_of(handle, profile_id)?;
    let nvmlGpuInstancePlacement_t { start, size } = get(placement)?;
    let machine = machine()?;
    let mut places = possible(machine, gpu);
    let is_it =
        |partition: &Partition| partition.profile == *profile && (partition.start, profile.size) == (start, size);
    let (index, _) = places.find(|(_, partition)| is_it(partition)).ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    answer(machine.create_gpu_instance(index))?;
    put(target, nvmlGpuInstance_t(handle_in(&GPU_INSTANCES, index)))
}

pub(crate) fn nvmlDeviceGetGpuInstances(
    handle: nvmlDevice_t,
    profile_id: c_uint,
    instances: *mut nvmlGpuInstance_t,
    count: *mut c_uint,
) -> Done {
    let gpu = partitioned_gpu_of(handle)?;
    profile_of(handle, profile_id)?;
    let machine = machine()?;
    let found = possible(machine, gpu)
        .filter(|(index, partition)| partition.profile.id == profile_id && machine.has_gpu_instance(*index))
        .map(|(index, _)| nvmlGpuInstance_t(handle_in(&GPU_INSTANCES, index)));
    let found: Vec<nvmlGpuInstance_t> = found.collect();
    put(count, found.len() as c_uint)?;
    // By NVML's contract there is room for the maximum number of instances.
    found.iter().enumerate().try_for_each(|(at, found)| put(instances.wrapping_add(at), *found))
}

pub(crate) fn nvmlGpuInstanceGetInfo(handle: nvmlGpuInstance_t, info: *mut nvmlGpuInstanceInfo_t) -> Done {
    let (index, partition) = instance(handle)?;
    let gpu = machine()?.config().devices[index].gpu.ok_or(nvmlReturn_t::UNKNOWN)?;
    put(
        info,
        nvmlGpuInstanceInfo_t {
            device: handle_of(gpu),
            id: index as c_uint + 1,
            profile_id: partition.profile.id,
            placement: nvmlGpuInstancePlacement_t { start: partition.start, size: partition.profile.size },
        },
    )
}

pub(crate) fn nvmlGpuInstanceDestroy(handle: nvmlGpuInstance_t) -> Done {
    let (index, _) = instance(handle)?;
    answer(machine()?.destroy_gpu_instance(index))
}

pub(crate) fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    handle: nvmlGpuInstance_t,
    kind: c_uint,
    engine_kind: c_uint,
    info: *mut nvmlComputeInstanceProfileInfo_t,
) -> Done {
    let (_, Partition { profile, .. }) = instance(handle)?;
    if kind >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine_kind >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    if whole_kind(profile.compute_slices) != Some(kind) {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    put(
        info,
        nvmlComputeInstanceProfileInfo_t {
            id: kind,
            slice_count: profile.compute_slices,
            instance_count: 1,
            multiprocessor_count: profile.sm_count,
            shared_engine_counts: profile.engines,
        },
    )
}

/// The GPU instance, if compute instances of this kind are possible in it.
fn instance_for(handle: nvmlGpuInstance_t, profile_id: c_uint) -> Done<usize> {
    let (index, Partition { profile, .. }) = instance(handle)?;
    if whole_kind(profile.compute_slices) == Some(profile_id) { Ok(index) } else { Err(nvmlReturn_t::NOT_SUPPORTED) }
}

pub(crate) fn nvmlGpuInstanceCreateComputeInstance(
    handle: nvmlGpuInstance_t,
    profile_id: c_uint,
    target: *mut nvmlComputeInstance_t,
) -> Done {
    let index = instance_for(handle, profile_id)?;
    answer(machine()?.create_compute_instance(index))?;
    put(target, nvmlComputeInstance_t(handle_in(&COMPUTE_INSTANCES, index)))
}

pub(crate) fn nvmlGpuInstanceGetComputeInstances(
    handle: nvmlGpuInstance_t,
    profile_id: c_uint,
    instances: *mut nvmlComputeInstance_t,
    count: *mut c_uint,
) -> Done {
    let index = instance_for(handle, profile_id)?;
    let is_there = machine()?.has_compute_instance(index);
    put(count, is_there.into())?;
    if is_there { put(instances, nvmlComputeInstance_t(handle_in(&COMPUTE_INSTANCES, index))) } else { Ok(()) }
}

pub(crate) fn nvmlComputeInstanceDestroy(handle: nvmlComputeInstance_t) -> Done {
    let machine = machine()?;
    let index = place_of(&COMPUTE_INSTANCES, handle.0).filter(|index| *index < machine.config().devices.len());
    answer(machine.destroy_compute_instance(index.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?))
}
