//! AWS's virtual GPU device plugin for EKS.
//!
//! `k8s.amazonaws.com/vgpu` is one of the equal parts that a device counts as, 10 unless the node says otherwise. AWS's
//! plugin shares the device by MPS and limits nothing: programs are told to limit themselves. Aliquot gives a container its
//! part of the memory and guarantees the same part of the time; the container may use time that others leave. All
//! parts of a container are of one device, where AWS's plugin can spread them over several.
//!
//! AWS publishes no annotations of pods that ask for parts of a device. What else it has is the MIG resources of NVIDIA,
//! which `nvidia` reads, and settings of ECS, whose tasks are no pods.

use crate::dialect::{Advertised, Dialect, Placement, System, Unit};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::wish::{Core, MILLION, Memory, Share, Wish};

const VGPU: &str = "k8s.amazonaws.com/vgpu";
/// AWS's plugin takes no more, because Volta's MPS serves no more clients.
const PER_DEVICE_MAX: u32 = 48;

pub(crate) const SYSTEM: System = System {
    name: "aws-vgpu",
    title: "AWS's virtual GPU device plugin",
    placement: Placement::Node,
    is_resource: |name| name == VGPU,
    annotation: |_| None,
    translate,
    advertised: |node| vec![Advertised { resource: VGPU, unit: Unit::Part { per_device: per_device(node.aws_vgpus) } }],
    counted: |_| Vec::new(),
};

fn per_device(vgpus: u32) -> u32 {
    vgpus.clamp(1, PER_DEVICE_MAX)
}

fn translate(request: &Request<'_>) -> Result<Wish, Refusal> {
    let all = per_device(request.node.aws_vgpus);
    let parts = request.amount_within(VGPU, 1..=all)?.unwrap_or(1);
    let share =
        Share::Both { core: Core::at_least(100 * parts / all), memory: Memory::PartsPerMillion(MILLION * parts / all) };
    Ok(request.wish(Dialect::AwsVgpu, 1, share))
}
