//! Persistent volumes: a pod runs where its volumes can be mounted.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Constraints, NodeOperator, NodeRequirement, NodeTerm};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;

use super::Mirror;
use crate::placement::{self, NODE_NAME};
use crate::pod::PodFacts;

/// The annotation of a claim that says for which node a volume is to be made.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The provisioner that storage classes name if they make no volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What is known of volumes and of claims for them.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// By namespace and name.
    claims: BTreeMap<(String, String), ClaimFacts>,
    classes: BTreeMap<String, ClassFacts>,
    /// The nodes that can mount a volume; empty: all. `Err`: what it asks of nodes is not supported.
    volumes: BTreeMap<String, Result<BTreeSet<NodeTerm>, String>>,
    has_changed: bool,
}

/// A claim for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimFacts {
    /// The volume that it is bound to.
    volume: Option<String>,
    class: Option<String>,
    /// The node for which a volume is being made.
    selected_node: Option<String>,
}

/// How a storage class makes and binds volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClassFacts {
    /// Its claims are bound only when a node is chosen.
    waits_for_node: bool,
    /// Volumes are made for its claims. Otherwise each claim is bound to one of the volumes that exist.
    makes_volumes: bool,
    /// The nodes for which it makes volumes; empty: all.
    terms: BTreeSet<NodeTerm>,
}

impl Mirror {
    pub(crate) fn volume_claim(&mut self, claim: PersistentVolumeClaim) {
        let key = (claim.metadata.namespace.unwrap_or_default(), claim.metadata.name.unwrap_or_default());
        let is_bound = claim.status.and_then(|status| status.phase).as_deref() == Some("Bound");
        let spec = claim.spec.unwrap_or_default();
        let claim = ClaimFacts {
            volume: spec.volume_name.filter(|_| is_bound),
            class: spec.storage_class_name,
            selected_node: claim.metadata.annotations.and_then(|annotations| annotations.get(SELECTED_NODE).cloned()),
        };
        let before = self.volumes.claims.insert(key, claim.clone());
        self.volumes.has_changed |= before != Some(claim);
    }

    pub(crate) fn storage_class(&mut self, class: StorageClass) {
        let term = |term: &TopologySelectorTerm| {
            let expressions = term.match_label_expressions.iter().flatten();
            let requirements = expressions.map(|of| NodeRequirement {
                key: of.key.clone(),
                operator: NodeOperator::In(of.values.iter().cloned().collect()),
            });
            NodeTerm { requirements: requirements.collect() }
        };
        let facts = ClassFacts {
            waits_for_node: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            makes_volumes: class.provisioner != NO_PROVISIONER,
            terms: class.allowed_topologies.iter().flatten().map(term).collect(),
        };
        let before = self.volumes.classes.insert(class.metadata.name.unwrap_or_default(), facts.clone());
        self.volumes.has_changed |= before != Some(facts);
    }

    pub(crate) fn storage_class_gone(&mut self, name: &str) {
        self.volumes.has_changed |= self.volumes.classes.remove(name).is_some();
    }

    pub(crate) fn storage_class_names(&self) -> BTreeSet<String> {
        self.volumes.classes.keys().cloned().collect()
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

    /// Limits a pod to the nodes that can mount its volumes. Returns the claims for which volumes are to be made once a
    /// node is chosen.
    pub(super) fn constrain_by_volumes(
        &self,
        facts: &PodFacts,
        constraints: &mut Constraints,
    ) -> Result<Vec<String>, String> {
        let mut to_make = Vec::new();
        for name in claims_of(facts) {
            let claim = self.volumes.claims.get(&(facts.namespace.clone(), name.clone()));
            let claim = claim.ok_or_else(|| format!("there is no PersistentVolumeClaim {name:?}"))?;
            let terms = match &claim.volume {
                Some(volume) => self.volumes.terms(volume)?,
                None => {
                    let terms = self.volumes.terms_of_new(&name, claim)?;
                    to_make.push(name);
                    terms
                }
            };
            constraints.node_terms = placement::both(std::mem::take(&mut constraints.node_terms), &terms);
        }
        Ok(to_make)
    }
}

impl Volumes {
    /// The nodes that can mount a volume; empty: all.
    fn terms(&self, volume: &str) -> Result<BTreeSet<NodeTerm>, String> {
        let terms = self.volumes.get(volume).ok_or_else(|| format!("there is no PersistentVolume {volume:?}"))?;
        terms.clone().map_err(|error| format!("the PersistentVolume {volume:?}: {error}"))
    }

    /// The nodes for which a volume can be made for a claim; empty: all.
    fn terms_of_new(&self, name: &str, claim: &ClaimFacts) -> Result<BTreeSet<NodeTerm>, String> {
        let class = claim.class.as_ref().and_then(|class| self.classes.get(class));
        let Some(class) = class.filter(|class| class.waits_for_node) else {
            return Err(format!("the PersistentVolumeClaim {name:?} is not bound to a volume yet"));
        };
        if !class.makes_volumes {
            return Err(format!(
                "the PersistentVolumeClaim {name:?} waits for a node and makes no volume; Aliquot's scheduler does not \
                 choose among volumes, so bind the claim by its volumeName"
            ));
        }
        let selected = claim.selected_node.clone().map(|node| NodeTerm {
            requirements: BTreeSet::from([NodeRequirement {
                key: NODE_NAME.to_owned(),
                operator: NodeOperator::In(BTreeSet::from([node])),
            }]),
        });
        Ok(placement::both(class.terms.clone(), &selected.into_iter().collect()))
    }
}

/// The claims of a pod. That of an ephemeral volume is made with the pod, and named after both.
fn claims_of(facts: &PodFacts) -> impl Iterator<Item = String> {
    let volumes = facts.spec.volumes.iter().flatten();
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", facts.name, volume.name)),
        (None, None) => None,
    })
}
