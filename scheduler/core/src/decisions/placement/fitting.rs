//! The devices of a node that have enough free for one device request, each by itself.

use crate::state::node::{Device, Node};
use crate::vocabulary::device_request::DeviceWish;
use crate::vocabulary::request::Request;

/// The node's devices that have enough free, and the part of each that will be usable afterwards, by ascending index.
/// For a task with several device requests, this is about the first.
pub(crate) fn fitting_devices<'a>(
    node: &'a Node,
    request: &'a Request,
) -> impl Iterator<Item = (u16, &'a Device, u16)> + 'a {
    fitting_for(node, request.first_wish(), request.rules.memory_threshold_percent)
}

/// Like [`fitting_devices`], for one device request, with the memory threshold of the task's rules.
pub(crate) fn fitting_for<'a>(
    node: &'a Node,
    wish: DeviceWish<'a>,
    threshold: Option<u8>,
) -> impl Iterator<Item = (u16, &'a Device, u16)> + 'a {
    // On a node that admits the request and has only one model, that model is accepted.
    let any = wish.admit_any_device() || (node.has_one_model() && wish.attributes.is_empty());
    (0u16..).zip(node.devices()).filter_map(move |(index, device)| {
        let memory = wish.devices.memory.on(device.memory());
        let after = device.usable_after(wish.devices.core, memory)?;
        if threshold.is_some() && device.memory_below(threshold)? < memory {
            return None;
        }
        (any || admits_device(wish, node, index)).then_some((index, device, after))
    })
}

fn admits_device(wish: DeviceWish<'_>, node: &Node, index: u16) -> bool {
    node.spec().devices.get(usize::from(index)).is_some_and(|device| wish.admit_device(device))
}
