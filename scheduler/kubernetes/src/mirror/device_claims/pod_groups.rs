//! Claims that the pods of one of Kubernetes' own PodGroups share. Such a claim is reserved for the group, not for its
//! pods.
//!
//! The claim is allocated with one of the pods, the *first*. The others ask for none of its devices, and are placed on the
//! node of the first. They are bound when the claim is allocated.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::{Affinity, PeerGroup, Peers, Request};
use k8s_openapi::api::core::v1::PodResourceClaim;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;

use super::super::{KnownPod, Mirror};
use super::{Claimed, Name};
use crate::dra::{ClaimFacts, DRIVER, group_as_user, is_group, pod_as_user};
use crate::gang::SharedClaim;
use crate::placement::NODE_NAME;
use crate::pod::{PodClaim, PodFacts};

/// The pod together with which a claim is allocated.
#[derive(Clone, Copy, Debug)]
pub(super) enum First<'a> {
    /// The pod that was asked about.
    Itself,
    /// Another one of its PodGroup.
    OfGroup(&'a PodFacts),
    /// A pod for which the claim is not reserved together with this one.
    Other(&'a PodFacts),
}

/// A claim that is allocated with another pod of a pod's PodGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Followed {
    pub(in super::super) claim: String,
    /// The UID of the other pod.
    first: String,
}

impl Mirror {
    /// For whom a pod's claim is reserved: for the pod, or for its PodGroup if that has the same claim.
    ///
    /// # Errors
    /// It was made for a PodGroup that does not say that it has the claim.
    pub(super) fn user_of_claim(
        &self,
        facts: &PodFacts,
        of_pod: &PodClaim,
        claim: &ClaimFacts,
    ) -> Result<ResourceClaimConsumerReference, String> {
        let named = named(facts, of_pod);
        let has_it = |shared: &SharedClaim| named.is_some_and(|named| is_same(shared, named));
        let group = self.pod_group_of(facts).filter(|group| group.claims.iter().any(has_it));
        match (group, facts.pod_group()) {
            (Some(group), Some(name)) => Ok(group_as_user(name, &group.uid)),
            _ if of_pod.is_made_for_it && claim.group.is_some() => {
                Err("it was made for the pod's PodGroup, which does not list it".to_owned())
            }
            _ => Ok(pod_as_user(&facts.name, &facts.uid)),
        }
    }

    /// The pod together with which a claim is allocated. `user`: for whom it is reserved for this pod.
    ///
    /// Of the pods of a PodGroup it is the one that the books have known for longest. The pods that a gang needs are chosen
    /// in this order, so the first is one of them.
    pub(super) fn first_user<'a>(
        &'a self,
        facts: &PodFacts,
        of_pod: &PodClaim,
        claim: &'a ClaimFacts,
        user: &ResourceClaimConsumerReference,
    ) -> First<'a> {
        let is_like = |pod: &&KnownPod| pod.facts.pod_group() == facts.pod_group();
        let group_of = |pod: &'a KnownPod| {
            let of_pod = pod.facts.claims.iter().find(|of| of.claim.as_ref() == Some(&claim.name))?;
            let user = self.user_of_claim(&pod.facts, of_pod, claim).ok().filter(is_group)?;
            Some((user.name, &pod.facts))
        };
        // Groups go before pods by themselves, and in the order of their names.
        let others = self.waiting_users(claim).filter(|pod| !is_like(pod)).filter_map(group_of);
        let before = others.min_by(|(one, _), (other, _)| one.cmp(other));
        if let Some((_, first)) = before.filter(|(name, _)| !is_group(user) || *name < user.name) {
            return First::Other(first);
        }
        let is_it = |first: &&PodFacts| first.uid == facts.uid;
        if !is_group(user) {
            let first = self.waiting_users(claim).map(|pod| &pod.facts).min_by_key(|pod| (pod.created_ms, &pod.uid));
            return first.filter(|first| !is_it(first)).map_or(First::Itself, First::Other);
        }
        let own = named(facts, of_pod);
        let can_be = |pod: &&KnownPod| {
            let names_it = || pod.facts.spec.resource_claims.iter().flatten().any(|of| Some(of) == own);
            is_it(&&pod.facts) || pod.problem.is_none() && names_it()
        };
        let known_for = |pod: &KnownPod| pod.claim.as_ref().map_or(u64::MAX, |told| told.number);
        let members = self.waiting_users(claim).filter(is_like).filter(can_be);
        let first = members.min_by_key(|pod| (known_for(pod), &pod.facts.uid)).map(|pod| &pod.facts);
        first.filter(|first| !is_it(first)).map_or(First::Itself, First::OfGroup)
    }

    /// Has a pod of a PodGroup placed near the pods together with which the group's claims are allocated.
    ///
    /// # Errors
    /// It would have to be near different pods.
    pub(in super::super) fn keep_near_first(
        &self,
        facts: &PodFacts,
        claimed: &Claimed,
        request: &mut Request,
    ) -> Result<(), String> {
        if claimed.leads.is_empty() && claimed.follows.is_empty() {
            return Ok(());
        }
        let mut peers = request.peers.as_deref().cloned().unwrap_or_default();
        let group = |claim: &String| near_first(&(facts.namespace.clone(), claim.clone()));
        peers.member_of.extend(claimed.leads.iter().map(group));
        if let Some(followed) = claimed.follows.first() {
            if let Some(other) = claimed.follows.iter().find(|other| other.first != followed.first) {
                return Err(format!(
                    "ResourceClaims {:?} and {:?} of its PodGroup are not allocated, and would be with different pods: let all \
                     pods of the group have the same of its claims",
                    followed.claim, other.claim
                ));
            }
            let of_first = self.pods.get(&followed.first).and_then(|first| first.peers.as_deref());
            if peers.affinity.is_some() && peers.affinity.as_ref() != of_first.and_then(affinity) {
                return Err(format!(
                    "ResourceClaim {:?} of its PodGroup is not allocated, and is to be with another pod, whose podAffinity \
                     differs: let both have the same",
                    followed.claim
                ));
            }
            // Where the first one may be by an affinity, this one may be by the same.
            let topology_keys = BTreeSet::from([NODE_NAME.to_owned()]);
            peers.affinity = Some(Affinity { group: group(&followed.claim), topology_keys });
        }
        request.peers = Some(Arc::new(peers));
        Ok(())
    }

    /// The pod that is being bound, and together with which a claim is allocated that other pods follow.
    pub(super) fn allocating<'a>(&'a self, name: &'a Name) -> Option<&'a PodFacts> {
        let users = self.device_claims.users.get(name).into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        let mut allocating = users.filter(|pod| {
            let claimed = pod.claim.as_ref().map(|told| &told.means.claimed);
            let allocates = claimed.is_some_and(|of| of.allocate.contains(&name.1) || of.others.contains(&name.1));
            allocates && pod.binding_to.is_some() && pod.instance.as_ref().is_some_and(|instance| !instance.is_bound)
        });
        allocating.next().map(|pod| &pod.facts)
    }

    pub(super) fn follow(first: &PodFacts, claim: &ClaimFacts) -> Followed {
        Followed { claim: claim.name.clone(), first: first.uid.clone() }
    }

    /// Whether a claim that a PodGroup alone uses is of no use to any of the pods that name it: none of them is bound or
    /// on its way, and all are this scheduler's.
    pub(super) fn is_idle(&self, name: &Name) -> bool {
        let users = self.device_claims.users.get(name).into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        users.filter(|pod| !pod.facts.has_ended).all(|pod| {
            let facts = &pod.facts;
            facts.scheduler == self.own_name
                && facts.node.is_none()
                && pod.instance.is_none()
                && pod.binding_to.is_none()
        })
    }
}

/// Refuses a claim of a PodGroup that the managers of nodes cannot divide.
///
/// # Errors
/// It has several requests for devices of our driver.
pub(super) fn check_is_one_slice(
    user: &ResourceClaimConsumerReference,
    of_ours: &BTreeSet<&str>,
) -> Result<(), String> {
    match is_group(user) && of_ours.len() > 1 {
        true => Err(format!(
            "it is reserved for PodGroup {:?}, and has {} requests for devices of {DRIVER}: the node's manager cannot see which \
             containers have which of them; ask for all in one request",
            user.name,
            of_ours.len()
        )),
        false => Ok(()),
    }
}

/// The name in the books of the pod together with which a claim is allocated.
fn near_first((namespace, claim): &Name) -> PeerGroup {
    PeerGroup::from(format!("the pod together with which ResourceClaim {namespace}/{claim} is allocated").as_str())
}

fn affinity(peers: &Peers) -> Option<&Affinity> {
    peers.affinity.as_ref()
}

/// What a pod's specification says of one of its claims.
fn named<'a>(facts: &'a PodFacts, of_pod: &PodClaim) -> Option<&'a PodResourceClaim> {
    facts.spec.resource_claims.iter().flatten().find(|named| named.name == of_pod.name)
}

fn is_same(shared: &SharedClaim, named: &PodResourceClaim) -> bool {
    (&shared.name, &shared.claim, &shared.template)
        == (&named.name, &named.resource_claim_name, &named.resource_claim_template_name)
}
