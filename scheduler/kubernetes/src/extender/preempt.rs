//! On which nodes a pod could be if others were evicted.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::explain::NodeObstacle;
use aliquot_scheduler_core::{ClaimId, Event, NodeId, Request};
use aliquot_scheduler_engine::{ClaimUid, View};

use super::fit::facts;
use super::protocol::{MetaPod, MetaVictims, PreemptionArgs, PreemptionResult};
use crate::serve::Shared;

/// Kube-scheduler has chosen victims on some nodes by amounts of whole nodes. Of these nodes, those are kept where the
/// pod finds devices then. Where one device has too little even so, pods of lower priority are added, the lowest first.
///
/// # Errors
/// What is wrong with the question.
pub(super) fn answer(shared: &Shared, view: &View, args: PreemptionArgs) -> Result<PreemptionResult, String> {
    let asked = victims(args.node_name_to_victims, args.node_name_to_meta_victims)?;
    let facts = facts(shared, args.pod)?;
    let Some(claim) = shared.read(|mirror| mirror.claim_of_chosen(&facts))? else {
        return Ok(PreemptionResult { node_name_to_meta_victims: asked });
    };
    // Kube-scheduler counts everything but devices, and knows of victims that are not in the books.
    let request = Request {
        devices: claim.request.devices,
        further: claim.request.further.clone(),
        alternatives: claim.request.alternatives.clone(),
        constraints: claim.request.constraints.clone(),
        ..Request::default()
    };
    let mut result = PreemptionResult::default();
    for (name, victims) in asked {
        let Some(node) = view.cluster().node_named(&name) else { continue };
        let lower = shared.read(|mirror| mirror.lower_on(&name, facts.priority));
        let trial = Trial { view, request: &request, node };
        if let Some(pods) = trial.victims(victims.pods.unwrap_or_default(), lower) {
            let victims = MetaVictims { pods: Some(pods), ..victims };
            result.node_name_to_meta_victims.insert(name, victims);
        }
    }
    Ok(result)
}

/// The victims of each node by their UIDs, from the one of the two maps that is there.
fn victims(
    pods: Option<BTreeMap<String, super::protocol::Victims>>,
    uids: Option<BTreeMap<String, MetaVictims>>,
) -> Result<BTreeMap<String, MetaVictims>, String> {
    if let Some(uids) = uids {
        return Ok(uids);
    }
    let pods = pods.ok_or("neither NodeNameToMetaVictims nor NodeNameToVictims says which nodes are asked about")?;
    let of_node = |(node, victims): (String, super::protocol::Victims)| {
        let uids = victims.pods.into_iter().flatten().filter_map(|pod| pod.metadata.uid);
        let pods = Some(uids.map(|uid| MetaPod { uid }).collect());
        (node, MetaVictims { pods, num_pdb_violations: victims.num_pdb_violations })
    };
    Ok(pods.into_iter().map(of_node).collect())
}

/// A node, to find out whether a pod would have room there without some other pods.
struct Trial<'a> {
    view: &'a View,
    request: &'a Request,
    node: NodeId,
}

impl Trial<'_> {
    /// The victims with as few more as the pod needs, of those of lower priority; `None`: nothing helps.
    fn victims(&self, mut victims: Vec<MetaPod>, lower: Vec<String>) -> Option<Vec<MetaPod>> {
        let mut gone: BTreeSet<ClaimId> = victims.iter().filter_map(|pod| self.claim(&pod.uid)).collect();
        let mut added: Vec<(String, ClaimId)> = Vec::new();
        let mut others = lower.into_iter().filter_map(|uid| Some((self.claim(&uid)?, uid)));
        while !self.has_room_without(&gone) {
            let (claim, uid) = others.find(|(claim, _)| !gone.contains(claim))?;
            gone.insert(claim);
            added.push((uid, claim));
        }
        // Some of the added pods may be on other devices, so their eviction is not needed. Those of higher priority are
        // spared first.
        for (uid, claim) in added.into_iter().rev() {
            gone.remove(&claim);
            if !self.has_room_without(&gone) {
                gone.insert(claim);
                victims.push(MetaPod { uid });
            }
        }
        Some(victims)
    }

    fn claim(&self, uid: &str) -> Option<ClaimId> {
        let claim = self.view.claim_id(&ClaimUid::from(uid))?;
        let is_here = self.view.cluster().allocation(claim).is_some_and(|at| at.node == self.node);
        is_here.then_some(claim)
    }

    fn has_room_without(&self, gone: &BTreeSet<ClaimId>) -> bool {
        let mut cluster = self.view.cluster().clone();
        gone.iter().all(|claim| cluster.apply(Event::ClaimRemoved(*claim)).is_ok())
            && NodeObstacle::of(&cluster, self.request, self.node).is_none()
    }
}
