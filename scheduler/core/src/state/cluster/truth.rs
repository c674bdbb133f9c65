//! Observations, whatever was decided. The books record a claim where it was seen running, even if the node has not
//! enough room. Later cycles correct this.

use std::sync::Arc;

use super::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::{Allocation, ClaimId, NodeId};
use crate::vocabulary::event::{EventError, Outcome};
use crate::vocabulary::known_node::KnownDevice;
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::{DeviceSpec, NodeSpec};

impl Cluster {
    /// Notes that a claim runs that was not known to run.
    pub(super) fn see(&mut self, id: ClaimId, allocation: Allocation) -> Result<Outcome, EventError> {
        let state = self.claim_state(id)?;
        if state.started_ms.is_some() {
            return Err(EventError::Placed(id));
        }
        if state.is_withdrawn {
            return Err(EventError::Withdrawn(id));
        }
        let node = self.node(allocation.node).ok_or(EventError::NoSuchNode(allocation.node))?;
        let fits = node.check_shape(&state.claim.request, &allocation);
        fits.map_err(|reason| EventError::NotEnough { node: allocation.node, reason })?;
        // The claim was to start at another place, or here after other claims are gone.
        let mut displaced = if state.allocation.is_some() { self.lose(vec![id])? } else { Vec::new() };
        displaced.retain(|claim| *claim != id);
        self.place_beyond(id, allocation)?;
        let mut freed = self.note_started(id)?;
        freed.displaced.extend(displaced);
        Ok(freed.into())
    }

    /// Notes that it is unknown whether a running claim still runs. Returns the claims that are pending again.
    pub(super) fn silent(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        let state = self.claim_state(id)?;
        let from = state.allocation.clone().zip(state.started_ms);
        let (from, ran_since_ms) = from.ok_or(EventError::NotRunning(id))?;
        let was_full = self.over_committed.contains(&from.node);
        let displaced = self.fail(id)?;
        self.leave_unplanned(id, from, was_full);
        self.note_eviction(id, ran_since_ms);
        Ok(displaced)
    }

    /// Changes a node's amounts, devices and labels. Returns the claims that are pending again because they cannot
    /// start there any more, or not on their devices.
    pub(super) fn change_node(&mut self, id: NodeId, spec: NodeSpec) -> Result<Vec<ClaimId>, EventError> {
        let node = self.node(id).ok_or(EventError::NoSuchNode(id))?;
        let before = node.spec();
        let differs = |(old, new): (&KnownDevice, &DeviceSpec)| *old.uuid != *new.uuid;
        let kept = before.devices.len().min(spec.devices.len());
        let differing = before.devices.iter().zip(&spec.devices).position(differs);
        let differing = differing.or_else(|| (kept < before.devices.len()).then_some(kept));
        if let Some(device) = differing {
            let device = u16::try_from(device).unwrap_or(u16::MAX);
            return Err(EventError::DevicesDiffer { node: id, device });
        }
        if before.name != spec.name && self.by_name.contains_key(&spec.name) {
            return Err(EventError::NodeExists(spec.name));
        }
        let has_other_labels = before.labels != spec.labels;
        let newly_listed = self.newly_listed(id, &before.foreign, &spec.foreign);
        let there: Vec<(ClaimId, Allocation)> =
            node.claims().filter_map(|claim| Some((claim, self.allocation(claim)?.clone()))).collect();
        for (claim, _) in &there {
            self.evict(*claim)?;
        }
        self.exchange_node(id, spec);
        for (claim, at) in &there {
            let at = self.on_new_amounts(*claim, at)?;
            self.place_beyond(*claim, at)?;
        }
        for claim in self.leaving.get(&id).cloned().unwrap_or_default() {
            let Some(from) = self.leaving(claim).cloned() else { continue };
            let from = self.on_new_amounts(claim, &from)?;
            if let Some(state) = self.claims.get_mut(claim) {
                state.leaving = Some(Box::new(from));
            }
        }
        let is_healthy = |device: u16| {
            self.node(id).and_then(|node| node.devices().get(usize::from(device))).is_some_and(|of| of.is_healthy())
        };
        let not_admitted = self.no_longer_admitted(id);
        let lost = there.into_iter().filter(|(claim, at)| {
            let has_devices = at.devices.iter().all(|part| is_healthy(part.device));
            self.started_ms(*claim).is_none() && (!has_devices || not_admitted.contains(claim))
        });
        let lost = lost.map(|(claim, _)| claim).collect();
        let mut displaced = self.lose(lost)?;
        displaced.extend(self.lose_what_is_avoided_by(&newly_listed, id)?);
        if has_other_labels {
            displaced.extend(self.lose_what_is_kept_apart()?);
        }
        Ok(displaced)
    }

    fn exchange_node(&mut self, id: NodeId, spec: NodeSpec) {
        let name = spec.name.clone();
        let (spec, mut news) = self.join_node(id, spec);
        let old = self.nodes.get_mut(id.index()).and_then(|slot| slot.replace(Node::new(spec)));
        if let Some(old) = old {
            news |= self.leave_node(id, old.spec());
            if old.spec().name != name {
                let by_name = Arc::make_mut(&mut self.by_name);
                by_name.remove(&old.spec().name);
                by_name.insert(name, id);
            }
        }
        if news {
            self.recount_requested();
        }
        self.note_spec(id);
    }

    /// What a claim holds of its devices, after the memory of these devices may have changed.
    fn on_new_amounts(&self, id: ClaimId, at: &Allocation) -> Result<Allocation, EventError> {
        let request: &Request = &self.claim_state(id)?.claim.request;
        self.resized(at, request)
    }
}
