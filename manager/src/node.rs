//! The manager as a [`Node`]: the one place that converts between the manager's types and those of the adapters.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_node::{
    Consumer, CreateError, Device, Devices, Node, NodeError, NodeUsage, Part, Partition, Shortcoming, Slice,
    SliceRequest,
};
use tokio::sync::watch;

use crate::attribution;
use crate::inventory::DeviceUuid;
use crate::manager::{CreateSliceError, Manager, RemoveSliceError, SliceView};
use crate::measure::{self, Now};
use crate::slices::{self, CreateRequest, PartRequest, Published, RemoveError};

mod devices;
mod difference;

use difference::difference;

/// The manager, as the adapters see it.
pub(crate) struct ManagedNode {
    manager: Arc<Manager>,
    devices: watch::Sender<Arc<Devices>>,
    /// Whether the adapters may partition GPUs in MIG mode.
    may_partition: bool,
}

impl ManagedNode {
    /// A node that shows `manager` to the adapters. `may_partition`: the adapters may partition GPUs in MIG mode.
    #[must_use]
    pub(crate) fn new(manager: Arc<Manager>, may_partition: bool) -> ManagedNode {
        let known = devices::told(&manager.devices().known(), may_partition);
        ManagedNode { manager, devices: watch::Sender::new(Arc::new(known)), may_partition }
    }

    /// Publishes the devices as they are known now, if anything about them has changed.
    fn tell(&self) {
        self.devices.send_if_modified(|told| {
            // Read within this closure, which runs for one caller at a time. So an older state never replaces a newer
            // one.
            let now = devices::told(&self.manager.devices().known(), self.may_partition);
            let is_new = **told != now;
            if is_new {
                *told = Arc::new(now);
            }
            is_new
        });
    }

    /// Publishes the devices whenever they have changed, until `end` is true.
    pub(crate) async fn follow_devices(&self, mut end: watch::Receiver<bool>) {
        let mut known = self.manager.devices().watch();
        loop {
            known.mark_unchanged();
            self.tell();
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                // An error means that the sender is gone; the loop ends then too.
                _ = end.wait_for(|end| *end) => return,
            }
        }
    }
}

impl Node for ManagedNode {
    fn devices(&self) -> watch::Receiver<Arc<Devices>> {
        self.devices.subscribe()
    }

    fn look(&self) -> Result<(), NodeError> {
        let outcome = self.manager.devices().look();
        self.tell();
        outcome.map_err(|error| NodeError(error.0))
    }

    fn create_instance(&self, partition: &Partition) -> Result<Device, NodeError> {
        let outcome = self.manager.devices().create_instance(partition);
        self.tell();
        let made = outcome.map_err(|error| NodeError(error.0))?;
        Ok(devices::device(&made, self.may_partition))
    }

    fn destroy_instance(&self, partition: &Partition) -> Result<(), NodeError> {
        let outcome = self.manager.devices().destroy_instance(partition);
        self.tell();
        outcome.map_err(|error| NodeError(error.0))
    }

    fn create(&self, request: &SliceRequest) -> Result<Slice, CreateError> {
        match self.manager.create(create_request(request)) {
            Ok(view) => Ok(slice(view)),
            Err(CreateSliceError::Refused(refused)) => {
                let found = matches!(refused, slices::CreateError::Exists { .. }).then(|| self.get(&request.name));
                match found.flatten() {
                    Some(found) => match difference(request, &found.content) {
                        None => Ok(found),
                        Some(difference) => Err(CreateError::Differs { name: request.name.clone(), difference }),
                    },
                    None if refused.can_pass() => Err(CreateError::Unavailable(refused.to_string())),
                    None => Err(CreateError::Invalid(refused.to_string())),
                }
            }
            Err(CreateSliceError::Failed(failed)) => Err(NodeError(failed.to_string()).into()),
        }
    }

    fn remove(&self, name: &str) -> Result<(), NodeError> {
        match self.manager.remove(name, true) {
            Ok(()) | Err(RemoveSliceError::Refused(RemoveError::NotFound { .. })) => Ok(()),
            Err(error) => Err(NodeError(error.to_string())),
        }
    }

    fn remove_unused(&self, name: &str) -> Result<bool, NodeError> {
        let Some(view) = self.manager.get(name) else { return Ok(true) };
        let users = attribution::users_of(view.slice.id)
            .map_err(|error| NodeError(format!("cannot list the processes that have slice {name:?}: {error}")))?;
        if !users.is_empty() {
            return Ok(false);
        }
        match self.manager.remove(name, false) {
            Ok(()) | Err(RemoveSliceError::Refused(RemoveError::NotFound { .. })) => Ok(true),
            Err(RemoveSliceError::Refused(RemoveError::InUse { .. })) => Ok(false),
            Err(error) => Err(NodeError(error.to_string())),
        }
    }

    fn get(&self, name: &str) -> Option<Slice> {
        self.manager.get(name).map(slice)
    }

    fn list(&self) -> Vec<Slice> {
        self.manager.list().into_iter().map(slice).collect()
    }

    fn list_beginning_with(&self, prefix: &str) -> Vec<Slice> {
        self.manager.list_beginning_with(prefix).into_iter().map(slice).collect()
    }

    fn usage(&self) -> NodeUsage {
        let known = self.manager.devices().known();
        let outside = known.memory_outside_bytes.iter().map(|(device, bytes)| (device.to_string(), *bytes));
        NodeUsage {
            slices: measure::usage(&self.manager.live().all(), &known.inventory, Now::read()),
            memory_outside_bytes: outside.collect(),
        }
    }

    fn set_consumers(&self, name: &str, consumers: &BTreeSet<Consumer>) {
        if let Some(live) = self.manager.live().get(name) {
            live.set_consumers(consumers.clone());
        }
    }

    fn set_shortcoming(&self, shortcoming: Option<Shortcoming>) {
        self.manager.set_shortcoming(shortcoming);
    }
}

fn create_request(request: &SliceRequest) -> CreateRequest {
    let part = |part: &Part| PartRequest {
        device: Some(DeviceUuid::new(&*part.device_uuid)),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_limit_bytes,
    };
    CreateRequest {
        name: request.name.clone(),
        parts: request.parts.iter().map(part).collect(),
        host_memory_limit_bytes: request.host_memory_limit_bytes,
        qos_class: request.qos_class,
        audit_policy: request.audit_policy,
        published: Published { aliases: request.aliases.clone(), environment: request.environment.clone() },
        description: request.description.clone(),
        pod_uid: request.pod_uid.clone(),
        owner: None,
        // Containers need no right to the directories above their mounts.
        users: BTreeSet::new(),
    }
}

fn slice(view: SliceView) -> Slice {
    let part = |part: slices::Part| Part {
        device_uuid: part.device.to_string(),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_limit_bytes,
    };
    let content = SliceRequest {
        parts: view.slice.parts.into_iter().map(part).collect(),
        qos_class: Some(view.slice.qos_class),
        host_memory_limit_bytes: view.slice.host_memory_limit_bytes,
        audit_policy: view.slice.audit_policy,
        description: view.slice.description,
        pod_uid: view.slice.pod_uid,
        aliases: view.slice.published.aliases,
        environment: view.slice.published.environment,
        name: view.slice.name,
    };
    Slice {
        content,
        // The configuration ensures that slices are published.
        cdi_device: view.cdi_device.unwrap_or_default(),
        processes: view.processes,
        consumers: view.consumers.as_ref().clone(),
    }
}
