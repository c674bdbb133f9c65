//! Plans the writes that bring claims and parts into the state that they should have. Pure: no clock, no network.
//!
//! Each step follows from what is there now, so it does not matter which steps an earlier leader has done.

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::known::{Known, Name, Room, Unmet, bound_to, gpu_name};
use super::{
    ElasticGpu, ElasticGpuCapacity, ElasticGpuClaim, ElasticGpuClaimPhase, ElasticGpuClaimReference,
    ElasticGpuClaimStatus, ElasticGpuDefinition, ElasticGpuPhase, ElasticGpuStatus, ReclaimPolicy,
};
use crate::condition::Condition;

/// The finalizer that keeps a claim from being deleted while a bound pod uses it.
pub(super) const PROTECTION: &str = "aliquot.dev/elastic-gpu-protection";

/// The reason of a claim that no pod has named yet, in the word of PersistentVolumeClaims.
pub(super) const WAITS_FOR_POD: &str = "WaitForFirstConsumer";
/// The condition of a claim that says whether it is bound.
const BOUND: &str = "Bound";

/// A pod that uses a claim: it is bound, or is being bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Use {
    /// The pod, as `namespace/name`.
    pub(crate) pod: String,
    /// The part that the pod has by the claim; `None`: that is not known.
    pub(crate) given: Option<Given>,
}

/// The part of a device that a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) node: String,
    pub(crate) device: String,
    pub(crate) model: String,
    pub(crate) core_percent: u32,
    pub(crate) memory_bytes: u64,
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Sets the finalizers of a claim, if the claim still has this version.
    Finalizers {
        claim: Name,
        resource_version: String,
        finalizers: Vec<String>,
    },
    /// Makes the ElasticGPU that a claim is to be bound to.
    Make(Box<ElasticGpu>),
    /// Binds a part to a claim, if the part's object still has this version.
    Bind {
        gpu: String,
        resource_version: String,
        claim: ElasticGpuClaimReference,
    },
    /// Deletes a part, if the object still has this UID.
    Delete {
        gpu: String,
        uid: String,
    },
    SayOfClaim(Name, Box<ElasticGpuClaimStatus>),
    SayOfGpu(String, ElasticGpuStatus),
}

/// The writes that are due for a claim and the parts that name a claim of this name, or for the part that names none.
/// `used_by`: the pod that uses the claim. `is_there`: whether a node has a device.
pub(crate) fn plan(
    known: &Known,
    claim: &Name,
    used_by: Option<&Use>,
    is_there: impl Fn(&str, &str) -> bool,
    now: Timestamp,
) -> Vec<Step> {
    let planner = Planner { known, used_by, is_there, now };
    let of_claim = known.claims.get(claim).map(|of| planner.of_claim(claim, of)).unwrap_or_default();
    of_claim.into_iter().chain(known.parts_of(claim).filter_map(|(_, gpu)| planner.of_gpu(gpu))).collect()
}

struct Planner<'a, F> {
    known: &'a Known,
    used_by: Option<&'a Use>,
    is_there: F,
    now: Timestamp,
}

impl<F: Fn(&str, &str) -> bool> Planner<'_, F> {
    fn of_claim(&self, name: &Name, claim: &ElasticGpuClaim) -> Vec<Step> {
        let used_by = self.used_by;
        let is_leaving = claim.metadata.deletion_timestamp.is_some();
        let mut steps = Vec::new();
        let is_protected = claim.finalizers().iter().any(|of| of == PROTECTION);
        // The API server refuses new finalizers on an object that is being deleted.
        let is_to_be_protected = !is_protected && !is_leaving;
        let is_to_go = is_protected && is_leaving && used_by.is_none();
        if is_to_be_protected || is_to_go {
            let others = claim.finalizers().iter().filter(|of| *of != PROTECTION).cloned();
            steps.push(Step::Finalizers {
                claim: name.clone(),
                resource_version: claim.resource_version().unwrap_or_default(),
                finalizers: others.chain(is_to_be_protected.then(|| PROTECTION.to_owned())).collect(),
            });
        }
        if is_leaving && used_by.is_none() {
            return steps;
        }
        if let Some(bind) = self.to_bind(name, claim) {
            steps.push(bind);
            return steps;
        }
        let given = used_by.and_then(|used| used.given.as_ref());
        let has_none = self.known.gpu_of(claim).is_none() && self.known.in_the_way_of(claim).is_none();
        let to_make = given.filter(|_| has_none).and_then(|given| self.part(claim, given));
        if let Some(part) = to_make {
            // The claim is called bound once the part is there: making it can fail.
            steps.push(Step::Make(Box::new(part)));
            return steps;
        }
        let status = self.status_of(claim, used_by);
        if claim.status.as_ref() != Some(&status) {
            steps.push(Step::SayOfClaim(name.clone(), Box::new(status)));
        }
        steps
    }

    /// Binds a part that was made before to the claim, if it is the claim's match.
    fn to_bind(&self, name: &Name, claim: &ElasticGpuClaim) -> Option<Step> {
        let (gpu, _) = self.known.matches.iter().find(|(_, of)| *of == name)?;
        let of_gpu = self.known.gpu(gpu).filter(|gpu| bound_to(gpu).is_none())?;
        Some(Step::Bind {
            gpu: gpu.clone(),
            resource_version: of_gpu.resource_version().unwrap_or_default(),
            claim: reference_to(claim)?,
        })
    }

    /// The `ElasticGPU` to make: the part that the claim's pod has, bound to the claim.
    fn part(&self, claim: &ElasticGpuClaim, given: &Given) -> Option<ElasticGpu> {
        let uid = claim.metadata.uid.clone()?;
        // If the class has been deleted, the default policy holds.
        let reclaim_policy = self.known.class_of(claim).map(|class| class.reclaim_policy).unwrap_or_default();
        let capacity = ElasticGpuCapacity {
            core: i32::try_from(given.core_percent).unwrap_or(i32::MAX),
            memory_bytes: i64::try_from(given.memory_bytes).unwrap_or(i64::MAX),
        };
        let definition = ElasticGpuDefinition {
            capacity,
            node_name: given.node.clone(),
            device: given.device.clone(),
            model: given.model.clone(),
            claim_ref: reference_to(claim),
            class: claim.spec.class.clone(),
            reclaim_policy,
        };
        let metadata = ObjectMeta { name: Some(gpu_name(&uid)), ..ObjectMeta::default() };
        Some(ElasticGpu { metadata, spec: definition, status: None })
    }

    fn status_of(&self, claim: &ElasticGpuClaim, used_by: Option<&Use>) -> ElasticGpuClaimStatus {
        let before = claim.status.clone().unwrap_or_default();
        let unmet = self.known.asked(claim, &self.is_there).err();
        let gpu = self.known.gpu_of(claim);
        let (phase, reason, text) = match (gpu, unmet) {
            (_, Some(Unmet { reason: reason @ "Lost", text })) => (ElasticGpuClaimPhase::Lost, reason, text),
            (Some(_), Some(Unmet { reason: reason @ "NoRoom", text })) => (ElasticGpuClaimPhase::Pending, reason, text),
            // A bound claim stays bound when its class is deleted.
            (Some(_), _) => {
                let text = used_by.map_or_else(String::new, |used| format!("pod {} has it", used.pod));
                (ElasticGpuClaimPhase::Bound, BOUND, text)
            }
            (None, Some(Unmet { reason, text })) => (ElasticGpuClaimPhase::Pending, reason, text),
            (None, None) => {
                let text = "it is bound when the first pod that names it is".to_owned();
                (ElasticGpuClaimPhase::Pending, WAITS_FOR_POD, text)
            }
        };
        let is_bound = phase == ElasticGpuClaimPhase::Bound;
        let lost = || before.elastic_gpu.clone().filter(|_| phase == ElasticGpuClaimPhase::Lost);
        ElasticGpuClaimStatus {
            phase,
            elastic_gpu: gpu.map(ElasticGpu::name_any).or_else(lost),
            capacity: gpu.map(|gpu| gpu.spec.capacity),
            conditions: vec![Condition::new(BOUND, is_bound, reason, text, &before.conditions, self.now)],
        }
    }

    fn of_gpu(&self, gpu: &ElasticGpu) -> Option<Step> {
        if !self.is_wanted(gpu) && gpu.spec.reclaim_policy == ReclaimPolicy::Delete {
            let is_leaving = gpu.metadata.deletion_timestamp.is_some();
            return (!is_leaving).then(|| Step::Delete { gpu: gpu.name_any(), uid: gpu.uid().unwrap_or_default() });
        }
        let status = self.status_of_gpu(gpu);
        (gpu.status.as_ref() != Some(&status)).then(|| Step::SayOfGpu(gpu.name_any(), status))
    }

    /// Whether a part has its claim still, or never had one.
    fn is_wanted(&self, gpu: &ElasticGpu) -> bool {
        let Some(of) = bound_to(gpu) else { return true };
        match self.known.claims.get(&(of.namespace.clone(), of.name.clone())) {
            // The pod that uses a later claim of the same name does not have this part.
            Some(claim) if claim.uid().as_ref() != Some(&of.uid) => false,
            Some(claim) if claim.metadata.deletion_timestamp.is_none() => true,
            _ => self.used_by.is_some(),
        }
    }

    fn status_of_gpu(&self, gpu: &ElasticGpu) -> ElasticGpuStatus {
        let (node, device) = (&gpu.spec.node_name, &gpu.spec.device);
        let was_reserved = gpu.status.as_ref().is_some_and(|status| status.reserved);
        let is_released = !self.is_wanted(gpu);
        if !(self.is_there)(node, device) && !is_released {
            // The room is the part's again when the device is back.
            let message = format!("the device {device} is not on node {node}");
            return ElasticGpuStatus { phase: ElasticGpuPhase::Failed, message, reserved: was_reserved };
        }
        let room = self.known.rooms.get(&gpu.name_any());
        let reserved = match room {
            Some(Room::Kept) => true,
            Some(Room::None(_)) => was_reserved && !(self.is_there)(node, device),
            Some(Room::Asked) | None => was_reserved,
        };
        let (phase, message) = match room {
            _ if is_released => {
                let keeps = if reserved { "it keeps its room until it is deleted" } else { "it can be deleted" };
                (ElasticGpuPhase::Released, format!("its claim was deleted; {keeps}"))
            }
            Some(Room::Kept) if bound_to(gpu).is_some() => (ElasticGpuPhase::Bound, String::new()),
            Some(Room::Kept) => (ElasticGpuPhase::Available, self.waits_for(gpu)),
            Some(Room::None(why)) => (ElasticGpuPhase::Failed, why.clone()),
            Some(Room::Asked) | None => (ElasticGpuPhase::Pending, String::new()),
        };
        ElasticGpuStatus { phase, message, reserved }
    }

    /// What a part waits for that names a claim without its UID.
    fn waits_for(&self, gpu: &ElasticGpu) -> String {
        let Some(of) = &gpu.spec.claim_ref else { return String::new() };
        let name = (of.namespace.clone(), of.name.clone());
        let claim = format!("ElasticGPUClaim {}/{}", of.namespace, of.name);
        match self.known.claims.get(&name) {
            None => format!("it waits for the {claim}, which does not exist"),
            Some(_) if self.known.matches.contains_key(&gpu.name_any()) => String::new(),
            Some(known) if self.known.gpu_of(known).is_some() => {
                format!("the {claim} is bound to another part; delete this one")
            }
            Some(_) => format!("the {claim} requests more, or is of another class; create one that fits"),
        }
    }
}

/// A reference to this claim, and to no later one of its name.
fn reference_to(claim: &ElasticGpuClaim) -> Option<ElasticGpuClaimReference> {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    Some(ElasticGpuClaimReference { namespace, name, uid: claim.uid()? })
}

#[cfg(test)]
mod tests;
