//! KAI.
//!
//! Annotations of the pod make the request: `gpu-fraction` is a part of a device, `gpu-memory` MiB of one, and
//! `gpu-fraction-num-devices` the number of devices. They hold for the pod's first container, or for the one that
//! `gpu-fraction-container-name` names. KAI does not limit time. Aliquot guarantees it in proportion to the memory, and
//! the container may use time that others leave.
//!
//! Such a pod requests nothing from kubelet, so no device plugin learns of it. Aliquot's scheduler translates it.

use crate::decimal::Decimal;
use crate::dialect::{Dialect, Placement, System};
use crate::environment::{Value, Variable};
use crate::refusal::Refusal;
use crate::request::{MIB, Request};
use crate::wish::{MILLION, Memory, Share, Wish};

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const DEVICES: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";
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
    let is_meant = match request.annotation(CONTAINER) {
        Some(name) => request.container.name == name,
        None => request.index == 0,
    };
    [FRACTION, MEMORY, DEVICES].into_iter().find(|key| is_meant && request.annotation(key).is_some())
}

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
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
