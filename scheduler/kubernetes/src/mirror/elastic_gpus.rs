//! Claims for parts of devices: which pods name each claim, which pod uses it, and what that pod asks for by it.

mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use aliquot_api_server::InventoryDevice;
use aliquot_dialects::{ELASTIC_GPU_CLAIM, Pod as Words};
use aliquot_scheduler_core::Constraints;
use aliquot_scheduler_engine::Observation;
use jiff::Timestamp;

use super::chosen::only_on;
use super::{Access, KnownPod, Mirror};
use crate::elastic::{
    self, Asked, ElasticGpu, ElasticGpuClaim, ElasticGpuClassDefinition, Given, Name, Step, Use, subject_of,
};
use crate::placement;
use crate::pod::PodFacts;

/// The known classes, claims and parts, and the pods that name claims.
#[derive(Debug, Default)]
pub(super) struct ElasticGpus {
    access: Access,
    known: elastic::Known,
    /// The pods that name each claim, whether it is known or not.
    users: BTreeMap<Name, BTreeSet<String>>,
    /// What the books were told of parts, by the part's name.
    told: BTreeMap<String, rooms::Told>,
    /// Questions for room, which the books have not heard yet.
    asked: Vec<Observation>,
    /// By node, the parts that name it.
    on_node: BTreeMap<String, BTreeSet<String>>,
    /// Parts of which the room is to be looked at again.
    changed_parts: BTreeSet<String>,
    /// Parts of which the room can be changed only after an answer that is on its way.
    postponed: BTreeSet<String>,
    /// Claims, or parts without a claim, for which something has changed: themselves, their class, their part, its node,
    /// or the pods that name them. These pods are to be looked at again.
    changed: BTreeSet<Name>,
    /// Claims for which something has changed since their writes were planned.
    due: BTreeSet<Name>,
}

/// Claims whose writes are planned together, at most.
const PLANNED_TOGETHER: usize = 200;

impl Mirror {
    /// Notes whether all claims, classes and parts are known, and if not, why.
    pub(crate) fn elastic_gpu_claims_are(&mut self, access: Access) {
        if std::mem::replace(&mut self.elastic_gpus.access, access) != access {
            if access != Access::Read {
                self.end_all_parts();
            }
            let of = &mut self.elastic_gpus;
            of.changed.extend(of.users.keys().chain(of.known.claims.keys()).chain(of.known.subjects()).cloned());
            of.due.extend(of.changed.iter().cloned());
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
        self.elastic_gpus.claim_changed(name.clone());
        self.elastic_gpus.known.claims.insert(name, claim);
    }

    pub(crate) fn elastic_gpu_claim_gone(&mut self, namespace: &str, name: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        self.elastic_gpus.known.claims.remove(&name);
        self.elastic_gpus.claim_changed(name);
    }

    pub(crate) fn elastic_gpu_claim_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.elastic_gpus.known.claims.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    pub(crate) fn elastic_gpu(&mut self, gpu: ElasticGpu) {
        let name = gpu.metadata.name.clone().unwrap_or_default();
        self.elastic_gpu_gone(&name);
        self.elastic_gpus.show_gpu(name, gpu);
    }

    pub(crate) fn elastic_gpu_gone(&mut self, name: &str) {
        self.elastic_gpus.forget_gpu(name);
    }

    pub(crate) fn elastic_gpu_names(&self) -> BTreeSet<String> {
        self.elastic_gpus.known.gpus().map(|(name, _)| name.to_owned()).collect()
    }

    /// Lists a pod with the claims that it names. A change of this pod may concern the other pods that name them.
    pub(super) fn list_in_elastic_gpu_claims(&mut self, facts: &PodFacts) {
        for name in names_of(facts) {
            self.elastic_gpus.users.entry(name.clone()).or_default().insert(facts.uid.clone());
            self.elastic_gpus.claim_changed(name);
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
            self.elastic_gpus.claim_changed(name);
        }
    }

    /// Looks at the rooms and the matches of the claims for which something has changed, and has the pods looked at again
    /// that name these claims.
    pub(super) fn look_at_elastic_gpus(&mut self) {
        let postponed = std::mem::take(&mut self.elastic_gpus.postponed);
        self.elastic_gpus.changed_parts.extend(postponed);
        // A room that is found or lost can change matches, and a match can change what its claim's pods may ask for.
        while !self.elastic_gpus.changed.is_empty() || !self.elastic_gpus.changed_parts.is_empty() {
            let changed = std::mem::take(&mut self.elastic_gpus.changed);
            self.look_at_rooms(&changed);
            self.match_parts();
            for name in changed {
                self.changed_pods.extend(self.elastic_gpus.users.get(&name).into_iter().flatten().cloned());
            }
            if self.elastic_gpus.access != Access::Read && self.elastic_gpus.changed.is_empty() {
                break;
            }
        }
    }

    fn match_parts(&mut self) {
        if self.elastic_gpus.access != Access::Read {
            return;
        }
        let matches = self.elastic_gpus.known.matched(|name| self.use_of(name).is_some());
        let changed = self.elastic_gpus.known.set_matches(matches);
        changed.into_iter().for_each(|name| self.elastic_gpus.claim_changed(name));
    }

    /// The devices of a node may have changed, so its parts are looked at again, and the pods that use them.
    pub(super) fn elastic_gpus_of_node_changed(&mut self, node: &str) {
        let parts: Vec<String> = self.elastic_gpus.on_node.get(node).into_iter().flatten().cloned().collect();
        for part in parts {
            if let Some(gpu) = self.elastic_gpus.known.gpu(&part) {
                let subject = subject_of(&part, gpu);
                self.elastic_gpus.claim_changed(subject);
            }
        }
    }

    /// Queues or namespaces have changed, so parts may count to other queues now.
    pub(super) fn queues_of_parts_changed(&mut self) {
        let told = self.elastic_gpus.told.keys().cloned();
        self.elastic_gpus.changed_parts.extend(told);
    }

    /// A pod may have begun or ceased to use the claims that it names.
    pub(super) fn elastic_gpu_claims_of_pod_are_due(&mut self, uid: &str) {
        if let Some(known) = self.pods.get(uid) {
            self.elastic_gpus.due.extend(names_of(&known.facts));
        }
    }

    /// The writes for a claim are to be planned again.
    pub(crate) fn elastic_gpu_claim_is_due(&mut self, claim: &Name) {
        self.elastic_gpus.due.insert(claim.clone());
    }

    /// Limits a pod to the node of the parts that its claims are bound to already. `in_turn`: it must be its turn to have
    /// the claims.
    ///
    /// # Errors
    /// A claim gives it nothing.
    pub(super) fn constrain_by_elastic_gpus(
        &self,
        facts: &PodFacts,
        constraints: &mut Constraints,
        in_turn: bool,
    ) -> Result<(), String> {
        for index in 0..facts.words.containers.len() {
            let Some(name) = facts.words.elastic_gpu_claim(index) else { continue };
            let asked = self.asked_by_claim(facts, name)?;
            self.check_is_free(facts, self.other_users_of(facts, name), in_turn)
                .map_err(|why| format!("one pod at a time may have the ElasticGPUClaim {name:?}, and {why}"))?;
            let Some(part) = asked.bound_to else { continue };
            if let Some(problem) = self.problem_of(&part.node, &part.device) {
                let device = &part.device;
                return Err(format!("the device {device} of the ElasticGPUClaim {name:?} gets nothing new: {problem}"));
            }
            let terms = BTreeSet::from([only_on(&part.node)]);
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
            Access::Absent | Access::Unanswered => format!(
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
        let asked = self.elastic_gpus.known.asked(claim, |node, device| self.has_device(node, device));
        asked.map_err(|unmet| format!("the ElasticGPUClaim {name:?}: {}", unmet.text))
    }

    /// The pods that name a claim and have not ended.
    fn users_of(&self, name: &Name) -> impl Iterator<Item = &KnownPod> + use<'_> {
        let uids = self.elastic_gpus.users.get(name).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).filter(|pod| !pod.facts.has_ended)
    }

    fn other_users_of(&self, facts: &PodFacts, claim: &str) -> impl Iterator<Item = &KnownPod> {
        self.users_of(&(facts.namespace.clone(), claim.to_owned())).filter(|pod| pod.facts.uid != facts.uid)
    }

    pub(super) fn others_that_wait_for_elastic_gpus_of(&self, facts: &PodFacts) -> BTreeSet<String> {
        let others = names_of(facts).flat_map(|name| self.users_of(&name)).map(|pod| &pod.facts);
        let waiting = others.filter(|other| other.node.is_none() && other.uid != facts.uid);
        waiting.map(|other| other.uid.clone()).collect()
    }

    /// The pod that uses a claim: it is bound, or its binding is on its way.
    fn user_of(&self, name: &Name) -> Option<&KnownPod> {
        let have_it = self.users_of(name).filter(|pod| pod.instance.is_some() || pod.facts.node.is_some());
        have_it.min_by_key(|pod| (pod.facts.created_ms, &pod.facts.uid))
    }

    fn has_device(&self, node: &str, device: &str) -> bool {
        self.device_of(node, device).is_some()
    }

    fn device_of(&self, node: &str, device: &str) -> Option<&InventoryDevice> {
        let inventory = self.nodes.get(node)?.facts.inventory.as_ref()?.as_ref().ok()?;
        inventory.devices.iter().find(|of| of.uuid == device)
    }

    fn model_of(&self, node: &str, device: &str) -> Option<&str> {
        self.device_of(node, device).map(|of| of.model.as_str())
    }

    /// Why a device gets nothing new.
    fn problem_of(&self, node: &str, device: &str) -> Option<&str> {
        let by_inventory = || self.device_of(node, device)?.problem.as_deref();
        by_inventory().or_else(|| self.said_of(node, device)?.problem.as_deref())
    }

    /// Plans the writes for some of the claims that are due, and returns them with the claim's name. It plans for at least
    /// one claim, and stops when it has planned `writes` writes. `None`: no claim is due. It begins with the claim that
    /// follows `last`, and sets `last` to the last claim that it has planned for. As long as not all claims are known
    /// nothing is planned: a part without a known claim would be deleted.
    pub(crate) fn elastic_steps(
        &mut self,
        last: &mut Option<Name>,
        writes: usize,
        now: Timestamp,
    ) -> Option<Vec<(Name, Vec<Step>)>> {
        if self.elastic_gpus.access != Access::Read {
            return None;
        }
        let (mut planned, mut left) = (Vec::new(), writes);
        for _ in 0..PLANNED_TOGETHER {
            let Some(name) = self.elastic_gpus.take_due(last.as_ref()) else { break };
            let steps = self.plan_elastic_gpu_claim(&name, now);
            *last = Some(name.clone());
            left = left.saturating_sub(steps.len());
            planned.push((name, steps));
            if left == 0 {
                break;
            }
        }
        (!planned.is_empty()).then_some(planned)
    }

    fn plan_elastic_gpu_claim(&self, name: &Name, now: Timestamp) -> Vec<Step> {
        let used_by = self.use_of(name);
        let is_there = |node: &str, device: &str| self.has_device(node, device);
        elastic::plan(&self.elastic_gpus.known, name, used_by.as_ref(), is_there, now)
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
        let names: Vec<Name> = of_class.map(|(name, _)| name.clone()).collect();
        names.into_iter().for_each(|name| self.claim_changed(name));
    }

    fn claim_changed(&mut self, name: Name) {
        self.due.insert(name.clone());
        self.changed.insert(name);
    }

    fn show_gpu(&mut self, name: String, gpu: ElasticGpu) {
        let subject = subject_of(&name, &gpu);
        self.on_node.entry(gpu.spec.node_name.clone()).or_default().insert(name.clone());
        self.known.show_gpu(name, gpu);
        self.claim_changed(subject);
    }

    fn forget_gpu(&mut self, name: &str) {
        let Some(gpu) = self.known.forget_gpu(name) else { return };
        let node = &gpu.spec.node_name;
        if let Some(parts) = self.on_node.get_mut(node) {
            parts.remove(name);
            if parts.is_empty() {
                self.on_node.remove(node);
            }
        }
        self.changed_parts.insert(name.to_owned());
        self.claim_changed(subject_of(name, &gpu));
    }

    /// Takes the claim behind `last` that is due; if there is none, the first one.
    fn take_due(&mut self, last: Option<&Name>) -> Option<Name> {
        let behind = last.and_then(|last| self.due.range((Bound::Excluded(last), Bound::Unbounded)).next());
        let next = behind.or_else(|| self.due.first())?.clone();
        self.due.take(&next)
    }
}

/// Puts back the names of claims with which a pod was bound, because it has the parts of these claims. Where the admission
/// policy for bound pods is installed, the names cannot change.
pub(super) fn keep_names(bound: &Words, now: &mut Words) {
    now.annotations.retain(|key, _| !key.starts_with(ELASTIC_GPU_CLAIM));
    let names = bound.annotations.iter().filter(|(key, _)| key.starts_with(ELASTIC_GPU_CLAIM));
    now.annotations.extend(names.map(|(key, name)| (key.clone(), name.clone())));
}

/// The claims that the containers of a pod name.
pub(super) fn names_of(facts: &PodFacts) -> impl Iterator<Item = Name> {
    let containers = 0..facts.words.containers.len();
    let names = containers.filter_map(|index| facts.words.elastic_gpu_claim(index));
    names.map(|name| (facts.namespace.clone(), name.to_owned()))
}
