//! Claims that are resized while they run.
//!
//! While a resize is under way, the books hold for each resource the larger of the old and the new amount. So the books
//! are true whether or not the node has carried out the command. When the node has confirmed, they hold the new
//! amounts; when it has refused, the old ones. A command without an answer is repeated. If the node refuses the
//! repetition, it may still have carried out a command before, so the next report decides.

use aliquot_scheduler_core::{Allocation, ClaimId, DeviceMemory, DeviceRequest, Event, EventError, Request};

use super::{Engine, Timer};
use crate::command::{Amounts, Order};
use crate::entries::{Entry, EntryId, Resize};
use crate::store::Phase;

impl Engine {
    /// Begins to resize a running claim, if there is room for the new amounts.
    pub(super) fn begin_resize(&mut self, id: EntryId, claim: ClaimId, to: Request) -> Result<(), EventError> {
        let entry = self.entries.get(id).ok_or(EventError::NoSuchClaim(claim))?;
        let (is_there, runs) = (entry.instance().is_some(), is_running(entry));
        if entry.resize.as_ref().is_some_and(|resize| resize.command.is_some()) {
            return Err(EventError::Moving(claim));
        }
        let from =
            self.cluster.claim(claim).map(|of| Request::clone(&of.request)).ok_or(EventError::NoSuchClaim(claim))?;
        let held = from.clone();
        let resize = Resize { from, held, to, command: None, deadline_ms: None, attempts: 0, is_in_doubt: false };
        if runs {
            return self.try_resize(id, claim, resize);
        }
        if is_there {
            // After a restart the claim asks for the new amounts. Its instance, which has the old ones, must still be
            // recognized as its own.
            self.note_resize(id, Some(resize));
        }
        Err(EventError::Moving(claim))
    }

    /// Replaces the request of a claim that has no instance. A place that was kept for it gives way if it is too small
    /// now, or if the claim waits there for others to leave: the place was chosen for the old request.
    pub(super) fn resize_unstarted(&mut self, claim: ClaimId, to: Request) -> Result<(), EventError> {
        match self.apply(Event::ClaimResized(claim, to.clone())) {
            Ok(_) => return Ok(()),
            Err(why @ (EventError::Request(_) | EventError::Namespace(_))) => return Err(why),
            Err(_) => {}
        }
        if self.cluster.allocation(claim).is_some() {
            self.apply(Event::ClaimEvicted(claim))?;
        }
        if self.cluster.leaving(claim).is_some() {
            self.apply(Event::ClaimGone(claim))?;
        }
        self.apply(Event::ClaimResized(claim, to)).map(|_| ())
    }

    /// Books what a resize needs, and tells the node. If there is no room, the claim keeps what it has, even after a
    /// restart that asks for the same again.
    fn try_resize(&mut self, id: EntryId, claim: ClaimId, resize: Resize) -> Result<(), EventError> {
        match self.hold_larger(claim, &resize.from, &resize.to) {
            Ok((held, to)) => {
                self.note_resize(id, Some(Resize { held, to, ..resize }));
                self.command_resize(id);
                Ok(())
            }
            Err(why) => {
                self.note_resize(id, Some(Resize { command: None, deadline_ms: None, ..resize }));
                Err(why)
            }
        }
    }

    /// Books the larger of both requests for a running claim. Answers that larger request, and the new request as the
    /// namespace admits it.
    fn hold_larger(&mut self, claim: ClaimId, from: &Request, to: &Request) -> Result<(Request, Request), EventError> {
        let at = self.cluster.allocation(claim).cloned().ok_or(EventError::NotPlaced(claim))?;
        let mut trial = self.cluster.clone();
        trial.apply(Event::ClaimResized(claim, to.clone()))?;
        let to = trial.claim(claim).map_or_else(|| to.clone(), |of| Request::clone(&of.request));
        let held = self.larger(from, &to, &at);
        self.apply(Event::ClaimResized(claim, held.clone()))?;
        Ok((held, to))
    }

    /// For each resource the larger of both amounts, on the devices that the claim has.
    pub(super) fn larger(&self, from: &Request, to: &Request, at: &Allocation) -> Request {
        let mut held = to.clone();
        held.cpu = from.cpu.max(to.cpu);
        held.memory = from.memory.max(to.memory);
        for (name, from) in &from.counted {
            let held = held.counted.entry(name.clone()).or_default();
            *held = (*held).max(*from);
        }
        let larger = |from: &DeviceRequest, to: &DeviceRequest| {
            let memory = match (from.memory, to.memory) {
                (DeviceMemory::Thousandths(from), DeviceMemory::Thousandths(to)) => {
                    DeviceMemory::Thousandths(from.max(to))
                }
                (from, to) => {
                    let node = self.cluster.node(at.node);
                    let devices = node.into_iter().flat_map(|node| {
                        at.devices.iter().filter_map(|part| node.devices().get(usize::from(part.device)))
                    });
                    let most = devices.map(|device| from.on(device.memory()).max(to.on(device.memory()))).max();
                    DeviceMemory::Bytes(most.unwrap_or_default())
                }
            };
            DeviceRequest { count: to.count, core: from.core.max(to.core), memory }
        };
        for choice in 0..held.choice_count() {
            let devices = held.devices_mut(choice).into_iter().zip(from.wishes_of(choice));
            devices.for_each(|(held, from)| *held = larger(from.devices, held));
        }
        held
    }

    /// Sends the resize to the node, for the first time or again.
    fn command_resize(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id) else { return };
        let (Some(claim), Some(instance), Some(resize)) = (entry.id, entry.instance(), entry.resize.clone()) else {
            return;
        };
        if instance.phase != Phase::Running {
            return;
        }
        let uid = entry.key.uid.clone();
        let Some(amounts) = self.amounts_with(claim, &resize.to) else { return };
        let generation = self.next_generation();
        let longest_ms = self.settings.stop_deadline_max_ms.max(1);
        let patience_ms = 1_u64.checked_shl(resize.attempts).unwrap_or(u64::MAX);
        let patience_ms = self.settings.start_deadline_ms.max(1).saturating_mul(patience_ms).min(longest_ms);
        let deadline_ms = self.now_ms.saturating_add(patience_ms);
        let attempts = resize.attempts.saturating_add(1).min(32);
        let command = Some(generation);
        let resize = Resize { command, deadline_ms: Some(deadline_ms), attempts, is_in_doubt: false, ..*resize };
        self.note_resize(id, Some(resize));
        self.timers.insert((deadline_ms, Timer::Resize(id)));
        let order = Order::Resize { claim: uid, instance: instance.generation, generation, amounts, deadline_ms };
        self.send(instance.node, order);
    }

    /// The amounts that a claim would hold in its present place with another request.
    fn amounts_with(&self, claim: ClaimId, request: &Request) -> Option<Amounts> {
        let at = self.cluster.allocation(claim)?;
        let mut amounts = self.amounts(claim, at);
        (amounts.cpu, amounts.memory) = (request.cpu, request.memory);
        amounts.counted.clone_from(&request.counted);
        let node = self.cluster.node(at.node)?;
        for ((part, held), wanted) in amounts.devices.iter_mut().zip(&at.devices).zip(request.parts_of(at)) {
            let device = node.devices().get(usize::from(held.device))?;
            (part.core, part.memory) = (wanted.core, wanted.memory.on(device.memory()));
        }
        Some(amounts)
    }

    /// Handles a resize that has no answer in time, that was saved before a restart, or whose claim was to be evicted
    /// and runs on.
    pub(super) fn resize_expired(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id).filter(|entry| is_running(entry)) else { return };
        let (Some(claim), Some(resize)) = (entry.id, entry.resize.as_deref().cloned()) else { return };
        if resize.deadline_ms.is_none_or(|deadline_ms| deadline_ms > self.now_ms) {
            return;
        }
        match resize.command {
            // The books hold what the resize needs.
            Some(_) => self.command_resize(id),
            // If there is no room any more, the claim keeps what it has.
            None => _ = self.try_resize(id, claim, resize),
        }
    }

    /// Begins again a resize that is under way or was refused.
    pub(super) fn resume_resize(&mut self, id: EntryId) {
        let now_ms = self.now_ms;
        if let Some(resize) = self.entries.get_mut(id).and_then(|entry| entry.resize.as_mut()) {
            resize.deadline_ms = Some(now_ms);
            self.timers.insert((now_ms, Timer::Resize(id)));
        }
    }

    /// The node has confirmed a resize.
    pub(super) fn resized(&mut self, id: EntryId) {
        if let Some((claim, resize)) = self.resize_under_way(id) {
            self.complain(id, None);
            self.close_resize(id, claim, resize.to.clone(), resize);
        }
    }

    /// The node has refused the last command of a resize. If that was the only one, the claim keeps what it had.
    /// Otherwise the node may have carried out one before, so it is asked for a report.
    pub(super) fn resize_refused(&mut self, id: EntryId) {
        let Some((claim, resize)) = self.resize_under_way(id) else { return };
        if resize.attempts <= 1 {
            return self.close_resize(id, claim, resize.from.clone(), resize);
        }
        self.note_resize(id, Some(Resize { is_in_doubt: true, ..resize }));
        if let Some(instance) = self.entries.get(id).and_then(Entry::instance) {
            self.send(instance.node, Order::Report { term: self.generation.term });
        }
    }

    /// Books what a claim holds now that its node has answered. If the books reject that, because the namespace has
    /// other bounds by now, they keep the larger amounts, also after a restart.
    fn close_resize(&mut self, id: EntryId, claim: ClaimId, holds: Request, resize: Resize) {
        let is_done = holds == resize.to;
        let held = match self.apply(Event::ClaimResized(claim, holds.clone())) {
            Ok(_) if is_done => return self.note_resize(id, None),
            Ok(_) => holds,
            Err(_) => resize.held.clone(),
        };
        // What the node holds is known now, or at least that it is no more than the books hold.
        let from = held.clone();
        let (command, deadline_ms, attempts, is_in_doubt) = (None, None, 0, false);
        self.note_resize(id, Some(Resize { from, held, to: resize.to, command, deadline_ms, attempts, is_in_doubt }));
    }

    /// The resize of a running claim.
    fn resize_under_way(&self, id: EntryId) -> Option<(ClaimId, Resize)> {
        let entry = self.entries.get(id).filter(|entry| is_running(entry))?;
        let resize = entry.resize.as_deref().filter(|resize| resize.command.is_some())?;
        Some((entry.id?, resize.clone()))
    }

    /// Takes in the amounts that a node reports for a claim after it has refused the last command to resize it. The node
    /// carries out no earlier command any more, so these amounts are final. A report before that refusal says nothing:
    /// a command may still be under way.
    pub(super) fn seen_holding(&mut self, id: EntryId, amounts: &Amounts) {
        let Some((claim, resize)) = self.resize_under_way(id).filter(|(_, resize)| resize.is_in_doubt) else { return };
        let is = |request: &Request| self.amounts_with(claim, request).as_ref() == Some(amounts);
        if is(&resize.to) {
            return self.resized(id);
        }
        let holds = if is(&resize.from) { &resize.from } else { &resize.held };
        self.close_resize(id, claim, holds.clone(), resize);
    }

    /// The instance is gone, so its resize ends. The next start uses the newest request.
    pub(super) fn end_resize(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some((claim, resize)) = entry.id.zip(entry.resize.take()) else { return };
        // If its namespace has other bounds now, the claim keeps what the books hold.
        let _ = self.resize_unstarted(claim, resize.to);
    }

    pub(super) fn note_resize(&mut self, id: EntryId, resize: Option<Resize>) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.resize = resize.map(Box::new);
        }
        self.unsaved.entries.insert(id);
        self.published.note_change();
    }
}

fn is_running(entry: &Entry) -> bool {
    entry.instance().is_some_and(|instance| instance.phase == Phase::Running)
}
