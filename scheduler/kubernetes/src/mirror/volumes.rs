//! Persistent volumes: a pod runs where its volumes can be mounted.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Constraints, NodeTerm};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::Mirror;
use crate::placement;
use crate::pod::PodFacts;

/// What is known of volumes and of claims for them.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// By namespace and name, the volume that a claim is bound to.
    claims: BTreeMap<(String, String), Option<String>>,
    /// The nodes that can mount a volume; empty: all. `Err`: what it asks of nodes is not supported.
    volumes: BTreeMap<String, Result<BTreeSet<NodeTerm>, String>>,
    has_changed: bool,
}

impl Mirror {
    pub(crate) fn volume_claim(&mut self, claim: PersistentVolumeClaim) {
        let key = (claim.metadata.namespace.unwrap_or_default(), claim.metadata.name.unwrap_or_default());
        let is_bound = claim.status.and_then(|status| status.phase).as_deref() == Some("Bound");
        let volume = claim.spec.and_then(|spec| spec.volume_name).filter(|_| is_bound);
        let before = self.volumes.claims.insert(key, volume.clone());
        self.volumes.has_changed |= before != Some(volume);
    }

    pub(crate) fn volume_claim_gone(&mut self, namespace: &str, name: &str) {
        self.volumes.has_changed |= self.volumes.claims.remove(&(namespace.to_owned(), name.to_owned())).is_some();
    }

    pub(crate) fn volume_claim_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.volumes.claims.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    pub(crate) fn volume(&mut self, volume: PersistentVolume) {
        let affinity = volume.spec.and_then(|spec| spec.node_affinity);
        let required = affinity.and_then(|affinity| affinity.required);
        let terms = required.as_ref().map_or_else(|| Ok(BTreeSet::new()), placement::terms);
        let before = self.volumes.volumes.insert(volume.metadata.name.unwrap_or_default(), terms.clone());
        self.volumes.has_changed |= before != Some(terms);
    }

    pub(crate) fn volume_gone(&mut self, name: &str) {
        self.volumes.has_changed |= self.volumes.volumes.remove(name).is_some();
    }

    pub(crate) fn volume_names(&self) -> BTreeSet<String> {
        self.volumes.volumes.keys().cloned().collect()
    }

    /// Looks again at pods that wait and use volumes, if those have changed.
    pub(super) fn look_at_volumes(&mut self) {
        if !std::mem::take(&mut self.volumes.has_changed) {
            return;
        }
        let waits = |facts: &PodFacts| facts.node.is_none() && facts.scheduler == self.own_name;
        let waiting = self.pods.iter().filter(|(_, pod)| waits(&pod.facts) && claims_of(&pod.facts).next().is_some());
        self.changed_pods.extend(waiting.map(|(uid, _)| uid.clone()));
    }

    /// Adds the nodes that can mount a pod's volumes to where it may run.
    pub(super) fn constrain_by_volumes(&self, facts: &PodFacts, constraints: &mut Constraints) -> Result<(), String> {
        for claim in claims_of(facts) {
            let bound_to = self.volumes.claims.get(&(facts.namespace.clone(), claim.to_owned()));
            let bound_to = bound_to.ok_or_else(|| format!("there is no PersistentVolumeClaim {claim:?}"))?;
            let volume = bound_to.as_ref().ok_or_else(|| {
                format!(
                    "the PersistentVolumeClaim {claim:?} is not bound to a volume yet; Aliquot's scheduler does not \
                     choose volumes, so use a storage class with volumeBindingMode Immediate"
                )
            })?;
            let terms = self.volumes.volumes.get(volume);
            let terms = terms.ok_or_else(|| format!("there is no PersistentVolume {volume:?}"))?.as_ref();
            let terms = terms.map_err(|error| format!("the PersistentVolume {volume:?}: {error}"))?;
            constraints.node_terms = placement::both(std::mem::take(&mut constraints.node_terms), terms);
        }
        Ok(())
    }
}

fn claims_of(facts: &PodFacts) -> impl Iterator<Item = &str> {
    let volumes = facts.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}
