//! Dumps the state as a value, and restores it from one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cluster;
use crate::state::group::Group;
use crate::state::mix_counter::MixCounter;
use crate::state::node::Node;
use crate::vocabulary::claim::{Allocation, Claim, ClaimId, DeviceAllocation, Displacement, NodeId};
use crate::vocabulary::device_request::DeviceRequest;
use crate::vocabulary::dump::{
    Dump, DumpEntry, DumpedClaim, DumpedDisplacement, DumpedGroup, DumpedGroupRef, DumpedNode, DumpedPlace,
    DumpedQueue, RestoreError, RestoreReason,
};
use crate::vocabulary::event::EventError;
use crate::vocabulary::not_enough::NotEnough;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::quantity::{Bytes, DeviceCore};
use crate::vocabulary::queue_spec::DEFAULT_QUEUE;
use crate::vocabulary::request::Request;

impl Cluster {
    /// The state as a value. A cluster that is [restored](Cluster::restore) from it decides the same.
    #[must_use]
    pub fn dump(&self) -> Dump {
        let numbers = Numbers::of(self);
        Dump { claims: self.dump_claims(&numbers), ..self.dump_without_claims(&numbers) }
    }

    pub(crate) fn dump_without_claims(&self, numbers: &Numbers) -> Dump {
        let node = |(id, node): (NodeId, &Node)| DumpedNode { spec: node.spec().into(), held: self.is_held(id) };
        Dump {
            now_ms: self.now_ms,
            usage_half_life_ms: self.queues.half_life_ms(),
            models: self.resources.dump_models(),
            capacity: self.queues.dump_capacity(&self.resources),
            topology: self.topology.levels().to_vec(),
            nodes: self.nodes().map(node).collect(),
            queues: self.dump_queues(),
            namespaces: self.namespaces.values().cloned().collect(),
            arrivals: Some(self.arrivals.dump()),
            turnover: self.turnover.dump(),
            budgets: self.budgets.iter().collect(),
            groups: self.dump_groups(numbers),
            claims: Vec::new(),
            blocked: Vec::new(),
            bounded: Vec::new(),
            searches: Vec::new(),
        }
    }

    fn dump_queues(&self) -> Vec<DumpedQueue> {
        let mut queues = self.queues.parents_first();
        queues.sort_unstable();
        let queues = queues.into_iter().filter_map(|id| self.queues.get(id));
        queues
            .map(|queue| DumpedQueue { spec: queue.spec().clone(), usage: queue.dump_usage(&self.resources) })
            .collect()
    }

    fn dump_groups(&self, numbers: &Numbers) -> Vec<DumpedGroup> {
        let mut after_claims = 0;
        let mut dumped = Vec::new();
        for id in groups_by_age(self) {
            let Some(group) = self.groups.get(id) else { continue };
            if group.is_declared() {
                dumped.push(DumpedGroup {
                    spec: group.spec().clone(),
                    after_claims,
                    added_ms: group.added_ms(),
                    stale_since_ms: group.stale_since_ms(),
                });
            } else if let Some(number) = group.first_member().and_then(|claim| numbers.claims.get(&claim)) {
                after_claims = number + 1;
            }
        }
        dumped
    }

    pub(crate) fn dump_claims(&self, numbers: &Numbers) -> Vec<DumpedClaim> {
        numbers.claims.keys().filter_map(|id| self.dump_claim(*id, numbers)).collect()
    }

    fn dump_claim(&self, id: ClaimId, numbers: &Numbers) -> Option<DumpedClaim> {
        let state = self.claims.get(id)?;
        let place = |allocation: &Allocation| DumpedPlace {
            node: numbers.nodes.get(&allocation.node).copied().unwrap_or(usize::MAX),
            devices: allocation.devices.iter().map(|part| part.device).collect(),
            alternative: allocation.alternative,
            over_committed: self.over_committed.contains(&allocation.node),
        };
        let displaced = |displaced: &Displacement| DumpedDisplacement {
            action: displaced.action,
            by: displaced.by.and_then(|by| numbers.group(self, by)),
            by_name: displaced.by_name.clone(),
            at_ms: displaced.at_ms,
            shares: displaced.shares.clone(),
        };
        Some(DumpedClaim {
            claim: Arc::new(Claim::from(&state.claim)),
            added_ms: self.groups.get(state.group).map_or(0, Group::added_ms),
            place: state.allocation.as_ref().map(place),
            started_ms: state.started_ms,
            leaving: state.leaving.as_deref().map(place),
            starts_after: self.starts_after(id).iter().filter_map(|id| numbers.claims.get(id).copied()).collect(),
            last_eviction: state.last_eviction.as_deref().copied(),
            withdrawn: state.is_withdrawn,
            displaced: state.displaced.as_deref().map(displaced),
            failures: state.failures,
            retry_at_ms: state.retry_at_ms,
        })
    }

    /// Restores a cluster from a dump. What a scheduler remembers is ignored.
    ///
    /// # Errors
    /// If the dump cannot be restored. The error names the entry that contradicts the entries before it.
    pub fn restore(dump: Dump) -> Result<Self, RestoreError> {
        Self::restore_numbered(dump).map(|restored| restored.cluster)
    }

    pub(crate) fn restore_numbered(dump: Dump) -> Result<Restored, RestoreError> {
        let mut cluster = Self::with_usage_half_life(dump.usage_half_life_ms);
        cluster.now_ms = dump.now_ms;
        cluster.resources.restore_models(&dump.models);
        cluster.set_topology(dump.topology).map_err(|reason| at(DumpEntry::Topology, reason))?;
        for (number, node) in dump.nodes.into_iter().enumerate() {
            let failed = |reason: EventError| at(DumpEntry::Node(number), reason);
            let id = cluster.add_node(node.spec).map_err(failed)?;
            cluster.set_held(id, node.held).map_err(failed)?;
        }
        let mut usages = Vec::with_capacity(dump.queues.len());
        for (number, queue) in dump.queues.into_iter().enumerate() {
            let name = queue.spec.name.clone();
            let resources = &mut cluster.resources;
            let added = match name == DEFAULT_QUEUE {
                true => cluster.queues.change(queue.spec, resources),
                false => cluster.queues.add(queue.spec, resources, dump.now_ms).map(|_| ()),
            };
            added.map_err(|reason| at(DumpEntry::Queue(number), reason))?;
            cluster.in_the_past(DumpEntry::Queue(number), "the end of its usage", queue.usage.until_ms)?;
            usages.push((name, queue.usage));
        }
        for (number, namespace) in dump.namespaces.into_iter().enumerate() {
            let failed = |reason: EventError| at(DumpEntry::Namespace(number), reason);
            cluster.set_namespace(namespace).map_err(failed)?;
        }
        if let Some(arrivals) = dump.arrivals {
            cluster.arrivals = MixCounter::restore(arrivals);
        }
        cluster.turnover.restore(dump.turnover);
        dump.budgets.into_iter().for_each(|budget| cluster.budgets.change(budget));
        let mut restored = Restored { cluster, claims: Vec::new(), groups: Vec::new() };
        restored.fill(dump.groups, dump.claims)?;
        let cluster = &mut restored.cluster;
        for (name, usage) in usages {
            cluster.queues.restore_usage(&name, &usage, &mut cluster.resources);
        }
        cluster.queues.restore_capacity(&dump.capacity, &mut cluster.resources);
        Ok(restored)
    }

    fn in_the_past(&self, entry: DumpEntry, what: &'static str, at_ms: u64) -> Result<(), RestoreError> {
        match at_ms > self.now_ms {
            true => Err(at(entry, RestoreReason::InTheFuture { what, at_ms, now_ms: self.now_ms })),
            false => Ok(()),
        }
    }
}

fn groups_by_age(cluster: &Cluster) -> Vec<GroupId> {
    let mut groups: Vec<GroupId> = cluster.groups.iter().map(|(id, _)| id).collect();
    groups.sort_unstable();
    groups
}

/// The number of each entry in a dump.
pub(crate) struct Numbers {
    nodes: BTreeMap<NodeId, usize>,
    /// Only the declared groups.
    groups: BTreeMap<GroupId, usize>,
    claims: BTreeMap<ClaimId, usize>,
}

impl Numbers {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut claims: Vec<ClaimId> = cluster.claims.iter().map(|(id, _)| id).collect();
        claims.sort_unstable();
        let declared = |id: &GroupId| cluster.groups.get(*id).is_some_and(Group::is_declared);
        Self {
            nodes: cluster.nodes().map(|(id, _)| id).zip(0..).collect(),
            groups: groups_by_age(cluster).into_iter().filter(declared).zip(0..).collect(),
            claims: claims.into_iter().zip(0..).collect(),
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<usize> {
        self.nodes.get(&id).copied()
    }

    /// The number of this node, or, if it is gone, of the next one after it.
    pub(crate) fn node_from(&self, id: NodeId) -> Option<usize> {
        self.nodes.range(id..).next().map(|(_, number)| *number)
    }

    pub(crate) fn group(&self, cluster: &Cluster, id: GroupId) -> Option<DumpedGroupRef> {
        if let Some(number) = self.groups.get(&id) {
            return Some(DumpedGroupRef::Declared(*number));
        }
        let claim = cluster.groups.get(id)?.first_member()?;
        self.claims.get(&claim).map(|number| DumpedGroupRef::Claim(*number))
    }
}

fn at(entry: DumpEntry, reason: impl Into<RestoreReason>) -> RestoreError {
    RestoreError { entry, reason: reason.into() }
}

/// A cluster that was restored, or is being restored, from a dump.
pub(crate) struct Restored {
    pub(crate) cluster: Cluster,
    /// By number in the dump.
    claims: Vec<ClaimId>,
    /// By number in the dump.
    groups: Vec<GroupId>,
}

impl Restored {
    fn fill(&mut self, groups: Vec<DumpedGroup>, claims: Vec<DumpedClaim>) -> Result<(), RestoreError> {
        let mut stale = Vec::new();
        let mut groups = groups.into_iter().enumerate().peekable();
        for (number, dumped) in claims.iter().enumerate() {
            while let Some((group, dumped)) = groups.next_if(|(_, group)| group.after_claims <= number) {
                stale.push(dumped.stale_since_ms);
                self.add_group(group, dumped)?;
            }
            self.add_claim(number, dumped)?;
        }
        for (group, dumped) in groups {
            stale.push(dumped.stale_since_ms);
            self.add_group(group, dumped)?;
        }
        for (number, dumped) in claims.into_iter().enumerate() {
            self.relate_claim(number, dumped)?;
        }
        self.check_waits()?;
        for (number, stale_since_ms) in stale.into_iter().enumerate() {
            self.set_stale(number, stale_since_ms)?;
        }
        Ok(())
    }

    /// The node with a number.
    pub(crate) fn node(&self, entry: DumpEntry, number: usize) -> Result<NodeId, RestoreError> {
        let id = u32::try_from(number).ok().map(NodeId).filter(|id| self.cluster.node(*id).is_some());
        id.ok_or_else(|| at(entry, RestoreReason::NoSuchEntry(DumpEntry::Node(number))))
    }

    /// The group that an entry refers to.
    pub(crate) fn group(&self, entry: DumpEntry, group: DumpedGroupRef) -> Result<GroupId, RestoreError> {
        let (id, referred) = match group {
            DumpedGroupRef::Declared(number) => (self.groups.get(number).copied(), DumpEntry::Group(number)),
            DumpedGroupRef::Claim(number) => {
                (self.claims.get(number).and_then(|id| self.cluster.group_of(*id)), DumpEntry::Claim(number))
            }
        };
        id.ok_or_else(|| at(entry, RestoreReason::NoSuchEntry(referred)))
    }

    fn add_group(&mut self, number: usize, dumped: DumpedGroup) -> Result<(), RestoreError> {
        let entry = DumpEntry::Group(number);
        self.cluster.in_the_past(entry, "when it was added", dumped.added_ms)?;
        let id = self.cluster.add_group(dumped.spec).map_err(|reason| at(entry, reason))?;
        if let Some(group) = self.cluster.groups.get_mut(id) {
            group.set_added(dumped.added_ms);
        }
        self.groups.push(id);
        Ok(())
    }

    /// Adds a claim and places it where it runs.
    fn add_claim(&mut self, number: usize, dumped: &DumpedClaim) -> Result<(), RestoreError> {
        let entry = DumpEntry::Claim(number);
        let failed = |reason: EventError| at(entry, reason);
        self.cluster.in_the_past(entry, "when it was added", dumped.added_ms)?;
        if dumped.withdrawn && dumped.place.is_some() {
            return Err(at(entry, RestoreReason::WithdrawnAndPlaced));
        }
        let id = self.cluster.add_claim(Claim::clone(&dumped.claim)).map_err(failed)?;
        self.claims.push(id);
        let group = self.cluster.group_of(id).and_then(|group| self.cluster.groups.get_mut(group));
        if let Some(group) = group.filter(|group| !group.is_declared()) {
            group.set_added(dumped.added_ms);
        }
        let Some(place) = &dumped.place else { return Ok(()) };
        let allocation = self.allocation(entry, &dumped.claim.request, place)?;
        let node = allocation.node;
        let placed = match place.over_committed {
            true => self.cluster.place_beyond(id, allocation),
            false => self.cluster.place(id, allocation),
        };
        placed.map_err(|error| match error {
            EventError::NotEnough { reason, .. } => {
                let node = self.cluster.node(node).map_or("", |node| &node.spec().name).to_owned();
                at(entry, RestoreReason::NotEnough { node, reason })
            }
            error => failed(error),
        })
    }

    fn allocation(&self, entry: DumpEntry, request: &Request, place: &DumpedPlace) -> Result<Allocation, RestoreError> {
        let id = self.node(entry, place.node)?;
        let devices = self.cluster.node(id).map_or(&[][..], |node| node.devices());
        let part = |device: u16| DeviceAllocation { device, core: DeviceCore::ZERO, memory: Bytes::ZERO };
        let parts = place.devices.iter().copied().map(part).collect();
        let mut allocation = Allocation { node: id, devices: parts, alternative: place.alternative };
        let wanted: Vec<DeviceRequest> = request.parts_of(&allocation).collect();
        let choices = request.choice_count();
        let reason = if place.alternative >= choices {
            Some(NotEnough::NoSuchChoice { alternative: place.alternative, choices })
        } else if place.devices.len() != wanted.len() {
            let (wanted, allocated) = (u16::try_from(wanted.len()).unwrap_or(u16::MAX), place.devices.len());
            Some(NotEnough::DeviceCount { wanted, allocated })
        } else {
            None
        };
        if let Some(reason) = reason {
            let node = self.cluster.node(id).map_or("", |node| &node.spec().name).to_owned();
            return Err(at(entry, RestoreReason::NotEnough { node, reason }));
        }
        for (part, wanted) in allocation.devices.iter_mut().zip(wanted) {
            let memory = devices.get(usize::from(part.device)).map(|device| device.memory()).unwrap_or_default();
            (part.core, part.memory) = (wanted.core, wanted.memory.on(memory));
        }
        Ok(allocation)
    }

    /// Restores a claim's times, and its relations to other claims.
    fn relate_claim(&mut self, number: usize, dumped: DumpedClaim) -> Result<(), RestoreError> {
        let entry = DumpEntry::Claim(number);
        let Some(id) = self.claims.get(number).copied() else { return Ok(()) };
        if let Some(started_ms) = dumped.started_ms {
            self.cluster.in_the_past(entry, "when it started", started_ms)?;
        }
        if let Some(ran_since_ms) = dumped.last_eviction.and_then(|eviction| eviction.ran_since_ms) {
            self.cluster.in_the_past(entry, "since when it ran before its last eviction", ran_since_ms)?;
        }
        let unplaced = match (&dumped.place, dumped.started_ms, dumped.starts_after.is_empty()) {
            (None, Some(_), _) => Some("a time since when it runs"),
            (None, _, false) => Some("claims that it starts after"),
            _ => None,
        };
        if let Some(what) = unplaced {
            return Err(at(entry, RestoreReason::NotPlaced(what)));
        }
        let leaving = match &dumped.leaving {
            Some(place) => Some(self.allocation(entry, &dumped.claim.request, place)?),
            None => None,
        };
        let displaced = match dumped.displaced {
            Some(displaced) => Some(Box::new(self.displacement(entry, displaced)?)),
            None => None,
        };
        let mut starts_after = Vec::with_capacity(dumped.starts_after.len());
        for other in dumped.starts_after {
            let missing = || at(entry, RestoreReason::NoSuchEntry(DumpEntry::Claim(other)));
            starts_after.push(*self.claims.get(other).ok_or_else(missing)?);
        }
        if let Some(leaving) = &leaving {
            self.cluster.leaving.entry(leaving.node).or_default().insert(id);
        }
        self.cluster.wait_for(id, starts_after);
        if let Some(state) = self.cluster.claims.get_mut(id) {
            state.started_ms = dumped.started_ms;
            state.leaving = leaving.map(Box::new);
            state.displaced = displaced;
            state.last_eviction = dumped.last_eviction.map(Box::new);
            (state.failures, state.retry_at_ms) = (dumped.failures, dumped.retry_at_ms);
            let group = state.group;
            self.cluster.note_single(group);
        }
        if dumped.withdrawn {
            self.cluster.note_withdrawn(id);
        }
        Ok(())
    }

    /// A claim may only wait for claims that are leaving: for others it would wait for ever, as no event would end the
    /// wait.
    fn check_waits(&self) -> Result<(), RestoreError> {
        for (number, id) in self.claims.iter().enumerate() {
            for other in self.cluster.starts_after(*id) {
                if self.cluster.leaving(*other).is_none() {
                    let name = self.cluster.claim(*other).map(|claim| claim.name.to_string()).unwrap_or_default();
                    return Err(at(DumpEntry::Claim(number), RestoreReason::NotLeaving(name)));
                }
            }
        }
        Ok(())
    }

    fn displacement(&self, entry: DumpEntry, dumped: DumpedDisplacement) -> Result<Displacement, RestoreError> {
        let by = dumped.by.map(|by| self.group(entry, by)).transpose()?;
        Ok(Displacement {
            action: dumped.action,
            by,
            by_name: dumped.by_name,
            at_ms: dumped.at_ms,
            shares: dumped.shares,
        })
    }

    fn set_stale(&mut self, number: usize, stale_since_ms: Option<u64>) -> Result<(), RestoreError> {
        let entry = DumpEntry::Group(number);
        self.cluster.in_the_past(entry, "since when it is stale", stale_since_ms.unwrap_or(0))?;
        let now_ms = self.cluster.now_ms;
        if let Some(group) = self.groups.get(number).and_then(|id| self.cluster.groups.get_mut(*id)) {
            group.note_staleness(stale_since_ms.unwrap_or(now_ms));
        }
        Ok(())
    }
}
