//! Claims that ask for other amounts while they wait or run.

use std::sync::Arc;

use super::Cluster;
use crate::state::cluster::limits;
use crate::state::resources::Charge;
use crate::vocabulary::claim::{Allocation, ClaimId, DeviceAllocation, NodeId};
use crate::vocabulary::counted;
use crate::vocabulary::event::EventError;
use crate::vocabulary::known_node::KnownDevice;
use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::DeviceSpec;

impl Cluster {
    pub(super) fn resize(&mut self, id: ClaimId, request: Request) -> Result<(), EventError> {
        let state = self.claim_state(id)?;
        let request = &self.bounded(&state.claim.namespace, request)?;
        request.validate()?;
        if state.is_withdrawn {
            return Err(EventError::Withdrawn(id));
        }
        // A claim between two places is not resized: other claims count on what it leaves, or it counts on what others
        // leave.
        if state.leaving.is_some() || (state.allocation.is_some() && state.started_ms.is_none()) {
            return Err(EventError::Moving(id));
        }
        let Some(before) = state.allocation.clone() else { return self.exchange_request(id, request).map(|_| ()) };
        let held = self.charge(id).unwrap_or_default();
        let after = self.resized(&before, request)?;
        self.evict(id)?;
        let old = self.exchange_request(id, request)?;
        // On a node that holds more than it has, a smaller request helps, so it is accepted even without enough room.
        // It is not smaller if it takes more of one device and less of another.
        let is_less = |(after, before): (&DeviceAllocation, &DeviceAllocation)| {
            after.core <= before.core && after.memory <= before.memory
        };
        let shrinks = counted::is_enough(&old.counted, &request.counted)
            && after.devices.iter().zip(&before.devices).all(is_less)
            && self.charge_at(id, &after).is_some_and(|charge| charge.beyond(&held).parts().next().is_none());
        let placed = if shrinks { self.place_beyond(id, after) } else { self.place(id, after) };
        let is_placed = placed.is_ok();
        let Err(error) = placed.and_then(|()| self.may_grow(id, &old, &held)) else { return Ok(()) };
        if is_placed {
            self.evict(id)?;
        }
        self.exchange_request(id, &old)?;
        self.place_beyond(id, before)?;
        Err(error)
    }

    /// The allocation that a claim has with another request.
    pub(super) fn resized(&self, allocation: &Allocation, request: &Request) -> Result<Allocation, EventError> {
        let node = self.node(allocation.node).ok_or(EventError::NoSuchNode(allocation.node))?;
        let mut resized = allocation.clone();
        // If the numbers of devices differ, the node refuses the allocation later.
        for (part, wanted) in resized.devices.iter_mut().zip(request.parts_of(allocation)) {
            let memory = node.devices().get(usize::from(part.device)).map_or(part.memory, |device| device.memory());
            (part.core, part.memory) = (wanted.core, wanted.memory.on(memory));
        }
        Ok(resized)
    }

    /// Whether a running claim may have what it holds now beyond what it held before. Without this check a claim could
    /// exceed a quota by growing, or two containers could hold what one of them is still leaving.
    fn may_grow(&self, id: ClaimId, old: &Request, before: &Charge) -> Result<(), EventError> {
        let more = self.charge(id).unwrap_or_default().beyond(before);
        let state = self.claim_state(id)?;
        let grows = more.parts().next().is_some() || !counted::is_enough(&old.counted, &state.claim.request.counted);
        let group = state.group;
        let group = self.group(group).ok_or(EventError::NoSuchGroup(group))?;
        if let Err(exceeded) = limits::check(self, group.queue(), &more, group.spec().preemptible, true) {
            return Err(self.exceeded(&exceeded));
        }
        match state.allocation.as_ref().map(|allocation| allocation.node) {
            Some(node) if grows && self.is_overfull(node) => Err(EventError::StillHeld { node }),
            _ => Ok(()),
        }
    }

    /// Whether a node has less than its placed claims (started or not) and the claims that are still leaving it hold
    /// together.
    fn is_overfull(&self, id: NodeId) -> bool {
        let Some(node) = self.node(id) else { return false };
        let leaving = self.leaving.get(&id).into_iter().flatten();
        let leaving = leaving
            .filter_map(|claim| self.claims.get(*claim))
            .filter_map(|state| Some((&*state.claim.request, state.leaving.as_deref()?)));
        let placed = node.claims().filter_map(|claim| self.claims.get(claim));
        let placed = placed.filter_map(|state| Some((&*state.claim.request, state.allocation.as_ref()?)));
        let there: Vec<(&Request, &Allocation)> = leaving.chain(placed).collect();
        let cpu: MilliCpu = there.iter().map(|(request, _)| request.cpu).sum();
        let memory: Bytes = there.iter().map(|(request, _)| request.memory).sum();
        let counted = counted::sum(there.iter().map(|(request, _)| &request.counted));
        let parts = |device: usize| {
            there.iter().flat_map(|(_, at)| &at.devices).filter(move |part| usize::from(part.device) == device)
        };
        let device_is = |(device, spec): (usize, &KnownDevice)| {
            let core: u64 = parts(device).map(|part| u64::from(part.core.get())).sum();
            let memory: Bytes = parts(device).map(|part| part.memory).sum();
            core > u64::from(DeviceSpec::CORE.get()) || memory > spec.memory
        };
        let spec = node.spec();
        cpu > spec.cpu
            || memory > spec.memory
            || !counted::is_enough(&spec.counted, &counted)
            || spec.devices.iter().enumerate().any(device_is)
    }

    /// Gives a claim another request and returns the old one.
    pub(super) fn exchange_request(&mut self, id: ClaimId, request: &Request) -> Result<Arc<Request>, EventError> {
        self.book_requested(id, false);
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let (class, request) = self.classes.join(request, &self.resources);
        let (old_class, old) = (state.claim.class, Arc::clone(&state.claim.request));
        self.templates.change_request(&mut state.claim, class, request);
        self.classes.leave(old_class);
        let group = state.group;
        self.note_single(group);
        self.book_requested(id, true);
        Ok(old)
    }
}
