//! Alibaba Cloud's cGPU.
//!
//! `aliyun.com/gpu-mem` is memory of one device in GiB. `aliyun.com/gpu-core.percentage` is percent of its time, from 5
//! in steps of 5. With memory alone, time is not limited; Aliquot guarantees it in proportion to the memory. cGPU's
//! rule that jobs with and without a limit on time must not run on the same node does not apply here.
//!
//! The pod's label `aliyun.com/gpu-count` is the number of devices that the memory of each container is divided among
//! (*multi-GPU sharing*). As with cGPU, each device's memory is whole GiB, and time is not limited. Labels can be changed
//! as long as a pod exists. So in a pod that Aliquot's scheduler has bound the number is that of its decision.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::environment::Variable;
use crate::refusal::Refusal;
use crate::request::{GIB, Request};
use crate::systems::gpushare::{self, MEMORY};
use crate::translate::bound_parts;
use crate::wish::{Core, Share, Wish};

const CORE: &str = "aliyun.com/gpu-core.percentage";
const CORE_STEP: u32 = 5;
/// A label of the pod: the number of devices among which its memory is divided.
pub(crate) const COUNT: &str = "aliyun.com/gpu-count";

pub(crate) const SYSTEM: System = System {
    name: "cgpu",
    title: "cGPU",
    placement: Placement::Node,
    is_resource: |name| matches!(name, MEMORY | CORE),
    annotation: |_| None,
    translate,
    advertised: |_| {
        vec![
            Advertised { resource: MEMORY, unit: Unit::MemoryBytes(GIB) },
            Advertised { resource: CORE, unit: Unit::CorePercent },
        ]
    },
    counted: |_| Vec::new(),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let core = request.amount_within(CORE, CORE_STEP..=100)?;
    if let Some(percent) = core.filter(|percent| !percent.is_multiple_of(CORE_STEP)) {
        return Err(Refusal::value(CORE, percent, "a multiple of 5 from 5 to 100"));
    }
    let devices = devices(request)?;
    let Some(memory) = request.memory_of_each(devices, MEMORY, GIB)? else {
        let advice = "add the GiB of memory that it needs";
        return Err(Refusal::Alone { key: CORE.into(), needs: MEMORY, advice });
    };
    let share = match core {
        Some(_) if devices > 1 => {
            let advice = "parts of several devices are of memory alone";
            return Err(Refusal::Together { first: COUNT.into(), second: CORE.into(), advice });
        }
        Some(percent) => Share::Both { core: Core::exactly(percent), memory },
        None => Share::ByMemory { memory, core_limit_percent: Some(100) },
    };
    let mut wish = request.wish(Dialect::Cgpu, devices, share);
    wish.variables = gpushare::memory_variables(request, GIB)?;
    wish.variables.push(Variable::text("ALIYUN_COM_GPU_MEM_UNIT", "GiB"));
    Ok(wish)
}

/// How many devices the memory is divided among.
fn devices(request: &Request<'_>) -> Result<u32, Refusal> {
    match bound_parts(request)? {
        Some(parts) if !parts.is_empty() => Ok(u32::try_from(parts.len()).unwrap_or(u32::MAX)),
        _ => Ok(request.pod.labelled(COUNT, 1..=u32::from(u16::MAX))?.unwrap_or(1)),
    }
}
