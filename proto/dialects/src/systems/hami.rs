//! HAMi.
//!
//! `nvidia.com/gpu` is a number of devices. The other resources hold for each of them: `gpumem` is MiB and
//! `gpumem-percentage` percent of its memory, `gpucores` percent of its time. Where the number is left out HAMi's webhook
//! adds it, and so does Aliquot's: kubelet hands out nothing else. Annotations of the pod say which devices are suitable.
//!
//! Like HAMi, the node gives kubelet only a number of containers per device to hand out. Where HAMi's extender does not
//! tell kube-scheduler to ignore the other resources, it must see them in the node's status, or their pods would wait for
//! ever: so their sums over all devices stand there. Kube-scheduler counts them once for a container with several devices,
//! and not device by device. So it can send a container to a node that has no room for it, which refuses it with a reason.

use crate::dialect::{Advertised, Count, Counted, Dialect, Placement, System, Unit};
use crate::environment::Variable;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::systems::per_device::{self, Names};
use crate::wish::{Priority, Wish};

const GPU: &str = "nvidia.com/gpu";
/// Asks for nothing by itself. 0 is the high priority.
pub(crate) const PRIORITY: &str = "nvidia.com/priority";
const MODE: &str = "nvidia.com/vgpu-mode";
const NUMA_BIND: &str = "nvidia.com/numa-bind";
const DECIDED: &str = "hami.io/vgpu-devices-allocated";
const NAMES: Names = Names {
    memory: "nvidia.com/gpumem",
    memory_percentage: "nvidia.com/gpumem-percentage",
    cores: "nvidia.com/gpucores",
};

pub(crate) const SYSTEM: System = System {
    name: "hami",
    title: "HAMi",
    placement: Placement::Theirs { annotation: DECIDED },
    is_resource: |name| [GPU, NAMES.memory, NAMES.memory_percentage, NAMES.cores, PRIORITY].contains(&name),
    annotation: |_| None,
    translate,
    advertised: |node| {
        vec![Advertised { resource: GPU, unit: Unit::Slot { per_device: node.slots_per_device.clamp(1, 100) } }]
    },
    counted: |node| {
        let mut found = per_device::counted(&NAMES);
        let per_device = node.slots_per_device.clamp(1, 100);
        found.push(Counted { resource: PRIORITY, count: Count::Containers { per_device } });
        found
    },
};

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let share = per_device::share(request, &NAMES)?;
    let others = [NAMES.memory, NAMES.memory_percentage, NAMES.cores];
    if let Some(key) = others.into_iter().find(|name| !request.has(GPU) && request.has(name)) {
        let advice = "add the number of devices";
        return Err(Refusal::Alone { key: key.into(), needs: GPU, advice });
    }
    let mut wish = request.wish(Dialect::Hami, request.devices(GPU)?, share);
    if let Some(mode @ ("mig" | "mps")) = request.annotation(MODE) {
        return Err(Refusal::value(MODE, mode, "hami-core, or left out: this node shares its devices itself"));
    }
    wish.variables = per_device::limit_variables(request, &NAMES)?;
    // In HAMi 0 is the high priority and 1 the low one. A container that names none counts as low.
    match request.number(PRIORITY)? {
        None => {}
        Some(priority @ (0 | 1)) => {
            wish.priority = Some(if priority == 0 { Priority::LatencyCritical } else { Priority::Standard });
            wish.variables.push(Variable::text("CUDA_TASK_PRIORITY", priority));
        }
        Some(other) => return Err(Refusal::value(PRIORITY, other, "0 for high or 1 for low")),
    }
    let constraints = &mut wish.constraints;
    constraints.decided = per_device::decided(request, DECIDED)?;
    constraints.models = request.list("nvidia.com/use-gputype");
    constraints.not_models = request.list("nvidia.com/nouse-gputype");
    constraints.uuids = request.list("nvidia.com/use-gpuuuid");
    constraints.not_uuids = request.list("nvidia.com/nouse-gpuuuid");
    constraints.one_numa_node = match request.annotation(NUMA_BIND) {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(Refusal::value(NUMA_BIND, other, "true or false")),
    };
    Ok(wish)
}
