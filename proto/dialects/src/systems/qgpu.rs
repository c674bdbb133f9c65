//! Tencent Cloud's qGPU.
//!
//! `qgpu-core` is percent of a device's time in steps of 5, or a multiple of 100 for whole devices. `qgpu-memory` is
//! GiB. Whether a request for time is also a limit depends on the node's policy, which the node's configuration names:
//! Tencent's own scheduler knows it from labels of nodes and namespaces, but reading those needs the right to read all
//! of them. *Online* work requests memory only, and has the highest priority. *Offline* work requests
//! `qgpu-core-greedy`: the limit up to which it may use time that others leave.
//!
//! qGPU sets no variables for programs.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::pod::QgpuPolicy;
use crate::refusal::Refusal;
use crate::request::{GIB, Percent, Request};
use crate::wish::{Core, Memory, Priority, Share, Wish};

const CORE: &str = "tke.cloud.tencent.com/qgpu-core";
const MEMORY: &str = "tke.cloud.tencent.com/qgpu-memory";
const GREEDY: &str = "tke.cloud.tencent.com/qgpu-core-greedy";
const APP_CLASS: &str = "tke.cloud.tencent.com/app-class";
const CORE_STEP: u32 = 5;
/// qGPU guarantees nothing to offline work. A slice needs a guarantee, and this is the smallest.
const GREEDY_REQUEST_PERCENT: u32 = 1;

pub(crate) const SYSTEM: System = System {
    name: "qgpu",
    title: "qGPU",
    placement: Placement::Node,
    is_resource: |name| matches!(name, CORE | MEMORY | GREEDY),
    annotation: |_| None,
    translate,
    advertised: |_| {
        vec![
            Advertised { resource: CORE, unit: Unit::CorePercent },
            Advertised { resource: MEMORY, unit: Unit::MemoryBytes(GIB) },
            Advertised { resource: GREEDY, unit: Unit::Slot { per_device: 100 } },
        ]
    },
    counted: |_| Vec::new(),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let core = request.percent_or_devices(CORE, CORE_STEP)?;
    let greedy = request.amount_within(GREEDY, 1..=100)?;
    let memory = request.memory(MEMORY, GIB)?;
    let class = match request.annotation(APP_CLASS) {
        None => None,
        Some("online") => Some(Priority::LatencyCritical),
        Some("offline") => Some(Priority::Batch),
        Some(other) => return Err(Refusal::value(APP_CLASS, other, "online or offline")),
    };
    let (devices, share) = match (core, greedy) {
        (Some(_), Some(_)) => {
            let advice = "what is guaranteed asks for the one, what is offline for the other";
            return Err(Refusal::Together { first: CORE.into(), second: GREEDY.into(), advice });
        }
        (Some(core), None) => of_core(request, core, memory)?,
        (None, Some(limit_percent)) => {
            let memory = memory.ok_or_else(|| without_memory(GREEDY))?;
            let core = Core { request_percent: GREEDY_REQUEST_PERCENT, limit_percent };
            (1, Share::Both { core, memory })
        }
        (None, None) => match memory {
            Some(memory) if class == Some(Priority::LatencyCritical) => {
                (1, Share::ByMemory { memory, core_limit_percent: Some(100) })
            }
            _ => {
                let advice = "add it, or the annotation tke.cloud.tencent.com/app-class: online";
                return Err(Refusal::Alone { key: MEMORY.into(), needs: CORE, advice });
            }
        },
    };
    let mut wish = request.wish(Dialect::Qgpu, devices, share);
    wish.priority = class.or_else(|| greedy.map(|_| Priority::Batch));
    Ok(wish)
}

fn of_core(request: &Request<'_>, core: Percent, memory: Option<Memory>) -> Result<(u32, Share), Refusal> {
    Ok(match (core, memory) {
        (Percent::Devices(devices), None) => (devices, Share::Whole),
        (Percent::Devices(1), Some(memory)) => (1, Share::Both { core: Core::FULL, memory }),
        (Percent::Devices(_), Some(_)) => {
            let advice = "several devices are whole, with all of their memory";
            return Err(Refusal::Together { first: CORE.into(), second: MEMORY.into(), advice });
        }
        (Percent::Part(percent), memory) => {
            let core = match request.node.qgpu_policy {
                QgpuPolicy::FixedShare => Core::exactly(percent),
                QgpuPolicy::BestEffort | QgpuPolicy::BurstShare => Core::at_least(percent),
            };
            (1, Share::Both { core, memory: memory.ok_or_else(|| without_memory(CORE))? })
        }
    })
}

fn without_memory(key: &str) -> Refusal {
    Refusal::Alone { key: key.into(), needs: MEMORY, advice: "add the GiB of memory that it needs" }
}
