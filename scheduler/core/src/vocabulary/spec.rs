//! What nodes are, as their machines report it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::vocabulary::peers::Peers;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::taint::Taint;
use crate::vocabulary::texts::Texts;

/// One machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeSpec {
    /// Its name; no two nodes share one.
    pub name: String,
    /// Labels that claims can ask for, and that say where the node stands in the cluster's topology.
    pub labels: Texts,
    /// What keeps away claims that do not tolerate it.
    pub taints: Vec<Taint>,
    /// CPU that claims may use.
    pub cpu: MilliCpu,
    /// Memory of the machine that claims may use.
    pub memory: Bytes,
    /// Its devices, in the machine's order.
    pub devices: Vec<DeviceSpec>,
    /// Nothing new is placed here; what is here stays.
    pub cordoned: bool,
    /// What claims may use of things that are only counted here, by name: pods, say, or huge pages. Of a name that is
    /// not listed there is nothing. Claims need room for what they ask of these; no queue has a share in them.
    pub counted: BTreeMap<String, u64>,
    /// Tasks that run there and are no claims, as far as they have to do with the places of claims. What they hold is
    /// no part of the node's amounts.
    pub foreign: Vec<Arc<Peers>>,
}

/// A device of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceSpec {
    /// Names the device, wherever it is plugged in.
    pub uuid: String,
    /// Model name.
    pub model: String,
    /// Its memory.
    pub memory: Bytes,
    /// Memory in use that no claim was given. Claims with a threshold leave room for it.
    pub memory_outside: Bytes,
    /// Whether it may be given out.
    pub health: Health,
    /// Devices of a node with the same number reach each other by NVLink.
    pub nvlink_group: Option<u16>,
    /// Devices of a node with the same number are attached to the same switch.
    pub switch: Option<u16>,
    /// The NUMA node that it is attached to.
    pub numa: Option<u16>,
    /// What else claims can ask of a device: its architecture, say, or whether limits are enforced on it.
    pub attributes: Texts,
}

impl DeviceSpec {
    /// Time that can be given out: one device's.
    pub const CORE: DeviceCore = DeviceCore::WHOLE;
}

/// Whether a device may be given out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Health {
    /// It works.
    #[default]
    Healthy,
    /// It gets nothing new; what is on it stays until it is removed.
    Unhealthy,
}
