//! Claims that are allocated for pods that were not bound: a leader has died between the writes, or could not undo the
//! writes that come before the binding.

use super::super::{KnownPod, Mirror};
use super::{DeviceClaims, names_of};
use crate::dra::{ClaimFacts, DRIVER};

/// A claim that is allocated for one waiting pod alone: the scheduler that allocated it did not bind the pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeftOver {
    pub(crate) claim: ClaimFacts,
    pub(crate) pod_name: String,
    pub(crate) pod_uid: String,
}

impl Mirror {
    /// Claims that are allocated for one waiting pod alone.
    pub(crate) fn left_over_claims(&self) -> Vec<LeftOver> {
        let is_waiting = |pod: &&KnownPod| {
            let facts = &pod.facts;
            let is_ours = facts.scheduler == self.own_name && facts.node.is_none() && !facts.is_leaving;
            let has_claims = !facts.claims.is_empty() || self.device_claims.made.contains_key(&facts.uid);
            is_ours && has_claims && pod.instance.is_none() && pod.binding_to.is_none()
        };
        let mut left_over = Vec::new();
        for pod in self.pods.values().filter(is_waiting) {
            let claims = names_of(&pod.facts).filter_map(|name| self.device_claims.claims.get(&name));
            let claims = claims.filter(|claim| self.device_claims.is_left_over(claim, &pod.facts.uid));
            let claims = claims.chain(self.device_claims.made_for(&pod.facts.uid));
            left_over.extend(claims.map(|claim| LeftOver {
                claim: claim.clone(),
                pod_name: pod.facts.name.clone(),
                pod_uid: pod.facts.uid.clone(),
            }));
        }
        left_over
    }
}

impl DeviceClaims {
    /// Whether a claim is allocated for this unbound pod alone. Only allocations that we could make anew count.
    pub(super) fn is_left_over(&self, claim: &ClaimFacts, pod_uid: &str) -> bool {
        let Some(allocation) = &claim.allocation else { return false };
        let could_be_anew = claim.ask.is_ok() && !allocation.admin_of.contains(DRIVER);
        could_be_anew && claim.is_reserved_for(pod_uid) && !claim.is_reserved_for_others_than(pod_uid)
    }
}
