//! NVIDIA's device plugin.
//!
//! `nvidia.com/gpu` is whole devices, `nvidia.com/mig-PROFILE` whole MIG instances. `nvidia.com/gpu.shared` is a device
//! that several containers use in turns, without any limit in NVIDIA's plugin. Aliquot gives each container its part of
//! the memory and guarantees the same part of the time; the container may use time that others leave. Only one
//! `gpu.shared` may be requested, as NVIDIA's configuration can demand: more never gave a container more.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::pod::NodeFacts;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::wish::{MILLION, Memory, Share, Wish};

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const MIG: &str = "nvidia.com/mig-";

pub(crate) const SYSTEM: System = System {
    name: "nvidia",
    title: "NVIDIA's device plugin",
    placement: Placement::Node,
    is_resource,
    annotation: |_| None,
    translate,
    advertised,
    counted: |_| Vec::new(),
};

fn is_resource(name: &str) -> bool {
    name == GPU || name == SHARED || name.starts_with(MIG)
}

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let mut asked = request.container.resources.keys().filter(|name| is_resource(name));
    let first = asked.next().map_or(GPU, String::as_str);
    if let Some(second) = asked.next() {
        let advice = "a container can have one kind of device";
        return Err(Refusal::Together { first: first.into(), second: second.clone(), advice });
    }
    if first == SHARED {
        request.amount_within(SHARED, 1..=1)?;
        let Some(replicas) = replicas(request.node) else {
            let advice = "set nvidia_replicas in its configuration to 2 or more, or ask for nvidia.com/gpu";
            return Err(Refusal::NotOffered { key: SHARED, advice });
        };
        let memory = Memory::PartsPerMillion(MILLION / replicas);
        return Ok(request.wish(Dialect::Nvidia, 1, Share::ByMemory { memory, core_limit_percent: Some(100) }));
    }
    let devices = request.devices(first)?;
    if first == GPU && replicas(request.node).is_some() {
        let advice = "set nvidia_replicas = 1 in its configuration, or ask for nvidia.com/gpu.shared";
        return Err(Refusal::NotOffered { key: GPU, advice });
    }
    let mut wish = request.wish(Dialect::Nvidia, devices, Share::Whole);
    wish.constraints.mig_profile = first.strip_prefix(MIG).map(profile);
    Ok(wish)
}

/// How many containers share a device that is not a MIG instance; `None`: such devices are whole.
fn replicas(node: &NodeFacts) -> Option<u32> {
    (node.nvidia_replicas > 1).then_some(node.nvidia_replicas.min(100))
}

/// The profile that a resource's name ends with. A `+` of the profile is a dot in the name: `1g.24gb.me.all` means
/// `1g.24gb+me.all`. It stands behind the memory, which only such attributes follow with a dot.
fn profile(name: &str) -> String {
    name.replacen("gb.", "gb+", 1)
}

fn advertised(node: &NodeFacts) -> Vec<Advertised> {
    let gpu = match replicas(node) {
        None => Advertised { resource: GPU, unit: Unit::Device },
        Some(per_device) => Advertised { resource: SHARED, unit: Unit::Slot { per_device } },
    };
    vec![gpu, Advertised { resource: MIG, unit: Unit::MigInstance }]
}
