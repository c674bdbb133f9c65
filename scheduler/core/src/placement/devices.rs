//! From a policy's choice to the devices that a task takes.

use crate::claim::DeviceAllocation;
use crate::node::Node;
use crate::placement::filter::fitting_devices;
use crate::placement::policy::Choice;
use crate::request::Request;

/// The devices that the choice means, by ascending index; `None` if the node does not have them.
pub(crate) fn chosen(node: &Node, request: &Request, choice: Choice) -> Option<Vec<DeviceAllocation>> {
    let wanted = usize::from(request.devices.count);
    let mut fitting: Vec<(u16, u16)> = fitting_devices(node, request)
        .filter(|(index, ..)| match choice {
            Choice::Tightest => true,
            Choice::Device(device) => *index == device,
        })
        .map(|(index, _, after)| (after, index))
        .collect();
    if fitting.len() < wanted {
        return None;
    }
    fitting.sort_unstable();
    let mut devices: Vec<u16> = fitting.into_iter().take(wanted).map(|(_, index)| index).collect();
    devices.sort_unstable();
    let part = |device: u16| {
        let memory = node.devices().get(usize::from(device))?.memory();
        Some(DeviceAllocation { device, core: request.devices.core, memory: request.devices.memory.on(memory) })
    };
    devices.into_iter().map(part).collect()
}
