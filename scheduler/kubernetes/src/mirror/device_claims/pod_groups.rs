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
use super::containers::Divided;
use super::turns::{Turn, Users};
use super::{Claimed, Name};
use crate::dra::{ClaimFacts, GroupOwner, group_as_user, is_group, pod_as_user};
use crate::gang::{GangFacts, SharedClaim};
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

    /// Whether the owner of a claim is a pod's PodGroup, and not an earlier one of its name.
    pub(super) fn is_group_of(&self, facts: &PodFacts, owner: &GroupOwner) -> bool {
        let is_known_otherwise = |group: &GangFacts| group.uid != owner.uid;
        facts.pod_group() == Some(&owner.name) && !self.pod_group_of(facts).is_some_and(is_known_otherwise)
    }

    /// The pod together with which a claim is allocated. `user`: for whom it is reserved for this pod.
    pub(super) fn first_user<'a>(
        &'a self,
        facts: &PodFacts,
        claim: &'a ClaimFacts,
        user: &ResourceClaimConsumerReference,
    ) -> First<'a> {
        let users = self.device_claims.users.get(&(claim.namespace.clone(), claim.name.clone()));
        let Some(first) = users.and_then(Users::first) else { return First::Itself };
        let Some(pod) = self.pods.get(first.uid()).filter(|_| *first < self.turn(facts, user, &claim.name)) else {
            return First::Itself;
        };
        match first.group() {
            Some(group) if is_group(user) && user.name == group => First::OfGroup(&pod.facts),
            _ => First::Other(&pod.facts),
        }
    }

    /// Refuses a pod whose containers have other requests of a claim of its PodGroup than those of another pod that has the
    /// claim, or with which it is allocated: the node's manager divides the claim once for all of them. `of_ours`: the
    /// claim's requests for devices of our driver.
    ///
    /// # Errors
    /// The text names the other pod.
    pub(super) fn check_is_divided_alike(
        &self,
        facts: &PodFacts,
        of_pod: &PodClaim,
        claim: &ClaimFacts,
        of_ours: &BTreeSet<&str>,
    ) -> Result<(), String> {
        let users = self.device_claims.users.get(&(claim.namespace.clone(), claim.name.clone()));
        let Some(users) = users.filter(|_| of_ours.len() > 1) else { return Ok(()) };
        let other = match claim.allocation {
            Some(_) => users.a_busy_one(&facts.uid),
            None => users.first().map(Turn::uid),
        };
        let other = other.and_then(|uid| self.pods.get(uid)).map(|pod| &pod.facts).filter(|pod| pod.uid != facts.uid);
        let Some(other) = other else { return Ok(()) };
        let named = other.claims.iter().find(|of| of.claim.as_ref() == Some(&claim.name));
        let Some(named) = named else { return Ok(()) };
        let own = Divided::of(&facts.spec, &of_pod.name, of_ours);
        match own.is_like(&Divided::of(&other.spec, &named.name, of_ours), of_ours) {
            true => Ok(()),
            false => Err(format!(
                "its containers have other requests of the claim than those of pod {}, and a node divides the claim once \
                 for all pods of the PodGroup: let containers have the same requests, or single ones that the others do \
                 not have",
                other.full_name()
            )),
        }
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
    pub(super) fn allocating(&self, name: &Name) -> Option<&PodFacts> {
        let first = self.device_claims.users.get(name)?.first().filter(|first| first.is_on_its_way())?;
        self.pods.get(first.uid()).map(|pod| &pod.facts)
    }

    /// The pod that a waiting pod follows, in words; `None`: it follows none.
    pub(in super::super) fn about_first(&self, pod: &KnownPod) -> Option<String> {
        let Followed { claim, first } = pod.claim.as_ref()?.means.claimed.follows.first()?;
        let first = self.pods.get(first)?.facts.full_name();
        Some(format!(
            "ResourceClaim {claim:?} of its PodGroup is allocated with the pod {first}, and it is placed beside that pod"
        ))
    }

    pub(super) fn follow(first: &PodFacts, claim: &ClaimFacts) -> Followed {
        Followed { claim: claim.name.clone(), first: first.uid.clone() }
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
