//! Reasons why a task cannot run on a node. Some of them hold whatever is free on the node.

use crate::vocabulary::choices::SingleChoice;
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::taint::Taint;

/// Why a task cannot run on a node. Of a task with alternatives: why not as its first choice, when no other fits either.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Misfit<'a> {
    /// The node takes nothing new.
    Cordoned,
    /// It does not have a label with the value that is asked for.
    Label {
        /// The label.
        key: &'a str,
        /// The value that is asked for.
        value: &'a str,
    },
    /// Its labels match no term of those of which they must match one.
    NodeTerms,
    /// It has a taint that is not tolerated.
    Taint(&'a Taint),
    /// Fewer of its devices, used or not, are of a model and with the attributes that are asked for, than are wanted.
    Models {
        /// Which of the task's requests it is; `None`: the only one.
        request: Option<&'a str>,
        /// Devices that are.
        admitted: u16,
    },
    /// Too little CPU is free.
    Cpu {
        /// What is free.
        free: MilliCpu,
    },
    /// Too little memory is free.
    Memory {
        /// What is free.
        free: Bytes,
    },
    /// Too little is free of something that is only counted.
    Counted {
        /// What it is.
        name: &'a str,
        /// What is asked for.
        wanted: u64,
        /// What is free.
        free: u64,
    },
    /// Fewer devices have as much free as is wanted of each.
    Devices {
        /// Which of the task's requests it is; `None`: the only one.
        request: Option<&'a str>,
        /// Devices that have.
        fitting: u16,
    },
    /// Enough devices have as much free as is wanted, but not enough of one NVLink group or on one switch, as is
    /// required.
    Alignment {
        /// Devices that have.
        fitting: u16,
    },
    /// Each of the task's requests finds its devices, but this one does not beside those before it.
    CrowdedOut {
        /// What the request is called.
        request: &'a str,
    },
}

/// Whether a node is one on which such tasks may run at all: what does not change as tasks come and go.
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

/// Whether a node has enough devices, used or not, that will do for a task's first choice.
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
