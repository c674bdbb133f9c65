//! Finds the single changes that would let a group's next members be placed. Each change is tried in a copy of the
//! state.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::gang::Unplaceable;
use crate::decisions::placement::{admits, has_room};
use crate::decisions::unit::Unit;
use crate::explain::change::Change;
use crate::explain::pieces::{Piece, pieces};
use crate::explain::trial::Trial;
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::Exceeded;
use crate::state::cluster::peer_rules::PeerRules;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::device_request::{DeviceMemory, DeviceWish};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::{Constraints, Request};
use crate::vocabulary::taint::Toleration;

/// The most models, taints and nodes that are tried, of each kind.
const TRIES_MAX: usize = 16;
/// The most running claims that are checked for whether their end would make room.
const RUNNING_MAX: usize = 4096;
/// How often a bound is raised to the amount that then turns out to be needed.
const RAISES_MAX: usize = 4;
/// Up to this many numbers are tried one by one.
const NUMBERS_MAX: u64 = 64;
/// Bytes in one MiB. Memory is suggested in whole MiB.
const MIB: u64 = 1 << 20;

/// A search for changes that help one group.
pub(crate) struct ChangeSearch<'a> {
    pub(crate) trial: &'a mut Trial,
    pub(crate) group: GroupId,
    /// The members whose request may be changed. All have the same request.
    pub(crate) members: &'a [ClaimId],
    pub(crate) request: Option<&'a Request>,
}

impl ChangeSearch<'_> {
    /// The changes that help, the smallest first. A change helps if it lets the group's next members be placed.
    pub(crate) fn run(mut self, obstacle: Option<Unplaceable>) -> Vec<Change> {
        let mut changes = Vec::new();
        changes.extend(self.lower_minimum());
        if let (Some(request), Some(obstacle)) = (self.request, obstacle) {
            match obstacle {
                Unplaceable::Limit(exceeded) => changes.extend(self.raise(exceeded)),
                Unplaceable::NoRoom { .. } | Unplaceable::Topology { .. } | Unplaceable::TooManyWays => {
                    changes.extend(self.constraints(request));
                    changes.extend(self.uncordon(request));
                }
            }
            changes.extend(self.less(request));
            changes.extend(self.wait_for(request, obstacle));
        }
        changes.sort_by_key(Change::effort);
        changes
    }

    fn helps(&mut self, change: &Change) -> bool {
        let events = change.events(self.trial.cluster(), self.group, self.members);
        !events.is_empty() && self.trial.admits_after(events)
    }

    /// The largest number, at least `least` and less than `from`, with which a change helps; `None` if there is no such
    /// number.
    ///
    /// A greater number can help where a smaller one does not: a claim's namespace has a minimum, devices must be
    /// linked in certain numbers, and members of a gang are placed one after the other. So a few numbers are tried one
    /// by one. Among many numbers, a bisection finds the last one up to which the tried ones help. Then larger ones
    /// among `amounts`, the sizes of free pieces, are tried.
    fn largest_in(
        &mut self,
        least: u64,
        from: u64,
        amounts: impl Fn(&Cluster) -> BTreeSet<u64>,
        change: impl Fn(u64) -> Change,
    ) -> Option<Change> {
        if from.saturating_sub(least) <= NUMBERS_MAX {
            return (least..from).rev().map(&change).find(|change| self.helps(change));
        }
        let mut found = self.helps(&change(least)).then(|| self.last_before(least, from, &change));
        let amounts = amounts(self.trial.cluster());
        let mut too_much = from;
        for amount in amounts.range(least..from).rev().take(NUMBERS_MAX as usize) {
            if found.is_some_and(|found| *amount <= found) {
                break;
            }
            if self.helps(&change(*amount)) {
                found = Some(self.last_before(*amount, too_much, &change));
                break;
            }
            too_much = *amount;
        }
        found.map(change)
    }

    /// The last number before `too_much` that a bisection finds to help. It begins with `helps`, a number that helps.
    fn last_before(&mut self, mut helps: u64, mut too_much: u64, change: &impl Fn(u64) -> Change) -> u64 {
        while too_much - helps > 1 {
            let middle = helps + (too_much - helps) / 2;
            match self.helps(&change(middle)) {
                true => helps = middle,
                false => too_much = middle,
            }
        }
        helps
    }

    /// Changes that ask for less of one resource.
    fn less(&mut self, request: &Request) -> Vec<Change> {
        let (cpu, memory) = (request.cpu, request.memory);
        let members = self.members;
        let pieces = |of| move |cluster: &Cluster| pieces(cluster, members, of);
        let mut changes = Vec::new();
        changes.extend(
            self.largest_in(1, cpu.get(), pieces(Piece::Cpu), |to| Change::LessCpu {
                from: cpu,
                to: MilliCpu::new(to),
            }),
        );
        changes.extend(self.largest_in(1, memory.get().div_ceil(MIB), pieces(Piece::MemoryMib), |to| {
            Change::LessMemory { from: memory, to: Bytes::from_mib(to) }
        }));
        for (name, from) in &request.counted {
            changes.extend(self.largest_in(1, *from, pieces(Piece::Counted(name)), |to| Change::LessCounted {
                name: name.clone(),
                from: *from,
                to,
            }));
        }
        if request.devices.count > 0 {
            // A request that stands in several choices is changed in all of them.
            let mut named = BTreeSet::new();
            let wishes = request.all_wishes().filter(|wish| named.insert(wish.name));
            changes.extend(wishes.flat_map(|wish| self.less_of_devices(wish)));
        }
        changes
    }

    /// Changes that ask for less of devices in one of the task's device requests.
    fn less_of_devices(&mut self, wish: DeviceWish<'_>) -> Vec<Change> {
        let (devices, members) = (*wish.devices, self.members);
        let request = || wish.name.map(str::to_owned);
        let pieces = |of| move |cluster: &Cluster| pieces(cluster, members, of);
        let mut changes = Vec::new();
        changes.extend(self.largest_in(1, devices.core.get().into(), pieces(Piece::DeviceCore), |to| {
            let to = DeviceCore::new(u32::try_from(to).unwrap_or(u32::MAX));
            Change::LessDeviceCore { request: request(), from: devices.core, to }
        }));
        let from = devices.memory;
        changes.extend(match from {
            DeviceMemory::Bytes(bytes) => {
                self.largest_in(1, bytes.get().div_ceil(MIB), pieces(Piece::DeviceMemoryMib), |to| {
                    let to = DeviceMemory::Bytes(Bytes::from_mib(to));
                    Change::LessDeviceMemory { request: request(), from, to }
                })
            }
            DeviceMemory::Thousandths(part) => {
                self.largest_in(1, part.into(), pieces(Piece::DeviceMemoryThousandths), |to| {
                    let to = DeviceMemory::Thousandths(u32::try_from(to).unwrap_or(u32::MAX));
                    Change::LessDeviceMemory { request: request(), from, to }
                })
            }
        });
        let count = devices.count;
        changes.extend(self.largest_in(
            1,
            count.into(),
            |_| BTreeSet::new(),
            |to| {
                let to = u16::try_from(to).unwrap_or(u16::MAX);
                Change::FewerDevices { request: request(), from: count, to }
            },
        ));
        changes
    }

    /// Changes that allow one more model, drop one attribute, one label, the node affinity or all rules about peers, or
    /// tolerate one taint.
    fn constraints(&mut self, request: &Request) -> Vec<Change> {
        let asked = &request.constraints;
        let mut candidates: Vec<Change> = Vec::new();
        if request.all_wishes().any(|wish| !wish.models.is_empty()) {
            let models: BTreeSet<&String> = self
                .trial
                .cluster()
                .nodes()
                .flat_map(|(_, node)| node.spec().devices.iter().map(|device| &device.model))
                .filter(|model| request.all_wishes().any(|wish| !wish.admit_model(model)))
                .collect();
            candidates.extend(models.into_iter().take(TRIES_MAX).cloned().map(Change::AllowModel));
        }
        let attributes: BTreeMap<&String, &String> = request.all_wishes().flat_map(|wish| wish.attributes).collect();
        candidates.extend(
            attributes.into_iter().map(|(key, value)| Change::DropAttribute { key: key.clone(), value: value.clone() }),
        );
        let labels = asked.labels.iter();
        candidates.extend(labels.map(|(key, value)| Change::DropLabel { key: key.clone(), value: value.clone() }));
        candidates.extend((!asked.node_terms.is_empty()).then_some(Change::DropNodeTerms));
        let has_rules = request.peers.as_ref().is_some_and(|peers| peers.has_rules());
        candidates.extend(has_rules.then_some(Change::DropPeerRules));
        let tolerations = tolerations(self.trial.cluster(), asked);
        candidates.extend(tolerations.into_iter().take(TRIES_MAX).map(Change::Tolerate));
        candidates.retain(|change| self.helps(change));
        candidates
    }

    /// The change that opens the first cordoned node that helps.
    fn uncordon(&mut self, request: &Request) -> Option<Change> {
        let nodes = self.trial.cluster().nodes().map(|(_, node)| node).filter(|node| node.spec().cordoned);
        let roomy = nodes.filter(|node| request.constraints.admit(node.spec()) && has_room(node, request));
        let candidates: Vec<Change> =
            roomy.take(TRIES_MAX).map(|node| Change::Uncordon { node: node.spec().name.clone() }).collect();
        candidates.into_iter().find(|change| self.helps(change))
    }

    /// The change that raises the bound in the way.
    fn raise(&mut self, exceeded: Exceeded) -> Option<Change> {
        let cluster = self.trial.cluster();
        let queue = cluster.queue(exceeded.queue)?.spec().name.clone();
        let resource = cluster.resources().resource(exceeded.resource);
        let (from, mut to) = (exceeded.bound, exceeded.needed());
        for _ in 0..RAISES_MAX {
            let (queue, resource) = (queue.clone(), resource.clone());
            let change = match exceeded.is_quota {
                true => Change::RaiseQuota { queue, resource, from, to },
                false => Change::RaiseLimit { queue, resource, from, to },
            };
            let events = change.events(self.trial.cluster(), self.group, self.members);
            let group = self.group;
            let still = self.trial.after(events, |trial| {
                let unit = Unit::next(trial.cluster(), group).ok().flatten()?;
                trial.place(&unit).err()
            })?;
            match still {
                None => return Some(change),
                // The exact amount that the unit takes is known only once devices are chosen.
                Some(Unplaceable::Limit(more))
                    if (more.queue, more.resource, more.is_quota)
                        == (exceeded.queue, exceeded.resource, exceeded.is_quota) =>
                {
                    to = more.needed();
                }
                Some(_) => return None,
            }
        }
        None
    }

    /// The change that has fewer members placed together.
    fn lower_minimum(&mut self) -> Option<Change> {
        let group = self.trial.cluster().group(self.group).filter(|group| group.is_declared())?;
        let from = group.spec().min_members;
        let of_sub_groups = group.spec().sub_groups.iter().map(|sub| sub.min_members).fold(0, u32::saturating_add);
        // With a minimum of no more than the placed members, no further member would have to be placed.
        let least = of_sub_groups.max(group.placed_members() + 1);
        self.largest_in(
            least.into(),
            from.into(),
            |_| BTreeSet::new(),
            |to| Change::LowerMinimum { from, to: u32::try_from(to).unwrap_or(u32::MAX) },
        )
    }

    /// The change that waits for one claim to end: of the lowest priority, and among those the one that has run
    /// longest.
    fn wait_for(&mut self, request: &Request, obstacle: Unplaceable) -> Option<Change> {
        let cluster = self.trial.cluster();
        let mut running: Vec<_> = cluster
            .claims()
            .filter_map(|(id, _, allocation)| {
                let group = cluster.group(cluster.group_of(id)?)?;
                let started_ms = cluster.started_ms(id).unwrap_or(u64::MAX);
                Some(((group.spec().priority, started_ms, cluster.sequence(id)?), id, allocation?.node, group.queue()))
            })
            .collect();
        running.sort_unstable_by_key(|(order, ..)| *order);
        let mut rules = PeerRules::of(cluster, request);
        let mut useful = |(_, id, node, queue): &(_, ClaimId, NodeId, _)| match obstacle {
            Unplaceable::Limit(exceeded) => cluster.queues().path(*queue).any(|(above, _)| above == exceeded.queue),
            _ => makes_room(cluster, &mut rules, *id, *node, request),
        };
        let useful: Vec<ClaimId> =
            running.iter().take(RUNNING_MAX).filter(|running| useful(running)).map(|(_, id, ..)| *id).collect();
        let helps = useful.into_iter().take(TRIES_MAX).find(|claim| self.trial.admits_without(*claim))?;
        let name = self.trial.cluster().claim(helps)?.name.to_string();
        Some(Change::WaitFor { claim: helps, name })
    }
}

/// For each taint that keeps the task away, a toleration of it. If a node has the taint with several effects, also one
/// that tolerates all of its effects.
fn tolerations(cluster: &Cluster, asked: &Constraints) -> BTreeSet<Toleration> {
    let mut tolerations = BTreeSet::new();
    for (_, node) in cluster.nodes() {
        for taint in asked.untolerated(node.spec()) {
            let toleration = Toleration::of(taint);
            let of_all = Toleration { effect: None, ..toleration.clone() };
            let mut alike = asked.untolerated(node.spec()).filter(|other| of_all.tolerates(other));
            if alike.any(|other| other.effect != taint.effect) {
                tolerations.insert(of_all);
            }
            tolerations.insert(toleration);
        }
    }
    tolerations
}

/// Whether a node would have room for a task without a claim. `rules` are the rules about peers as they apply now.
fn makes_room<'a>(
    cluster: &'a Cluster,
    rules: &mut Option<PeerRules<'a>>,
    claim: ClaimId,
    node: NodeId,
    request: &Request,
) -> bool {
    let (Some(books), Some(there)) = (cluster.node(node), cluster.claim(claim)) else { return false };
    let Some(allocation) = cluster.allocation(claim) else { return false };
    if cluster.is_held(node) || admits(books.spec(), request).is_err() {
        return false;
    }
    let mut books = books.clone();
    books.give_back(claim, &there.request, allocation);
    if !has_room(&books, request) {
        return false;
    }
    let Some(rules) = rules else { return true };
    rules.leave_out(cluster, claim);
    let admits = rules.admit(books.spec());
    rules.put_back(cluster, claim);
    admits
}
