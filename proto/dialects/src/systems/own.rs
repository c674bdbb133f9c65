//! Aliquot's own resources.
//!
//! `aliquot.dev/gpu-core` is percent of one device's time: up to 100, or a multiple of 100 for several whole devices.
//! `aliquot.dev/gpu-memory` counts the node's memory unit. If only one of the two is requested, the other is given in
//! the same proportion. The node's setting `core_memory_percent` makes the memory less that comes with time alone.
//! `aliquot.dev/gpu` is whole devices. Parts of several devices, or a limit or class of each container of a pod, need a
//! `ResourceClaim`.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::pod::{NodeFacts, Pod};
use crate::refusal::Refusal;
use crate::request::{Percent, Request};
use crate::wish::{Core, MILLION, Memory, Priority, Share, Wish};

const CORE: &str = "aliquot.dev/gpu-core";
const MEMORY: &str = "aliquot.dev/gpu-memory";
const WHOLE: &str = "aliquot.dev/gpu";
/// The limit on the device's time in percent, for each container of the pod.
const CORE_LIMIT: &str = "aliquot.dev/gpu-core-limit";
/// `latency-critical`, `standard` or `batch`, for each container of the pod.
const PRIORITY_CLASS: &str = "aliquot.dev/priority-class";

/// All annotations that users write.
pub(crate) const ANNOTATIONS: [&str; 2] = [CORE_LIMIT, PRIORITY_CLASS];

pub(crate) const SYSTEM: System = System {
    name: "aliquot",
    title: "Aliquot",
    placement: Placement::Node,
    is_resource: |name| matches!(name, CORE | MEMORY | WHOLE),
    annotation: |_| None,
    translate,
    advertised,
    counted: |_| Vec::new(),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let core = request.percent_or_devices(CORE, 1)?;
    let memory = request.memory(MEMORY, request.node.memory_unit_bytes)?;
    let Annotated { limit, priority } = annotated(request.pod)?;
    let (devices, share) = if request.has(WHOLE) {
        if let Some(other) = [CORE, MEMORY].into_iter().find(|other| request.has(other)) {
            let advice = "ask for whole devices or for parts";
            return Err(Refusal::Together { first: WHOLE.into(), second: other.into(), advice });
        }
        let devices = request.devices(WHOLE)?;
        if !request.node.whole_devices {
            let advice = "set whole_devices = true in its configuration, or ask for 100 aliquot.dev/gpu-core";
            return Err(Refusal::NotOffered { key: WHOLE, advice });
        }
        (devices, Share::Whole)
    } else {
        share(core, memory, limit, request.node.core_memory_percent)?
    };
    let mut wish = request.wish(Dialect::Own, devices, share);
    wish.priority = priority;
    Ok(wish)
}

/// What the annotations of a pod say about each of its containers.
pub(crate) struct Annotated {
    limit: Option<u32>,
    priority: Option<Priority>,
}

/// # Errors
/// A value that is not valid.
pub(crate) fn annotated(pod: &Pod) -> Result<Annotated, Refusal> {
    let limit = pod.annotated(CORE_LIMIT, 1..=100)?;
    let priority = pod.annotations.get(PRIORITY_CLASS).map(|class| priority(class)).transpose()?;
    Ok(Annotated { limit, priority })
}

/// What is guaranteed, with the limit and the priority that a pod's annotations name.
pub(crate) fn annotated_core(pod: &Pod, request_percent: u32) -> Result<(Core, Option<Priority>), Refusal> {
    let Annotated { limit, priority } = annotated(pod)?;
    Ok((limited(request_percent, limit)?, priority))
}

fn limited(request_percent: u32, limit: Option<u32>) -> Result<Core, Refusal> {
    match limit {
        Some(limit) if limit < request_percent => {
            Err(Refusal::value(CORE_LIMIT, limit, format!("at least {CORE}, which is {request_percent}")))
        }
        limit => Ok(Core { request_percent, limit_percent: limit.unwrap_or(request_percent) }),
    }
}

/// The share that this much is, with the limit that the pod's annotations name.
pub(crate) fn share_of(
    request: &Request<'_>,
    core: Option<Percent>,
    memory: Option<Memory>,
) -> Result<(u32, Share), Refusal> {
    share(core, memory, annotated(request.pod)?.limit, request.node.core_memory_percent)
}

fn share(
    core: Option<Percent>,
    memory: Option<Memory>,
    limit: Option<u32>,
    core_memory_percent: Option<u32>,
) -> Result<(u32, Share), Refusal> {
    let with_limit = |request_percent| limited(request_percent, limit);
    Ok(match (core, memory) {
        (Some(Percent::Devices(devices)), None) => (devices, Share::Whole),
        (Some(Percent::Devices(devices @ 2..)), Some(_)) => {
            let advice =
                "whole devices come with all of their memory; parts of several devices are for a ResourceClaim";
            return Err(Refusal::Together { first: format!("{CORE} {devices}00"), second: MEMORY.into(), advice });
        }
        (Some(Percent::Devices(_)), Some(memory)) => (1, Share::Both { core: Core::FULL, memory }),
        (Some(Percent::Part(percent)), None) => match core_memory_percent {
            None => (1, Share::ByCore(with_limit(percent)?)),
            Some(0) => {
                let advice = "this node keeps no memory for containers that ask for time alone";
                return Err(Refusal::Alone { key: CORE.into(), needs: MEMORY, advice });
            }
            Some(kept) => {
                let memory = Memory::PartsPerMillion(percent * kept.min(100) * (MILLION / 10_000));
                (1, Share::Both { core: with_limit(percent)?, memory })
            }
        },
        (Some(Percent::Part(percent)), Some(memory)) => (1, Share::Both { core: with_limit(percent)?, memory }),
        (None, Some(memory)) => (1, Share::ByMemory { memory, core_limit_percent: limit }),
        (None, None) => {
            let advice = "one of them is at least 1";
            return Err(Refusal::Together { first: CORE.into(), second: MEMORY.into(), advice });
        }
    })
}

fn priority(class: &str) -> Result<Priority, Refusal> {
    match class {
        "latency-critical" => Ok(Priority::LatencyCritical),
        "standard" => Ok(Priority::Standard),
        "batch" => Ok(Priority::Batch),
        other => Err(Refusal::value(PRIORITY_CLASS, other, "latency-critical, standard or batch")),
    }
}

fn advertised(node: &NodeFacts) -> Vec<Advertised> {
    let mut found = vec![
        Advertised { resource: CORE, unit: Unit::CorePercent },
        Advertised { resource: MEMORY, unit: Unit::MemoryBytes(node.memory_unit_bytes) },
    ];
    if node.whole_devices {
        found.push(Advertised { resource: WHOLE, unit: Unit::Device });
    }
    found
}
