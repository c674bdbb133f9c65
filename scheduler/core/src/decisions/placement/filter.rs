//! Whether a task can run on a node in its present state. These functions change nothing and reserve nothing.

use std::borrow::Cow;

use crate::decisions::placement::fitting::{fitting_devices, fitting_for};
use crate::decisions::placement::misfit::{Misfit, admits, admits_devices};
use crate::decisions::placement::policy::Choice;
use crate::decisions::placement::room::{on_devices, room};
use crate::decisions::placement::several;
use crate::state::node::Node;
use crate::vocabulary::choices::SingleChoice;
use crate::vocabulary::request::Request;

/// Whether a node that admits such tasks has enough free for one. This is asked most often, so it gives no reason and
/// looks at the devices last.
pub(crate) fn has_room(node: &Node, request: &Request) -> bool {
    if request.has_alternatives() {
        return first_fitting(node, request).is_some();
    }
    let devices = &request.devices;
    if node.cpu_free() < request.cpu || node.memory_free() < request.memory || !node.has_counted(request) {
        return false;
    }
    if devices.count == 0 {
        return true;
    }
    if node.core_free_max() < devices.core {
        return false;
    }
    if request.further.is_some() {
        return several::assign(node, request, Choice::Tightest).is_some();
    }
    let wanted = usize::from(devices.count);
    if fitting_devices(node, request).take(wanted).count() < wanted {
        return false;
    }
    !request.rules.require_alignment() || room(node, request) > 0
}

/// The first choice of a task for which a node has enough free, if the node admits such tasks. Without alternatives,
/// this is the request itself, whatever is free.
pub(crate) fn first_fitting<'a>(node: &Node, request: &'a Request) -> Option<SingleChoice<'a>> {
    if !request.has_alternatives() {
        return Some(SingleChoice { number: 0, rank: 0, request: Cow::Borrowed(request) });
    }
    let fits = |choice: &SingleChoice<'_>| {
        admits_devices(node.spec(), &choice.request).is_ok() && has_room(node, &choice.request)
    };
    request.choices().find(fits)
}

/// Whether one more task with this request can run on a node now.
///
/// # Errors
/// The first reason why it cannot. For a task with alternatives, the reason for its first choice.
pub fn fits<'a>(node: &'a Node, request: &'a Request) -> Result<(), Misfit<'a>> {
    admits(node.spec(), request)?;
    let first = fits_as_first_choice(node, request);
    match first.is_err() && request.has_alternatives() && first_fitting(node, request).is_some() {
        true => Ok(()),
        false => first,
    }
}

fn fits_as_first_choice<'a>(node: &'a Node, request: &'a Request) -> Result<(), Misfit<'a>> {
    admits_devices(node.spec(), request)?;
    if node.cpu_free() < request.cpu {
        return Err(Misfit::Cpu { free: node.cpu_free() });
    }
    if node.memory_free() < request.memory {
        return Err(Misfit::Memory { free: node.memory_free() });
    }
    if let Some((name, wanted, free)) = node.lacking_counted(request).next() {
        return Err(Misfit::Counted { name, wanted, free });
    }
    let threshold = request.rules.memory_threshold_percent;
    for wish in request.wishes() {
        let fitting = u16::try_from(fitting_for(node, wish, threshold).count()).unwrap_or(u16::MAX);
        if fitting < wish.devices.count {
            return Err(Misfit::Devices { request: wish.name, fitting });
        }
        if request.further.is_none() && request.rules.require_alignment() && on_devices(node, request) == 0 {
            return Err(Misfit::Alignment { fitting });
        }
    }
    match request.further.is_some().then(|| several::crowded_out(node, request)).flatten() {
        Some(request) => Err(Misfit::CrowdedOut { request }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::state::node_parts::NodeParts;
    use crate::vocabulary::claim::{Allocation, Claim, DeviceAllocation, NodeId};
    use crate::vocabulary::device_request::{DeviceMemory, DeviceRequest};
    use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
    use crate::vocabulary::slab::Slab;
    use crate::vocabulary::spec::{DeviceSpec, NodeSpec};

    const DEVICES: u16 = 3;

    /// Amounts of at most two counted resources.
    fn counted() -> impl Strategy<Value = BTreeMap<String, u64>> {
        btree_map("[ab]", 0u64..3, 0..3)
    }

    fn request() -> impl Strategy<Value = Request> {
        let memory = prop_oneof![
            (0u64..6).prop_map(|bytes| DeviceMemory::Bytes(Bytes::new(bytes))),
            (0u32..4).prop_map(|part| DeviceMemory::Thousandths(part * 250)),
        ];
        let devices = (0..=DEVICES, 0u32..4, memory);
        let devices = devices.prop_map(|(count, core, memory)| DeviceRequest {
            count,
            core: DeviceCore::from_percent(core * 25),
            memory,
        });
        (0u64..3, 0u64..3, devices, counted()).prop_map(|(cpu, memory, devices, counted)| Request {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::new(memory),
            devices,
            counted,
            ..Request::default()
        })
    }

    proptest! {
        #[test]
        fn where_a_request_fits_whatever_it_covers_fits(
            one in request(),
            other in request(),
            held in vec((0..=4u32, 0..=6u64), usize::from(DEVICES)),
            free in (0u64..3, 0u64..3),
            counted in counted(),
        ) {
            let device = DeviceSpec { memory: Bytes::new(6), ..DeviceSpec::default() };
            let devices = vec![device; usize::from(DEVICES)];
            let (cpu, memory) = (MilliCpu::new(free.0), Bytes::new(free.1));
            let spec = NodeSpec { cpu, memory, devices, counted, ..NodeSpec::default() };
            let mut node = Node::new(NodeParts::default().join(spec, &vec![4; held.len()]));
            let mut claims = Slab::<Claim>::default();
            for (device, (core, memory)) in (0u16..).zip(held) {
                let (core, memory) = (DeviceCore::from_percent(core * 25), Bytes::new(memory));
                let devices = DeviceRequest { count: 1, core, memory: DeviceMemory::Bytes(memory) };
                let allocation = Allocation { node: NodeId(0), devices: vec![DeviceAllocation { device, core, memory }], alternative: 0 };
                let held = Request { devices, ..Request::default() };
                prop_assert_eq!(node.take(claims.insert(Claim::default()), &held, &allocation), Ok(()));
            }
            if one.covers(&other) && fits(&node, &one).is_ok() {
                prop_assert_eq!(fits(&node, &other), Ok(()));
            }
        }
    }
}
