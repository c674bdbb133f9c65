//! A start: builds the books from what was saved and what was told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    ALONE_MAX_MS, Claim, ClaimId, Cluster, Dump, DumpEntry, DumpedBlocked, DumpedBounded, DumpedClaim,
    DumpedDisplacement, DumpedGroup, DumpedGroupRef, DumpedPatience, DumpedPlace, DumpedSearch, DumpedUsage, Event,
    EventError, LastEviction, LimitRange, NamespaceSpec, NodeSpec, RETRY_MAX_MS, Request, RestoreError, Scheduler,
};

use super::collected::Collected;
use super::holdings::{arranged, as_given, choice_of, is_what_is_asked_for, known, request_of};
use super::reports::running_instance;
use super::{Decisions, Engine, Timer, Unsaved};
use crate::entries::{Entry, EntryId, Instance, NodeState, Resize};
use crate::names::{ClaimUid, NodeName};
use crate::observation::Observation;
use crate::store::{
    BoundRecord, ClaimKey, ClaimRecord, InstanceRecord, Memory, NodeRecord, Owner, Phase, ResizeRecord,
};

/// A claim that is about to enter the books.
struct Restored {
    key: ClaimKey,
    claim: Arc<Claim>,
    record: ClaimRecord,
    /// What the claim asks for now, if it was being resized.
    resized_to: Option<Request>,
}

/// The numbers of claims and pod groups in the dump from which the books are made.
#[derive(Default)]
struct Numbers {
    nodes: BTreeMap<NodeName, usize>,
    claims: BTreeMap<ClaimUid, usize>,
    groups: BTreeMap<(String, String), usize>,
}

impl Engine {
    /// Begins to decide, when all is told.
    pub(super) fn begin(&mut self) -> Result<(), EventError> {
        let Some(collected) = self.collected.take() else { return Ok(()) };
        let mut copy = (*collected).clone();
        let configuration = copy.take_configuration();
        let Collected { decisions, mut saved, claims, reports, gone, .. } = copy;
        for node in &gone {
            saved.nodes.retain(|(name, _)| name != node);
            self.unsaved.removed_nodes.push(node.clone());
        }
        let nodes: BTreeMap<NodeName, NodeRecord> = saved.nodes.into_iter().collect();
        let mut empty = Cluster::with_usage_half_life(decisions.usage_half_life_ms);
        let advanced = empty.apply(Event::TimeAdvanced(self.now_ms));
        debug_assert!(advanced.is_ok(), "{advanced:?}");
        self.cluster = empty;
        for record in nodes.values() {
            self.apply_sure(Event::NodeAdded(NodeSpec { cordoned: true, ..record.spec.clone() }));
        }
        let configured = self.configure(configuration);
        let records = saved.claims.into_iter().collect();
        let (mut entering, parked) = self.sort_out(claims, records, &nodes);
        let unbooked = match self.make_books(decisions, &nodes, &mut entering, &saved.memory) {
            Ok(unbooked) => unbooked,
            Err(error) => {
                // Without these books the engine would start running instances a second time.
                (self.collected, self.unsaved) = (Some(collected), Unsaved::default());
                return Err(EventError::NotRestored(error.to_string()));
            }
        };
        self.make_nodes(nodes);
        self.make_entries(entering);
        self.stop_unbooked(unbooked);
        for Restored { key, claim, record, .. } in parked {
            let id = self.entries.insert(Entry::new(key, record.added_ms));
            self.unsaved.entries.insert(id);
            // The books say why they do not take it.
            let _ = self.enter(id, Arc::unwrap_or_clone(claim));
        }
        self.changed();
        self.issue_commands();
        let mut reported = Ok(());
        for (_, report) in reports {
            let done = self.node_reported(report);
            self.issue_commands();
            reported = reported.and(done);
        }
        self.leave_what_is_saved(&collected.saved.claims);
        configured.and(reported)
    }

    /// Records that are still as they were read need not be saved again: after most starts that is nearly all of them.
    fn leave_what_is_saved(&mut self, read: &[(ClaimKey, ClaimRecord)]) {
        let removed: BTreeSet<&ClaimKey> = self.unsaved.removed.iter().collect();
        for (key, record) in read.iter().filter(|(key, _)| key.stray.is_none() && !removed.contains(key)) {
            let id = self.entries.of_uid(&key.uid);
            let is_same = |id: &EntryId| self.entries.get(*id).is_some_and(|entry| self.record_of(entry) == *record);
            if let Some(id) = id.filter(is_same) {
                self.unsaved.entries.remove(&id);
            }
        }
    }

    /// Applies the observations of administrators, in any order that works.
    fn configure(&mut self, mut left: Vec<Observation>) -> Result<(), EventError> {
        loop {
            let before = left.len();
            let mut refused = Vec::new();
            for observation in left {
                let Some(event) = self.event_of(observation.clone()) else { continue };
                if let Err(why) = self.apply(event) {
                    refused.push((observation, why));
                }
            }
            let Some((_, first)) = refused.first() else { return Ok(()) };
            if refused.len() == before {
                let first = first.clone();
                for (observation, why) in refused {
                    if let Observation::Group(spec) = observation {
                        self.note_refused_group(spec, why);
                    }
                }
                return Err(first);
            }
            left = refused.into_iter().map(|(observation, _)| observation).collect();
        }
    }

    /// The claims that enter the books, in the order in which they came, and those that wait until the books take them.
    fn sort_out(
        &mut self,
        claims: BTreeMap<ClaimUid, (usize, Arc<Claim>)>,
        mut records: BTreeMap<ClaimKey, ClaimRecord>,
        nodes: &BTreeMap<NodeName, NodeRecord>,
    ) -> (Vec<Restored>, Vec<Restored>) {
        let now_ms = self.now_ms;
        let mut wanted: Vec<((u64, bool, usize), Restored)> = Vec::with_capacity(claims.len());
        let mut strays = Vec::new();
        for (uid, (number, claim)) in claims {
            let key = ClaimKey { uid, stray: None };
            let new = || ClaimRecord { added_ms: now_ms, ..ClaimRecord::default() };
            let mut record = records.remove(&key).unwrap_or_else(new);
            record.added_ms = record.added_ms.min(now_ms);
            if let Some(ended) = record.instance.take_if(|_| record.is_ended) {
                strays.push((key.uid.clone(), ended));
            }
            record.is_ended = false;
            // Of claims that came in the same moment, those that run came first: otherwise one could evict the other.
            let came = (record.added_ms, record.instance.is_none(), number);
            wanted.push((came, Restored { key, claim, record, resized_to: None }));
        }
        wanted.sort_unstable_by_key(|(came, _)| *came);
        for (key, record) in records {
            strays.extend(record.instance.map(|instance| (key.uid.clone(), instance)));
            self.unsaved.removed.push(key);
        }
        let unbounded = self.without_bounds();
        let (mut entering, mut parked) = (Vec::new(), Vec::new());
        for (_, mut restored) in wanted {
            let resize = restored.record.resize.as_ref().filter(|_| restored.record.instance.is_some());
            let mut runs_as = Arc::clone(&restored.claim);
            if let Some(resize) = resize {
                Arc::make_mut(&mut runs_as).request = resize.held.clone();
                restored.resized_to = Some(restored.claim.request.clone());
            }
            let given = restored.record.instance.as_ref().and_then(|instance| {
                let given = as_given(runs_as, &instance.amounts);
                let spec = &nodes.get(&instance.node)?.spec;
                is_what_is_asked_for(&given.request, &instance.amounts, spec).then_some(given)
            });
            if let Some(other) = restored.record.instance.take_if(|_| given.is_none()) {
                strays.push((restored.key.uid.clone(), other));
            }
            // An instance that runs was admitted before, and keeps the amounts with which it was admitted.
            let admitted = match given {
                Some(given) => unbounded.admitted(given),
                None => self.cluster.admitted(Arc::clone(&restored.claim)),
            };
            match admitted {
                Ok(claim) => {
                    restored.claim = claim;
                    entering.push(restored);
                }
                Err(_) => {
                    // Its instance holds its room until it is stopped.
                    strays
                        .extend(restored.record.instance.clone().map(|instance| (restored.key.uid.clone(), instance)));
                    parked.push(restored);
                }
            }
        }
        for (uid, instance) in strays {
            let Some(node) = nodes.get(&instance.node).filter(|node| !node.has_lapsed) else { continue };
            let instance = InstanceRecord { amounts: known(&instance.amounts, &node.spec), ..instance };
            let claim = Claim { name: uid.to_string(), request: request_of(&instance.amounts), ..Claim::default() };
            let (key, claim) = (ClaimKey { uid, stray: Some(instance.generation) }, Arc::new(claim));
            let record =
                ClaimRecord { added_ms: now_ms, is_ended: true, instance: Some(instance), ..ClaimRecord::default() };
            entering.push(Restored { key, claim, record, resized_to: None });
        }
        (entering, parked)
    }

    /// A copy of the books without claims, in which namespaces have no bounds.
    fn without_bounds(&self) -> Cluster {
        let mut cluster = self.cluster.clone();
        for namespace in self.cluster.dump().namespaces {
            let unbounded = NamespaceSpec { limit_range: LimitRange::default(), ..namespace };
            let changed = cluster.apply(Event::NamespaceChanged(unbounded));
            debug_assert!(changed.is_ok(), "{changed:?}");
        }
        cluster
    }

    /// Makes the books from what administrators and users want, and from what was saved. Answers the instances that the
    /// books reject.
    fn make_books(
        &mut self,
        decisions: Decisions,
        nodes: &BTreeMap<NodeName, NodeRecord>,
        entering: &mut Vec<Restored>,
        memory: &Memory,
    ) -> Result<Vec<(ClaimUid, InstanceRecord)>, RestoreError> {
        let Decisions { policy, settings, .. } = decisions;
        let mut unbooked = Vec::new();
        let mut is_remembered = true;
        loop {
            let mut dump = self.dump_of(nodes, entering, memory);
            if !is_remembered {
                dump.blocked.clear();
                dump.bounded.clear();
                dump.searches.clear();
            }
            let error = match Scheduler::restore(policy.fork(), settings, dump) {
                Ok((scheduler, cluster)) => {
                    (self.scheduler, self.cluster) = (scheduler, cluster);
                    return Ok(unbooked);
                }
                Err(error) => error,
            };
            match error.entry {
                // The memory contradicts the present state, so it is left out. Instances do not depend on it.
                DumpEntry::Blocked(_) | DumpEntry::Bounded(_) | DumpEntry::Search(_) if is_remembered => {
                    is_remembered = false;
                }
                DumpEntry::Claim(number) => unbooked.push(leave_out(entering, number).ok_or(error)?),
                _ => return Err(error),
            }
        }
    }

    fn dump_of(&self, nodes: &BTreeMap<NodeName, NodeRecord>, entering: &[Restored], memory: &Memory) -> Dump {
        let mut dump = self.cluster.dump();
        let mut numbers = Numbers { nodes: nodes.keys().cloned().zip(0..).collect(), ..Numbers::default() };
        for (number, restored) in entering.iter().enumerate() {
            if restored.key.stray.is_none() {
                numbers.claims.insert(restored.key.uid.clone(), number);
            }
        }
        remember_groups(&mut dump, memory, entering);
        for (number, group) in dump.groups.iter().enumerate() {
            numbers.groups.insert((group.spec.namespace.clone(), group.spec.name.clone()), number);
        }
        dump.claims = entering.iter().map(|restored| dumped(restored, nodes, &numbers, dump.now_ms)).collect();
        remember(&mut dump, memory, &numbers);
        dump
    }

    fn make_nodes(&mut self, nodes: BTreeMap<NodeName, NodeRecord>) {
        for (name, record) in nodes {
            let Some(id) = self.cluster.node_named(name.as_str()) else { continue };
            // The last lease may have been given just before the end of the previous run, under other settings.
            let lease = self.settings.lease.filter(|_| !record.has_lapsed);
            let lease_until_ms = lease.map(|lease| {
                self.now_ms.saturating_add(record.lease_ms.max(lease.lease_ms)).saturating_add(lease.margin_ms)
            });
            if let Some(until_ms) = lease_until_ms {
                self.timers.insert((until_ms, Timer::Lapse(id)));
            }
            let state = NodeState {
                name,
                is_cordoned: record.spec.cordoned,
                session: record.session,
                sequence: 0,
                heard_ms: self.now_ms,
                lease_until_ms,
                lease_ms: record.lease_ms,
                is_up: false,
                has_reported: false,
                is_refused: false,
                instances: Arc::default(),
            };
            self.nodes.set(id, Some(state));
        }
    }

    /// Notes the instance of each claim, which runs or may run.
    fn make_entries(&mut self, entering: Vec<Restored>) {
        let mut ids: Vec<ClaimId> = self.cluster.claims().map(|(id, ..)| id).collect();
        ids.sort_unstable();
        for (claim, Restored { key, record, resized_to, .. }) in ids.into_iter().zip(entering) {
            let mut entry = Entry::new(key, record.added_ms);
            (entry.id, entry.is_ended) = (Some(claim), record.is_ended);
            let id = self.entries.insert(entry);
            let there = record.instance.and_then(|instance| {
                let node = self.cluster.node_named(instance.node.as_str())?;
                self.nodes.get(node).map(|_| (node, instance))
            });
            if let Some((node, instance)) = there {
                self.resume(id, claim, node, &instance);
                if let Some((ResizeRecord { from, held }, to)) = record.resize.zip(resized_to) {
                    // The claim may ask for something else now than when the resize began, and the node may have
                    // carried the first resize out.
                    let at = self.cluster.allocation(claim).cloned();
                    let is_same = at.is_some_and(|at| self.larger(&from, &to, &at) == held);
                    let from = if is_same { from } else { held.clone() };
                    let (command, deadline_ms, attempts, is_in_doubt) = (None, None, 1, false);
                    let resize = Resize { from, held, to, command, deadline_ms, attempts, is_in_doubt };
                    self.note_resize(id, Some(resize));
                    self.resume_resize(id);
                }
            }
            self.note_retry(claim);
            self.touched.push_back(claim);
        }
    }

    /// Stops instances that run, or may run, and that the books reject.
    fn stop_unbooked(&mut self, unbooked: Vec<(ClaimUid, InstanceRecord)>) {
        for (uid, instance) in unbooked {
            let Some(node) = self.cluster.node_named(instance.node.as_str()) else { continue };
            let key = ClaimKey { uid, stray: Some(instance.generation) };
            let mut entry = Entry::new(key, self.now_ms);
            entry.is_ended = true;
            let id = self.entries.insert(entry);
            self.note_instance(id, Some(running_instance(node, instance.session, instance.generation)));
            self.stop(id);
        }
    }

    fn resume(&mut self, id: EntryId, claim: ClaimId, node: aliquot_scheduler_core::NodeId, instance: &InstanceRecord) {
        let is_leaving = self.cluster.leaving(claim).is_some();
        let (phase, patience_ms) = match instance.phase {
            Phase::Starting => (Phase::Starting, Some(self.settings.start_deadline_ms)),
            Phase::Stopping if is_leaving => (Phase::Stopping, Some(0)),
            // A stop is sent again.
            Phase::Running | Phase::Stopping => (Phase::Running, None),
        };
        let deadline_ms = patience_ms.map(|patience_ms| self.now_ms.saturating_add(patience_ms));
        let resumed = Instance {
            node,
            session: instance.session,
            generation: instance.generation,
            phase,
            command: instance.generation,
            deadline_ms,
            attempts: 0,
        };
        self.note_instance(id, Some(resumed));
    }
}

/// Takes the instance away from a claim, or removes a stray from the list; `None`: the claim has no instance.
fn leave_out(entering: &mut Vec<Restored>, number: usize) -> Option<(ClaimUid, InstanceRecord)> {
    let restored = entering.get_mut(number)?;
    let unbooked = (restored.key.uid.clone(), restored.record.instance.take()?);
    if restored.key.stray.is_some() {
        entering.remove(number);
    }
    Some(unbooked)
}

/// Gives pod groups the time of arrival that they had before the restart, and so their order among the claims.
fn remember_groups(dump: &mut Dump, memory: &Memory, entering: &[Restored]) {
    let known: BTreeMap<(&str, &str), (u64, Option<u64>)> = memory
        .groups
        .iter()
        .map(|(namespace, name, added_ms, stale_ms)| ((&**namespace, &**name), (*added_ms, *stale_ms)))
        .collect();
    let mut first_members: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (number, Restored { claim, .. }) in entering.iter().enumerate() {
        if let Some(group) = &claim.pod_group {
            first_members.entry((&claim.namespace, group)).or_insert(number);
        }
    }
    let now_ms = dump.now_ms;
    for DumpedGroup { spec, added_ms, stale_since_ms, after_claims } in &mut dump.groups {
        let name = (&*spec.namespace, &*spec.name);
        if let Some((added, stale)) = known.get(&name) {
            (*added_ms, *stale_since_ms) = ((*added).min(now_ms), stale.map(|stale| stale.min(now_ms)));
        }
        *after_claims = entering.partition_point(|of| of.record.added_ms < *added_ms);
        // The group existed before its members.
        if let Some((number, first)) =
            first_members.get(&name).and_then(|number| Some((*number, entering.get(*number)?)))
        {
            (*after_claims, *added_ms) = ((*after_claims).min(number), (*added_ms).min(first.record.added_ms));
        }
    }
    dump.groups.sort_by_key(|group| group.after_claims);
}

fn dumped(restored: &Restored, nodes: &BTreeMap<NodeName, NodeRecord>, numbers: &Numbers, now_ms: u64) -> DumpedClaim {
    let record = &restored.record;
    let instance = record.instance.as_ref();
    let place = instance.and_then(|instance| {
        let spec = &nodes.get(&instance.node)?.spec;
        let parts = arranged(&restored.claim.request, &instance.amounts, spec)?;
        let devices = parts.into_iter().map(|part| part.device).collect();
        let alternative = choice_of(&restored.claim.request, &instance.amounts);
        let node = *numbers.nodes.get(&instance.node)?;
        Some(DumpedPlace { node, devices, alternative, over_committed: true })
    });
    let is_stopping = instance.is_some_and(|instance| instance.phase == Phase::Stopping);
    let is_leaving = is_stopping || record.is_ended;
    let (place, leaving) = if is_leaving { (None, place) } else { (place, None) };
    let evicted = record.evicted.as_ref().map(|evicted| DumpedDisplacement {
        action: evicted.action,
        by: evicted.by.as_ref().and_then(|by| numbers.of(by)),
        by_name: evicted.by_name.clone(),
        at_ms: evicted.at_ms,
        shares: evicted.shares.clone(),
    });
    DumpedClaim {
        claim: Arc::clone(&restored.claim),
        added_ms: record.added_ms,
        started_ms: instance.filter(|_| place.is_some()).map(|instance| instance.started_ms.min(now_ms)),
        place,
        leaving,
        starts_after: Vec::new(),
        // The clock can be earlier than when the record was saved. No wait is longer for that.
        last_eviction: record.last_eviction.filter(|_| instance.is_some()).map(|last| LastEviction {
            left_alone_until_ms: last.left_alone_until_ms.min(now_ms.saturating_add(ALONE_MAX_MS)),
            ran_since_ms: last.ran_since_ms.map(|since_ms| since_ms.min(now_ms)),
            refusals: last.refusals.min(32),
        }),
        withdrawn: record.is_ended,
        displaced: evicted,
        failures: record.failures,
        retry_at_ms: record.retry_at_ms.min(now_ms.saturating_add(RETRY_MAX_MS)),
    }
}

/// Restores the memory that was saved as a whole, as far as its subjects still exist.
fn remember(dump: &mut Dump, memory: &Memory, numbers: &Numbers) {
    let Memory { models, capacity, usage, arrivals, turnover, groups: _, holds, bounds, searches } = memory;
    let now_ms = dump.now_ms;
    if !models.is_empty() {
        dump.models.clone_from(models);
    }
    // Another scheduler's clock may be ahead of this one, or the clock was set back.
    let in_the_past = |usage: &DumpedUsage| DumpedUsage { until_ms: usage.until_ms.min(now_ms), ..usage.clone() };
    dump.capacity = in_the_past(capacity);
    let usage: BTreeMap<&String, _> = usage.iter().map(|(queue, usage)| (queue, usage)).collect();
    for queue in &mut dump.queues {
        if let Some(used) = usage.get(&queue.spec.name) {
            queue.usage = in_the_past(used);
        }
    }
    if arrivals.is_some() {
        dump.arrivals.clone_from(arrivals);
    }
    dump.turnover = *turnover;
    let nodes = |names: &[NodeName]| names.iter().filter_map(|name| numbers.nodes.get(name).copied()).collect();
    // How long nothing has left the kept nodes is counted anew.
    let patience = DumpedPatience::default();
    let holds = holds.iter().filter_map(|(owner, since_ms, names)| {
        let (group, since_ms, patience) = (numbers.of(owner)?, (*since_ms).min(now_ms), patience.clone());
        Some(DumpedBlocked { group, since_ms, nodes: nodes(names), patience })
    });
    dump.blocked = holds.collect();
    for node in dump.blocked.iter().flat_map(|blocked| &blocked.nodes) {
        if let Some(node) = dump.nodes.get_mut(*node) {
            node.held = true;
        }
    }
    let queues: BTreeSet<&String> = dump.queues.iter().map(|queue| &queue.spec.name).collect();
    let bounds = bounds.iter().filter_map(|BoundRecord { owner, since_ms, times, keeping }| {
        let keeping = keeping.clone().and_then(|mut keeping| {
            keeping.queues.retain(|queue| queues.contains(queue));
            keeping.since_ms = keeping.since_ms.min(now_ms);
            (!keeping.queues.is_empty()).then_some(keeping)
        });
        let (group, since_ms) = (numbers.of(owner)?, (*since_ms).min(now_ms));
        Some(DumpedBounded { group, since_ms, times: *times, keeping })
    });
    dump.bounded = bounds.collect();
    let searches = searches.iter().filter_map(|(action, owner, node, times)| {
        let node = node.as_ref().and_then(|node| numbers.nodes.get(node).copied());
        Some(DumpedSearch { action: *action, group: numbers.of(owner)?, node, times: *times })
    });
    dump.searches = searches.collect();
}

impl Numbers {
    fn of(&self, owner: &Owner) -> Option<DumpedGroupRef> {
        match owner {
            Owner::Group(namespace, name) => {
                self.groups.get(&(namespace.clone(), name.clone())).copied().map(DumpedGroupRef::Declared)
            }
            Owner::Claim(uid) => self.claims.get(uid).copied().map(DumpedGroupRef::Claim),
        }
    }
}
