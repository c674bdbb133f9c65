//! The resources that are served, and a device's number of units of each.

use aliquot_dialects::{NodeFacts, Spoken, Unit};
use aliquot_node::{Device, Devices, Slice};

/// The least memory that is of use to a container, except on a small device.
const MEMORY_MIN_BYTES: u64 = 256 << 20;

/// A resource that kubelet knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    /// Its name, for example `aliquot.dev/gpu-core`.
    pub(super) name: String,
    /// The amount that one unit stands for.
    pub(super) unit: Unit,
    /// The MIG profile, where a unit is an instance of it.
    profile: Option<String>,
    /// The percentage of a device's memory that is kept for containers that request time alone, so that free time has
    /// memory with it.
    kept_percent: u32,
}

/// The part of a device that is not given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) core_percent: u32,
    pub(super) memory_bytes: u64,
    /// All of its memory.
    device_memory_bytes: u64,
    /// Whether the free memory is enough for a container.
    has_memory: bool,
    /// No slice has a part of it.
    pub(super) is_untouched: bool,
}

impl Resource {
    /// The resources of a node that speaks these dialects: all that do not depend on the devices, and one for each
    /// profile of the existing MIG instances.
    #[must_use]
    pub(super) fn all(spoken: &Spoken, facts: &NodeFacts, devices: &Devices) -> Vec<Resource> {
        let advertised = spoken.iter().flat_map(|dialect| dialect.advertised(facts));
        let kept_percent = kept_percent(facts);
        let mut found = Vec::new();
        for advertised in advertised {
            let unit = advertised.unit;
            if unit != Unit::MigInstance {
                found.push(Resource { name: advertised.resource.to_owned(), unit, profile: None, kept_percent });
                continue;
            }
            let mut profiles: Vec<&str> = devices.usable().filter_map(profile).collect();
            profiles.sort_unstable();
            profiles.dedup();
            // A plus sign is not allowed in a resource's name.
            found.extend(profiles.into_iter().map(|profile| Resource {
                name: format!("{}{}", advertised.resource, profile.replace('+', ".")),
                unit,
                profile: Some(profile.to_owned()),
                kept_percent,
            }));
        }
        found
    }

    /// The number of a device's units.
    #[must_use]
    pub(super) fn units_of(&self, device: &Device) -> u64 {
        if device.is_partitioned {
            return 0;
        }
        match self.unit {
            Unit::CorePercent => 100,
            Unit::MemoryBytes(unit_bytes) => device.memory_bytes / unit_bytes.max(1),
            Unit::Slot { per_device } | Unit::Part { per_device } => per_device.into(),
            Unit::Device => device.mig_instance.is_none().into(),
            Unit::MigInstance => (self.profile.is_some() && profile(device) == self.profile.as_deref()).into(),
        }
    }

    /// How many units fit into the rest of a device. Every slice has a part of both time and memory, and kubelet counts
    /// only one of them for a container that has named no other. So where one of the two is used up, the other is of no
    /// use.
    #[must_use]
    pub(super) fn units_in(&self, room: Room) -> u64 {
        match self.unit {
            Unit::CorePercent if room.has_memory => room.core_percent.into(),
            Unit::MemoryBytes(unit_bytes) if room.core_percent > 0 => {
                room.memory_beside(self.kept_percent) / unit_bytes.max(1)
            }
            Unit::CorePercent | Unit::MemoryBytes(_) => 0,
            Unit::Slot { per_device } if room.core_percent > 0 && room.memory_bytes > 0 => per_device.into(),
            Unit::Slot { .. } => 0,
            Unit::Part { per_device } => {
                let of_time = u64::from(room.core_percent) * u64::from(per_device) / 100;
                let memory = u128::from(room.memory_beside(self.kept_percent)) * u128::from(per_device);
                let of_memory = memory / u128::from(room.device_memory_bytes.max(1));
                of_time.min(u64::try_from(of_memory).unwrap_or(u64::MAX))
            }
            Unit::Device | Unit::MigInstance => room.is_untouched.into(),
        }
    }

    /// Whether a unit is an amount, so that a container takes several units of one device.
    #[must_use]
    pub(super) fn is_share(&self) -> bool {
        matches!(self.unit, Unit::CorePercent | Unit::MemoryBytes(_) | Unit::Part { .. })
    }

    /// Whether the units say which devices a container gets. Units of other resources only count, and the node chooses.
    #[must_use]
    pub(super) fn is_of_whole_devices(&self) -> bool {
        matches!(self.unit, Unit::Device | Unit::MigInstance)
    }
}

impl Room {
    /// The free memory without the part that is kept for the free time.
    fn memory_beside(self, kept_percent: u32) -> u64 {
        self.memory_bytes.saturating_sub(kept_bytes(self.device_memory_bytes, self.core_percent, kept_percent))
    }

    /// The part of a device that these slices leave free.
    #[must_use]
    pub(super) fn of(device: &Device, slices: &[Slice]) -> Room {
        let mut room = Room {
            core_percent: 100,
            memory_bytes: device.memory_bytes,
            device_memory_bytes: device.memory_bytes,
            has_memory: true,
            is_untouched: true,
        };
        let parts = slices.iter().flat_map(|slice| &slice.content.parts);
        for part in parts.filter(|part| part.device_uuid == device.uuid) {
            room.core_percent = room.core_percent.saturating_sub(part.core_request_percent);
            room.memory_bytes = room.memory_bytes.saturating_sub(part.memory_limit_bytes);
            room.is_untouched = false;
        }
        // One percent of the time alone gets a hundredth of the memory. Below the minimum no program can start.
        room.has_memory = room.memory_bytes >= MEMORY_MIN_BYTES.min(device.memory_bytes / 100).max(1);
        room
    }
}

/// The percentage of a device's memory that a node keeps for containers that request all of its time alone.
pub(super) fn kept_percent(facts: &NodeFacts) -> u32 {
    facts.core_memory_percent.unwrap_or(0).min(100)
}

/// The memory that is kept for `core_percent` of a device's time; for all of its time it is `kept_percent` of its
/// memory.
pub(super) fn kept_bytes(device_memory_bytes: u64, core_percent: u32, kept_percent: u32) -> u64 {
    let parts = u128::from(core_percent) * u128::from(kept_percent);
    u64::try_from(u128::from(device_memory_bytes) * parts / 10_000).unwrap_or(u64::MAX)
}

/// The profile of a MIG instance, if the driver tells it.
pub(super) fn profile(device: &Device) -> Option<&str> {
    device.mig_instance.as_ref().map(|instance| instance.profile.as_str()).filter(|profile| !profile.is_empty())
}

#[cfg(test)]
mod tests {
    use aliquot_dialects::Dialect;

    use super::*;
    use crate::device_plugin::test_node::{GIB, device, mig_instance, pod, slice_of};

    fn names(dialects: &[Dialect], devices: &Devices) -> Vec<String> {
        let spoken = Spoken::new(dialects.iter().copied()).unwrap();
        Resource::all(&spoken, &NodeFacts::default(), devices).into_iter().map(|resource| resource.name).collect()
    }

    #[test]
    fn a_node_serves_its_own_resources_and_those_of_its_dialects() {
        let devices = Devices { devices: vec![device(0, 16)], ..Devices::default() };
        assert_eq!(names(&[], &devices), ["aliquot.dev/gpu-core", "aliquot.dev/gpu-memory"]);
        assert_eq!(
            names(&[Dialect::Hami, Dialect::Kai, Dialect::GpuShare], &devices)[2..],
            ["aliyun.com/gpu-mem", "nvidia.com/gpu", "aliquot.dev/kai-gpu"]
        );
    }

    #[test]
    fn each_profile_of_mig_instances_is_a_resource() {
        let mut gpu = device(0, 80);
        gpu.is_partitioned = true;
        let instances = [mig_instance(1, "1g.10gb"), mig_instance(2, "1g.10gb+me"), mig_instance(3, "1g.10gb")];
        let devices = Devices { devices: [vec![gpu], instances.to_vec()].concat(), ..Devices::default() };
        let spoken = Spoken::new([Dialect::Nvidia]).unwrap();
        let all = Resource::all(&spoken, &NodeFacts::default(), &devices);
        let of_whole: Vec<(&str, u64)> = all
            .iter()
            .filter(|resource| resource.is_of_whole_devices())
            .map(|resource| {
                (resource.name.as_str(), devices.devices.iter().map(|device| resource.units_of(device)).sum())
            })
            .collect();
        assert_eq!(of_whole, [("nvidia.com/gpu", 0), ("nvidia.com/mig-1g.10gb", 2), ("nvidia.com/mig-1g.10gb.me", 1)]);
    }

    #[test]
    fn a_container_gets_the_instances_whose_name_it_asks_for() {
        let profiles = ["1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all", "2g.48gb-me"];
        let instances = profiles.iter().zip(1..).map(|(profile, index)| mig_instance(index, profile)).collect();
        let devices = Devices { devices: instances, ..Devices::default() };
        let spoken = Spoken::new([Dialect::Nvidia]).unwrap();
        let facts = NodeFacts::default();
        let all = Resource::all(&spoken, &facts, &devices);
        let of_instances: Vec<&Resource> = all.iter().filter(|resource| resource.profile.is_some()).collect();
        assert_eq!(of_instances.len(), profiles.len());
        for resource in of_instances {
            let asking = pod("main", &[(resource.name.as_str(), "1")], &[]);
            let wish = spoken.translate(&asking, 0, &facts).unwrap().unwrap();
            assert_eq!(wish.constraints.mig_profile, resource.profile, "{}", resource.name);
        }
    }

    #[test]
    fn time_is_not_on_offer_without_memory_nor_memory_without_time() {
        let device = device(0, 16);
        let all = Resource::all(&Spoken::new([]).unwrap(), &NodeFacts::default(), &Devices::default());
        let counts = |core: u32, memory_bytes: u64| -> Vec<u64> {
            let room = Room::of(&device, &[slice_of("a", &device, core, memory_bytes)]);
            all.iter().map(|resource| resource.units_in(room)).collect()
        };
        assert_eq!(counts(10, 15 * GIB), [90, 4]);
        // On most devices some memory is left over that no unit stands for.
        assert_eq!(counts(10, 16 * GIB - (100 << 20)), [0, 0]);
        assert_eq!(counts(10, 16 * GIB), [0, 0]);
        assert_eq!(counts(100, GIB), [0, 0]);
    }

    #[test]
    fn parts_need_both_time_and_memory_that_are_left() {
        let spoken = Spoken::new([Dialect::AwsVgpu]).unwrap();
        let resources = Resource::all(&spoken, &NodeFacts::default(), &Devices::default());
        let vgpu = resources.iter().find(|resource| resource.name == "k8s.amazonaws.com/vgpu").unwrap();
        let device = device(0, 20);
        let left = |core, memory_bytes| vgpu.units_in(Room::of(&device, &[slice_of("a", &device, core, memory_bytes)]));
        assert_eq!((vgpu.units_of(&device), vgpu.units_in(Room::of(&device, &[]))), (10, 10));
        assert_eq!([left(10, 2 * GIB), left(30, 2 * GIB), left(31, 2 * GIB), left(10, 8 * GIB)], [9, 7, 6, 6]);
        assert_eq!([left(100, GIB), left(1, 20 * GIB)], [0, 0]);
    }

    #[test]
    fn units_are_what_fits_into_what_is_left() {
        let (device, all) = (device(0, 16), [Dialect::Hami, Dialect::Qgpu]);
        let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
        let resources = Resource::all(&Spoken::new(all).unwrap(), &facts, &Devices::default());
        let counts = |slices: &[Slice]| -> Vec<(u64, u64)> {
            let room = Room::of(&device, slices);
            resources.iter().map(|resource| (resource.units_of(&device), resource.units_in(room))).collect()
        };
        // Own core, memory and device; qGPU's core, memory and greedy; HAMi's slots.
        assert_eq!(counts(&[]), [(100, 100), (64, 64), (1, 1), (100, 100), (16, 16), (100, 100), (10, 10)]);
        let slice = slice_of("a", &device, 30, 4 * GIB);
        assert_eq!(
            counts(&[slice.clone(), slice_of("b", &device, 20, GIB)]),
            [(100, 50), (64, 44), (1, 0), (100, 50), (16, 11), (100, 100), (10, 10)]
        );
        let rest = slice_of("b", &device, 70, 12 * GIB);
        assert_eq!(counts(&[slice, rest]).into_iter().map(|(_, fit)| fit).sum::<u64>(), 0);
    }
}
