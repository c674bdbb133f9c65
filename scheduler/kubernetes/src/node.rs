//! A node, as far as the scheduler needs to know it.

use std::collections::BTreeMap;

use aliquot_api_server::{INVENTORY, Inventory};
use aliquot_dialects::quantity;
use aliquot_scheduler_core::{Bytes, DeviceSpec, MilliCpu, NodeSpec, Taint};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::devices;
use crate::mirror::Held;
use crate::placement::{DECLARED_FEATURES, NODE_NAME, taints};
use crate::resources::Amounts;

/// What placement needs to know of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeFacts {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// Nothing new may be started there.
    pub(crate) is_cordoned: bool,
    /// The node is ready: the API server hears from its kubelet.
    pub(crate) is_ready: bool,
    pub(crate) allocatable: BTreeMap<String, Quantity>,
    /// Its devices; `None`: no manager publishes any. `Err`: what the manager publishes cannot be read.
    pub(crate) inventory: Option<Result<Inventory, String>>,
}

impl NodeFacts {
    /// What is known of a node; `None` if it has no name.
    pub(crate) fn of(node: Node) -> Option<NodeFacts> {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        let name = node.metadata.name?;
        let mut labels = node.metadata.labels.unwrap_or_default();
        labels.insert(NODE_NAME.to_owned(), name.clone());
        let features = status.declared_features.iter().flatten();
        labels.extend(features.map(|feature| (format!("{DECLARED_FEATURES}{feature}"), String::new())));
        let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
        let is_ready = ready.is_some_and(|condition| condition.status == "True");
        let inventory = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INVENTORY));
        let inventory = inventory.map(|text| serde_json::from_str(text).map_err(|error| error.to_string()));
        Some(NodeFacts {
            uid: node.metadata.uid.unwrap_or_default(),
            labels,
            taints: taints(spec.taints.as_deref().unwrap_or_default()),
            is_cordoned: spec.unschedulable == Some(true) || !is_ready,
            is_ready,
            allocatable: status.allocatable.unwrap_or_default(),
            inventory,
            name,
        })
    }

    /// Whether it has any of a resource.
    pub(crate) fn has(&self, resource: &str) -> bool {
        let amount = self.allocatable.get(resource).map(|amount| quantity::thousandths(&amount.0));
        amount.is_some_and(|amount| amount.is_ok_and(|amount| amount > 0))
    }

    /// The node in the words of the books, less what pods that are not in the books hold there. `may_give_out`: whether
    /// the devices of its inventory may be given out. `claimed`: devices that are given out by claims.
    ///
    /// It has at least what our pods hold. A node can say that it has less than that for a while: kubelet, when it
    /// starts, does not know what device plugins offer, a new node has no inventory yet, and other schedulers may
    /// overload a node. No pod is evicted for that, but no new pod is placed there either.
    ///
    /// # Errors
    /// A quantity of it cannot be read.
    pub(crate) fn spec<'a>(
        &self,
        held: &Held,
        ports: impl Iterator<Item = &'a String>,
        is_counted: impl Fn(&str) -> bool,
        may_give_out: bool,
        claimed: Vec<DeviceSpec>,
    ) -> Result<NodeSpec, String> {
        let mut amounts = Amounts::of_node(&self.allocatable, is_counted)?;
        amounts.add_one_each(ports);
        amounts.add(&held.given_back);
        amounts.take(&held.by_foreign);
        amounts.raise(&held.by_ours);
        let mut devices = match &self.inventory {
            Some(Ok(inventory)) => devices::specs(inventory, may_give_out),
            _ => Vec::new(),
        };
        devices.extend(claimed);
        for (uuid, bytes) in &held.device_bytes {
            if devices.iter().all(|device| device.uuid != *uuid) {
                devices.push(devices::unknown(uuid, *bytes));
            }
        }
        Ok(NodeSpec {
            name: self.name.clone(),
            labels: self.labels.clone().into(),
            taints: self.taints.clone(),
            cpu: MilliCpu::new(amounts.cpu_millis),
            memory: Bytes::new(amounts.memory_bytes),
            counted: amounts.counted,
            devices,
            cordoned: self.is_cordoned,
            foreign: held.peers.clone(),
        })
    }
}
