//! KAI.
//!
//! With *NvFractions*, KAI's mode that enforces memory, each container has annotations of its own, whose names contain its
//! name: `nvidia.com/container.NAME.gpu-memory.request` and `.limit` are quantities of bytes. The container is given
//! memory up to the limit, and this is guaranteed. So no container gets less than from KAI, and fewer containers fit on
//! a device. If only one of the two is there, it counts for both. `.gpu-compute.mode` says how KAI shares time, which
//! the node decides itself here.
//!
//! Otherwise annotations of the pod make the request: `gpu-fraction` is a part of a device, `gpu-memory` MiB of one, and
//! `gpu-fraction-num-devices` the number of devices. They hold for the pod's first container, or for the one that
//! `gpu-fraction-container-name` names. As with KAI, no container of such a pod asks for whole devices. KAI does not
//! limit time. Aliquot guarantees it in proportion to the memory, and the container may use time that others leave.
//! `gpu-fraction-limit` is run:ai's, whose *dynamic fractions* lend memory beyond `gpu-fraction` up to this part, and take
//! it back. Aliquot lends no memory, so the limit is given and guaranteed, as with NvFractions.
//!
//! Kubelet reads no annotation. So the container also asks for 1 of `aliquot.dev/kai-gpu`, which Aliquot's webhook fills
//! in: it says only that the annotations count, and has kubelet ask for a device. Annotations can be changed as long as a
//! pod exists. So in a pod that Aliquot's scheduler has bound the amounts are those of its decision.

use crate::decimal::Decimal;
use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::environment::{Value, Variable};
use crate::pod::Container;
use crate::quantity;
use crate::refusal::Refusal;
use crate::request::{MIB, Request};
use crate::translate::{bound_parts, decided_percent};
use crate::wish::{Core, MILLION, Memory, Share, Wish};

/// The resource of a container that has what KAI's annotations say: always 1.
pub(crate) const KAI_GPU: &str = "aliquot.dev/kai-gpu";
/// So many containers of a device can have parts of it: the least part is a percent.
const CONTAINERS_PER_DEVICE: u32 = 100;
const FRACTION: &str = "gpu-fraction";
const FRACTION_LIMIT: &str = "gpu-fraction-limit";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
/// The annotations of the pod by which a container asks for something.
const OF_POD: [&str; 4] = [FRACTION, FRACTION_LIMIT, MEMORY, DEVICES];
/// The beginning of the annotations for single containers. The container's name and one of the following suffixes come
/// after it.
const OF_CONTAINERS: &str = "nvidia.com/container.";
const REQUEST: &str = ".gpu-memory.request";
const LIMIT: &str = ".gpu-memory.limit";
const MODE: &str = ".gpu-compute.mode";
/// KAI's resource for whole devices.
const WHOLE: &str = "nvidia.com/gpu";
/// 1 percent in millionths: the smallest share of a device's time that can be guaranteed.
const FRACTION_MIN: u32 = MILLION / 100;

pub(crate) const SYSTEM: System = System {
    name: "kai",
    title: "KAI",
    placement: Placement::Node,
    is_resource: |name| name == KAI_GPU,
    annotation,
    translate,
    advertised: |_| vec![Advertised { resource: KAI_GPU, unit: Unit::Slot { per_device: CONTAINERS_PER_DEVICE } }],
    counted: |_| Vec::new(),
};

fn annotation(request: &Request<'_>) -> Option<&'static str> {
    if [REQUEST, LIMIT].into_iter().any(|suffix| request.annotation(&of_container(request, suffix)).is_some()) {
        return Some(OF_CONTAINERS);
    }
    OF_POD.into_iter().find(|key| is_meant(request) && request.annotation(key).is_some())
}

/// Whether the annotations of the pod are for this container. If they name one that there is not, it is the first one,
/// which is then refused.
fn is_meant(request: &Request<'_>) -> bool {
    match request.annotation(CONTAINER).filter(|name| has_container(request, name)) {
        Some(name) => request.container.name == name,
        None => request.index == 0,
    }
}

fn has_container(request: &Request<'_>, name: &str) -> bool {
    request.pod.containers.iter().any(|container| container.name == name)
}

/// The name of a container's own annotation.
fn of_container(request: &Request<'_>, suffix: &str) -> String {
    format!("{OF_CONTAINERS}{}{suffix}", request.container.name)
}

/// What the container's own annotations ask for; `None` if it has none.
fn nv_fractions(request: &Request<'_>) -> Result<Option<Wish>, Refusal> {
    let bytes = |suffix: &str| {
        let key = of_container(request, suffix);
        let Some(text) = request.annotation(&key) else { return Ok(None) };
        match quantity::bytes(text) {
            Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => Err(Refusal::value(key, text, "an amount of memory, at least one byte, for example 2Gi")),
        }
    };
    let (asked, limit) = (bytes(REQUEST)?, bytes(LIMIT)?);
    let Some(memory) = limit.or(asked) else { return Ok(None) };
    if let Some(asked) = asked.filter(|asked| *asked > memory) {
        let must = format!("at least what is requested, which is {asked} bytes");
        return Err(Refusal::value(of_container(request, LIMIT), memory, must));
    }
    if let Some(other) = OF_POD.into_iter().find(|key| request.annotation(key).is_some()) {
        let first = of_container(request, if asked.is_some() { REQUEST } else { LIMIT });
        let advice = "ask in the annotations of the pod or in those of its containers";
        return Err(Refusal::Together { first, second: other.into(), advice });
    }
    let key = of_container(request, MODE);
    if let Some(mode @ "sm-sharing") = request.annotation(&key) {
        return Err(Refusal::value(key, mode, "time-slicing, or left out: this node shares its devices itself"));
    }
    let share = Share::ByMemory { memory: Memory::Bytes(memory), core_limit_percent: Some(100) };
    Ok(Some(request.wish(Dialect::Kai, 1, share)))
}

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let Some(key) = annotation(request) else {
        let advice = "the annotations of the pod say how much the container gets";
        return Err(Refusal::Alone { key: KAI_GPU.into(), needs: FRACTION, advice });
    };
    let wish = asked(request)?;
    match request.number(KAI_GPU)? {
        Some(1) => {}
        Some(other) => return Err(Refusal::value(KAI_GPU, other, "1: the annotations say how much it is")),
        None => {
            let key = if key == OF_CONTAINERS { format!("{key}{}", request.container.name) } else { key.to_owned() };
            let advice =
                "kubelet reads no annotation; ask for 1, or create the pod again where Aliquot's webhook does so";
            return Err(Refusal::Alone { key, needs: KAI_GPU, advice });
        }
    }
    decided(request, wish)
}

/// What the scheduler has decided, if it has bound the pod. Else what is asked for.
fn decided(request: &Request<'_>, asked: Wish) -> Result<Wish, Refusal> {
    let Some(parts) = bound_parts(request)? else { return Ok(asked) };
    // The parts are equal, unless the devices are not.
    let Some(least) = parts.iter().min_by_key(|part| part.memory_bytes) else {
        return Err(Refusal::Undecided { key: KAI_GPU.into() });
    };
    let share =
        Share::Both { core: Core::at_least(decided_percent(least)?), memory: Memory::Bytes(least.memory_bytes) };
    Ok(Wish { devices: u32::try_from(parts.len()).unwrap_or(u32::MAX), share, ..asked })
}

fn asked(request: &Request<'_>) -> Result<Wish, Refusal> {
    match nv_fractions(request)? {
        Some(wish) => Ok(wish),
        None => of_pod(request),
    }
}

/// What the annotations of the pod ask for.
fn of_pod(request: &Request<'_>) -> Result<Wish, Refusal> {
    if let Some(name) = request.annotation(CONTAINER).filter(|name| !has_container(request, name)) {
        return Err(Refusal::value(CONTAINER, name, "the name of a container of the pod"));
    }
    let mib: Option<u64> = request.annotated(MEMORY, 1..=u64::MAX / MIB)?;
    let limit = request.annotation(FRACTION_LIMIT);
    if limit.is_some() && mib.is_some() {
        let advice = "it is the limit of a part of the device";
        return Err(Refusal::Together { first: FRACTION_LIMIT.into(), second: MEMORY.into(), advice });
    }
    let (memory, portion) = match (request.annotation(FRACTION), mib) {
        (Some(_), Some(_)) => {
            let advice = "say the part of the device or its memory";
            return Err(Refusal::Together { first: FRACTION.into(), second: MEMORY.into(), advice });
        }
        (Some(text), None) => {
            let part = fraction(text)?;
            let part = limit.map_or(Ok(part), |limit| fraction_limit(limit, part))?;
            (Memory::PartsPerMillion(part), Value::Text(text.to_owned()))
        }
        (None, Some(mib)) => (Memory::Bytes(mib.saturating_mul(MIB)), Value::MemoryPortion),
        (None, None) => {
            let key = if limit.is_some() { FRACTION_LIMIT } else { DEVICES };
            let advice = "add the part of each device that it needs";
            return Err(Refusal::Alone { key: key.into(), needs: FRACTION, advice });
        }
    };
    if request.pod.containers.iter().flat_map(Container::words).any(|name| name == WHOLE) {
        let first = if mib.is_some() { MEMORY } else { FRACTION };
        let advice = "a pod has parts of devices or whole ones";
        return Err(Refusal::Together { first: first.into(), second: WHOLE.into(), advice });
    }
    let devices = request.annotated(DEVICES, 1..=u32::from(u16::MAX))?.unwrap_or(1);
    let share = Share::ByMemory { memory, core_limit_percent: Some(100) };
    let mut wish = request.wish(Dialect::Kai, devices, share);
    wish.variables = vec![Variable::new("GPU_PORTION", portion.clone()), Variable::new("RUNAI_NUM_OF_GPUS", portion)];
    Ok(wish)
}

/// A part of a device in millionths, rounded down.
fn fraction(text: &str) -> Result<u32, Refusal> {
    let part = millionths(text).filter(|part| (FRACTION_MIN..MILLION).contains(part));
    part.ok_or_else(|| Refusal::value(FRACTION, text, "a decimal number from 0.01 to less than 1, for example 0.25"))
}

/// The limit beside a part of a device, which may be all of it.
fn fraction_limit(text: &str, part: u32) -> Result<u32, Refusal> {
    let limit = millionths(text).filter(|limit| (part..=MILLION).contains(limit));
    limit.ok_or_else(|| {
        Refusal::value(FRACTION_LIMIT, text, format!("a decimal number from {FRACTION} to 1, for example 0.8"))
    })
}

fn millionths(text: &str) -> Option<u32> {
    let (number, _) = Decimal::parse_prefix(text).filter(|(_, rest)| rest.is_empty())?;
    let (millionths, _) = number.times(u64::from(MILLION))?;
    u32::try_from(millionths).ok()
}
