//! Claims for parts of devices: which pods name each claim, which pod uses it, and what that pod asks for by it.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::Constraints;
use jiff::Timestamp;

use super::chosen::only_on;
use super::{Access, Mirror};
use crate::elastic::{self, Asked, ElasticGpu, ElasticGpuClaim, ElasticGpuClassDefinition, Given, Name, Step, Use};
use crate::placement;
use crate::pod::PodFacts;

/// The known classes, claims and parts, and the pods that name claims.
#[derive(Debug, Default)]
pub(super) struct ElasticGpus {
    access: Access,
    known: elastic::Known,
    /// The pods that name each claim, whether it is known or not.
    users: BTreeMap<Name, BTreeSet<String>>,
    /// Claims for which something has changed: themselves, their class, their part, its node, or the pods that name
    /// them.
    changed: BTreeSet<Name>,
}

impl Mirror {
    /// Tells whether all claims, classes and parts are known, and why not.
    pub(crate) fn elastic_gpu_claims_are(&mut self, access: Access) {
        if std::mem::replace(&mut self.elastic_gpus.access, access) != access {
            let named: Vec<Name> = self.elastic_gpus.users.keys().cloned().collect();
            self.elastic_gpus.changed.extend(named);
        }
    }

    pub(crate) fn elastic_gpu_class(&mut self, name: &str, class: ElasticGpuClassDefinition) {
        if self.elastic_gpus.known.classes.get(name) != Some(&class) {
            self.elastic_gpus.known.classes.insert(name.to_owned(), class);
            self.elastic_gpus.class_changed(name);
        }
    }

    pub(crate) fn elastic_gpu_class_gone(&mut self, name: &str) {
        if self.elastic_gpus.known.classes.remove(name).is_some() {
            self.elastic_gpus.class_changed(name);
        }
    }

    pub(crate) fn elastic_gpu_class_names(&self) -> BTreeSet<String> {
        self.elastic_gpus.known.classes.keys().cloned().collect()
    }

    pub(crate) fn elastic_gpu_claim(&mut self, claim: ElasticGpuClaim) {
        let metadata = &claim.metadata;
        let name = (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
        self.elastic_gpus.changed.insert(name.clone());
        self.elastic_gpus.known.claims.insert(name, claim);
    }

    pub(crate) fn elastic_gpu_claim_gone(&mut self, namespace: &str, name: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        self.elastic_gpus.known.claims.remove(&name);
        self.elastic_gpus.changed.insert(name);
    }

    pub(crate) fn elastic_gpu_claim_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.elastic_gpus.known.claims.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    pub(crate) fn elastic_gpu(&mut self, gpu: ElasticGpu) {
        self.elastic_gpus.gpu_changed(&gpu);
        self.elastic_gpus.known.gpus.insert(gpu.metadata.name.clone().unwrap_or_default(), gpu);
    }

    pub(crate) fn elastic_gpu_gone(&mut self, name: &str) {
        if let Some(gpu) = self.elastic_gpus.known.gpus.remove(name) {
            self.elastic_gpus.gpu_changed(&gpu);
        }
    }

    pub(crate) fn elastic_gpu_names(&self) -> BTreeSet<String> {
        self.elastic_gpus.known.gpus.keys().cloned().collect()
    }

    /// Lists a pod with the claims that it names. A change of this pod may concern the other pods that name them.
    pub(super) fn list_in_elastic_gpu_claims(&mut self, facts: &PodFacts) {
        for name in names_of(facts) {
            self.elastic_gpus.users.entry(name.clone()).or_default().insert(facts.uid.clone());
            self.elastic_gpus.changed.insert(name);
        }
    }

    /// Removes a pod from the lists of the claims that it named.
    pub(super) fn unlist_in_elastic_gpu_claims(&mut self, facts: &PodFacts) {
        for name in names_of(facts) {
            if let Some(users) = self.elastic_gpus.users.get_mut(&name) {
                users.remove(&facts.uid);
                if users.is_empty() {
                    self.elastic_gpus.users.remove(&name);
                }
            }
            self.elastic_gpus.changed.insert(name);
        }
    }

    /// Has the pods looked at again that name a claim for which something has changed.
    pub(super) fn look_at_elastic_gpus(&mut self) {
        for name in std::mem::take(&mut self.elastic_gpus.changed) {
            self.changed_pods.extend(self.elastic_gpus.users.get(&name).into_iter().flatten().cloned());
        }
    }

    /// The devices of a node may have changed, so pods are looked at again that name claims with parts on it.
    pub(super) fn elastic_gpus_of_node_changed(&mut self, node: &str) {
        let gpus = self.elastic_gpus.known.gpus.values().filter(|gpu| gpu.spec.node_name == node);
        let claims = gpus.map(|gpu| (gpu.spec.claim_ref.namespace.clone(), gpu.spec.claim_ref.name.clone()));
        self.elastic_gpus.changed.extend(claims);
    }

    /// Limits a pod to the node of the parts that its claims are bound to already.
    ///
    /// # Errors
    /// A claim gives it nothing.
    pub(super) fn constrain_by_elastic_gpus(
        &self,
        facts: &PodFacts,
        constraints: &mut Constraints,
    ) -> Result<(), String> {
        for index in 0..facts.words.containers.len() {
            let Some(name) = facts.words.elastic_gpu_claim(index) else { continue };
            let Some((node, _)) = self.asked_by_claim(facts, name)?.bound_to else { continue };
            let terms = BTreeSet::from([only_on(&node)]);
            constraints.node_terms = placement::both(std::mem::take(&mut constraints.node_terms), &terms);
        }
        Ok(())
    }

    /// What a pod asks for by a claim that it names.
    ///
    /// # Errors
    /// The claim gives it nothing.
    pub(super) fn asked_by_claim(&self, facts: &PodFacts, name: &str) -> Result<Asked, String> {
        let key = (facts.namespace.clone(), name.to_owned());
        let claim = self.elastic_gpus.known.claims.get(&key).ok_or_else(|| match self.elastic_gpus.access {
            Access::Read => format!("there is no ElasticGPUClaim {name:?}; make it in namespace {}", key.0),
            Access::Forbidden => format!(
                "it names the ElasticGPUClaim {name:?}, and the scheduler has no right to read such claims; apply the \
                 scheduler's manifests"
            ),
            Access::Absent => format!(
                "it names the ElasticGPUClaim {name:?}, and this cluster has no such kind of object; apply the \
                 scheduler's manifests"
            ),
        })?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("the ElasticGPUClaim {name:?} is being deleted; create it again, or name another one"));
        }
        if names_of(facts).filter(|of| *of == key).count() > 1 {
            return Err(format!("two containers name the ElasticGPUClaim {name:?}; give each a claim of its own"));
        }
        if let Some(user) = self.user_of(&key).filter(|user| user.facts.uid != facts.uid) {
            let user = user.facts.full_name();
            return Err(format!("the ElasticGPUClaim {name:?} is pod {user}'s, and one pod has it at a time"));
        }
        let asked = self.elastic_gpus.known.asked(claim, |node, device| self.has_device(node, device));
        asked.map_err(|unmet| format!("the ElasticGPUClaim {name:?}: {}", unmet.text))
    }

    /// The pod that uses a claim or is the next to use it: a bound pod, or else the oldest pod that waits.
    fn user_of(&self, name: &Name) -> Option<&super::KnownPod> {
        let pods = self.elastic_gpus.users.get(name)?.iter().filter_map(|uid| self.pods.get(uid));
        let holds = |pod: &super::KnownPod| pod.instance.is_some() || pod.facts.node.is_some();
        let waits = |pod: &super::KnownPod| {
            let is_ours = pod.facts.scheduler == self.own_name || pod.chosen.is_some();
            is_ours && !pod.facts.is_leaving && !pod.facts.is_gated
        };
        let candidates = pods.filter(|pod| !pod.facts.has_ended && (holds(pod) || waits(pod)));
        candidates.min_by_key(|pod| (!holds(pod), pod.facts.created_ms, &pod.facts.uid))
    }

    fn has_device(&self, node: &str, device: &str) -> bool {
        self.model_of(node, device).is_some()
    }

    fn model_of(&self, node: &str, device: &str) -> Option<&str> {
        let inventory = self.nodes.get(node)?.facts.inventory.as_ref()?.as_ref().ok()?;
        let found = inventory.devices.iter().find(|of| of.uuid == device)?;
        Some(&found.model)
    }

    /// The writes for claims and parts that are due now.
    pub(crate) fn elastic_steps(&self, now: Timestamp) -> Vec<Step> {
        let names = self.elastic_gpus.users.keys();
        let uses = names.filter_map(|name| Some((name.clone(), self.use_of(name)?))).collect();
        elastic::plan(&self.elastic_gpus.known, &uses, |node, device| self.has_device(node, device), now)
    }

    /// The pod that uses a claim, and the part that it has. A pod uses it as soon as its binding is on its way: until the
    /// answer its part is not known.
    fn use_of(&self, name: &Name) -> Option<Use> {
        let user = self.user_of(name)?;
        let facts = &user.facts;
        let Some(node) = facts.node.clone() else {
            return user.instance.as_ref().map(|_| Use { pod: facts.full_name(), given: None });
        };
        // Only the scheduler writes the generation: an admission policy keeps others from it. It binds no pod that has a
        // decision already, so the decision is the scheduler's, too.
        let decision = facts.decision.as_ref().filter(|_| facts.generation.is_some());
        let given = decision.and_then(|decision| decision.as_ref().ok()).and_then(|decision| {
            let index = (0..facts.words.containers.len())
                .find(|index| facts.words.elastic_gpu_claim(*index) == Some(name.1.as_str()))?;
            // A claim can be named after the binding. The container's limits cannot change, and say whether it has one.
            facts.words.check_elastic_gpu(index).ok()?;
            let part = decision.containers.get(&facts.words.containers.get(index)?.name)?.first()?;
            Some(Given {
                model: self.model_of(&node, &part.uuid).unwrap_or_default().to_owned(),
                node,
                device: part.uuid.clone(),
                core_percent: part.core_thousandths / 10,
                memory_bytes: part.memory_bytes,
            })
        });
        Some(Use { pod: facts.full_name(), given })
    }
}

impl ElasticGpus {
    fn class_changed(&mut self, class: &str) {
        let of_class = self.known.claims.iter().filter(|(_, claim)| claim.spec.class == class);
        self.changed.extend(of_class.map(|(name, _)| name.clone()));
    }

    fn gpu_changed(&mut self, gpu: &ElasticGpu) {
        let claim = &gpu.spec.claim_ref;
        self.changed.insert((claim.namespace.clone(), claim.name.clone()));
    }
}

/// The claims that the containers of a pod name.
fn names_of(facts: &PodFacts) -> impl Iterator<Item = Name> {
    let containers = 0..facts.words.containers.len();
    let names = containers.filter_map(|index| facts.words.elastic_gpu_claim(index));
    names.map(|name| (facts.namespace.clone(), name.to_owned()))
}
