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
//! `gpu-fraction-container-name` names. KAI does not limit time. Aliquot guarantees it in proportion to the memory, and
//! the container may use time that others leave.
//!
//! Such a pod requests nothing from kubelet, so no device plugin learns of it. Aliquot's scheduler translates it.

use crate::decimal::Decimal;
use crate::dialect::{Dialect, Placement, System};
use crate::environment::{Value, Variable};
use crate::quantity;
use crate::refusal::Refusal;
use crate::request::{MIB, Request};
use crate::wish::{MILLION, Memory, Share, Wish};

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
/// The beginning of the annotations for single containers. The container's name and one of the following suffixes come
/// after it.
const OF_CONTAINERS: &str = "nvidia.com/container.";
const REQUEST: &str = ".gpu-memory.request";
const LIMIT: &str = ".gpu-memory.limit";
const MODE: &str = ".gpu-compute.mode";
/// 1 percent in millionths: the smallest share of a device's time that can be guaranteed.
const FRACTION_MIN: u32 = MILLION / 100;

pub(crate) const SYSTEM: System = System {
    name: "kai",
    title: "KAI",
    placement: Placement::Scheduler,
    is_resource: |_| false,
    annotation,
    translate,
    advertised: |_| Vec::new(),
    counted: |_| Vec::new(),
};

fn annotation(request: &Request<'_>) -> Option<&'static str> {
    if [REQUEST, LIMIT].into_iter().any(|suffix| request.annotation(&of_container(request, suffix)).is_some()) {
        return Some(OF_CONTAINERS);
    }
    let is_meant = match request.annotation(CONTAINER) {
        Some(name) => request.container.name == name,
        None => request.index == 0,
    };
    [FRACTION, MEMORY, DEVICES].into_iter().find(|key| is_meant && request.annotation(key).is_some())
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
        let found = quantity::whole(text).map_err(|must| must.to_string());
        let found = found.and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("at least 1".to_owned()) });
        found.map(Some).map_err(|must| Refusal::value(key, text, must))
    };
    let (asked, limit) = (bytes(REQUEST)?, bytes(LIMIT)?);
    let Some(memory) = limit.or(asked) else { return Ok(None) };
    if let Some(asked) = asked.filter(|asked| *asked > memory) {
        let must = format!("at least what is requested, which is {asked} bytes");
        return Err(Refusal::value(of_container(request, LIMIT), memory, must));
    }
    if let Some(other) = [FRACTION, MEMORY, DEVICES].into_iter().find(|key| request.annotation(key).is_some()) {
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
    if let Some(wish) = nv_fractions(request)? {
        return Ok(wish);
    }
    let mib: Option<u64> = request.annotated(MEMORY, 1..=u64::MAX / MIB)?;
    let (memory, portion) = match (request.annotation(FRACTION), mib) {
        (Some(_), Some(_)) => {
            let advice = "say the part of the device or its memory";
            return Err(Refusal::Together { first: FRACTION.into(), second: MEMORY.into(), advice });
        }
        (Some(text), None) => (Memory::PartsPerMillion(fraction(text)?), Value::Text(text.to_owned())),
        (None, Some(mib)) => (Memory::Bytes(mib.saturating_mul(MIB)), Value::MemoryPortion),
        (None, None) => {
            let advice = "add the part of each device that it needs";
            return Err(Refusal::Alone { key: DEVICES.into(), needs: FRACTION, advice });
        }
    };
    let devices = request.annotated(DEVICES, 1..=u32::from(u16::MAX))?.unwrap_or(1);
    let share = Share::ByMemory { memory, core_limit_percent: Some(100) };
    let mut wish = request.wish(Dialect::Kai, devices, share);
    wish.variables = vec![Variable::new("GPU_PORTION", portion.clone()), Variable::new("RUNAI_NUM_OF_GPUS", portion)];
    Ok(wish)
}

/// A part of a device in millionths, rounded down.
fn fraction(text: &str) -> Result<u32, Refusal> {
    let refusal = || Refusal::value(FRACTION, text, "a decimal number from 0.01 to less than 1, for example 0.25");
    let (number, _) = Decimal::parse_prefix(text).filter(|(_, rest)| rest.is_empty()).ok_or_else(refusal)?;
    let (millionths, _) = number.times(u64::from(MILLION)).ok_or_else(refusal)?;
    u32::try_from(millionths).ok().filter(|part| (FRACTION_MIN..MILLION).contains(part)).ok_or_else(refusal)
}
