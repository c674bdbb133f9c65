//! Claims that are made for extended resources of pods: for resources that no node has, and for which a device class
//! stands.
//!
//! The name of the claim follows from its pod. So the claim is made only once, even if a leader tries again after an
//! answer was lost, or if the next leader tries. If the pod was not bound, the claim is deleted before another one is
//! made.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_dialects::Spoken;

use super::super::Mirror;
use super::{DeviceClaims, Name};
use crate::dra::{self, Ask, ClaimFacts, Extended};
use crate::node::NodeFacts;
use crate::pod::PodFacts;

/// Characters of a name in Kubernetes, at most.
const NAME_MAX: usize = 253;
/// Characters of the pod's UID that stand in the claim's name.
const OF_UID: usize = 8;

/// A claim that is made when its pod is bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToMake {
    pub(crate) asked: Extended,
    /// The claim as it will be, but without a UID.
    pub(crate) claim: ClaimFacts,
}

impl Mirror {
    /// The extended resources for which a class stands, with the name of the class. Two sorts are left out: resources
    /// that a device plugin of any node offers, which are only counted on nodes, and words for parts of devices.
    pub(in super::super) fn classes_of_resources(&self, spoken: &Spoken) -> BTreeMap<String, String> {
        let is_offered = |resource: &str| self.nodes.values().any(|node| node.facts.has(resource));
        let mut classes = self.device_claims.by_resource.clone();
        classes.retain(|resource, _| !spoken.is_resource(resource) && !is_offered(resource));
        classes
    }

    /// The claim for a pod's extended resources; `None`: no class stands for what it asks for.
    pub(super) fn extended_of(&self, facts: &PodFacts) -> Result<Option<ToMake>, String> {
        if self.reading.classes.is_empty() || facts.node.is_some() || !dra::may_ask(&facts.spec) {
            return Ok(None);
        }
        let asked = Extended::of(&facts.spec, &self.reading.classes)?;
        if asked.is_empty() {
            return Ok(None);
        }
        let claim = ClaimFacts {
            namespace: facts.namespace.clone(),
            name: name_of(facts),
            uid: String::new(),
            resource_version: String::new(),
            is_leaving: false,
            owner: Some(facts.uid.clone()),
            group: None,
            is_of_extended_resources: true,
            finalizers: Vec::new(),
            ask: Ok(Ask::of(asked.requests.clone())?),
            allocation: None,
            reserved_for: Vec::new(),
        };
        Ok(Some(ToMake { asked, claim }))
    }

    /// # Errors
    /// A claim for the pod's extended resources is there already, though the pod is not bound.
    pub(super) fn check_is_none_left(&self, facts: &PodFacts) -> Result<(), String> {
        match self.device_claims.made_for(&facts.uid).next() {
            None => Ok(()),
            Some(claim) => Err(format!(
                "ResourceClaim {:?} was made for its extended resources, but the pod was not bound; that claim is deleted \
                 first",
                claim.name
            )),
        }
    }

    /// A claim for a pod's extended resources was made. Notes its UID in the pod's instance, which knew only its name.
    pub(crate) fn claim_was_made(&mut self, claim: &ClaimFacts) {
        let pod = claim.owner.as_ref().and_then(|uid| self.pods.get_mut(uid));
        let held = pod.and_then(|pod| pod.instance.as_mut()).into_iter().flat_map(|instance| &mut instance.claims);
        for held in held.filter(|held| held.uid.is_empty() && held.name == claim.name) {
            held.uid.clone_from(&claim.uid);
        }
    }

    /// Pods that may wait for extended resources for which classes stand.
    pub(super) fn askers(&self) -> BTreeSet<String> {
        if self.reading.classes.is_empty() { BTreeSet::new() } else { self.device_claims.askers.clone() }
    }
}

impl DeviceClaims {
    /// Whether a node has gained or lost a resource for which a class stands.
    pub(in super::super) fn has_other_resources(&self, before: &NodeFacts, now: &NodeFacts) -> bool {
        before.allocatable != now.allocatable
            && self.by_resource.keys().any(|resource| before.has(resource) != now.has(resource))
    }

    /// Finds out for which resources the classes stand. If several classes name the same resource, the newest one
    /// stands for it, and of equally new ones the first by name, as in Kubernetes.
    pub(super) fn map_resources(&mut self) {
        let mut named: Vec<_> =
            self.classes.iter().filter_map(|(name, class)| Some((class.resource.as_ref()?, class, name))).collect();
        named.sort_by_key(|(_, class, name)| (class.created_ms, std::cmp::Reverse(*name)));
        let implicit = self.classes.keys().map(|name| (dra::implicit_resource(name), name.clone()));
        self.by_resource = implicit.chain(named.iter().map(|(of, _, name)| ((*of).clone(), (*name).clone()))).collect();
    }

    /// Notes whether a pod may ask for what classes stand for, as long as it waits.
    pub(super) fn note_asker(&mut self, facts: &PodFacts) {
        if facts.node.is_none() && dra::may_ask(&facts.spec) {
            self.askers.insert(facts.uid.clone());
        } else {
            self.askers.remove(&facts.uid);
        }
    }

    /// Notes for which pod a claim was made, if it was made for extended resources. `is_there`: whether it still
    /// exists.
    pub(super) fn note_made(&mut self, name: &Name, is_there: bool) {
        let Some(claim) = self.claims.get(name).filter(|claim| claim.is_of_extended_resources) else { return };
        let Some(owner) = claim.owner.clone() else { return };
        let made = self.made.entry(owner.clone()).or_default();
        match is_there {
            true => _ = made.insert(name.clone()),
            false => _ = made.remove(name),
        }
        if made.is_empty() {
            self.made.remove(&owner);
        }
    }

    /// The claims that were made for a pod's extended resources.
    pub(super) fn made_for(&self, pod_uid: &str) -> impl Iterator<Item = &ClaimFacts> {
        self.made.get(pod_uid).into_iter().flatten().filter_map(|name| self.claims.get(name))
    }
}

/// The name of a pod's claim. It begins as with kube-scheduler, and ends with a part of the pod's UID where
/// kube-scheduler has random characters.
fn name_of(facts: &PodFacts) -> String {
    let of_uid: String = facts.uid.chars().filter(char::is_ascii_alphanumeric).take(OF_UID).collect();
    let end = format!("-extended-resources-{}", of_uid.to_ascii_lowercase());
    let of_pod: String = facts.name.chars().take(NAME_MAX - end.len()).collect();
    format!("{}{end}", of_pod.trim_end_matches(['.', '-']))
}
