//! Pods that no node may take, whatever is free. No claim that other pods wait for is to be allocated with such a pod.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::explain::NodeObstacle;
use aliquot_scheduler_core::{ClaimId, Cluster, DeviceRequest, Request};
use aliquot_scheduler_engine::{ClaimUid, View};

use super::super::Mirror;
use super::turns::Turn;

impl Mirror {
    /// The UIDs of those pods that no node may take, of all with which a claim can be allocated that others wait for; `None`:
    /// they are known. What the pods ask of devices by claims is not looked at: it is the same for all of them.
    pub(crate) fn newly_hopeless(&self, view: &View) -> Option<BTreeSet<String>> {
        let claims = &self.device_claims;
        let waited_for = claims.users.iter().filter(|(name, _)| {
            let claim = claims.claims.get(name);
            claim.is_some_and(|claim| claim.allocation.is_none())
        });
        let turns = waited_for.flat_map(|(_, users)| users.turns());
        // Pods of one class ask for the same.
        let mut seen = BTreeMap::new();
        let mut is_hopeless = |turn: &&Turn| {
            let id = view.claim_id(&ClaimUid::from(turn.uid()));
            let class = id.and_then(|id| Some((id, view.cluster().class_of(id)?)));
            let place = self.pods.get(turn.uid()).and_then(|pod| pod.place());
            class
                .is_some_and(|(id, class)| *seen.entry(class).or_insert_with(|| is_hopeless(view.cluster(), id, place)))
        };
        let hopeless = turns.filter(&mut is_hopeless).map(|turn| turn.uid().to_owned());
        let hopeless: BTreeSet<String> = hopeless.collect();
        (hopeless != claims.hopeless).then_some(hopeless)
    }

    /// Notes the UIDs of the pods that no node may take.
    pub(crate) fn note_hopeless(&mut self, hopeless: BTreeSet<String>) {
        let before = std::mem::replace(&mut self.device_claims.hopeless, hopeless);
        let changed: Vec<String> = before.symmetric_difference(&self.device_claims.hopeless).cloned().collect();
        changed.iter().for_each(|uid| self.note_turns(uid));
    }
}

/// Whether no node may take a claim, whatever is free. `place`: what it counts for devices of other drivers.
fn is_hopeless(cluster: &Cluster, id: ClaimId, place: Option<&str>) -> bool {
    let Some(claim) = cluster.claim(id) else { return false };
    let of_itself = Request {
        devices: DeviceRequest::default(),
        further: None,
        alternatives: None,
        peers: None,
        counted: claim
            .request
            .counted
            .iter()
            .filter(|(name, _)| Some(name.as_str()) != place)
            .map(|(name, count)| (name.clone(), *count))
            .collect(),
        ..Request::clone(&claim.request)
    };
    let may_take = |node| !NodeObstacle::of(cluster, &of_itself, node).is_some_and(|obstacle| obstacle.is_lasting());
    !cluster.nodes().any(|(node, _)| may_take(node))
}
