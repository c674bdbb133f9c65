//! Creation and destruction of instances.

use aliquot_abi::nvml::*;
use aliquot_harness::PARTITIONABLE_GPU;

use super::alone_on;
use super::loaded::{Expect, Nvml};

const ONE_SLICE: c_uint = 19;
const THREE_SLICES: c_uint = 9;
const FOUR_SLICES: c_uint = 5;

fn gpu(nvml: &Nvml) -> nvmlDevice_t {
    let mut gpu = nvmlDevice_t(core::ptr::null_mut());
    nvml.nvmlInit_v2().ok();
    nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut gpu).ok();
    gpu
}

fn create(nvml: &Nvml, profile: c_uint, start: c_uint, size: c_uint) -> (nvmlReturn_t, nvmlGpuInstance_t) {
    let mut instance = nvmlGpuInstance_t(core::ptr::null_mut());
    let placement = nvmlGpuInstancePlacement_t { start, size };
    (nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(nvml), profile, &placement, &mut instance), instance)
}

#[test]
fn kinds_of_instances_have_names_sizes_and_places() {
    alone_on("partition::kinds_of_instances_have_names_sizes_and_places", PARTITIONABLE_GPU, || {
        let nvml = Nvml::load();
        let gpu = gpu(&nvml);
        let mut names = Vec::new();
        for kind in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
            // SAFETY: a plain structure, for which zeros are valid.
            let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { core::mem::zeroed() };
            nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, kind, &mut info).is(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
            info.version = NVML_GPU_INSTANCE_PROFILE_INFO_V2;
            if nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, kind, &mut info) == nvmlReturn_t::NOT_SUPPORTED {
                continue;
            }
            let mut count = 0;
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, info.id, core::ptr::null_mut(), &mut count).ok();
            let mut placements = vec![nvmlGpuInstancePlacement_t::default(); count as usize];
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, info.id, placements.as_mut_ptr(), &mut count).ok();
            let name = String::from_utf8_lossy(&info.name).trim_end_matches('\0').to_owned();
            let last = placements.last().map_or(0, |placement| placement.start + placement.size);
            names.push((name, info.slice_count, count, last));
        }
        let expected = [
            ("MIG 1g.10gb", 1, 7, 7),
            ("MIG 2g.20gb", 2, 3, 6),
            ("MIG 3g.40gb", 3, 2, 8),
            ("MIG 4g.40gb", 4, 1, 4),
            ("MIG 7g.80gb", 7, 1, 8),
            ("MIG 1g.10gb+me", 1, 7, 7),
            ("MIG 1g.20gb", 1, 4, 8),
        ];
        assert_eq!(names, expected.map(|(name, slices, count, last)| (name.to_owned(), slices, count, last)));
        // SAFETY: as above.
        let mut info = unsafe { core::mem::zeroed() };
        nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, NVML_GPU_INSTANCE_PROFILE_COUNT, &mut info)
            .is(nvmlReturn_t::INVALID_ARGUMENT);
    });
}

#[test]
fn instances_that_overlap_are_refused_and_those_in_use_stay() {
    alone_on("partition::instances_that_overlap_are_refused_and_those_in_use_stay", PARTITIONABLE_GPU, || {
        let nvml = Nvml::load();
        let gpu = gpu(&nvml);
        let (mut device, mut compute, mut count) =
            (nvmlDevice_t(core::ptr::null_mut()), nvmlComputeInstance_t(core::ptr::null_mut()), 0);
        create(&nvml, THREE_SLICES, 2, 4).0.is(nvmlReturn_t::INVALID_ARGUMENT);
        let (made, large) = create(&nvml, THREE_SLICES, 4, 4);
        made.ok();
        create(&nvml, ONE_SLICE, 5, 1).0.is(nvmlReturn_t::INSUFFICIENT_RESOURCES);
        let (made, other) = create(&nvml, FOUR_SLICES, 0, 4);
        made.ok();
        // A GPU instance without a compute instance is not a device.
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mut device).is(nvmlReturn_t::NOT_FOUND);
        nvml.nvmlGpuInstanceDestroy(other).ok();
        nvml.nvmlGpuInstanceDestroy(other).is(nvmlReturn_t::INVALID_ARGUMENT);

        let mut whole = nvmlComputeInstanceProfileInfo_t::default();
        nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(large, 0, 0, &mut whole).is(nvmlReturn_t::NOT_SUPPORTED);
        nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(large, 2, 0, &mut whole).ok();
        assert_eq!((whole.slice_count, whole.multiprocessor_count), (3, 60));
        nvml.nvmlGpuInstanceCreateComputeInstance(large, whole.id, &mut compute).ok();
        nvml.nvmlGpuInstanceCreateComputeInstance(large, whole.id, &mut compute)
            .is(nvmlReturn_t::INSUFFICIENT_RESOURCES);
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &mut device).ok();
        let (mut number, mut memory) = (0, nvmlMemory_t::default());
        nvml.nvmlDeviceGetGpuInstanceId(device, &mut number).ok();
        nvml.nvmlDeviceGetMemoryInfo(device, &mut memory).ok();
        let mut found = [nvmlGpuInstance_t(core::ptr::null_mut()); 2];
        nvml.nvmlDeviceGetGpuInstances(gpu, THREE_SLICES, found.as_mut_ptr(), &mut count).ok();
        // SAFETY: a plain structure, for which zeros are valid.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { core::mem::zeroed() };
        nvml.nvmlGpuInstanceGetInfo(found[0], &mut info).ok();
        assert_eq!((count, found[0], info.id, info.placement.start), (1, large, number, 4));
        assert_eq!(memory.total, 40448 << 20);

        nvml.nvmlGpuInstanceDestroy(large).is(nvmlReturn_t::IN_USE);
        nvml.nvmlComputeInstanceDestroy(compute).ok();
        nvml.nvmlDeviceGetMemoryInfo(device, &mut memory).is(nvmlReturn_t::INVALID_ARGUMENT);
        nvml.nvmlGpuInstanceDestroy(large).ok();
        create(&nvml, ONE_SLICE, 5, 1).0.ok();
    });
}
