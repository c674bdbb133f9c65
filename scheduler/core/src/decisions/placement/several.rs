//! Chooses devices of a node for tasks with several device requests.

use std::cmp::Reverse;

use crate::decisions::placement::fitting::fitting_for;
use crate::decisions::placement::misses::Misses;
use crate::decisions::placement::policy::{Bid, Choice, Policy};
use crate::state::node::{Device, Node};
use crate::vocabulary::claim::{DeviceAllocation, NodeId};
use crate::vocabulary::device_request::{Comparison, DeviceLink, DeviceProperty, DeviceRequest};
use crate::vocabulary::known_node::KnownDevice;
use crate::vocabulary::quantity::{Bytes, DeviceCore};
use crate::vocabulary::request::{Alignment, Request};

/// The most times that a search takes a device on trial. If it has found nothing by then, the node counts as one
/// without room. Four requests on a node of eight devices need at most a few hundred tries.
const TRIES_MAX: u32 = 20_000;

/// Devices for all device requests of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Assignment {
    /// The devices in the order of allocations.
    pub(crate) devices: Vec<DeviceAllocation>,
    pub(crate) misses: Misses,
}

/// Devices of a node for all device requests of a task; `None`: there are none, or the search was too long. Preferences
/// are met if possible. Otherwise each request takes the first devices that leave enough to the other requests: in the
/// order from the tightest, or from the emptiest if that is the choice.
pub(crate) fn assign(node: &Node, request: &Request, choice: Choice) -> Option<Assignment> {
    assign_first(node, request, usize::MAX, choice)
}

/// The name of the first request that finds no devices beside those of the requests before it; `None`: all find
/// devices.
pub(crate) fn crowded_out<'a>(node: &Node, request: &'a Request) -> Option<&'a str> {
    let has_room = |requests: usize| assign_first(node, request, requests, Choice::Tightest).is_some();
    if has_room(usize::MAX) {
        return None;
    }
    let crowded = (1..).zip(request.wishes()).find(|(requests, _)| !has_room(*requests));
    crowded.map(|(_, wish)| wish.name.unwrap_or_default())
}

/// Like [`assign`], for only the first requests of a task.
fn assign_first(node: &Node, request: &Request, requests: usize, choice: Choice) -> Option<Assignment> {
    let is_alone = request.device_count() < 2;
    let tries = |alignment| match alignment {
        _ if is_alone => &[false][..],
        Alignment::Any => &[false],
        Alignment::Preferred => &[true, false],
        Alignment::Required => &[true],
    };
    for &nvlink in tries(request.rules.nvlink) {
        for &switch in tries(request.rules.switch) {
            let mut search = Search::new(node, request, requests, choice);
            let aligned = [(nvlink, DeviceProperty::NvlinkGroup), (switch, DeviceProperty::Switch)];
            for (_, property) in aligned.into_iter().filter(|(is_wanted, _)| *is_wanted) {
                search.link_all(property);
            }
            if let Some(devices) = search.run() {
                let misses = Misses {
                    nvlink: !is_alone && !nvlink && request.rules.nvlink == Alignment::Preferred,
                    switch: !is_alone && !switch && request.rules.switch == Alignment::Preferred,
                };
                return Some(Assignment { devices, misses });
            }
        }
    }
    None
}

/// Whether a task fits on the devices of an earlier allocation, with what is free now.
pub(crate) fn still_fits(node: &Node, request: &Request, devices: &[DeviceAllocation]) -> bool {
    (0u16..).zip(node.devices()).all(|(index, device)| {
        let mut parts = devices.iter().filter(|part| part.device == index).peekable();
        if parts.peek().is_none() {
            return true;
        }
        let (core, memory) = parts.fold((DeviceCore::ZERO, Bytes::ZERO), |(core, memory), part| {
            ([core, part.core].into_iter().sum(), [memory, part.memory].into_iter().sum())
        });
        let below = device.memory_below(request.rules.memory_threshold_percent);
        device.is_healthy() && core <= device.core_free() && below.is_some_and(|free| memory <= free)
    })
}

/// A policy's bid for a task. With several device requests, each gets a bid by itself: their costs are added up, and
/// the greatest value of what is forgone counts.
pub(crate) fn bid<P: Policy + ?Sized>(policy: &P, id: NodeId, node: &Node, request: &Request) -> Bid {
    if request.further.is_none() {
        return policy.bid(id, node, request);
    }
    let bids = request.singles().into_iter().map(|single| policy.bid(id, node, &single));
    let sum = bids.reduce(|sum, bid| Bid {
        cost: sum.cost.saturating_add(bid.cost).min(Bid::NONE - 1),
        forgone: sum.forgone.max(bid.forgone),
        choice: sum.choice,
    });
    sum.unwrap_or_else(|| policy.bid(id, node, request))
}

/// A search for devices. It takes devices on trial, request by request, and goes back if it cannot continue.
struct Search<'a> {
    node: &'a Node,
    /// The requests in the order in which they choose devices: first those that leave least of a device to others.
    wanted: Vec<Wanted<'a>>,
    links: Vec<Link>,
    /// The free time and memory of each device.
    free: Vec<(DeviceCore, Bytes)>,
    /// The devices that are taken, by the position of the request in the task.
    taken: Vec<Vec<u16>>,
    /// For each device, the first device that is like it in everything that does not change during the search.
    kinds: Vec<usize>,
    tries_left: u32,
}

/// A request, and the devices that it could take if no other request took any.
struct Wanted<'a> {
    /// Its position in the task.
    place: usize,
    devices: &'a DeviceRequest,
    /// The devices in the order in which they are tried.
    candidates: Vec<u16>,
}

/// A link, and the number of each device's value of its property. Equal values have equal numbers.
struct Link {
    is_about_identity: bool,
    requests: Vec<usize>,
    comparison: Comparison,
    values: Vec<Option<usize>>,
}

impl<'a> Search<'a> {
    fn new(node: &'a Node, request: &'a Request, requests: usize, choice: Choice) -> Self {
        let threshold = request.rules.memory_threshold_percent;
        let wishes: Vec<_> = request.wishes().take(requests).collect();
        let wanted = |(place, wish)| {
            let mut candidates: Vec<(u16, u16)> = fitting_for(node, wish, threshold)
                .map(|(index, _, left)| (if choice == Choice::Emptiest { u16::MAX - left } else { left }, index))
                .collect();
            candidates.sort_unstable();
            let candidates = candidates.into_iter().map(|(_, index)| index).collect();
            Wanted { place, devices: wish.devices, candidates }
        };
        let mut wanted: Vec<Wanted<'a>> = wishes.iter().copied().enumerate().map(wanted).collect();
        let memory = node.devices().iter().map(|device| device.memory()).max().unwrap_or_default();
        wanted.sort_by_key(|of| (Reverse(of.devices.part_of(memory)), Reverse(of.devices.count), of.place));
        let links = request.further.iter().flat_map(|further| &further.links);
        let free = |device: &Device| (device.core_free(), device.memory_below(threshold).unwrap_or_default());
        Self {
            node,
            links: links.map(|link| Link::of(node, link)).collect(),
            free: node.devices().iter().map(free).collect(),
            taken: vec![Vec::new(); wanted.len()],
            wanted,
            kinds: Vec::new(),
            tries_left: TRIES_MAX,
        }
    }

    /// Requires that all devices of the task have the same value of a property.
    fn link_all(&mut self, property: DeviceProperty) {
        let requests = (0u16..).zip(&self.wanted).map(|(place, _)| place).collect();
        let link = DeviceLink { requests, property, comparison: Comparison::Same };
        self.links.push(Link::of(self.node, &link));
    }

    fn run(mut self) -> Option<Vec<DeviceAllocation>> {
        self.kinds = (0..self.free.len()).map(|device| self.kind(device)).collect();
        if !self.may_go_on(0) || !self.take_from(0, 0, 0) {
            return None;
        }
        let mut devices = Vec::with_capacity(self.taken.iter().map(Vec::len).sum());
        self.wanted.sort_unstable_by_key(|wanted| wanted.place);
        for (wanted, mut taken) in self.wanted.iter().zip(self.taken) {
            taken.sort_unstable();
            devices.extend(taken.into_iter().filter_map(|device| {
                let memory = self.node.devices().get(usize::from(device))?.memory();
                let DeviceRequest { core, memory: of_each, .. } = *wanted.devices;
                Some(DeviceAllocation { device, core, memory: of_each.on(memory) })
            }));
        }
        Some(devices)
    }

    /// Takes devices for the request with this number in the search's order, and for the requests after it. The request
    /// has `taken` devices already, and its candidates before `from` were tried. Returns whether all requests have
    /// found their devices.
    fn take_from(&mut self, number: usize, taken: usize, from: usize) -> bool {
        let Some(wanted) = self.wanted.get(number) else { return true };
        let (place, devices) = (wanted.place, *wanted.devices);
        let missing = usize::from(devices.count).saturating_sub(taken);
        if missing == 0 {
            return self.may_go_on(number + 1) && self.take_from(number + 1, 0, 0);
        }
        let candidates = wanted.candidates.len();
        let mut failed: Vec<u16> = Vec::new();
        for position in from..candidates {
            if candidates - position < missing || self.tries_left == 0 {
                return false;
            }
            let Some(device) = self.wanted.get(number).and_then(|of| of.candidates.get(position)).copied() else {
                return false;
            };
            // If the search failed with a device, it would also fail with a device that is like it.
            if !self.may_take(place, &devices, device) || failed.iter().any(|other| self.are_alike(*other, device)) {
                continue;
            }
            self.tries_left -= 1;
            let index = usize::from(device);
            let before = self.free[index];
            let memory = self.memory_on(&devices, device);
            self.free[index] = (before.0.saturating_sub(devices.core), before.1.saturating_sub(memory));
            self.taken[place].push(device);
            if self.take_from(number, taken + 1, position + 1) {
                return true;
            }
            self.taken[place].pop();
            self.free[index] = before;
            failed.push(device);
        }
        false
    }

    /// Whether each request from this number on would find enough devices if it chose next.
    fn may_go_on(&self, number: usize) -> bool {
        self.wanted.iter().skip(number).all(|of| {
            let count = usize::from(of.devices.count);
            of.candidates.iter().filter(|device| self.may_take(of.place, of.devices, **device)).take(count).count()
                == count
        })
    }

    fn may_take(&self, place: usize, devices: &DeviceRequest, device: u16) -> bool {
        let free = self.free.get(usize::from(device)).copied().unwrap_or_default();
        devices.core <= free.0
            && self.memory_on(devices, device) <= free.1
            && self.links.iter().all(|link| link.allows(&self.taken, place, device))
    }

    fn memory_on(&self, devices: &DeviceRequest, device: u16) -> Bytes {
        let memory = self.node.devices().get(usize::from(device)).map(|device| device.memory());
        devices.memory.on(memory.unwrap_or_default())
    }

    /// The first device that is like this one in its memory, in its values for links, and in the requests that could
    /// take it.
    fn kind(&self, device: usize) -> usize {
        let is_like = |other: &usize| {
            let is_candidate = |wanted: &Wanted<'_>, device: usize| {
                wanted.candidates.iter().any(|candidate| usize::from(*candidate) == device)
            };
            let memory = |device: usize| self.node.devices().get(device).map(|device| device.memory());
            memory(*other) == memory(device)
                && self.wanted.iter().all(|wanted| is_candidate(wanted, *other) == is_candidate(wanted, device))
                && self.links.iter().all(|link| link.is_about_identity || link.value(*other) == link.value(device))
        };
        (0..device).find(is_like).unwrap_or(device)
    }

    /// Whether two devices are interchangeable at this point of the search.
    fn are_alike(&self, one: u16, other: u16) -> bool {
        let (left, right) = (usize::from(one), usize::from(other));
        let is_taken = |device: u16| self.taken.iter().any(|taken| taken.contains(&device));
        self.kinds.get(left) == self.kinds.get(right)
            && self.free.get(left) == self.free.get(right)
            && (self.links.iter().all(|link| !link.is_about_identity) || !(is_taken(one) || is_taken(other)))
    }
}

impl Link {
    fn of(node: &Node, link: &DeviceLink) -> Self {
        let devices = &node.spec().devices;
        let number = |number: Option<u16>| number.map(usize::from);
        let attribute = |name: &str, spec: &KnownDevice| {
            let value = spec.attribute(name)?;
            devices.iter().position(|other| other.attribute(name) == Some(value))
        };
        let values = devices.iter().enumerate().map(|(index, spec)| match &link.property {
            DeviceProperty::Identity => Some(index),
            DeviceProperty::NvlinkGroup => number(spec.nvlink_group),
            DeviceProperty::Switch => number(spec.switch),
            DeviceProperty::Attribute(name) => attribute(name, spec),
        });
        Self {
            is_about_identity: link.property == DeviceProperty::Identity,
            requests: link.requests.iter().map(|place| usize::from(*place)).collect(),
            comparison: link.comparison,
            values: values.collect(),
        }
    }

    fn value(&self, device: usize) -> Option<usize> {
        self.values.get(device).copied().flatten()
    }

    /// Whether the request at this position may take a device, given the devices that are taken.
    fn allows(&self, taken: &[Vec<u16>], place: usize, device: u16) -> bool {
        if !self.requests.contains(&place) {
            return true;
        }
        let Some(value) = self.value(usize::from(device)) else { return false };
        let mut linked = self.requests.iter().filter_map(|place| taken.get(*place)).flatten();
        linked.all(|other| {
            let is_same = self.value(usize::from(*other)) == Some(value);
            is_same == (self.comparison == Comparison::Same)
        })
    }
}
