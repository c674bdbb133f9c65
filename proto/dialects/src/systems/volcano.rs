//! Volcano's vGPU, and its older GPU sharing.
//!
//! `volcano.sh/vgpu-number` is a number of devices; `vgpu-memory` (MiB), `vgpu-memory-percentage` and `vgpu-cores` hold
//! for each of them. The older `volcano.sh/gpu-memory` is MiB of one device, `volcano.sh/gpu-number` whole devices. As
//! with HAMi, kubelet hands out only containers per device for the newer names, and the node's status has the sums of the
//! rest.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::environment::{Value, Variable};
use crate::refusal::Refusal;
use crate::request::{MIB, Request};
use crate::systems::per_device::{self, Names};
use crate::wish::{Share, Wish};

const NUMBER: &str = "volcano.sh/vgpu-number";
const NAMES: Names = Names {
    memory: "volcano.sh/vgpu-memory",
    memory_percentage: "volcano.sh/vgpu-memory-percentage",
    cores: "volcano.sh/vgpu-cores",
};
const OLD_MEMORY: &str = "volcano.sh/gpu-memory";
const OLD_NUMBER: &str = "volcano.sh/gpu-number";
const MODE: &str = "volcano.sh/vgpu-mode";
const DECIDED: &str = "volcano.sh/vgpu-ids-new";
const OLD_DECIDED: &str = "volcano.sh/gpu-index";

pub(crate) const SYSTEM: System = System {
    name: "volcano",
    title: "Volcano vGPU",
    placement: Placement::Theirs { annotation: DECIDED },
    is_resource: |name| {
        [NUMBER, NAMES.memory, NAMES.memory_percentage, NAMES.cores, OLD_MEMORY, OLD_NUMBER].contains(&name)
    },
    annotation: |_| None,
    translate,
    advertised: |node| {
        vec![
            Advertised { resource: NUMBER, unit: Unit::Slot { per_device: node.slots_per_device.clamp(1, 100) } },
            Advertised { resource: OLD_MEMORY, unit: Unit::MemoryBytes(MIB) },
            Advertised { resource: OLD_NUMBER, unit: Unit::Device },
        ]
    },
    counted: |_| per_device::counted(&NAMES),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let new = [NUMBER, NAMES.memory, NAMES.memory_percentage, NAMES.cores].into_iter().find(|name| request.has(name));
    let old = [OLD_MEMORY, OLD_NUMBER].into_iter().find(|name| request.has(name));
    match (new, old) {
        (Some(first), Some(second)) => {
            let advice = "ask in the names of vGPU or in the older ones";
            Err(Refusal::Together { first: first.into(), second: second.into(), advice })
        }
        (_, Some(_)) => older(request),
        _ => vgpu(request),
    }
}

fn vgpu(request: &Request<'_>) -> Result<Wish, Refusal> {
    let share = per_device::share(request, &NAMES)?;
    if !request.has(NUMBER) {
        let key = [NAMES.memory, NAMES.memory_percentage, NAMES.cores].into_iter().find(|name| request.has(name));
        let advice = "add the number of devices";
        return Err(Refusal::Alone { key: key.unwrap_or(NAMES.memory).into(), needs: NUMBER, advice });
    }
    let mut wish = request.wish(Dialect::Volcano, request.devices(NUMBER)?, share);
    if let Some(mode @ ("mig" | "mps")) = request.annotation(MODE) {
        return Err(Refusal::value(MODE, mode, "hami-core, or left out: this node shares its devices itself"));
    }
    wish.variables = per_device::limit_variables(request, &NAMES)?;
    wish.constraints.decided = per_device::decided(request, DECIDED)?;
    wish.constraints.uuids = request.list("volcano.sh/vgpu-use-gpuuuid");
    wish.constraints.not_uuids = request.list("volcano.sh/vgpu-nouse-gpuuuid");
    Ok(wish)
}

fn older(request: &Request<'_>) -> Result<Wish, Refusal> {
    let mut wish = match (request.memory(OLD_MEMORY, MIB)?, request.amount(OLD_NUMBER)?) {
        (Some(_), Some(_)) => {
            let advice = "ask for a part of a device or for whole ones";
            return Err(Refusal::Together { first: OLD_MEMORY.into(), second: OLD_NUMBER.into(), advice });
        }
        (Some(memory), _) => {
            let share = Share::ByMemory { memory, core_limit_percent: Some(100) };
            let mut wish = request.wish(Dialect::Volcano, 1, share);
            wish.variables = vec![
                Variable::new("VOLCANO_GPU_MEMORY_TOTAL", Value::DeviceMemory { unit_bytes: MIB }),
                Variable::text("VOLCANO_GPU_ALLOCATED", request.amount(OLD_MEMORY)?.unwrap_or_default()),
            ];
            wish
        }
        (None, _) => {
            let devices = request.devices(OLD_NUMBER)?;
            let mut wish = request.wish(Dialect::Volcano, devices, Share::Whole);
            wish.variables = vec![Variable::text("VOLCANO_GPU_ALLOCATED", devices)];
            wish
        }
    };
    wish.constraints.decided = request.decided_indexes(OLD_DECIDED)?;
    Ok(wish)
}
