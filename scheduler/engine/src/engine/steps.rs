//! Turns what the books say into commands, and takes in the nodes' answers.

use std::sync::Arc;

use aliquot_scheduler_core::{Allocation, ClaimId, Cluster, Event, NodeId};

use super::{Engine, Timer};
use crate::command::{Amounts, DevicePart, Order};
use crate::entries::{Entry, EntryId, Instance};
use crate::observation::{Report, StepOutcome};
use crate::store::Phase;

/// Why an instance no longer exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    /// Its node reports that it is gone.
    Gone,
    /// Its node is gone, or the node's lease has lapsed. The claim has not failed.
    NodeLost,
}

impl Engine {
    /// Issues the commands for all claims that have changed.
    pub(super) fn issue_commands(&mut self) {
        while let Some(claim) = self.touched.pop_front() {
            self.issue_commands_of(claim);
        }
    }

    /// Starts a claim that has started in the books and has no instance; stops an instance that is to leave.
    fn issue_commands_of(&mut self, claim: ClaimId) {
        let Some(id) = self.entries.of_claim(claim) else { return };
        let Some(entry) = self.entries.get(id) else { return };
        let (is_ended, instance) = (entry.is_ended, entry.instance());
        let has_stray = self.entries.has_stray(&entry.key.uid);
        self.unsaved.entries.insert(id);
        self.published.note_change();
        match instance {
            Some(instance) if instance.phase == Phase::Stopping => {}
            Some(_) if is_ended || self.cluster.leaving(claim).is_some() => self.stop(id),
            Some(_) => {}
            None if is_ended => self.forget(id),
            // The claim was evicted before it was started, so there is nothing to stop.
            None if self.cluster.leaving(claim).is_some() => self.apply_sure(Event::ClaimGone(claim)),
            // The claim is looked at again when its stray is forgotten.
            None if has_stray => {}
            None if self.cluster.started_ms(claim).is_some() => self.start(id, claim),
            None => {}
        }
    }

    fn start(&mut self, id: EntryId, claim: ClaimId) {
        let Some(at) = self.cluster.allocation(claim).cloned() else { return };
        let Some(node) = self.nodes.get(at.node).filter(|node| node.is_up) else {
            // This was decided before the node was lost.
            self.complain(id, Some("the node cannot be reached"));
            self.apply_sure(Event::ClaimEvicted(claim));
            return;
        };
        let session = node.session;
        let amounts = self.amounts(claim, &at);
        let generation = self.next_generation();
        let deadline_ms = self.now_ms.saturating_add(self.settings.start_deadline_ms);
        let Some(entry) = self.entries.get(id) else { return };
        let uid = entry.key.uid.clone();
        let instance = Instance {
            node: at.node,
            session,
            generation,
            phase: Phase::Starting,
            command: generation,
            deadline_ms: Some(deadline_ms),
            attempts: 0,
        };
        self.note_instance(id, Some(instance));
        let term = generation.term;
        self.send(at.node, Order::Start { claim: uid, generation, amounts, deadline_ms, term });
    }

    /// Sends the start of an instance again, with a new deadline.
    pub(super) fn repeat_start(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id) else { return };
        let (Some(claim), Some(instance)) = (entry.id, entry.instance()) else { return };
        let Some(at) = self.cluster.allocation(claim) else { return };
        let (uid, amounts) = (entry.key.uid.clone(), self.amounts(claim, at));
        let deadline_ms = self.now_ms.saturating_add(self.settings.start_deadline_ms);
        self.note_instance(id, Some(Instance { deadline_ms: Some(deadline_ms), ..instance }));
        let (generation, term) = (instance.generation, self.generation.term);
        self.send(instance.node, Order::Start { claim: uid, generation, amounts, deadline_ms, term });
    }

    /// Sends the stop of an instance, for the first time or again.
    pub(super) fn stop(&mut self, id: EntryId) {
        let generation = self.next_generation();
        let Some(entry) = self.entries.get(id) else { return };
        let Some(before) = entry.instance() else { return };
        let uid = entry.key.uid.clone();
        let patience_ms = 1_u64.checked_shl(before.attempts).unwrap_or(u64::MAX);
        // A deadline of zero would expire again and again at the same moment.
        let shortest_ms = self.settings.stop_deadline_ms.max(1);
        let patience_ms = shortest_ms.saturating_mul(patience_ms);
        let longest_ms = self.settings.stop_deadline_max_ms.max(shortest_ms);
        let deadline_ms = self.now_ms.saturating_add(patience_ms.min(longest_ms));
        let attempts = before.attempts.saturating_add(1).min(32);
        let instance = Instance {
            phase: Phase::Stopping,
            command: generation,
            deadline_ms: Some(deadline_ms),
            attempts,
            ..before
        };
        self.note_instance(id, Some(instance));
        self.send(before.node, Order::Stop { claim: uid, instance: before.generation, generation, deadline_ms });
    }

    pub(super) fn amounts(&self, claim: ClaimId, at: &Allocation) -> Amounts {
        amounts_in(&self.cluster, claim, at)
    }

    /// Notes a claim's instance, which runs or may run, and the deadline of its step.
    pub(super) fn note_instance(&mut self, id: EntryId, instance: Option<Instance>) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let before = entry.instance();
        entry.set_instance(instance);
        let timer = |instance: Option<Instance>| Some((instance?.deadline_ms?, Timer::Step(id)));
        timer(before).iter().for_each(|timer| _ = self.timers.remove(timer));
        self.timers.extend(timer(instance));
        let (from, to) = (before.map(|before| before.node), instance.map(|instance| instance.node));
        if from != to {
            self.note_presence(from, |there| _ = there.remove(&id));
            self.note_presence(to, |there| _ = there.insert(id));
        }
        self.unsaved.entries.insert(id);
        self.published.note_change();
    }

    fn note_presence(&mut self, node: Option<NodeId>, change: impl FnOnce(&mut std::collections::BTreeSet<EntryId>)) {
        if let Some(state) = node.and_then(|node| self.nodes.get_mut(node)) {
            change(Arc::make_mut(&mut state.instances));
        }
    }

    pub(super) fn complain(&mut self, id: EntryId, why: Option<&str>) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.complaint = why.map(Arc::from);
        }
    }

    /// Takes in the outcome of a command.
    pub(super) fn outcome(&mut self, report: Report) {
        let Report { node, session, sequence, claim, instance: generation, generation: command, outcome } = report;
        let Some(node) = self.cluster.node_named(node.as_str()) else { return };
        self.heard(node, session, sequence);
        let Some(id) = self.entries.of_instance(&claim, generation) else { return };
        let Some(instance) = self.entries.get(id).and_then(Entry::instance) else { return };
        if instance.node != node {
            return;
        }
        let is_about_start = command == generation;
        let is_about_resize =
            self.entries.get(id).and_then(|entry| entry.resize.as_ref()?.command).is_some_and(|last| last == command);
        match outcome {
            StepOutcome::Started if is_about_resize => self.resized(id),
            StepOutcome::Refused(why) | StepOutcome::Failed(why) if is_about_resize => {
                self.complain(id, Some(&why));
                self.resize_refused(id);
            }
            StepOutcome::Started if instance.phase == Phase::Starting => self.runs(id),
            StepOutcome::Gone => self.lose(id, Loss::Gone),
            StepOutcome::Refused(why) | StepOutcome::Failed(why) if is_about_start => {
                self.complain(id, Some(&why));
                self.lose(id, Loss::Gone);
            }
            StepOutcome::Refused(why) | StepOutcome::Failed(why) if command == instance.command => {
                self.complain(id, Some(&why));
                self.stop_refused(id);
            }
            StepOutcome::Unknown if is_about_start && instance.phase == Phase::Starting => self.doubt(id),
            _ => {}
        }
    }

    /// Handles a node's refusal to stop an instance. A claim that was to be evicted runs on, and the core chooses other
    /// victims for a while. A claim that has ended is stopped again when the deadline passes.
    fn stop_refused(&mut self, id: EntryId) {
        let Some(entry) = self.entries.get(id).filter(|entry| !entry.is_ended) else { return };
        let stopping = entry.instance().filter(|instance| instance.phase == Phase::Stopping);
        let (Some(claim), Some(instance)) = (entry.id, stopping) else { return };
        self.note_instance(id, Some(Instance { phase: Phase::Running, deadline_ms: None, attempts: 0, ..instance }));
        self.apply_sure(Event::EvictionRefused(claim));
        self.note_retry(claim);
        self.resume_resize(id);
    }

    /// Notes that an instance was seen running.
    pub(super) fn runs(&mut self, id: EntryId) {
        let Some(instance) = self.entries.get(id).and_then(Entry::instance) else { return };
        self.note_instance(id, Some(Instance { phase: Phase::Running, deadline_ms: None, ..instance }));
        self.complain(id, None);
        // A resize may have been asked for while the claim was starting.
        self.resume_resize(id);
    }

    /// Notes that an instance no longer exists.
    pub(super) fn lose(&mut self, id: EntryId, loss: Loss) {
        let Some(entry) = self.entries.get(id) else { return };
        let (claim, is_ended) = (entry.id, entry.is_ended);
        let Some(instance) = entry.instance() else { return };
        self.note_instance(id, None);
        if is_ended {
            self.forget(id);
            return;
        }
        let Some(claim) = claim else { return };
        self.touched.push_back(claim);
        self.apply_sure(match (instance.phase, loss) {
            (Phase::Stopping, _) => Event::ClaimGone(claim),
            (_, Loss::Gone) => Event::ClaimFailed(claim),
            (_, Loss::NodeLost) => Event::ClaimEvicted(claim),
        });
        self.end_resize(id);
        self.note_retry(claim);
    }

    /// Handles a start or stop without an answer in time.
    pub(super) fn step_expired(&mut self, id: EntryId) {
        let Some(instance) = self.entries.get(id).and_then(Entry::instance) else { return };
        if instance.deadline_ms.is_none_or(|deadline_ms| deadline_ms > self.now_ms) {
            return;
        }
        match instance.phase {
            Phase::Starting => self.doubt(id),
            Phase::Stopping => self.stop(id),
            Phase::Running => {}
        }
    }

    /// It is unknown whether the instance runs. Its start counts as failed, and it is stopped in case it runs.
    fn doubt(&mut self, id: EntryId) {
        let Some(claim) = self.entries.get(id).and_then(|entry| entry.id) else { return };
        self.complain(id, Some("nothing was heard of its start"));
        self.apply_sure(Event::ClaimSilent(claim));
        self.note_retry(claim);
        self.stop(id);
    }

    /// Forgets a claim that has ended and has no instance.
    pub(super) fn forget(&mut self, id: EntryId) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.parked.remove(&id);
        self.unsaved.entries.remove(&id);
        let own = self.entries.of_uid(&entry.key.uid).and_then(|own| self.entries.get(own)?.id);
        self.touched.extend(own);
        self.unsaved.removed.push(entry.key);
        self.changed();
        if let Some(claim) = entry.id {
            let of = self.cluster.claim(claim);
            let group = of.and_then(|of| Some((of.namespace.clone(), of.pod_group.clone()?)));
            self.apply_sure(Event::ClaimRemoved(claim));
            if let Some((namespace, name)) = group {
                // A group that has other members stays.
                let _ = self.end_group(&namespace, &name);
            }
        }
    }
}

/// What a claim holds in its place, as amounts for a node.
pub(crate) fn amounts_in(cluster: &Cluster, claim: ClaimId, at: &Allocation) -> Amounts {
    let (Some(of), Some(node)) = (cluster.claim(claim), cluster.node(at.node)) else { return Amounts::default() };
    let parts = at.devices.iter().filter_map(|part| {
        let device = node.spec().devices.get(usize::from(part.device))?;
        Some(DevicePart { uuid: device.uuid.to_string(), core: part.core, memory: part.memory })
    });
    let (cpu, memory, counted) = (of.request.cpu, of.request.memory, of.request.counted.clone());
    Amounts { cpu, memory, devices: parts.collect(), alternative: at.alternative, counted }
}
