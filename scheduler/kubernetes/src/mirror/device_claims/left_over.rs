//! Claims that are allocated for pods that were not bound: a leader has died between the writes, or could not undo the
//! writes that come before the binding.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::NodeTerm;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;

use super::super::{KnownPod, Mirror};
use super::readiness::is_too_late;
use super::{Name, names_of};
use crate::dra::{ClaimFacts, DRIVER, Unready, is_group};
use crate::placement;
use crate::pod::PodFacts;

/// A claim that is allocated for pods that all wait, by themselves or with their PodGroups: the scheduler that allocated it
/// did not bind any.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeftOver {
    pub(crate) claim: ClaimFacts,
    /// The UIDs of the pods and the groups.
    pub(crate) users: BTreeSet<String>,
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
            let claims = claims.filter(|claim| self.is_left_over(claim));
            for claim in claims.chain(self.device_claims.made_for(&pod.facts.uid)) {
                let name = (claim.namespace.clone(), claim.name.clone());
                let left = self.left_over(claim, &name, &pod.facts);
                left_over.insert(name, left);
            }
        }
        left_over.into_values().collect()
    }

    fn left_over(&self, claim: &ClaimFacts, name: &Name, pod: &PodFacts) -> LeftOver {
        let users = claim.reserved_for.iter().map(|user| user.uid.clone()).collect::<BTreeSet<String>>();
        let is_concerned = |pod: &&PodFacts| claim.is_of_group() || users.contains(&pod.uid);
        // A claim for extended resources is not named by its pod.
        let named: Vec<&PodFacts> = self.waiting_users(name).map(|pod| &pod.facts).filter(is_concerned).collect();
        let pods = if named.is_empty() { vec![pod] } else { named };
        LeftOver {
            claim: claim.clone(),
            pods: pods.into_iter().map(|pod| (pod.name.clone(), pod.uid.clone())).collect(),
            users,
        }
    }

    /// Whether a claim is allocated for unbound pods alone, and is to be given back. Another leader goes on waiting for devices
    /// that a driver makes ready, as long as there is a node where they can be used.
    pub(super) fn is_left_over(&self, claim: &ClaimFacts) -> bool {
        self.is_of_unbound(claim) && (self.device_claims.overdue.contains(&claim.uid) || !self.can_be_awaited(claim))
    }

    /// Claims for whose devices no pod is to wait any more: no pod was bound with them in ten minutes. `now_ms`: the time, in
    /// milliseconds since 1970.
    pub(crate) fn newly_overdue(&self, now_ms: i64) -> Vec<Name> {
        let claims = &self.device_claims;
        let is_overdue = |claim: &&ClaimFacts| {
            is_too_late(claim, now_ms) && !claims.overdue.contains(&claim.uid) && self.is_of_unbound(claim)
        };
        let overdue = claims.claims.values().filter(is_overdue);
        overdue.map(|claim| (claim.namespace.clone(), claim.name.clone())).collect()
    }

    /// Notes claims that are to be given back unless a pod is being bound with them.
    pub(crate) fn note_overdue(&mut self, names: Vec<Name>) {
        let uids = names.iter().filter_map(|name| self.device_claims.claims.get(name)).map(|claim| claim.uid.clone());
        let uids: Vec<String> = uids.collect();
        self.device_claims.overdue.extend(uids);
        self.device_claims.changed.extend(names);
    }

    /// Whether drivers make the devices of a claim ready, or have done so.
    fn can_be_awaited(&self, claim: &ClaimFacts) -> bool {
        let Some(allocation) = &claim.allocation else { return false };
        let is_there =
            |terms: &BTreeSet<NodeTerm>| self.nodes.values().any(|node| placement::admit(terms, &node.facts.labels));
        allocation.allocated_ms.is_some()
            && !claim.unready().any(Unready::has_failed)
            && allocation.results.iter().any(|result| result.binding_conditions.is_some())
            && allocation.terms.as_ref().is_ok_and(is_there)
            && self.device_claims.check_allocated(allocation).is_ok()
    }

    /// Whether a claim is allocated for unbound pods alone. With a PodGroup all its pods are meant that name the claim. Only
    /// allocations that we could make anew count.
    fn is_of_unbound(&self, claim: &ClaimFacts) -> bool {
        let (Some(allocation), Some(users)) =
            (&claim.allocation, self.device_claims.users.get(&(claim.namespace.clone(), claim.name.clone())))
        else {
            return false;
        };
        let could_be_anew = claim.ask.is_ok() && !allocation.admin_of.contains(DRIVER);
        let is_waiting = |user: &ResourceClaimConsumerReference| match is_group(user) {
            true => users.are_idle(),
            false => users.is_idle(&user.uid),
        };
        could_be_anew && !claim.reserved_for.is_empty() && claim.reserved_for.iter().all(is_waiting)
    }
}
