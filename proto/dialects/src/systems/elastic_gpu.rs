//! Elastic GPU.
//!
//! `gpu-core` is percent of a device, or a multiple of 100 for whole devices. `gpu-memory` is memory of one device.
//! They are spelt in three ways: under `elasticgpu.com` (memory in MiB), under `elasticgpu.io` (in MB, a million bytes)
//! and under `gpushare.provisioner.elasticgpu.io` (in GiB).
//!
//! A container can also have what an `ElasticGPUClaim` says (`aliquot.dev/elastic-gpu`). The claim's name is in an
//! annotation of the pod. Aliquot's scheduler reads the claim, and says the amounts in its decision: the node takes them
//! from there, if the same scheduler has bound the pod.
//!
//! The variables of its agent (`GPU`, `NVIDIA_VISIBLE_DEVICES=none`) are meant for its own container hook, not for
//! programs, so they are not set.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::pod::{NodeFacts, Pod};
use crate::refusal::Refusal;
use crate::request::{GIB, MIB, Percent, Request};
use crate::systems::own;
use crate::translate::{Spoken, bound_parts, decided_percent};
use crate::wish::{Core, Memory, Share, Wish};

/// The resource of a container that has what an `ElasticGPUClaim` says: always 1. It has kubelet ask for a device.
pub const ELASTIC_GPU: &str = "aliquot.dev/elastic-gpu";

/// What the annotation begins with that names the claim. The container's name follows.
pub const ELASTIC_GPU_CLAIM: &str = "elastic-gpu-claim.aliquot.dev/";

/// So many containers of a device can have claims: the least part is a percent.
const CLAIMS_PER_DEVICE: u32 = 100;

struct Spelling {
    core: &'static str,
    memory: &'static str,
    unit_bytes: u64,
}

static SPELLINGS: [Spelling; 3] = [
    Spelling { core: "elasticgpu.com/gpu-core", memory: "elasticgpu.com/gpu-memory", unit_bytes: MIB },
    Spelling { core: "elasticgpu.io/gpu-core", memory: "elasticgpu.io/gpu-memory", unit_bytes: 1_000_000 },
    Spelling {
        core: "gpushare.provisioner.elasticgpu.io/gpu-core",
        memory: "gpushare.provisioner.elasticgpu.io/gpu-memory",
        unit_bytes: GIB,
    },
];
/// The prefix, followed by the container's name. The value lists the device indexes, separated by commas.
const DECIDED: &str = "elasticgpu.io/container-";

pub(crate) const SYSTEM: System = System {
    name: "elastic-gpu",
    title: "Elastic GPU",
    placement: Placement::Theirs { annotation: DECIDED },
    is_resource: |name| {
        name == ELASTIC_GPU || SPELLINGS.iter().any(|spelling| spelling.core == name || spelling.memory == name)
    },
    annotation: |request| request.pod.elastic_gpu_claim(request.index).map(|_| ELASTIC_GPU_CLAIM),
    translate,
    advertised: |_| {
        let both = |spelling: &Spelling| {
            [
                Advertised { resource: spelling.core, unit: Unit::CorePercent },
                Advertised { resource: spelling.memory, unit: Unit::MemoryBytes(spelling.unit_bytes) },
            ]
        };
        let of_claims = Advertised { resource: ELASTIC_GPU, unit: Unit::Slot { per_device: CLAIMS_PER_DEVICE } };
        SPELLINGS.iter().flat_map(both).chain([of_claims]).collect()
    },
    counted: |_| Vec::new(),
};

impl Pod {
    /// The name of the `ElasticGPUClaim` that says what the container with this index has; `None`: none does.
    #[must_use]
    pub fn elastic_gpu_claim(&self, index: usize) -> Option<&str> {
        let container = self.containers.get(index)?;
        let claim = self.annotations.get(&format!("{ELASTIC_GPU_CLAIM}{}", container.name))?;
        Some(claim.as_str())
    }

    /// Checks what the container with this index says beside the name of its `ElasticGPUClaim`.
    ///
    /// # Errors
    /// It names no claim, does not ask for [`ELASTIC_GPU`], or asks for more than that.
    pub fn check_elastic_gpu(&self, index: usize) -> Result<(), Refusal> {
        let Some(container) = self.containers.get(index) else { return Ok(()) };
        if let Some(other) = container.words().find(|name| *name != ELASTIC_GPU) {
            let advice = "the claim says how much it is";
            return Err(Refusal::Together { first: ELASTIC_GPU.into(), second: other.into(), advice });
        }
        match (self.elastic_gpu_claim(index), container.resources.get(ELASTIC_GPU).map(String::as_str)) {
            (Some(_), Some("1")) => Ok(()),
            (Some(_), Some(other)) => Err(Refusal::value(ELASTIC_GPU, other, "1: a container has one claim")),
            (Some(_), None) => {
                let key = format!("{ELASTIC_GPU_CLAIM}{}", container.name);
                let advice = "kubelet gives a container no device that asks for none; ask for 1";
                Err(Refusal::Alone { key, needs: ELASTIC_GPU, advice })
            }
            (None, _) => {
                let advice = "with the container's name behind it, it names the claim";
                Err(Refusal::Alone { key: ELASTIC_GPU.into(), needs: ELASTIC_GPU_CLAIM, advice })
            }
        }
    }
}

impl Spoken {
    /// The wish of a container whose claim asks for so much: percent of a device's time, 1 to 100, and bytes of memory.
    ///
    /// # Errors
    /// What the container says beside is not valid, or nobody speaks this dialect.
    pub fn translate_claim(
        &self,
        pod: &Pod,
        index: usize,
        node: &NodeFacts,
        (core_percent, memory_bytes): (Option<u32>, Option<u64>),
    ) -> Result<Wish, Refusal> {
        if !self.iter().any(|dialect| dialect == Dialect::ElasticGpu) {
            return Err(self.not_spoken(ELASTIC_GPU, Dialect::ElasticGpu));
        }
        pod.check_elastic_gpu(index)?;
        let container = pod.containers.get(index).cloned().unwrap_or_default();
        let request = Request { pod, container: &container, index, node };
        let core = core_percent.map(|percent| match percent {
            100 => Percent::Devices(1),
            percent => Percent::Part(percent),
        });
        let (devices, share) = own::share_of(&request, core, memory_bytes.map(Memory::Bytes))?;
        Ok(request.wish(Dialect::ElasticGpu, devices, share))
    }
}

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    if request.has(ELASTIC_GPU) || request.pod.elastic_gpu_claim(request.index).is_some() {
        return claimed(request);
    }
    let asked = |spelling: &'static Spelling| {
        let resource = [spelling.core, spelling.memory].into_iter().find(|resource| request.has(resource))?;
        Some((spelling, resource))
    };
    let mut used = SPELLINGS.iter().filter_map(asked);
    let (spelling, first) = used.next().unwrap_or((&SPELLINGS[0], SPELLINGS[0].core));
    if let Some((_, second)) = used.next() {
        let advice = "one container asks in one spelling";
        return Err(Refusal::Together { first: first.into(), second: second.into(), advice });
    }
    let memory = request.memory(spelling.memory, spelling.unit_bytes)?;
    let (devices, share) = match (request.percent_or_devices(spelling.core, 1)?, memory) {
        (Some(Percent::Devices(devices)), None) => (devices, Share::Whole),
        (Some(Percent::Devices(1)), Some(memory)) => (1, Share::Both { core: Core::FULL, memory }),
        (Some(Percent::Devices(_)), Some(_)) => {
            let advice = "several devices are whole, with all of their memory";
            return Err(Refusal::Together { first: spelling.core.into(), second: spelling.memory.into(), advice });
        }
        (Some(Percent::Part(percent)), None) => (1, Share::ByCore(Core::exactly(percent))),
        (Some(Percent::Part(percent)), Some(memory)) => (1, Share::Both { core: Core::exactly(percent), memory }),
        (None, Some(memory)) => (1, Share::ByMemory { memory, core_limit_percent: Some(100) }),
        (None, None) => return Err(Refusal::value(spelling.core, "", "a part of a device")),
    };
    let mut wish = request.wish(Dialect::ElasticGpu, devices, share);
    wish.constraints.decided = request.decided_indexes(&format!("{DECIDED}{}", request.container.name))?;
    Ok(wish)
}

/// What the scheduler has decided for a claim.
fn claimed(request: &Request<'_>) -> Result<Wish, Refusal> {
    request.pod.check_elastic_gpu(request.index)?;
    let parts = bound_parts(request)?.unwrap_or_default();
    let [part] = parts.as_slice() else { return Err(Refusal::Undecided { key: ELASTIC_GPU.to_owned() }) };
    let (core, priority) = own::annotated_core(request.pod, decided_percent(part)?)?;
    let mut wish = request.wish(Dialect::ElasticGpu, 1, Share::Both { core, memory: Memory::Bytes(part.memory_bytes) });
    wish.priority = priority;
    Ok(wish)
}
