//! Checks the invariants of an engine.

use super::Engine;
use crate::entries::{Entry, EntryId, Instance};
use crate::store::Phase;

impl Engine {
    /// Compares the books with the instances that the engine knows. This looks at all claims, and is for tests.
    ///
    /// # Errors
    /// If they differ; the error says how.
    pub fn check(&self) -> Result<(), String> {
        if self.collected.is_some() {
            return Ok(());
        }
        for (id, entry) in self.entries.iter() {
            self.check_entry(id, entry).map_err(|wrong| format!("{:?}: {wrong}", entry.key))?;
        }
        for (id, ..) in self.cluster.claims() {
            if self.entries.of_claim(id).is_none() {
                return Err(format!("{id:?} is in the books although its claim has ended"));
            }
        }
        match self.touched.is_empty() {
            true => Ok(()),
            false => Err(format!("no commands yet for {:?}", self.touched)),
        }
    }

    fn check_entry(&self, id: EntryId, entry: &Entry) -> Result<(), String> {
        let Some(claim) = entry.id else {
            return if entry.parked.is_some() || entry.key.stray.is_some() {
                Ok(())
            } else {
                Err("neither in the books nor parked".into())
            };
        };
        let started_at = self.cluster.allocation(claim).filter(|_| self.cluster.started_ms(claim).is_some());
        let leaving = self.cluster.leaving(claim);
        if entry.is_ended != self.cluster.is_withdrawn(claim) {
            return Err("the engine and the books differ in whether it is wanted".into());
        }
        let Some(instance) = entry.instance() else {
            let has_stray = self.entries.has_stray(&entry.key.uid);
            return match (entry.is_ended, started_at.filter(|_| !has_stray), leaving) {
                (false, None, None) => Ok(()),
                state => Err(format!("nothing runs, but the books say {state:?}")),
            };
        };
        let Instance { node, phase, deadline_ms, .. } = instance;
        let is_there = self.nodes.get(node).is_some_and(|state| state.instances.contains(&id));
        let held = match phase {
            Phase::Starting | Phase::Running => started_at,
            Phase::Stopping => leaving,
        };
        let is_bounded = (phase == Phase::Running) == deadline_ms.is_none();
        match is_there && held.is_some_and(|held| held.node == node) && is_bounded {
            true => Ok(()),
            false => Err(format!("{instance:?}, but the books say {started_at:?}, leaving {leaving:?}")),
        }
    }
}
