//! Compares nodes' reports with the books. A report is true, whatever the books wanted.

use aliquot_scheduler_core::{Allocation, Claim, ClaimId, Event, NodeId, Outcome, Request};

use super::Engine;
use super::holdings::{arranged, choice_of, is_what_is_asked_for, known, request_of};
use super::steps::Loss;
use crate::command::Amounts;
use crate::entries::{Entry, Instance};
use crate::observation::{NodeReport, Running};
use crate::store::{ClaimKey, Phase};

impl Engine {
    /// Compares the instances that a node reports with those that should run there.
    pub(super) fn reconcile(&mut self, node: NodeId, report: &NodeReport) {
        let mut is_running = std::collections::BTreeSet::new();
        for running in &report.running {
            is_running.insert((&running.claim, running.instance));
        }
        // Instances that are gone come first: the same claim may run here as another instance now.
        let there = self.nodes.get(node).map(|state| state.instances.clone()).unwrap_or_default();
        for id in there.iter() {
            let Some((entry, instance)) = self.entries.get(*id).and_then(|entry| Some((entry, entry.instance()?)))
            else {
                continue;
            };
            // A start that the node had not handled yet may still come.
            let is_known = instance.session < report.session || instance.generation <= report.handled;
            if is_known && !is_running.contains(&(&entry.key.uid, instance.generation)) {
                self.lose(*id, Loss::Gone);
                self.issue_commands();
            }
        }
        for running in &report.running {
            self.seen(node, report.session, running);
            self.issue_commands();
        }
    }

    /// Takes in one running instance of a report.
    fn seen(&mut self, node: NodeId, session: u64, running: &Running) {
        let Running { claim: uid, instance: generation, amounts, since_ms: _ } = running;
        if let Some(id) = self.entries.of_instance(uid, *generation) {
            let Some(instance) = self.entries.get(id).and_then(Entry::instance) else { return };
            if instance.node == node {
                if instance.session != session {
                    self.note_instance(id, Some(Instance { session, ..instance }));
                }
                if instance.phase == Phase::Starting {
                    self.runs(id);
                }
                self.seen_holding(id, amounts);
            }
            // Two nodes report the same instance, so one of them is wrong. Which one is not known: the first one
            // counts.
            return;
        }
        if !self.adopt(node, session, running) {
            self.add_stray(node, session, uid.clone(), *generation, amounts);
        }
    }

    /// Makes a running instance the claim's own, if the claim has none and the instance holds what the claim asks for.
    fn adopt(&mut self, node: NodeId, session: u64, running: &Running) -> bool {
        let Some(id) = self.entries.of_uid(&running.claim) else { return false };
        let Some(entry) = self.entries.get(id) else { return false };
        let (Some(claim), None, false) = (entry.id, entry.instance(), entry.is_ended) else { return false };
        let (Some(of), Some(there)) = (self.cluster.claim(claim), self.cluster.node(node)) else { return false };
        if !is_what_is_asked_for(&of.request, &running.amounts, there.spec()) {
            return false;
        }
        let Some(at) = self.allocation(node, &of.request, &running.amounts) else { return false };
        if self.apply(Event::ClaimSeen(claim, at)).is_err() {
            return false;
        }
        if let Some(since_ms) = running.since_ms {
            self.apply_sure(Event::ClaimRunsSince(claim, since_ms));
        }
        self.note_instance(id, Some(running_instance(node, session, running.instance)));
        true
    }

    /// Adds a stray: an instance that no claim needs, or that is not what its claim asks for. It holds its room until
    /// it is stopped.
    pub(super) fn add_stray(
        &mut self,
        node: NodeId,
        session: u64,
        uid: crate::names::ClaimUid,
        generation: crate::names::Generation,
        amounts: &Amounts,
    ) {
        let key = ClaimKey { uid, stray: Some(generation) };
        let claim = self.book_stray(node, &key, amounts);
        let mut entry = Entry::new(key, self.now_ms);
        (entry.id, entry.is_ended) = (claim, true);
        let id = self.entries.insert(entry);
        self.note_instance(id, Some(running_instance(node, session, generation)));
        match claim {
            Some(claim) => self.touched.push_back(claim),
            // The books cannot represent what it holds.
            None => self.stop(id),
        }
    }

    fn book_stray(&mut self, node: NodeId, key: &ClaimKey, amounts: &Amounts) -> Option<ClaimId> {
        let amounts = known(amounts, self.cluster.node(node)?.spec());
        let request = request_of(&amounts);
        let at = self.allocation(node, &request, &amounts)?;
        let claim = Claim { name: key.uid.to_string(), request, ..Claim::default() };
        let Ok(Outcome::Claim(claim)) = self.apply(Event::ClaimAdded(claim)) else { return None };
        if self.apply(Event::ClaimSeen(claim, at)).is_err() {
            self.apply_sure(Event::ClaimRemoved(claim));
            return None;
        }
        self.apply_sure(Event::ClaimWithdrawn(claim));
        Some(claim)
    }

    /// The allocation of an instance with this request, from the amounts that its node reports.
    pub(super) fn allocation(&self, node: NodeId, request: &Request, amounts: &Amounts) -> Option<Allocation> {
        let devices = arranged(request, amounts, self.cluster.node(node)?.spec())?;
        Some(Allocation { node, devices, alternative: choice_of(request, amounts) })
    }
}

pub(super) fn running_instance(node: NodeId, session: u64, generation: crate::names::Generation) -> Instance {
    Instance { node, session, generation, phase: Phase::Running, command: generation, deadline_ms: None, attempts: 0 }
}
