//! gpu-manager with gpu-admission (vCUDA).
//!
//! `tencent.com/vcuda-core` is percent of a device. Below 100 it needs `tencent.com/vcuda-memory`, in units of 256 MiB.
//! A multiple of 100 means whole devices, for which the memory is ignored. The pod's annotation
//! `tencent.com/vcuda-core-limit` is the limit on time of a part; by default it equals the request. Webhooks copy every
//! request into it, also 200, so for whole devices it is ignored.
//!
//! Of the variables that gpu-manager sets, `NVIDIA_VISIBLE_DEVICES` is not needed with CDI, and `LD_LIBRARY_PATH` would
//! name a folder of gpu-manager's own libraries, which is not mounted here.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::refusal::Refusal;
use crate::request::{MIB, Percent, Request};
use crate::wish::{Core, Share, Wish};

const CORE: &str = "tencent.com/vcuda-core";
const MEMORY: &str = "tencent.com/vcuda-memory";
const CORE_LIMIT: &str = "tencent.com/vcuda-core-limit";
/// The prefix, followed by the container's index in the pod. The value lists the device indexes, separated by commas.
const DECIDED: &str = "tencent.com/predicate-gpu-idx-";
const UNIT_BYTES: u64 = 256 * MIB;

pub(crate) const SYSTEM: System = System {
    name: "gpu-manager",
    title: "gpu-manager",
    placement: Placement::Theirs { annotation: DECIDED },
    is_resource: |name| matches!(name, CORE | MEMORY),
    annotation: |_| None,
    translate,
    advertised: |_| {
        vec![
            Advertised { resource: CORE, unit: Unit::CorePercent },
            Advertised { resource: MEMORY, unit: Unit::MemoryBytes(UNIT_BYTES) },
        ]
    },
    counted: |_| Vec::new(),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let memory = request.memory(MEMORY, UNIT_BYTES)?;
    let (devices, share) = match (request.percent_or_devices(CORE, 1)?, memory) {
        (None, _) => {
            let advice = "add the percent of a device's time that it needs";
            return Err(Refusal::Alone { key: MEMORY.into(), needs: CORE, advice });
        }
        (Some(Percent::Devices(devices)), _) => (devices, Share::Whole),
        (Some(Percent::Part(_)), None) => {
            let advice = "add it in units of 256 MiB; only whole devices come with all of their memory";
            return Err(Refusal::Alone { key: CORE.into(), needs: MEMORY, advice });
        }
        (Some(Percent::Part(percent)), Some(memory)) => {
            let limit: Option<u32> = request.annotated(CORE_LIMIT, 1..=100)?;
            if let Some(limit) = limit.filter(|limit| *limit < percent) {
                return Err(Refusal::value(CORE_LIMIT, limit, format!("at least {CORE}, which is {percent}")));
            }
            let core = Core { request_percent: percent, limit_percent: limit.unwrap_or(percent) };
            (1, Share::Both { core, memory })
        }
    };
    let mut wish = request.wish(Dialect::GpuManager, devices, share);
    wish.constraints.decided = request.decided_indexes(&format!("{DECIDED}{}", request.index))?;
    Ok(wish)
}
