//! Claims that come, are placed and go, and their entries in the books.

use super::leaving::Freed;
use super::{ClaimState, Cluster, RETRY_MAX_MS, RETRY_MS};
use crate::state::group::SingleSort;
use crate::state::node::Node;
use crate::state::queue::Book;
use crate::state::resources::Charge;
use crate::vocabulary::claim::{Allocation, Claim, ClaimId};
use crate::vocabulary::event::{EventError, Outcome};
use crate::vocabulary::not_enough::NotEnough;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::request::Request;

/// The group of a claim that is added.
pub(super) enum GroupFor {
    /// The group that it names, and the number of its sub-group there.
    Declared(GroupId, u32),
    /// One that is made for it alone, in this queue.
    Single(QueueId),
}

impl Cluster {
    pub(super) fn add_claim(&mut self, claim: Claim) -> Result<ClaimId, EventError> {
        claim.request.validate()?;
        let (group, sub_group) = match self.group_for(&claim)? {
            GroupFor::Declared(group, sub_group) => (group, sub_group),
            GroupFor::Single(queue) => {
                let Claim { priority, preemptible, min_runtime_ms, .. } = claim;
                let sort = SingleSort { priority, preemptible, min_runtime_ms };
                (self.groups.add_single(sort, queue, self.now_ms), 0)
            }
        };
        let (class, request) = self.classes.join(&claim.request, &self.resources);
        let claim = self.templates.join(claim, class, request);
        let id = self.claims.insert(ClaimState {
            claim,
            group,
            allocation: None,
            started_ms: None,
            leaving: None,
            displaced: None,
            last_eviction: None,
            is_withdrawn: false,
            failures: 0,
            retry_at_ms: 0,
        });
        self.change_group(group, |group| group.join(id, sub_group));
        self.book_requested(id, true);
        Ok(id)
    }

    /// The group that a claim joins when it is added.
    pub(super) fn group_for(&self, claim: &Claim) -> Result<GroupFor, EventError> {
        let Some(name) = &claim.pod_group else {
            return Ok(GroupFor::Single(self.queue_for(&claim.queue, &claim.namespace)?));
        };
        let unknown = || EventError::UnknownGroup { namespace: claim.namespace.clone(), name: name.clone() };
        let id = self.groups.named(&claim.namespace, name).ok_or_else(unknown)?;
        let sub_group = self.groups.get(id).and_then(|group| group.sub_group(claim.sub_group.as_deref()));
        let unknown = || EventError::UnknownSubGroup {
            group: name.clone(),
            sub_group: claim.sub_group.clone().unwrap_or_default(),
        };
        Ok(GroupFor::Declared(id, sub_group.ok_or_else(unknown)?))
    }

    /// Removes a claim. Claims that waited for it to be gone may start.
    pub(super) fn remove_claim(&mut self, id: ClaimId) -> Result<Outcome, EventError> {
        let state = self.claim_state(id)?;
        let is_placed = state.allocation.is_some();
        if is_placed && state.started_ms.is_some() {
            let device_core = state.allocation.as_ref().map_or(0, Allocation::device_core);
            self.turnover.note_end(device_core);
        }
        let mut displaced = if is_placed { self.stop(id)? } else { Vec::new() };
        displaced.retain(|claim| *claim != id);
        let mut freed = if self.claim_state(id)?.leaving.is_some() { self.gone(id)? } else { Freed::default() };
        freed.displaced.extend(displaced);
        self.book_requested(id, false);
        let state = self.claims.remove(id).ok_or(EventError::NoSuchClaim(id))?;
        self.classes.leave(state.claim.class);
        self.templates.leave(&state.claim);
        self.change_group(state.group, |group| group.leave(id));
        self.forget_single_group(state.group);
        Ok(freed.into())
    }

    /// Notes that a claim runs at this place. Returns what follows because it has left its old place.
    pub(super) fn start(&mut self, id: ClaimId, allocation: Allocation) -> Result<Freed, EventError> {
        self.place(id, allocation)?;
        self.note_started(id)
    }

    /// Notes that a claim runs where it is placed. Returns what follows because it has left its old place.
    pub(super) fn note_started(&mut self, id: ClaimId) -> Result<Freed, EventError> {
        // A claim that runs at its new place has left the old one.
        let freed = if self.claim_state(id)?.leaving.is_some() { self.gone(id)? } else { Freed::default() };
        let now_ms = self.now_ms;
        if let Some(state) = self.claims.get_mut(id) {
            state.started_ms = Some(now_ms);
        }
        let group = self.claim_state(id)?.group;
        self.note_staleness(group);
        Ok(freed)
    }

    /// Notes since when a claim runs.
    pub(super) fn runs_since(&mut self, id: ClaimId, since_ms: u64) -> Result<(), EventError> {
        let now_ms = self.now_ms;
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let started_ms = state.started_ms.as_mut().ok_or(EventError::NotPlaced(id))?;
        *started_ms = since_ms.min(now_ms);
        Ok(())
    }

    /// Notes that a claim is no longer where it was placed. Returns the claims that are pending again.
    pub(super) fn stop(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        if self.claim_state(id)?.allocation.is_none() {
            return Err(EventError::NotPlaced(id));
        }
        self.lose(vec![id])
    }

    /// Notes that a claim failed to start where it was placed. Returns the claims that are pending again.
    pub(super) fn fail(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        let now_ms = self.now_ms;
        let ran_ms = self.started_ms(id).map_or(0, |started_ms| now_ms.saturating_sub(started_ms));
        let displaced = self.stop(id)?;
        if let Some(state) = self.claims.get_mut(id) {
            // A claim that has run for long had started well: this failure is not a repetition of earlier ones.
            if ran_ms > RETRY_MAX_MS {
                state.failures = 0;
            }
            let wait_ms = RETRY_MS.checked_shl(state.failures).unwrap_or(RETRY_MAX_MS).clamp(RETRY_MS, RETRY_MAX_MS);
            state.retry_at_ms = now_ms.saturating_add(wait_ms);
            state.failures = state.failures.saturating_add(1).min(32);
            let group = state.group;
            self.note_single(group);
        }
        Ok(displaced)
    }

    /// Enters a claim's place into the books. This does not say that the claim runs there.
    pub(crate) fn place(&mut self, id: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        self.put(id, allocation, Node::take)
    }

    /// Like [`Cluster::place`], but even if there is not enough room.
    pub(crate) fn place_beyond(&mut self, id: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        let node = allocation.node;
        self.put(id, allocation, Node::take_beyond)?;
        if self.node(node).is_some_and(Node::is_over_committed) {
            self.over_committed.insert(node);
        }
        Ok(())
    }

    fn put(
        &mut self,
        id: ClaimId,
        allocation: Allocation,
        take: impl FnOnce(&mut Node, ClaimId, &Request, &Allocation) -> Result<(), NotEnough>,
    ) -> Result<(), EventError> {
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        if state.allocation.is_some() {
            return Err(EventError::Placed(id));
        }
        if state.is_withdrawn {
            return Err(EventError::Withdrawn(id));
        }
        let node = allocation.node;
        let books = self.nodes.get_mut(node.index()).and_then(Option::as_mut).ok_or(EventError::NoSuchNode(node))?;
        let taken = take(books, id, &state.claim.request, &allocation);
        taken.map_err(|reason| EventError::NotEnough { node, reason })?;
        self.turnover.place(allocation.device_core());
        state.allocation = Some(allocation);
        if let Some(peers) = &state.claim.request.peers {
            self.peers.note(node, peers, true);
        }
        self.note(node, false);
        self.book_placed(id, true);
        Ok(())
    }

    /// Takes a claim out of the books of its place, and returns that place.
    pub(crate) fn evict(&mut self, id: ClaimId) -> Result<Allocation, EventError> {
        if self.claim_state(id)?.allocation.is_none() {
            return Err(EventError::NotPlaced(id));
        }
        self.book_placed(id, false);
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let allocation = state.allocation.take().ok_or(EventError::NotPlaced(id))?;
        self.turnover.displace(allocation.device_core());
        let node = allocation.node;
        if let Some(peers) = &state.claim.request.peers {
            self.peers.note(node, peers, false);
        }
        if let Some(books) = self.nodes.get_mut(node.index()).and_then(Option::as_mut) {
            books.give_back(id, &state.claim.request, &allocation);
            if !books.is_over_committed() {
                self.over_committed.remove(&node);
            }
        }
        self.note(node, false);
        Ok(allocation)
    }

    /// The exact charge of a placed claim.
    pub(crate) fn charge(&self, id: ClaimId) -> Option<Charge> {
        let state = self.claims.get(id)?;
        let allocation = state.allocation.as_ref()?;
        Some(Charge::of(&state.claim.request, allocation, self.node(allocation.node)?))
    }

    /// The exact charge that a claim would have on `allocation`.
    pub(crate) fn charge_at(&self, id: ClaimId, allocation: &Allocation) -> Option<Charge> {
        Some(Charge::of(&self.claims.get(id)?.claim.request, allocation, self.node(allocation.node)?))
    }

    /// Enters a placed claim into its queue's, its group's and its budget's books, or takes it out.
    pub(super) fn book_placed(&mut self, id: ClaimId, placed: bool) {
        let Some(charge) = self.charge(id) else { return };
        let Some(state) = self.claims.get(id) else { return };
        let group = state.group;
        if let Some(budget) = &state.claim.disruption_budget {
            self.budgets.note(&state.claim.namespace, budget, id, placed);
        }
        let Some(of) = self.groups.get(group) else { return };
        let book = if of.spec().preemptible { Book::Preemptible } else { Book::NonPreemptible };
        match placed {
            true => self.queues.charge(of.queue(), book, &charge, self.now_ms),
            false => self.queues.refund(of.queue(), book, &charge, self.now_ms),
        }
        self.change_group(group, |group| group.set_placed(id, placed));
    }

    /// Changes which disruption budget protects a claim, whether the claim is placed or not.
    pub(super) fn change_budget(&mut self, id: ClaimId, budget: Option<String>) -> Result<(), EventError> {
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let before = state.claim.disruption_budget.clone();
        if state.allocation.is_some() {
            let namespace = state.claim.namespace.as_str();
            before.iter().for_each(|name| self.budgets.note(namespace, name, id, false));
            budget.iter().for_each(|name| self.budgets.note(namespace, name, id, true));
        }
        self.templates.change_budget(&mut state.claim, budget);
        Ok(())
    }

    /// Enters what a claim asks for into its queue's books, or takes it out.
    pub(super) fn book_requested(&mut self, id: ClaimId, asks: bool) {
        let Some(state) = self.claims.get(id).filter(|state| !state.is_withdrawn) else { return };
        let Some(class) = self.classes.get(state.claim.class) else { return };
        let charge = class.most_charge();
        let Some(group) = self.groups.get(state.group) else { return };
        let book = if group.spec().preemptible { Book::Requested } else { Book::RequestedNonPreemptible };
        match asks {
            true => self.queues.charge(group.queue(), book, charge, self.now_ms),
            false => self.queues.refund(group.queue(), book, charge, self.now_ms),
        }
    }

    /// Counts anew what claims are charged and what queues ask for, after the sizes of devices, and so of their parts,
    /// have changed.
    pub(super) fn recount_requested(&mut self) {
        self.classes.charge_anew(&self.resources);
        self.queues.clear_requested();
        let claims: Vec<ClaimId> = self.claims.iter().map(|(id, _)| id).collect();
        claims.into_iter().for_each(|id| self.book_requested(id, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::resources::DEVICE_MEMORY;
    use crate::vocabulary::device_request::{DeviceMemory, DeviceRequest};
    use crate::vocabulary::event::Event;
    use crate::vocabulary::quantity::Bytes;
    use crate::vocabulary::queue_spec::QueueSpec;
    use crate::vocabulary::spec::{DeviceSpec, NodeSpec};

    fn node(name: &str, device_bytes: u64) -> NodeSpec {
        let memory = Bytes::new(device_bytes);
        let device = DeviceSpec { uuid: format!("{name}-0"), model: "A".into(), memory, ..DeviceSpec::default() };
        NodeSpec { name: name.into(), devices: vec![device], ..NodeSpec::default() }
    }

    #[test]
    fn charges_follow_the_sizes_of_devices() {
        let mut cluster = Cluster::default();
        let devices = DeviceRequest { count: 1, memory: DeviceMemory::Thousandths(500), ..DeviceRequest::default() };
        let request = Request { devices, ..Request::default() };
        cluster.apply(Event::QueueAdded(QueueSpec { name: "q".into(), ..QueueSpec::default() })).unwrap();
        cluster.apply(Event::ClaimAdded(Claim { queue: "q".into(), request, ..Claim::default() })).unwrap();
        cluster.apply(Event::NodeAdded(node("a", 40))).unwrap();
        let Outcome::Node(b) = cluster.apply(Event::NodeAdded(node("b", 80))).unwrap() else { panic!("no node") };
        let least_and_most = |cluster: &Cluster| {
            let (_, class) = cluster.classes().next().unwrap();
            (class.least_charge().get(DEVICE_MEMORY), class.most_charge().get(DEVICE_MEMORY))
        };
        assert_eq!(least_and_most(&cluster), (20, 40));
        for (device_bytes, expected) in [(120, (20, 60)), (20, (10, 20))] {
            cluster.apply(Event::NodeChanged(b, node("b", device_bytes))).unwrap();
            assert_eq!(least_and_most(&cluster), expected);
        }
        cluster.apply(Event::NodeRemoved(b)).unwrap();
        assert_eq!(least_and_most(&cluster), (20, 20));
    }
}
