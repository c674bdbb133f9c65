//! The specifications of nodes, as their machines report them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::vocabulary::peers::Peers;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::taint::Taint;
use crate::vocabulary::texts::Texts;

/// One machine of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeSpec {
    /// Its name; no two nodes share one.
    pub name: String,
    /// Labels that claims can ask for, and that say where the node stands in the cluster's topology.
    pub labels: Texts,
    /// Taints keep away claims that do not tolerate them.
    pub taints: Vec<Taint>,
    /// CPU that claims may use.
    pub cpu: MilliCpu,
    /// Memory of the machine that claims may use.
    pub memory: Bytes,
    /// Its devices, in the machine's order.
    pub devices: Vec<DeviceSpec>,
    /// Whether it is cordoned: new claims are not placed here, and placed ones stay.
    pub cordoned: bool,
    /// The capacity of each counted resource, by name, such as pods or huge pages. A name that is not listed has the
    /// capacity 0. Claims need room for what they ask of these. Queues have no shares in them.
    pub counted: BTreeMap<String, u64>,
    /// Tasks that run there but are not claims, if rules about peers concern them. What they hold is not included in
    /// the node's amounts.
    pub foreign: Vec<Arc<Peers>>,
}

/// A device of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceSpec {
    /// Names the device, whatever machine it is plugged into.
    pub uuid: String,
    /// The name of its model.
    pub model: String,
    /// Its memory.
    pub memory: Bytes,
    /// Memory in use that was not given to any claim. Claims with a threshold leave room for it.
    pub memory_outside: Bytes,
    /// Whether it may be given out.
    pub health: Health,
    /// Devices of a node with the same number reach each other by NVLink.
    pub nvlink_group: Option<u16>,
    /// Devices of a node with the same number are attached to the same switch.
    pub switch: Option<u16>,
    /// The NUMA node that it is attached to.
    pub numa: Option<u16>,
    /// Further properties that claims can ask for, such as its architecture, or whether limits are enforced on it.
    pub attributes: Texts,
}

impl DeviceSpec {
    /// The time that can be given out of a device: all of it.
    pub const CORE: DeviceCore = DeviceCore::WHOLE;
}

/// Whether a device may be given out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Health {
    /// It works.
    #[default]
    Healthy,
    /// It gets no new claims. Claims on it stay until they are removed.
    Unhealthy,
}
