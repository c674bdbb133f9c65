//! Alibaba's open `GPUShare`.
//!
//! `aliyun.com/gpu-mem` is memory of one device, in GiB or MiB as the node's plugin was configured. `GPUShare` does not
//! limit time. Aliquot guarantees it in proportion to the memory, and the container may use time that others leave.
//!
//! Programs read their device and their memory limit from variables, since `GPUShare` does not enforce the limit.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::environment::{Value, Variable};
use crate::quantity;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::wish::{Share, Wish};

pub(super) const MEMORY: &str = "aliyun.com/gpu-mem";
/// Its value is the device's index, or -1 if none has been chosen yet.
const DECIDED: &str = "ALIYUN_COM_GPU_MEM_IDX";

pub(crate) const SYSTEM: System = System {
    name: "gpushare",
    title: "GPUShare",
    placement: Placement::Theirs { annotation: DECIDED },
    is_resource: |name| name == MEMORY,
    annotation: |_| None,
    translate,
    advertised: |node| vec![Advertised { resource: MEMORY, unit: Unit::MemoryBytes(node.gpushare_unit_bytes) }],
    counted: |_| Vec::new(),
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let unit_bytes = request.node.gpushare_unit_bytes;
    let Some(memory) = request.memory(MEMORY, unit_bytes)? else {
        return Err(Refusal::value(MEMORY, "", "a number of units of memory"));
    };
    let share = Share::ByMemory { memory, core_limit_percent: Some(100) };
    let mut wish = request.wish(Dialect::GpuShare, 1, share);
    if request.annotation(DECIDED) != Some("-1") {
        wish.constraints.decided = request.decided_indexes(DECIDED)?;
    }
    wish.variables = memory_variables(request, unit_bytes)?;
    wish.variables.push(Variable::text("ALIYUN_COM_GPU_MEM_POD", of_pod(request)?));
    Ok(wish)
}

/// The variables for the container's device and memory, in the unit of the request.
pub(super) fn memory_variables(request: &Request<'_>, unit_bytes: u64) -> Result<Vec<Variable>, Refusal> {
    Ok(vec![
        Variable::new("ALIYUN_COM_GPU_MEM_IDX", Value::DeviceIndexes),
        Variable::text("ALIYUN_COM_GPU_MEM_CONTAINER", request.amount(MEMORY)?.unwrap_or_default()),
        Variable::new("ALIYUN_COM_GPU_MEM_DEV", Value::DeviceMemory { unit_bytes }),
    ])
}

/// The sum of the requests of all containers of the pod.
fn of_pod(request: &Request<'_>) -> Result<u64, Refusal> {
    let mut quantities = request.pod.containers.iter().filter_map(|container| container.resources.get(MEMORY));
    quantities.try_fold(0_u64, |sum, text| {
        let units = quantity::whole(text).map_err(|must| Refusal::value(MEMORY, text, must.to_string()))?;
        sum.checked_add(units).ok_or_else(|| Refusal::value(MEMORY, text, "less, all containers together"))
    })
}
