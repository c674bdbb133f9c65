//! Computes how many more tasks fit.

use std::collections::BTreeMap;

use crate::decisions::placement::misfit::admits;
use crate::decisions::placement::policy::Choice;
use crate::decisions::placement::several;
use crate::state::node::{Device, Node};
use crate::vocabulary::request::{Alignment, Request};

/// How many tasks with this request fit on a node in its present state, all at once. It is exact for equal requests
/// without several device requests or alternatives. Beside other requests, it is only an upper bound. So it is for
/// tasks with several device requests or alternatives; for those, a number above 0 means that there is room for one.
#[must_use]
pub fn room(node: &Node, request: &Request) -> u32 {
    if admits(node.spec(), request).is_err() {
        return 0;
    }
    let by_cpu = node.cpu_free().get().checked_div(request.cpu.get()).unwrap_or(u64::MAX);
    let by_memory = node.memory_free().get().checked_div(request.memory.get()).unwrap_or(u64::MAX);
    let by_counted = request.counted.iter().map(|(name, each)| node.counted_free(name).checked_div(*each));
    let by_counted = by_counted.flatten().min().unwrap_or(u64::MAX);
    let on_node = u32::try_from(by_cpu.min(by_memory).min(by_counted)).unwrap_or(u32::MAX);
    if request.devices.count == 0 || on_node == 0 {
        return on_node;
    }
    if request.has_alternatives() {
        let rooms = request.choices().map(|choice| room(node, &choice.request));
        return on_node.min(rooms.fold(0, u32::saturating_add));
    }
    if request.further.is_some() {
        return on_node.min(of_several(node, request));
    }
    on_node.min(on_devices(node, request))
}

/// An upper bound: the least number for which each device request by itself has room, and for which the free time of
/// all devices together is enough.
fn of_several(node: &Node, request: &Request) -> u32 {
    if several::assign(node, request, Choice::Tightest).is_none() {
        return 0;
    }
    let healthy = node.devices().iter().filter(|device| device.is_healthy());
    let core: u64 = healthy.map(|device| u64::from(device.core_free().get())).sum();
    let by_core = core.checked_div(request.total_core()).and_then(|tasks| u32::try_from(tasks).ok());
    let by_request = request.singles().iter().map(|single| on_devices(node, single)).min();
    by_core.unwrap_or(u32::MAX).min(by_request.unwrap_or(u32::MAX))
}

/// How many tasks have room on the devices of a node that admits them, as their first choice.
pub(crate) fn on_devices(node: &Node, request: &Request) -> u32 {
    let specs = || node.devices().iter().zip(node.spec().devices.iter());
    let wanted = || specs().filter(|(_, spec)| request.constraints.admit_device(spec));
    let count = request.devices.count;
    if count < 2 || !request.rules.require_alignment() {
        return rounds(wanted().map(|(device, _)| parts(device, request)), count);
    }
    // Each task stays within one group, so groups do not affect each other.
    let mut groups: BTreeMap<(Option<u16>, Option<u16>), Vec<u32>> = BTreeMap::new();
    for (device, spec) in wanted() {
        let nvlink = spec.nvlink_group.filter(|_| request.rules.nvlink == Alignment::Required);
        let switch = spec.switch.filter(|_| request.rules.switch == Alignment::Required);
        let aligned = nvlink.is_some() == (request.rules.nvlink == Alignment::Required)
            && switch.is_some() == (request.rules.switch == Alignment::Required);
        if aligned {
            groups.entry((nvlink, switch)).or_default().push(parts(device, request));
        }
    }
    let rounds = groups.into_values().map(|parts| rounds(parts.iter().copied(), count));
    rounds.fold(0, u32::saturating_add)
}

/// How many tasks that want a part of one device would fit on a device, all at once.
pub(crate) fn parts(device: &Device, request: &Request) -> u32 {
    if !device.is_healthy() {
        return 0;
    }
    let Some(memory) = device.memory_below(request.rules.memory_threshold_percent) else { return 0 };
    let by_core = device.core_free().get().checked_div(request.devices.core.get()).unwrap_or(u32::MAX);
    let by_memory = memory.get().checked_div(request.devices.memory.on(device.memory()).get()).unwrap_or(u64::MAX);
    by_core.min(u32::try_from(by_memory).unwrap_or(u32::MAX))
}

/// How many tasks fit that want parts of `wanted` *different* devices each, if each device has room for this many
/// parts.
///
/// This is the greatest `n` for which Σ min(parts of the device, `n`) ≥ `n` · `wanted`. The condition is necessary, as
/// `n` tasks need `n` · `wanted` parts and use at most `n` of each device. It is sufficient, as parts can be dealt out
/// to the tasks in turn, device by device, without giving a task two parts of one device.
pub(crate) fn rounds(parts: impl Iterator<Item = u32> + Clone, wanted: u16) -> u32 {
    let wanted = u64::from(wanted.max(1));
    let mut most = u32::MAX;
    // Each step lowers the bound to the number that it makes possible, until the bound itself is possible.
    loop {
        let places: u64 = parts.clone().map(|parts| u64::from(parts.min(most))).sum();
        let possible = u32::try_from(places / wanted).unwrap_or(u32::MAX).min(most);
        if possible == most {
            return most;
        }
        most = possible;
    }
}
