//! Reasons why a task cannot run on a node. Some of them hold whatever is free on it.

use crate::vocabulary::choices::SingleChoice;
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::taint::Taint;

/// Why a task cannot run on a node. For a task with alternatives, none of which fits: the reason for its first choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Misfit<'a> {
    /// The node is cordoned: it takes no new tasks.
    Cordoned,
    /// It does not have a label with the value that is asked for.
    Label {
        /// The label.
        key: &'a str,
        /// The value that is asked for.
        value: &'a str,
    },
    /// Its labels match none of these terms; they must match at least one.
    NodeTerms,
    /// It has a taint that is not tolerated.
    Taint(&'a Taint),
    /// It has too few devices, used or not, of the requested models and with the requested attributes.
    Models {
        /// The name of the device request; `None`: the task has only one.
        request: Option<&'a str>,
        /// The number of such devices.
        admitted: u16,
    },
    /// Too little CPU is free.
    Cpu {
        /// The amount that is free on the node.
        free: MilliCpu,
    },
    /// Too little memory is free.
    Memory {
        /// The amount that is free on the node.
        free: Bytes,
    },
    /// Too little of a counted resource is free.
    Counted {
        /// The name of the counted resource.
        name: &'a str,
        /// The amount that the task asks for.
        wanted: u64,
        /// The amount that is free on the node.
        free: u64,
    },
    /// Too few devices have enough free.
    Devices {
        /// The name of the device request; `None`: the task has only one.
        request: Option<&'a str>,
        /// The number of devices that have enough free.
        fitting: u16,
    },
    /// Enough devices have enough free, but too few of them are in one NVLink group or on one switch, as required.
    Alignment {
        /// The number of devices that have enough free.
        fitting: u16,
    },
    /// Each of the task's device requests finds devices by itself, but this one finds none beside the requests before
    /// it.
    CrowdedOut {
        /// The name of the device request.
        request: &'a str,
    },
}

/// Whether such tasks may run on a node at all. This does not change as tasks come and go.
pub(crate) fn admits<'a>(node: &'a KnownNode, request: &'a Request) -> Result<(), Misfit<'a>> {
    if node.cordoned {
        return Err(Misfit::Cordoned);
    }
    if let Some((key, value)) = request.constraints.missing_labels(node).next() {
        return Err(Misfit::Label { key, value });
    }
    if !request.constraints.admit_by_terms(node) {
        return Err(Misfit::NodeTerms);
    }
    if let Some(taint) = request.constraints.untolerated(node).next() {
        return Err(Misfit::Taint(taint));
    }
    let first = admits_devices(node, request);
    let will_do = |choice: SingleChoice<'_>| admits_devices(node, &choice.request).is_ok();
    match first.is_err() && request.has_alternatives() && request.choices().any(will_do) {
        true => Ok(()),
        false => first,
    }
}

/// Whether a node has enough devices, used or not, that a task's first choice accepts.
pub(crate) fn admits_devices<'a>(node: &KnownNode, request: &'a Request) -> Result<(), Misfit<'a>> {
    for wish in request.wishes() {
        let admitted = match wish.admit_any_device() {
            true => node.devices.len(),
            false => node.devices.iter().filter(|device| wish.admit_device(device)).count(),
        };
        let admitted = u16::try_from(admitted).unwrap_or(u16::MAX);
        if admitted < wish.devices.count {
            return Err(Misfit::Models { request: wish.name, admitted });
        }
    }
    Ok(())
}
