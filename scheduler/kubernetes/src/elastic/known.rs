//! The classes, claims and parts that there are, and what they mean for a pod.

use std::collections::BTreeMap;

use aliquot_dialects::quantity;
use kube::ResourceExt;

use super::{
    ElasticGpu, ElasticGpuAmounts, ElasticGpuCapacity, ElasticGpuClaim, ElasticGpuClaimPhase, ElasticGpuClassDefinition,
};

/// A namespace, and the name of a claim in it.
pub(crate) type Name = (String, String);

/// The objects that the watches and the answers to writes have shown, by name.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) classes: BTreeMap<String, ElasticGpuClassDefinition>,
    pub(crate) claims: BTreeMap<Name, ElasticGpuClaim>,
    pub(crate) gpus: BTreeMap<String, ElasticGpu>,
}

/// What a pod asks for by a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Percent of a device's time.
    pub(crate) core_percent: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
    /// The device's model contains one of these words; empty: any model will do.
    pub(crate) models: Vec<String>,
    /// The node and the UUID of the device that the claim is bound to.
    pub(crate) bound_to: Option<(String, String)>,
}

/// Why a claim gives a pod nothing: in one word, and in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unmet {
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

impl Known {
    /// The part that is bound to a claim.
    pub(crate) fn gpu_of(&self, claim: &ElasticGpuClaim) -> Option<&ElasticGpu> {
        let uid = claim.metadata.uid.as_ref()?;
        self.gpus.get(&gpu_name(uid)).filter(|gpu| gpu.spec.claim_ref.uid == *uid)
    }

    /// What a pod asks for by a claim. `is_there` says whether a node has a device.
    ///
    /// # Errors
    /// The claim gives the pod nothing: its part is lost, its class is missing, or no valid amount is said.
    pub(crate) fn asked(&self, claim: &ElasticGpuClaim, is_there: impl Fn(&str, &str) -> bool) -> Result<Asked, Unmet> {
        if let Some(text) = self.loss_of(claim, is_there) {
            return Err(Unmet { reason: "Lost", text });
        }
        if let Some(gpu) = self.gpu_of(claim) {
            // What the claim's and its class's words mean today has no say any more.
            let ElasticGpuCapacity { core, memory_bytes } = gpu.spec.capacity;
            return Ok(Asked {
                core_percent: Some(percent(core)?),
                memory_bytes: Some(u64::try_from(memory_bytes).unwrap_or(0)),
                models: Vec::new(),
                bound_to: Some((gpu.spec.node_name.clone(), gpu.spec.device.clone())),
            });
        }
        let class = self.class_of(claim)?;
        let own = &claim.spec.resources.requests;
        let amounts = if *own == ElasticGpuAmounts::default() { &class.default_requests } else { own };
        let (core_percent, memory_bytes) = read(amounts)?;
        Ok(Asked { core_percent, memory_bytes, models: class.models.clone(), bound_to: None })
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
            let status = claim.status.as_ref()?;
            let had = status.elastic_gpu.as_ref().filter(|_| status.phase != ElasticGpuClaimPhase::Pending)?;
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

/// The name of the part of the claim with this UID.
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
