//! Reasons why a task cannot run on a node. Some of them hold whatever is free on the node.

use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::NodeSpec;

/// Why a task cannot run on a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Misfit {
    /// The node takes nothing new.
    Cordoned,
    /// Its labels are not those asked for, or it has a taint that is not tolerated.
    NotAdmitted,
    /// Fewer of its devices, used or not, are of a model and with the attributes that are asked for, than are wanted.
    Models {
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
    /// Fewer devices have as much free as is wanted of each.
    Devices {
        /// Devices that have.
        fitting: u16,
    },
    /// Enough devices have as much free as is wanted, but not enough of one NVLink group or on one switch, as is
    /// required.
    Alignment {
        /// Devices that have.
        fitting: u16,
    },
}

/// Whether a node is one on which such tasks may run at all: what does not change as tasks come and go.
pub(crate) fn admits(node: &NodeSpec, request: &Request) -> Result<(), Misfit> {
    if node.cordoned {
        return Err(Misfit::Cordoned);
    }
    if !request.constraints.admit(node) {
        return Err(Misfit::NotAdmitted);
    }
    let admitted = node.devices.iter().filter(|device| request.constraints.admit_device(device)).count();
    let admitted = u16::try_from(admitted).unwrap_or(u16::MAX);
    if admitted < request.devices.count {
        return Err(Misfit::Models { admitted });
    }
    Ok(())
}
