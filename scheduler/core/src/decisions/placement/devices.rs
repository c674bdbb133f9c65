//! Turns a policy's choice into the devices that a task takes.

use std::collections::BTreeMap;

use crate::decisions::placement::filter::{first_fitting, has_room};
use crate::decisions::placement::fitting::fitting_devices;
use crate::decisions::placement::misses::Misses;
use crate::decisions::placement::policy::Choice;
use crate::decisions::placement::room::{parts, rounds};
use crate::decisions::placement::several;
use crate::state::node::Node;
use crate::vocabulary::claim::{Allocation, DeviceAllocation, NodeId};
use crate::vocabulary::known_node::KnownDevice;
use crate::vocabulary::request::{Alignment, Request};

/// Devices for a task, and the preferences that they miss.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Chosen {
    /// By ascending index.
    devices: Vec<u16>,
    misses: Misses,
    /// The sum of what is left of these devices afterwards, in thousandths of a device.
    left: u32,
}

/// A device that fits the request.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    index: u16,
    /// What is left of it afterwards, in thousandths.
    left: u16,
    /// How many tasks with this request it has room for.
    parts: u32,
}

/// The devices for a policy's choice; `None` if the node does not have them.
pub(crate) fn chosen(node: &Node, request: &Request, choice: Choice) -> Option<Vec<DeviceAllocation>> {
    if request.further.is_some() {
        return several::assign(node, request, choice).map(|found| found.devices);
    }
    let part = |device: u16| {
        let memory = node.devices().get(usize::from(device))?.memory();
        Some(DeviceAllocation { device, core: request.devices.core, memory: request.devices.memory.on(memory) })
    };
    let devices = choose(node, request, choice)?.devices;
    // Each claim keeps its parts for as long as it is placed, so they get no more room than they need.
    let mut parts = Vec::with_capacity(devices.len());
    for device in devices {
        parts.push(part(device)?);
    }
    Some(parts)
}

/// The place of a task on a node where it leaves least on the devices that it takes; `None`: it does not fit.
pub(crate) fn tightest(id: NodeId, node: &Node, request: &Request) -> Option<Allocation> {
    let choice = first_fitting(node, request).filter(|choice| has_room(node, &choice.request))?;
    let devices = chosen(node, &choice.request, Choice::Tightest)?;
    Some(Allocation { node: id, devices, alternative: choice.number })
}

/// The preferences that the devices for a policy's choice miss; `None` if the node does not have the devices.
pub(crate) fn misses(node: &Node, request: &Request, choice: Choice) -> Option<Misses> {
    match request.further {
        Some(_) => several::assign(node, request, choice).map(|found| found.misses),
        None => choose(node, request, choice).map(|chosen| chosen.misses),
    }
}

fn choose(node: &Node, request: &Request, choice: Choice) -> Option<Chosen> {
    let candidates = fitting_devices(node, request).filter(|(index, ..)| match choice {
        Choice::Device(device) => *index == device,
        Choice::Tightest | Choice::Roomiest | Choice::Emptiest => true,
    });
    let candidate = |(index, device, left)| match choice {
        Choice::Roomiest => Candidate { index, left, parts: parts(device, request) },
        _ => Candidate { index, left, parts: 1 },
    };
    let candidates: Vec<Candidate> = candidates.map(candidate).collect();
    if request.devices.count < 2 || !request.rules.align() {
        return pick(node, request, choice, candidates);
    }
    within_group(
        node,
        request,
        request.rules.nvlink,
        |device| device.nvlink_group,
        &candidates,
        |nvlink, candidates| {
            let switch = request.rules.switch;
            let chosen = within_group(
                node,
                request,
                switch,
                |device| device.switch,
                candidates,
                |switch, candidates| {
                    let chosen = pick(node, request, choice, candidates.to_vec())?;
                    Some(Chosen { misses: Misses { switch, ..chosen.misses }, ..chosen })
                },
            )?;
            Some(Chosen { misses: Misses { nvlink, ..chosen.misses }, ..chosen })
        },
    )
}

/// Chooses from one group of the candidates, or from all of them if one group is not required and none is enough. Of
/// several groups that are enough, the best has the fewest missed preferences, then the least left over, then the
/// fewest candidates: larger groups stay whole for tasks that need them. `choose` is told whether the preference for
/// one group is missed.
fn within_group(
    node: &Node,
    request: &Request,
    alignment: Alignment,
    group_of: impl Fn(&KnownDevice) -> Option<u16>,
    candidates: &[Candidate],
    choose: impl Fn(bool, &[Candidate]) -> Option<Chosen>,
) -> Option<Chosen> {
    if alignment == Alignment::Any {
        return choose(false, candidates);
    }
    let mut groups: BTreeMap<u16, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let spec = node.spec().devices.get(usize::from(candidate.index));
        if let Some(group) = spec.and_then(&group_of) {
            groups.entry(group).or_default().push(*candidate);
        }
    }
    let enough = groups.values().filter(|group| group.len() >= usize::from(request.devices.count));
    let aligned = enough.filter_map(|group| Some((choose(false, group)?, group.len())));
    let aligned = aligned.min_by_key(|(chosen, size)| (chosen.misses, chosen.left, *size));
    match aligned {
        Some((chosen, _)) => Some(chosen),
        None if alignment == Alignment::Required => None,
        None => choose(true, candidates),
    }
}

/// Chooses from candidates that are all equally near to each other, except for their NUMA nodes.
fn pick(node: &Node, request: &Request, choice: Choice, mut candidates: Vec<Candidate>) -> Option<Chosen> {
    let wanted = usize::from(request.devices.count);
    if candidates.len() < wanted {
        return None;
    }
    let numa_rank = numa_ranks(node, &candidates, wanted);
    candidates.sort_unstable_by_key(|candidate| {
        let left = match choice {
            Choice::Emptiest => u16::MAX - candidate.left,
            _ => candidate.left,
        };
        (left, numa_rank(candidate.index), candidate.index)
    });
    let taken: Vec<Candidate> = match choice {
        Choice::Roomiest => roomiest(&candidates, request.devices.count),
        _ => candidates.into_iter().take(wanted).collect(),
    };
    let left = taken.iter().map(|candidate| u32::from(candidate.left)).sum();
    let mut devices: Vec<u16> = taken.iter().map(|candidate| candidate.index).collect();
    devices.sort_unstable();
    Some(Chosen { devices, misses: Misses::default(), left })
}

/// The first devices, in this order, that leave room for as many more such tasks as possible.
///
/// A task uses a device only once. So a device with room for more tasks than can still follow may be taken freely.
/// Taking any other device costs a place, and only a certain number of places can be spared.
fn roomiest(order: &[Candidate], wanted: u16) -> Vec<Candidate> {
    let parts = || order.iter().map(|candidate| candidate.parts);
    let following = rounds(parts(), wanted).saturating_sub(1);
    let places: u64 = parts().map(|parts| u64::from(parts.min(following))).sum();
    let mut to_spare = places.saturating_sub(u64::from(following) * u64::from(wanted));
    let harmless = |candidate: &&Candidate| {
        if candidate.parts > following {
            return true;
        }
        let spared = to_spare > 0;
        to_spare = to_spare.saturating_sub(1);
        spared
    };
    order.iter().filter(harmless).take(usize::from(wanted)).copied().collect()
}

/// The order in which devices of NUMA nodes are taken when all else is equal: first the smallest NUMA node that has
/// enough candidates, or, if none has, the largest.
fn numa_ranks<'a>(
    node: &'a Node,
    candidates: &[Candidate],
    wanted: usize,
) -> impl Fn(u16) -> (bool, usize, Option<u16>) + use<'a> {
    let numa_of = |index: u16| node.spec().devices.get(usize::from(index)).and_then(|device| device.numa);
    let mut sizes: BTreeMap<Option<u16>, usize> = BTreeMap::new();
    if wanted > 1 && !node.has_one_numa_node() {
        candidates.iter().for_each(|candidate| *sizes.entry(numa_of(candidate.index)).or_default() += 1);
    }
    move |index| {
        let numa = if sizes.is_empty() { None } else { numa_of(index) };
        match sizes.get(&numa).copied() {
            Some(size) if size >= wanted => (false, size, numa),
            size => (true, usize::MAX - size.unwrap_or(0), numa),
        }
    }
}
