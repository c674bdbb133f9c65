//! An engine that begins with a given state, such as a snapshot.

use std::sync::Arc;

use aliquot_scheduler_core::{ClaimId, Dump, DumpEntry, NodeId, RestoreError, RestoreReason, Scheduler};

use super::reports::running_instance;
use super::{Decisions, Engine, Timer, Unsaved};
use crate::entries::{Entry, NodeState};
use crate::names::{ClaimUid, NodeName};
use crate::settings::Settings;
use crate::store::{ClaimKey, Saved};

/// The term of an engine that begins with a state.
const TERM: u64 = 1;
/// The session of nodes that are part of the state.
const SESSION: u64 = 1;

impl Engine {
    /// A live engine that begins with a given state. This is for uses without a store: batches name only later changes.
    ///
    /// The nodes of the state are in their first session, and new claims may be started on them. Instances run where
    /// claims have started, and where claims are leaving; the latter are told to stop. The UID of a claim is
    /// `NAMESPACE/NAME`. A claim that was withdrawn stays in the books until [`Observation::ClaimEnded`] names it.
    ///
    /// [`Observation::ClaimEnded`]: crate::Observation::ClaimEnded
    ///
    /// # Errors
    /// If such a state is impossible, or two claims have the same namespace and name.
    pub fn restore(decisions: Decisions, settings: Settings, dump: Dump) -> Result<Self, RestoreError> {
        let dump = Dump { usage_half_life_ms: decisions.usage_half_life_ms, ..dump };
        let added_ms: Vec<u64> = dump.claims.iter().map(|claim| claim.added_ms).collect();
        let (scheduler, cluster) = Scheduler::restore(decisions.policy.fork(), decisions.settings, dump)?;
        let saved = Saved { term: TERM, ..Saved::default() };
        let mut engine = Self { scheduler, cluster, ..Self::new(decisions, settings, saved) };
        engine.collected = None;
        engine.now_ms = engine.cluster.now_ms();
        // There is no store to save the memory in.
        engine.next_memory_ms = u64::MAX;
        let nodes = engine.cluster.nodes().map(|(id, node)| {
            let spec = node.spec();
            (id, spec.name.as_str().into(), spec.cordoned)
        });
        for (id, name, is_cordoned) in nodes.collect::<Vec<_>>() {
            engine.add_known_node(id, name, is_cordoned);
        }
        let mut claims: Vec<ClaimId> = engine.cluster.claims().map(|(id, ..)| id).collect();
        // In the order of the dump.
        claims.sort_unstable();
        for (number, (claim, added_ms)) in claims.into_iter().zip(added_ms).enumerate() {
            engine
                .add_known_claim(claim, added_ms)
                .map_err(|reason| RestoreError { entry: DumpEntry::Claim(number), reason })?;
        }
        engine.unsaved = Unsaved::default();
        engine.changed();
        engine.issue_commands();
        Ok(engine)
    }

    fn add_known_node(&mut self, id: NodeId, name: NodeName, is_cordoned: bool) {
        let lease_until_ms = self.settings.lease.map(|lease| {
            let until_ms = self.now_ms.saturating_add(lease.lease_ms).saturating_add(lease.margin_ms);
            self.timers.insert((self.now_ms.saturating_add(lease.silence_ms), Timer::Silence(id)));
            self.timers.insert((until_ms, Timer::Lapse(id)));
            until_ms
        });
        let state = NodeState {
            name,
            is_cordoned,
            session: SESSION,
            sequence: 0,
            heard_ms: self.now_ms,
            lease_until_ms,
            lease_ms: self.settings.lease.map_or(0, |lease| lease.lease_ms),
            is_up: true,
            has_reported: true,
            is_refused: false,
            instances: Arc::default(),
        };
        self.nodes.set(id, Some(state));
    }

    fn add_known_claim(&mut self, claim: ClaimId, added_ms: u64) -> Result<(), RestoreReason> {
        let Some(of) = self.cluster.claim(claim) else { return Ok(()) };
        let uid = ClaimUid::from(format!("{}/{}", of.namespace, of.name));
        if self.entries.of_uid(&uid).is_some() {
            return Err(RestoreReason::SameName(of.name.to_string()));
        }
        let mut entry = Entry::new(ClaimKey { uid, stray: None }, added_ms);
        entry.id = Some(claim);
        let id = self.entries.insert(entry);
        let leaving = self.cluster.leaving(claim);
        let started = self.cluster.started_ms(claim).and_then(|_| self.cluster.allocation(claim));
        if let Some(node) = leaving.or(started).map(|at| at.node) {
            let generation = self.next_generation();
            self.note_instance(id, Some(running_instance(node, SESSION, generation)));
        }
        if self.cluster.leaving(claim).is_some() {
            self.touched.push_back(claim);
        }
        self.note_retry(claim);
        Ok(())
    }
}
