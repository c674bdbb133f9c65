//! Which devices of a node have enough free for one request, each by itself.

use crate::state::node::{Device, Node};
use crate::vocabulary::device_request::DeviceWish;
use crate::vocabulary::request::Request;

/// The node's devices that have as much free as is wanted of each, and what will be usable of them afterwards, by
/// ascending index. Of a task with several requests this is about the first.
pub(crate) fn fitting_devices<'a>(
    node: &'a Node,
    request: &'a Request,
) -> impl Iterator<Item = (u16, &'a Device, u16)> + 'a {
    fitting_for(node, request.first_wish(), request.rules.memory_threshold_percent)
}

/// The same for one of a task's requests, with the threshold of the task's rules.
pub(crate) fn fitting_for<'a>(
    node: &'a Node,
    wish: DeviceWish<'a>,
    threshold: Option<u8>,
) -> impl Iterator<Item = (u16, &'a Device, u16)> + 'a {
    // On a node that admits the request and has one model only, that model will do.
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
