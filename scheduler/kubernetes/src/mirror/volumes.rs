//! Persistent volumes: a pod runs where its volumes can be mounted.

mod capacity;
mod free;
mod making;
mod zones;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Constraints, NodeOperator, NodeRequirement, NodeTerm};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use capacity::Capacities;
use free::{Free, Sort};
pub(crate) use making::Unmade;
use making::{Making, Unmakable};

use super::attached::Attached;
use super::chosen::only_on;
use super::{KnownPod, Mirror};
use crate::placement;
use crate::pod::PodFacts;

/// The annotation of a claim that says for which node a volume is to be made.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation that names the storage class of an old claim or volume. It counts before the field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner that storage classes name if they make no volumes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// A namespace and a name in it.
pub(super) type Name = (String, String);

/// The access mode of claims that one pod at a time may have.
const FOR_ONE_POD: &str = "ReadWriteOncePod";

/// What is known of volumes and of claims for them.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    /// By namespace and name.
    claims: BTreeMap<Name, ClaimFacts>,
    /// The UIDs of the pods that name each claim, whether it is known or not.
    users: BTreeMap<Name, BTreeSet<String>>,
    classes: BTreeMap<String, ClassFacts>,
    volumes: BTreeMap<String, VolumeFacts>,
    capacities: Capacities,
    /// The claims for which volumes are being made.
    making: BTreeMap<Name, Making>,
    /// The claims for which no volume could be made somewhere.
    unmakable: BTreeMap<Name, Unmakable>,
    has_changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct VolumeFacts {
    /// The nodes that can mount it; empty: all. `Err`: what it asks of nodes is not supported.
    terms: Result<BTreeSet<NodeTerm>, String>,
    /// Its driver, and what this calls it.
    handle: Option<Attached>,
    /// No claim has it.
    free: Option<Free>,
}

/// A claim for a volume.
#[derive(Clone, Debug, PartialEq)]
struct ClaimFacts {
    uid: String,
    resource_version: String,
    /// The volume that it is bound to.
    volume: Option<String>,
    /// The volume that it asks for by name, and is not bound to yet.
    named_volume: Option<String>,
    /// Its volume is gone.
    is_lost: bool,
    is_leaving: bool,
    /// The UID of the pod that it was made with, for an ephemeral volume.
    controller: Option<String>,
    class: Option<String>,
    /// The least size of its volume.
    size: Option<Quantity>,
    sort: Sort,
    /// It asks for labels of the volume.
    has_selector: bool,
    /// The node for which a volume is being made.
    selected_node: Option<String>,
    /// One pod at a time may have it.
    is_for_one_pod: bool,
}

/// How a storage class makes and binds volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClassFacts {
    /// Its claims are bound only when a node is chosen.
    waits_for_node: bool,
    /// Volumes are made for its claims. Otherwise each claim is bound to one of the volumes that exist.
    makes_volumes: bool,
    /// The driver that makes them.
    provisioner: String,
    /// The nodes for which it makes volumes; empty: all.
    terms: BTreeSet<NodeTerm>,
}

impl Mirror {
    pub(crate) fn volume_claim(&mut self, claim: PersistentVolumeClaim) {
        let metadata = claim.metadata;
        let key = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        let phase = claim.status.and_then(|status| status.phase);
        let is_bound = phase.as_deref() == Some("Bound");
        let spec = claim.spec.unwrap_or_default();
        let sort = Sort::of_claim(&spec);
        let modes = spec.access_modes.unwrap_or_default();
        let owners = metadata.owner_references.unwrap_or_default();
        let mut annotations = metadata.annotations.unwrap_or_default();
        let claim = ClaimFacts {
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            is_for_one_pod: modes.iter().any(|mode| mode == FOR_ONE_POD),
            volume: spec.volume_name.clone().filter(|_| is_bound),
            named_volume: spec.volume_name.filter(|name| !is_bound && !name.is_empty()),
            is_lost: phase.as_deref() == Some("Lost"),
            is_leaving: metadata.deletion_timestamp.is_some(),
            controller: owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid),
            class: annotations.remove(CLASS).or(spec.storage_class_name),
            sort,
            has_selector: spec.selector.is_some(),
            size: spec.resources.and_then(|mut resources| resources.requests.as_mut()?.remove("storage")),
            selected_node: annotations.remove(SELECTED_NODE),
        };
        if is_bound {
            self.volumes.unmakable.remove(&key);
        }
        let before = self.volumes.claims.insert(key.clone(), claim.clone());
        let version = &claim.resource_version;
        let in_this_version = |before: ClaimFacts| ClaimFacts { resource_version: version.clone(), ..before };
        if before.map(in_this_version).as_ref() != Some(&claim) {
            self.volumes.has_changed = true;
            self.attached_claim_changed(&key);
        }
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
            provisioner: class.provisioner,
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
        let key = (namespace.to_owned(), name.to_owned());
        self.volumes.unmakable.remove(&key);
        self.volumes.has_changed |= self.volumes.claims.remove(&key).is_some();
    }

    pub(crate) fn volume_claim_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.volumes.claims.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    pub(crate) fn volume(&mut self, volume: PersistentVolume) {
        let (metadata, spec) = (volume.metadata, volume.spec.unwrap_or_default());
        let phase = volume.status.and_then(|status| status.phase).filter(|_| metadata.deletion_timestamp.is_none());
        let class = metadata.annotations.and_then(|mut annotations| annotations.remove(CLASS));
        let free = Free::of(&spec, class.or_else(|| spec.storage_class_name.clone()), phase.as_deref());
        let required = spec.node_affinity.and_then(|affinity| affinity.required);
        let terms = required.as_ref().map_or_else(|| Ok(BTreeSet::new()), placement::terms);
        let in_zones = zones::terms(&metadata.labels.unwrap_or_default());
        let terms = terms.map(|terms| placement::both(terms, &in_zones));
        let facts = VolumeFacts { terms, handle: spec.csi.map(|csi| (csi.driver, csi.volume_handle)), free };
        let before = self.volumes.volumes.insert(metadata.name.unwrap_or_default(), facts.clone());
        if before != Some(facts) {
            self.volumes.has_changed = true;
            let claim = spec.claim_ref.and_then(|claim| Some((claim.namespace?, claim.name?)));
            claim.into_iter().for_each(|claim| self.attached_claim_changed(&claim));
        }
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

    /// Lists a pod with the claims that it names. Those that wait for one of them are looked at again.
    pub(super) fn list_in_volume_claims(&mut self, facts: &PodFacts) {
        for name in claims_of(facts) {
            let users = self.volumes.users.entry((facts.namespace.clone(), name)).or_default();
            users.insert(facts.uid.clone());
        }
        self.users_of_volumes_changed(facts);
    }

    pub(super) fn unlist_in_volume_claims(&mut self, facts: &PodFacts) {
        self.users_of_volumes_changed(facts);
        for name in claims_of(facts) {
            let name = (facts.namespace.clone(), name);
            if let Some(users) = self.volumes.users.get_mut(&name) {
                users.remove(&facts.uid);
                if users.is_empty() {
                    self.volumes.users.remove(&name);
                }
            }
        }
    }

    /// A pod has changed: others may have a claim now that one pod at a time may have.
    pub(super) fn users_of_volumes_changed(&mut self, facts: &PodFacts) {
        let users = self.others_that_wait_for_volumes_of(facts);
        self.changed_pods.extend(users);
    }

    /// The claims of a pod that one pod at a time may have.
    fn claims_for_one_pod(&self, facts: &PodFacts) -> impl Iterator<Item = Name> {
        let names = claims_of(facts).map(|name| (facts.namespace.clone(), name));
        names.filter(|name| self.volumes.claims.get(name).is_some_and(|claim| claim.is_for_one_pod))
    }

    pub(super) fn uses_volume_for_one_pod(&self, facts: &PodFacts) -> bool {
        self.claims_for_one_pod(facts).next().is_some()
    }

    pub(super) fn others_that_wait_for_volumes_of(&self, facts: &PodFacts) -> BTreeSet<String> {
        let waits = |uid: &&String| self.pods.get(*uid).is_some_and(|pod| pod.facts.node.is_none());
        let users = |name: Name| self.volumes.users_of(&name).filter(waits).cloned().collect::<Vec<_>>();
        self.claims_for_one_pod(facts).flat_map(users).filter(|uid| *uid != facts.uid).collect()
    }

    /// The other pods that name a claim.
    fn other_users(&self, facts: &PodFacts, name: &Name) -> impl Iterator<Item = &KnownPod> {
        let users = self.volumes.users_of(name);
        let others = users.filter(move |uid| **uid != facts.uid).filter_map(move |uid| self.pods.get(uid));
        others.filter(|pod| !pod.is_gone && !pod.facts.has_ended)
    }

    /// Checks that no other pod has a claim of a pod that one pod at a time may have. If it is `in_turn`, also that none is
    /// to have it first.
    ///
    /// # Errors
    /// Which pod has it.
    fn check_has_no_user(&self, facts: &PodFacts, in_turn: bool) -> Result<(), String> {
        for name in self.claims_for_one_pod(facts) {
            self.check_is_free(facts, self.other_users(facts, &name), in_turn).map_err(|why| {
                let name = &name.1;
                format!("one pod at a time may have the PersistentVolumeClaim {name:?} ({FOR_ONE_POD}), and {why}")
            })?;
        }
        Ok(())
    }

    /// Limits a pod to the nodes that can mount its volumes. `in_turn`: it must be its turn to have them. Returns the
    /// claims for which volumes are to be made once a node is chosen.
    pub(super) fn constrain_by_volumes(
        &self,
        facts: &PodFacts,
        constraints: &mut Constraints,
        in_turn: bool,
    ) -> Result<Vec<String>, String> {
        self.check_has_no_user(facts, in_turn)?;
        let mut to_make = Vec::new();
        for named in named_by(facts) {
            let claim = self.volumes.usable(facts, &named)?;
            let name = named.claim;
            let terms = match &claim.volume {
                Some(volume) => self.volumes.terms(volume)?,
                None => {
                    let terms = self.volumes.terms_of_new(&(facts.namespace.clone(), name.clone()), claim)?;
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
    /// A claim that a pod names, if the pod can ever have a volume by it.
    ///
    /// # Errors
    /// Why not. kubelet would refuse the pod's volumes for the same reasons, on whatever node.
    fn usable(&self, facts: &PodFacts, Named { claim: name, is_ephemeral }: &Named) -> Result<&ClaimFacts, String> {
        let claim = self.claims.get(&(facts.namespace.clone(), name.clone()));
        let claim = claim.ok_or_else(|| format!("there is no PersistentVolumeClaim {name:?}"))?;
        if claim.is_leaving {
            return Err(format!("the PersistentVolumeClaim {name:?} is being deleted"));
        }
        if claim.is_lost {
            return Err(format!("the PersistentVolumeClaim {name:?} has lost its volume; make the claim anew"));
        }
        if *is_ephemeral && claim.controller.as_ref() != Some(&facts.uid) {
            return Err(format!(
                "the PersistentVolumeClaim {name:?} was not made for this pod, but perhaps for an earlier one of its name; \
                 the pod waits until that claim is gone"
            ));
        }
        Ok(claim)
    }

    /// The nodes that can mount a volume; empty: all.
    fn terms(&self, volume: &str) -> Result<BTreeSet<NodeTerm>, String> {
        let terms = self.volumes.get(volume).ok_or_else(|| format!("there is no PersistentVolume {volume:?}"))?;
        terms.terms.clone().map_err(|error| format!("the PersistentVolume {volume:?}: {error}"))
    }

    /// The driver of a volume, and what this calls it.
    pub(super) fn handle(&self, volume: &str) -> Option<Attached> {
        self.volumes.get(volume)?.handle.clone()
    }

    /// What is attached to the node of a pod with this claim.
    pub(super) fn attached_by(&self, name: &Name) -> Option<Attached> {
        let claim = self.claims.get(name)?;
        match &claim.volume {
            Some(volume) => self.handle(volume),
            None => {
                let class = self.classes.get(claim.class.as_ref()?)?;
                class.makes_volumes.then(|| (class.provisioner.clone(), format!("{}/{}", name.0, name.1)))
            }
        }
    }

    pub(super) fn users_of(&self, name: &Name) -> impl Iterator<Item = &String> {
        self.users.get(name).into_iter().flatten()
    }

    /// The nodes for which a volume can be made for a claim; empty: all.
    fn terms_of_new(&self, key: &Name, claim: &ClaimFacts) -> Result<BTreeSet<NodeTerm>, String> {
        let name = &key.1;
        if let Some(volume) = &claim.named_volume {
            return Err(format!("the PersistentVolumeClaim {name:?} is not bound yet to its volume {volume:?}"));
        }
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
        // The provisioner looks itself whether there is room on the node that is asked for already.
        let others = match claim.selected_node.as_deref() {
            Some(node) => BTreeSet::from([only_on(node)]),
            None => {
                self.check_needs_new(key, claim)?;
                self.capacities.terms(name, claim, &class.provisioner)?
            }
        };
        Ok(placement::both(class.terms.clone(), &others))
    }
}

/// A claim as a pod names it.
struct Named {
    claim: String,
    /// The claim is made with the pod, and named after both.
    is_ephemeral: bool,
}

fn named_by(facts: &PodFacts) -> impl Iterator<Item = Named> {
    let volumes = facts.spec.volumes.iter().flatten();
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(Named { claim: claim.claim_name.clone(), is_ephemeral: false }),
        (None, Some(_)) => Some(Named { claim: format!("{}-{}", facts.name, volume.name), is_ephemeral: true }),
        (None, None) => None,
    })
}

/// The claims of a pod.
pub(super) fn claims_of(facts: &PodFacts) -> impl Iterator<Item = String> {
    named_by(facts).map(|named| named.claim)
}
