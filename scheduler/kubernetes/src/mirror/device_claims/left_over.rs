//! Claims that are allocated for pods that were not bound: a leader has died between the writes, or could not undo the
//! writes that come before the binding.

use std::collections::BTreeMap;

use super::super::{KnownPod, Mirror};
use super::{Name, names_of};
use crate::dra::{ClaimFacts, DRIVER};
use crate::pod::PodFacts;

/// A claim that is allocated for one waiting pod alone, or for one PodGroup whose pods all wait: the scheduler that
/// allocated it did not bind any.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeftOver {
    pub(crate) claim: ClaimFacts,
    /// The UID of the pod or the group.
    pub(crate) user: String,
    /// The names and UIDs of the pods that a scheduler may still be about to bind.
    pub(crate) pods: Vec<(String, String)>,
}

impl Mirror {
    /// Claims that are allocated for pods that were not bound.
    pub(crate) fn left_over_claims(&self) -> Vec<LeftOver> {
        let is_waiting = |pod: &&KnownPod| {
            let facts = &pod.facts;
            let is_ours = facts.scheduler == self.own_name && facts.node.is_none() && !facts.is_leaving;
            let has_claims = !facts.claims.is_empty() || self.device_claims.made.contains_key(&facts.uid);
            is_ours && has_claims && pod.instance.is_none() && pod.binding_to.is_none()
        };
        let mut left_over: BTreeMap<Name, LeftOver> = BTreeMap::new();
        for pod in self.pods.values().filter(is_waiting) {
            let names = names_of(&pod.facts).filter(|name| !left_over.contains_key(name)).collect::<Vec<Name>>();
            let claims = names.iter().filter_map(|name| self.device_claims.claims.get(name));
            let claims = claims.filter(|claim| self.is_left_over(claim, &pod.facts.uid));
            for claim in claims.chain(self.device_claims.made_for(&pod.facts.uid)) {
                let name = (claim.namespace.clone(), claim.name.clone());
                left_over.insert(name, self.left_over(claim, &pod.facts));
            }
        }
        left_over.into_values().collect()
    }

    fn left_over(&self, claim: &ClaimFacts, pod: &PodFacts) -> LeftOver {
        let pods: Vec<&PodFacts> = match claim.only_group() {
            Some(_) => self.waiting_users(claim).map(|pod| &pod.facts).collect(),
            None => vec![pod],
        };
        LeftOver {
            claim: claim.clone(),
            user: claim.only_group().unwrap_or(&pod.uid).to_owned(),
            pods: pods.into_iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect(),
        }
    }

    /// Whether a claim is allocated for this unbound pod alone, or for a PodGroup alone of which no pod has it. Only
    /// allocations that we could make anew count.
    pub(super) fn is_left_over(&self, claim: &ClaimFacts, pod_uid: &str) -> bool {
        let Some(allocation) = &claim.allocation else { return false };
        let could_be_anew = claim.ask.is_ok() && !allocation.admin_of.contains(DRIVER);
        could_be_anew
            && match claim.only_group() {
                Some(_) => self.is_idle(&(claim.namespace.clone(), claim.name.clone())),
                None => claim.has_user(pod_uid) && !claim.has_users_beside(pod_uid),
            }
    }
}
