//! Exhaustive searches: the most that could be placed if all claims were known in advance.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{DeviceMemory, DeviceSpec, NodeSpec, Request};

/// How many tasks fit that want a part of `wanted` different devices each, if each device has room for this many parts.
pub(crate) fn most_rounds(parts: &[u32], wanted: u16) -> u32 {
    let sets = sets(parts.len(), usize::from(wanted));
    let after = sets.iter().filter_map(|set| {
        let mut parts = parts.to_vec();
        for device in set {
            parts[*device] = parts[*device].checked_sub(1)?;
        }
        // Devices are interchangeable, so only their free parts matter.
        parts.sort_unstable();
        Some(parts)
    });
    let different: BTreeSet<Vec<u32>> = after.collect();
    different.into_iter().map(|parts| 1 + most_rounds(&parts, wanted)).max().unwrap_or(0)
}

/// All sets of `count` of `number` devices.
pub(crate) fn sets(number: usize, count: usize) -> Vec<Vec<usize>> {
    let all = (0..1u32 << number).filter(|bits| bits.count_ones() as usize == count);
    all.map(|bits| (0..number).filter(|device| bits >> device & 1 == 1).collect()).collect()
}

/// The free amounts, kept apart from the library's books.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Books {
    nodes: Vec<NodeBooks>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct NodeBooks {
    cpu_milli: u64,
    memory_bytes: u64,
    counted: BTreeMap<String, u64>,
    /// Free time and memory of each device.
    devices: Vec<(u32, u64)>,
}

/// A node's position in the list, and devices of it.
pub(crate) type Place = (usize, Vec<usize>);

impl Books {
    pub(crate) fn of(nodes: &[NodeSpec]) -> Self {
        let books = |node: &NodeSpec| NodeBooks {
            cpu_milli: node.cpu.get(),
            memory_bytes: node.memory.get(),
            counted: node.counted.clone(),
            devices: node.devices.iter().map(|device| (DeviceSpec::CORE.get(), device.memory.get())).collect(),
        };
        Self { nodes: nodes.iter().map(books).collect() }
    }

    /// What is free after a task takes this place; `None` if there is not enough.
    pub(crate) fn take(&self, request: &Request, (node, devices): &Place) -> Option<Self> {
        let mut left = self.clone();
        let node = left.nodes.get_mut(*node)?;
        node.cpu_milli = node.cpu_milli.checked_sub(request.cpu.get())?;
        node.memory_bytes = node.memory_bytes.checked_sub(request.memory.get())?;
        for (name, amount) in &request.counted {
            let free = node.counted.get_mut(name)?;
            *free = free.checked_sub(*amount)?;
        }
        for device in devices {
            let (core, memory) = node.devices.get_mut(*device)?;
            *core = core.checked_sub(request.devices.core.get())?;
            *memory = memory.checked_sub(bytes(request))?;
        }
        Some(left)
    }

    /// What is free after each way to place a task. Ways that differ only in the order of devices count once.
    pub(crate) fn placements(&self, request: &Request) -> Vec<Self> {
        let places = self.nodes.iter().enumerate().flat_map(|(node, books)| {
            let sets = sets(books.devices.len(), usize::from(request.devices.count));
            sets.into_iter().map(move |devices| (node, devices))
        });
        let left = places.filter_map(|place| self.take(request, &place));
        let sorted = left.map(|mut books| {
            books.nodes.iter_mut().for_each(|node| node.devices.sort_unstable());
            books
        });
        sorted.collect::<BTreeSet<Self>>().into_iter().collect()
    }

    /// The most device time that these tasks can hold together. Each task is placed when it comes, or never.
    /// `refusing`: tasks that fit may be left out.
    pub(crate) fn most_device_core(&self, requests: &[Request], refusing: bool) -> u64 {
        let mut best = 0;
        self.search(requests, refusing, 0, &mut best);
        best
    }

    fn search(&self, requests: &[Request], refusing: bool, placed: u64, best: &mut u64) {
        *best = placed.max(*best);
        let rest: u64 = requests.iter().map(|request| request.devices.total_core()).sum();
        let Some((request, others)) = requests.split_first() else { return };
        if placed + rest <= *best {
            return;
        }
        let placements = self.placements(request);
        for left in &placements {
            left.search(others, refusing, placed + request.devices.total_core(), best);
        }
        if refusing || placements.is_empty() {
            self.search(others, refusing, placed, best);
        }
    }
}

/// The memory of each device in a request of the tests, in bytes.
fn bytes(request: &Request) -> u64 {
    match request.devices.memory {
        DeviceMemory::Bytes(bytes) => bytes.get(),
        DeviceMemory::Thousandths(_) => panic!("these tests ask for bytes"),
    }
}
