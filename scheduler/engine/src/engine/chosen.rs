//! Claims for which another scheduler has chosen the node: they are placed at once, or refused.

use aliquot_scheduler_core::explain::{NodeObstacle, Reason};
use aliquot_scheduler_core::{Claim, Event, EventError, Outcome};

use super::Engine;
use crate::entries::Entry;
use crate::names::{ClaimUid, NodeName};
use crate::store::ClaimKey;

impl Engine {
    /// Places a claim on a node, into what is free there now. No other claim is evicted for it.
    pub(super) fn claim_on_node(&mut self, uid: ClaimUid, claim: Claim, node: &NodeName) -> Result<(), EventError> {
        if self.entries.of_uid(&uid).is_some() || self.entries.has_stray(&uid) {
            return Err(refused(node, "an earlier instance of the claim has not left yet; try again"));
        }
        let id = self.cluster.node_named(node.as_str()).ok_or_else(|| refused(node, "there is no such node"))?;
        if self.nodes.get(id).is_none_or(|state| !state.is_up) {
            return Err(refused(node, "the node cannot be reached"));
        }
        // A claim that does not fit must not enter the books, because they learn from arrivals.
        if let Some(obstacle) = NodeObstacle::of(&self.cluster, &claim.request, id) {
            return Err(refused(node, &obstacle.to_string()));
        }
        let Outcome::Claim(claim) = self.apply(Event::ClaimAdded(claim))? else { return Ok(()) };
        if !self.scheduler.place_now(&mut self.cluster, claim) {
            let bounds = self.scheduler.bounds_passed(&self.cluster, claim);
            let bounds: Vec<String> = bounds.iter().map(Reason::to_string).collect();
            self.apply_sure(Event::ClaimRemoved(claim));
            return Err(match bounds.is_empty() {
                true => refused(node, "its pod group cannot start there as it is"),
                false => refused(node, &bounds.join("; ")),
            });
        }
        let mut entry = Entry::new(ClaimKey { uid, stray: None }, self.now_ms);
        entry.id = Some(claim);
        let entry = self.entries.insert(entry);
        self.unsaved.entries.insert(entry);
        self.touched.push_back(claim);
        self.changed();
        Ok(())
    }
}

pub(super) fn refused(node: &NodeName, why: &str) -> EventError {
    EventError::NotOnNode { node: node.to_string(), why: why.to_owned() }
}
