//! Elastic GPU.
//!
//! `gpu-core` is percent of a device, or a multiple of 100 for whole devices. `gpu-memory` is memory of one device.
//! They are spelt in three ways: under `elasticgpu.com` (memory in MiB), under `elasticgpu.io` (in MB, a million bytes)
//! and under `gpushare.provisioner.elasticgpu.io` (in GiB).
//!
//! The variables of its agent (`GPU`, `NVIDIA_VISIBLE_DEVICES=none`) are meant for its own container hook, not for
//! programs, so they are not set.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::refusal::Refusal;
use crate::request::{GIB, MIB, Percent, Request};
use crate::wish::{Core, Share, Wish};

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
    is_resource: |name| SPELLINGS.iter().any(|spelling| spelling.core == name || spelling.memory == name),
    annotation: |_| None,
    translate,
    advertised: |_| {
        let both = |spelling: &Spelling| {
            [
                Advertised { resource: spelling.core, unit: Unit::CorePercent },
                Advertised { resource: spelling.memory, unit: Unit::MemoryBytes(spelling.unit_bytes) },
            ]
        };
        SPELLINGS.iter().flat_map(both).collect()
    },
    counted: |_| Vec::new(),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
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
