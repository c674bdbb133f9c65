//! The classes, claims and parts that there are, and what they mean for a pod.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_dialects::quantity;
use kube::ResourceExt;

use super::{
    ElasticGpu, ElasticGpuAmounts, ElasticGpuCapacity, ElasticGpuClaim, ElasticGpuClaimPhase, ElasticGpuClaimReference,
    ElasticGpuClassDefinition,
};

/// A namespace, and the name of a claim in it.
pub(crate) type Name = (String, String);

/// The objects that the watches have shown, by name, and what was decided about them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) classes: BTreeMap<String, ElasticGpuClassDefinition>,
    pub(crate) claims: BTreeMap<Name, ElasticGpuClaim>,
    gpus: BTreeMap<String, ElasticGpu>,
    /// The names of the parts of each claim, whether the claim is known or not; see [`subject_of`].
    parts: BTreeMap<Name, BTreeSet<String>>,
    /// What is known of the room of each part; a part that is not in it was not looked at yet.
    pub(crate) rooms: BTreeMap<String, Room>,
    /// Parts that are to be bound to claims, with these claims.
    pub(crate) matches: BTreeMap<String, Name>,
}

/// Whether a part has its room on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The books were asked for it.
    Asked,
    /// The books keep it for the part.
    Kept,
    /// The part has no room, for this reason.
    None(String),
}

/// What a pod asks for by a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Percent of a device's time.
    pub(crate) core_percent: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
    /// The device's model contains one of these words; empty: any model will do.
    pub(crate) models: Vec<String>,
    /// The part that the claim is bound to.
    pub(crate) bound_to: Option<BoundPart>,
}

/// A part of a device that is bound to a claim. Its room is kept, so the claim's pods need none of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundPart {
    pub(crate) node: String,
    pub(crate) device: String,
    pub(crate) core_percent: u32,
    pub(crate) memory_bytes: u64,
}

/// Why a claim gives a pod nothing: in one word, and in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unmet {
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

impl Known {
    pub(crate) fn show_gpu(&mut self, name: String, gpu: ElasticGpu) {
        self.parts.entry(subject_of(&name, &gpu)).or_default().insert(name.clone());
        self.gpus.insert(name, gpu);
    }

    pub(crate) fn forget_gpu(&mut self, name: &str) -> Option<ElasticGpu> {
        let gpu = self.gpus.remove(name)?;
        let subject = subject_of(name, &gpu);
        if let Some(parts) = self.parts.get_mut(&subject) {
            parts.remove(name);
            if parts.is_empty() {
                self.parts.remove(&subject);
            }
        }
        Some(gpu)
    }

    pub(crate) fn gpu(&self, name: &str) -> Option<&ElasticGpu> {
        self.gpus.get(name)
    }

    pub(crate) fn gpus(&self) -> impl Iterator<Item = (&str, &ElasticGpu)> {
        self.gpus.iter().map(|(name, gpu)| (name.as_str(), gpu))
    }

    /// All that parts are known for.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = &Name> {
        self.parts.keys()
    }

    /// The parts of a claim, of an earlier one of its name, or the part that has no claim.
    pub(crate) fn parts_of<'a>(&'a self, subject: &Name) -> impl Iterator<Item = (&'a str, &'a ElasticGpu)> + use<'a> {
        let parts = self.parts.get(subject).into_iter().flatten();
        parts.filter_map(|name| Some((name.as_str(), self.gpus.get(name)?)))
    }

    /// The part that is bound to a claim. If several say so, the one that the claim's status names counts, or else the
    /// one that was made for the claim.
    pub(crate) fn gpu_of(&self, claim: &ElasticGpuClaim) -> Option<&ElasticGpu> {
        let uid = claim.metadata.uid.as_ref().filter(|uid| !uid.is_empty())?;
        let said = claim.status.as_ref().and_then(|status| status.elastic_gpu.as_deref());
        let own = gpu_name(uid);
        let bound = self.parts_of(&name_of(claim)).filter(|(_, gpu)| bound_to(gpu).is_some_and(|of| of.uid == *uid));
        bound.min_by_key(|(name, _)| (Some(*name) != said, *name != own, *name)).map(|(_, gpu)| gpu)
    }

    /// The object that has the name of the part which is to be made for a claim, but is not that claim's.
    pub(super) fn in_the_way_of(&self, claim: &ElasticGpuClaim) -> Option<String> {
        let uid = claim.metadata.uid.as_ref()?;
        let name = gpu_name(uid);
        let is_other = self.gpus.get(&name).is_some_and(|gpu| bound_to(gpu).is_none_or(|of| of.uid != *uid));
        is_other.then_some(name)
    }

    /// What a pod asks for by a claim. `is_there` says whether a node has a device.
    ///
    /// # Errors
    /// The claim gives the pod nothing: its part is lost or has no room, its class is missing, or no valid amount is said.
    pub(crate) fn asked(&self, claim: &ElasticGpuClaim, is_there: impl Fn(&str, &str) -> bool) -> Result<Asked, Unmet> {
        if let Some(text) = self.loss_of(claim, is_there) {
            return Err(Unmet { reason: "Lost", text });
        }
        if let Some(gpu) = self.gpu_of(claim) {
            // What the claim's and its class's words mean today has no say any more.
            let ElasticGpuCapacity { core, memory_bytes } = gpu.spec.capacity;
            let core_percent = percent(core)?;
            self.check_room(gpu)?;
            let memory_bytes = u64::try_from(memory_bytes).unwrap_or(0);
            let (node, device) = (gpu.spec.node_name.clone(), gpu.spec.device.clone());
            return Ok(Asked {
                core_percent: Some(core_percent),
                memory_bytes: Some(memory_bytes),
                models: Vec::new(),
                bound_to: Some(BoundPart { node, device, core_percent, memory_bytes }),
            });
        }
        if let Some((gpu, _)) = self.matches.iter().find(|(_, of)| **of == name_of(claim)) {
            let text = format!("it is just being bound to the ElasticGPU {gpu:?}");
            return Err(Unmet { reason: "Binding", text });
        }
        self.requested(claim)
    }

    /// What a claim requests that is not bound.
    pub(super) fn requested(&self, claim: &ElasticGpuClaim) -> Result<Asked, Unmet> {
        if let Some(name) = self.in_the_way_of(claim) {
            let text = format!("another object has the name of its ElasticGPU, {name:?}; delete that ElasticGPU");
            return Err(Unmet { reason: "NameTaken", text });
        }
        let class = self.class_of(claim)?;
        let own = &claim.spec.resources.requests;
        let amounts = if *own == ElasticGpuAmounts::default() { &class.default_requests } else { own };
        let (core_percent, memory_bytes) = read(amounts)?;
        Ok(Asked { core_percent, memory_bytes, models: class.models.clone(), bound_to: None })
    }

    fn check_room(&self, gpu: &ElasticGpu) -> Result<(), Unmet> {
        let name = gpu.name_any();
        let why = match self.rooms.get(&name) {
            Some(Room::Kept) => return Ok(()),
            Some(Room::None(why)) => why,
            Some(Room::Asked) | None => "the scheduler is just looking for it",
        };
        Err(Unmet { reason: "NoRoom", text: format!("its ElasticGPU {name:?} has no room: {why}") })
    }

    pub(super) fn class_of(&self, claim: &ElasticGpuClaim) -> Result<&ElasticGpuClassDefinition, Unmet> {
        let name = &claim.spec.class;
        let text = || {
            format!(
                "there is no ElasticGPUClass {name:?}; create the class, or create the claim again with another class"
            )
        };
        self.classes.get(name).ok_or_else(|| Unmet { reason: "ClassNotFound", text: text() })
    }

    /// Why a claim has lost its part; `None`: it still has its part, or never had one.
    fn loss_of(&self, claim: &ElasticGpuClaim, is_there: impl Fn(&str, &str) -> bool) -> Option<String> {
        let advice = "delete the claim, and create it again";
        let Some(gpu) = self.gpu_of(claim) else {
            let had = lost_part(claim)?;
            return Some(format!("its ElasticGPU {had:?} was deleted; {advice}"));
        };
        let (node, device) = (&gpu.spec.node_name, &gpu.spec.device);
        let is_gone = !is_there(node, device);
        is_gone.then(|| {
            format!(
                "the device {device} of its ElasticGPU {:?} is not on node {node}; wait for it, or {advice}",
                gpu.name_any()
            )
        })
    }
}

/// A claim's name.
pub(super) fn name_of(claim: &ElasticGpuClaim) -> Name {
    (claim.namespace().unwrap_or_default(), claim.name_any())
}

/// The part that a claim had if it has none now.
pub(super) fn lost_part(claim: &ElasticGpuClaim) -> Option<&String> {
    let status = claim.status.as_ref()?;
    status.elastic_gpu.as_ref().filter(|_| status.phase != ElasticGpuClaimPhase::Pending)
}

/// The claim that a part is bound to, or to which it was bound.
pub(crate) fn bound_to(gpu: &ElasticGpu) -> Option<&ElasticGpuClaimReference> {
    gpu.spec.claim_ref.as_ref().filter(|of| !of.uid.is_empty())
}

/// The name of the claim that a part names. For a part that names none, its own name, without a namespace: no claim has
/// such a name.
pub(crate) fn subject_of(name: &str, gpu: &ElasticGpu) -> Name {
    let named = gpu.spec.claim_ref.as_ref().map(|of| (of.namespace.clone(), of.name.clone()));
    named.unwrap_or_else(|| (String::new(), name.to_owned()))
}

/// The name of the part that is made for the claim with this UID.
pub(super) fn gpu_name(claim_uid: &str) -> String {
    format!("egpu-{claim_uid}")
}

fn percent(core: i32) -> Result<u32, Unmet> {
    let percent = u32::try_from(core).ok().filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| unmet(&format!("its core is {core}; it must be 1 to 100 percent")))
}

fn unmet(text: &str) -> Unmet {
    Unmet { reason: "NoAmount", text: format!("{text}; create the claim again with another") }
}

/// Reads the percent of time and the bytes of memory. The schema refuses most invalid values, but lets through amounts
/// of memory that exceed 64 bits.
fn read(amounts: &ElasticGpuAmounts) -> Result<(Option<u32>, Option<u64>), Unmet> {
    let core = amounts.core.map(percent);
    let memory = amounts.memory.as_ref().map(|memory| {
        let bytes = quantity::whole(memory).ok().filter(|bytes| *bytes > 0);
        bytes.ok_or_else(|| unmet(&format!("its memory is {memory:?}; it must be an amount such as 8Gi")))
    });
    match (core.transpose()?, memory.transpose()?) {
        (None, None) => {
            let text = "neither the claim nor its class has an amount; create the claim again with resources.requests";
            Err(Unmet { reason: "NoAmount", text: text.to_owned() })
        }
        amounts => Ok(amounts),
    }
}
