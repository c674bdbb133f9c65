//! What a request takes of a device of our driver, and what claims hold of it already.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use aliquot_dialects::quantity;
use aliquot_scheduler_core::{Bytes, DeviceCore, DeviceMemory};
use k8s_openapi::api::resource::v1::{Device, DeviceRequestAllocationResult};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::capacity::{consumed, is_shared, quantity as text};
use super::{CORE, MEMORY};

/// What a request takes of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Taken {
    /// Of each capacity, as it stands in the allocation. `None`: the device goes to one claim as a whole.
    pub(crate) consumed: Option<BTreeMap<String, Quantity>>,
    pub(crate) core: DeviceCore,
    pub(crate) memory: Bytes,
    /// The request takes all of the device's memory.
    pub(crate) is_all_memory: bool,
}

impl Taken {
    /// What a request takes of a device of which no part is held; `None`: the device cannot give it.
    pub(super) fn of(device: &Device, wanted: &BTreeMap<String, Quantity>) -> Option<Taken> {
        let capacities = device.capacity.as_ref()?;
        let is_known = capacities.len() == 2 && capacities.contains_key(CORE) && capacities.contains_key(MEMORY);
        if !is_known {
            return None;
        }
        let consumed = consumed(device, wanted).ok()?;
        if !is_shared(device) {
            let memory = bytes(thousandths(&capacities.get(MEMORY)?.value.0)?)?;
            return Some(Taken { consumed: None, core: DeviceCore::WHOLE, memory, is_all_memory: true });
        }
        let (core, memory) = (*consumed.get(CORE)?, *consumed.get(MEMORY)?);
        let all = |name: &str| thousandths(&capacities.get(name)?.value.0);
        Some(Taken {
            core: part_of(core, all(CORE)?)?,
            memory: bytes(memory)?,
            is_all_memory: memory == all(MEMORY)?,
            consumed: Some(consumed.into_iter().map(|(name, amount)| (name, text(amount))).collect()),
        })
    }

    /// One request that takes as much of each device as all of these do. `None`: the amounts differ.
    pub(super) fn as_one<'a>(mut all: impl Iterator<Item = &'a Taken> + Clone) -> Option<(DeviceCore, DeviceMemory)> {
        let first = all.clone().next()?;
        if all.clone().any(|taken| taken.core != first.core) {
            return None;
        }
        if all.clone().all(|taken| taken.is_all_memory) {
            return Some((first.core, DeviceMemory::Thousandths(1000)));
        }
        all.all(|taken| taken.memory == first.memory).then_some((first.core, DeviceMemory::Bytes(first.memory)))
    }
}

impl Display for Taken {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Parts(self.core, self.memory))
    }
}

/// The free part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Free {
    core: DeviceCore,
    memory: Bytes,
    is_whole: bool,
}

impl Free {
    /// What is left of a device with this memory, when these parts of it are held.
    pub(crate) fn of(memory: Bytes, held: impl Iterator<Item = (DeviceCore, Bytes)>) -> Free {
        let whole = Free { core: DeviceCore::WHOLE, memory, is_whole: true };
        held.fold(whole, |left, (core, memory)| left.without(core, memory))
    }

    /// What is left beside one more part.
    pub(super) fn without(self, core: DeviceCore, memory: Bytes) -> Free {
        Free {
            core: DeviceCore::new(self.core.get().saturating_sub(core.get())),
            memory: Bytes::new(self.memory.get().saturating_sub(memory.get())),
            is_whole: false,
        }
    }

    pub(crate) fn is_enough_for(self, takes: &Taken) -> bool {
        self.has(takes.core, takes.memory, takes.consumed.is_none())
    }

    pub(super) fn has(self, core: DeviceCore, memory: Bytes, goes_as_a_whole: bool) -> bool {
        core <= self.core && memory <= self.memory && (self.is_whole || !goes_as_a_whole)
    }

    /// How much is missing, in thousandths of what is taken: the larger value of time and memory.
    pub(crate) fn shortfall(self, takes: &Taken) -> u128 {
        let lacks = |wanted: u128, free: u128| (wanted.saturating_sub(free) * 1000).div_ceil(wanted.max(1));
        let core = lacks(takes.core.get().into(), self.core.get().into());
        core.max(lacks(takes.memory.get().into(), self.memory.get().into()))
    }
}

impl Display for Free {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} free", Parts(self.core, self.memory))
    }
}

/// Time of a device in percent, and bytes of its memory in MiB: the units of claims.
struct Parts(DeviceCore, Bytes);

impl Display for Parts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Parts(core, memory) = self;
        let core = core.get();
        let tenths = if core % 10 == 0 { String::new() } else { format!(".{}", core % 10) };
        let mebibytes = memory.get() >> 20;
        let (amount, unit) = if mebibytes % 1024 == 0 { (mebibytes >> 10, "Gi") } else { (mebibytes, "Mi") };
        write!(f, "core {}{tenths} and memory {amount}{unit}", core / 10)
    }
}

/// What a result of an allocation holds of a device. Of a capacity that the result does not name, it holds all.
pub(crate) fn held(result: &DeviceRequestAllocationResult, device: &Device) -> Option<(DeviceCore, Bytes)> {
    let of = |name: &str| {
        let all = thousandths(&device.capacity.as_ref()?.get(name)?.value.0)?;
        let consumed = result.consumed_capacity.as_ref().and_then(|consumed| consumed.get(name));
        let amount = consumed.and_then(|consumed| thousandths(&consumed.0)).unwrap_or(all);
        Some((amount, all))
    };
    let ((core, all_core), (memory, all_memory)) = (of(CORE)?, of(MEMORY)?);
    // An amount that is too large to compute with counts as the whole device.
    let core = part_of(core, all_core).unwrap_or(DeviceCore::WHOLE);
    Some((core, bytes(memory).or_else(|| bytes(all_memory))?))
}

/// A quantity in thousandths, rounded up; `None`: the text is not a quantity, or is negative.
pub(crate) fn thousandths(text: &str) -> Option<u128> {
    quantity::thousandths(text).ok()
}

/// The part of a device's time that `core` is of `all`, in thousandths, rounded up.
fn part_of(core: u128, all: u128) -> Option<DeviceCore> {
    let part = core.checked_mul(1000).filter(|_| all > 0)?.div_ceil(all);
    u32::try_from(part).ok().map(DeviceCore::new)
}

fn bytes(thousandths: u128) -> Option<Bytes> {
    u64::try_from(thousandths.div_ceil(1000)).ok().map(Bytes::new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn device(core: Value, memory: Value) -> Device {
        let capacity = json!({"core": core, "memory": memory});
        serde_json::from_value(json!({"name": "gpu-0", "allowMultipleAllocations": true, "capacity": capacity}))
            .unwrap()
    }

    fn ours() -> Device {
        device(
            json!({"value": "100", "requestPolicy": {"default": "100", "validRange": {
                "min": "1", "max": "100", "step": "1"}}}),
            json!({"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {
                "min": "1Mi", "max": "80Gi", "step": "1Mi"}}}),
        )
    }

    fn wanted(amounts: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
    }

    fn consumed(device: &Device, amounts: &[(&str, &str)]) -> Option<(String, String)> {
        let taken = Taken::of(device, &wanted(amounts))?.consumed?;
        Some((taken["core"].0.clone(), taken["memory"].0.clone()))
    }

    #[test]
    fn amounts_are_rounded_up_as_the_policy_says() {
        let texts = |core: &str, memory: u64| Some((core.to_owned(), memory.to_string()));
        let device = ours();
        for (amounts, expected) in [
            (&[][..], texts("100", 80 * GIB)),
            (&[("core", "25")], texts("25", 80 * GIB)),
            (&[("core", "24500m"), ("memory", "1000000")], texts("25", 1 << 20)),
            (&[("core", "0"), ("memory", "1048577")], texts("1", 2 << 20)),
            (&[("memory", "80Gi")], texts("100", 80 * GIB)),
            // More than there is, and what the device does not have.
            (&[("core", "101")], None),
            (&[("memory", "81Gi")], None),
            (&[("cores", "1")], None),
        ] {
            assert_eq!(consumed(&device, amounts), expected, "{amounts:?}");
        }
    }

    #[test]
    fn listed_values_are_the_only_ones() {
        let halves = json!({"value": "100", "requestPolicy": {"default": "100", "validValues": ["50", "100"]}});
        let device = device(halves, json!({"value": "80Gi"}));
        let core = |core: &str| consumed(&device, &[("core", core)]).map(|(core, _)| core);
        assert_eq!((core("20"), core("51")), (Some("50".into()), Some("100".into())));
        assert_eq!(core("101"), None);
        // A capacity without a policy gives what is asked for, or all.
        let memory = |amounts: &[(&str, &str)]| consumed(&device, amounts).map(|(_, memory)| memory);
        assert_eq!(memory(&[("memory", "1500m")]), Some("1500m".into()));
        assert_eq!(memory(&[]), Some((80 * GIB).to_string()));
    }

    #[test]
    fn a_device_for_one_claim_is_taken_as_a_whole() {
        let whole = Device { allow_multiple_allocations: None, ..ours() };
        let taken = Taken::of(&whole, &wanted(&[("core", "30")])).unwrap();
        assert_eq!((taken.consumed, taken.core, taken.memory), (None, DeviceCore::WHOLE, Bytes::new(80 * GIB)));
        assert_eq!(Taken::of(&whole, &wanted(&[("memory", "100Gi")])), None);
    }

    #[test]
    fn a_result_holds_all_of_what_it_does_not_name() {
        let result = |consumed: Value| {
            let result =
                json!({"request": "r", "driver": "d", "pool": "p", "device": "g", "consumedCapacity": consumed});
            held(&serde_json::from_value(result).unwrap(), &ours()).unwrap()
        };
        assert_eq!(result(json!({"core": "25", "memory": "2Gi"})), (DeviceCore::new(250), Bytes::new(2 * GIB)));
        assert_eq!(result(json!({"core": "25"})), (DeviceCore::new(250), Bytes::new(80 * GIB)));
        assert_eq!(result(Value::Null), (DeviceCore::WHOLE, Bytes::new(80 * GIB)));
        // An amount that is too large, or that is no quantity, holds the whole device.
        for amount in ["1e33", "1e20", "none"] {
            let consumed = json!({"core": amount, "memory": amount});
            let (core, memory) = result(consumed);
            assert!(core >= DeviceCore::WHOLE && memory >= Bytes::new(80 * GIB), "{amount}: {core:?} {memory:?}");
        }
    }

    #[test]
    fn devices_with_different_amounts_are_not_one_request() {
        let small = device(json!({"value": "100"}), json!({"value": "16Gi"}));
        let of = |amounts: &[(&str, &str)]| {
            let taken = [&ours(), &small].map(|device| Taken::of(device, &wanted(amounts)).unwrap());
            Taken::as_one(taken.iter())
        };
        assert_eq!(of(&[]), Some((DeviceCore::WHOLE, DeviceMemory::Thousandths(1000))));
        let two = DeviceMemory::Bytes(Bytes::new(2 * GIB));
        assert_eq!(of(&[("core", "25"), ("memory", "2Gi")]), Some((DeviceCore::new(250), two)));
        // One rounds up to a MiB, the other does not.
        assert_eq!(of(&[("memory", "1000")]), None);
    }
}
