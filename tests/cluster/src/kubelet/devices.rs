//! Device plugins: they register at `device-plugins/kubelet.sock`, report their devices, and are called before
//! containers get them.

mod allocation;
mod registration;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aliquot_proto::kubelet::device_plugin::device_plugin_client::DevicePluginClient;
use aliquot_proto::kubelet::device_plugin::{ContainerAllocateResponse, Device, DevicePluginOptions};
use tokio::sync::Notify;
use tonic::transport::Channel;

pub(super) use allocation::{allocate, pre_start};
pub(super) use registration::serve;

use super::checkpoint::Checkpoint;

/// The health of a device that can be allocated.
const HEALTHY: &str = "Healthy";

/// The devices of plugins, and the containers that have them.
#[derive(Debug)]
pub(super) struct DeviceManager {
    checkpoint: Checkpoint,
    state: Mutex<State>,
    /// Pods are admitted one after the other.
    admission: tokio::sync::Mutex<()>,
    /// Held during a change of the allocatable units until the change is in the node's status, and while the units are
    /// read.
    publishing: Mutex<()>,
}

/// The present state of the devices.
#[derive(Debug, Default)]
struct State {
    endpoints: BTreeMap<String, Endpoint>,
    /// The client of each resource that registered last, while its registration is valid. A notification ends it.
    clients: BTreeMap<String, Arc<Notify>>,
    given: BTreeMap<Owner, BTreeMap<String, Given>>,
    /// Resources that were registered at any time.
    known: BTreeSet<String>,
}

/// A container: the UID of its pod, and its name.
type Owner = (String, String);

#[derive(Debug)]
struct Endpoint {
    client: DevicePluginClient<Channel>,
    options: DevicePluginOptions,
    /// The devices by id, as last reported; all are unhealthy once the plugin is gone.
    devices: BTreeMap<String, Device>,
}

/// The devices that a container has of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
struct Given {
    ids: BTreeSet<String>,
    /// The ids by NUMA node, as the checkpoint has them.
    by_node: BTreeMap<i64, Vec<String>>,
    answer: ContainerAllocateResponse,
}

impl DeviceManager {
    pub(super) fn open(file: PathBuf) -> DeviceManager {
        let checkpoint = Checkpoint::at(file);
        let state = Mutex::new(allocation::read(&checkpoint));
        DeviceManager { checkpoint, state, admission: tokio::sync::Mutex::new(()), publishing: Mutex::new(()) }
    }

    /// Keeps other threads from changing and from reading the allocatable units.
    pub(super) fn in_turn(&self) -> MutexGuard<'_, ()> {
        self.publishing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All units of a resource, and those that can be allocated, as the node's status has them.
    pub(super) fn capacity(&self, resource: &str) -> Option<(usize, usize)> {
        let _in_turn = self.in_turn();
        let state = self.lock();
        let devices = &state.endpoints.get(resource)?.devices;
        Some((devices.len(), devices.values().filter(|device| device.health == HEALTHY).count()))
    }

    /// Whether a unit of any resource can be allocated, as the node's status has it.
    pub(super) fn has_units(&self) -> bool {
        let _in_turn = self.in_turn();
        self.allocatable().values().any(|count| *count > 0)
    }

    /// The number of units that can be allocated, for each resource that a plugin has registered.
    pub(super) fn allocatable(&self) -> BTreeMap<String, usize> {
        let state = self.lock();
        let healthy = |endpoint: &Endpoint| endpoint.devices.values().filter(|device| device.health == HEALTHY).count();
        state.endpoints.iter().map(|(resource, endpoint)| (resource.clone(), healthy(endpoint))).collect()
    }

    /// The ids that a container has of a resource.
    pub(super) fn ids(&self, pod_uid: &str, container: &str, resource: &str) -> Vec<String> {
        let of = self.of_container(pod_uid, container);
        of.get(resource).map(|given| given.ids.iter().cloned().collect()).unwrap_or_default()
    }

    /// The devices of a container by resource, each with its NUMA nodes.
    pub(super) fn with_topology(&self, pod_uid: &str, container: &str) -> BTreeMap<String, Vec<(String, Vec<i64>)>> {
        let given = self.of_container(pod_uid, container);
        let state = self.lock();
        let nodes = |resource: &str, id: &str| {
            let device = state.endpoints.get(resource).and_then(|endpoint| endpoint.devices.get(id));
            let topology = device.and_then(|device| device.topology.clone()).unwrap_or_default();
            topology.nodes.iter().map(|node| node.id).collect()
        };
        given
            .iter()
            .map(|(resource, given)| {
                let devices = given.ids.iter().map(|id| (id.clone(), nodes(resource, id))).collect();
                (resource.clone(), devices)
            })
            .collect()
    }

    /// Releases the devices of a pod's containers.
    pub(super) fn release(&self, pod_uid: &str) {
        let mut state = self.lock();
        state.given.retain(|(owner, _), _| owner != pod_uid);
        allocation::write(&self.checkpoint, &state);
    }

    fn of_container(&self, pod_uid: &str, container: &str) -> BTreeMap<String, Given> {
        self.lock().given.get(&(pod_uid.to_owned(), container.to_owned())).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The ids of a resource that containers have.
    fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let given = self.given.values().filter_map(|given| given.get(resource));
        given.flat_map(|given| given.ids.iter().cloned()).collect()
    }
}

/// The same ids in a pseudo-random order, which is the same each time for the same seed. A plugin that relies on the
/// order of ids must fail.
fn shuffled(ids: impl IntoIterator<Item = String>, seed: &str) -> Vec<String> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut ids: Vec<String> = ids.into_iter().collect();
    ids.sort_by_key(|id| {
        let mut hasher = DefaultHasher::new();
        (seed, id).hash(&mut hasher);
        hasher.finish()
    });
    ids
}

/// The state that the device manager shares with the kubelet.
type Shared = Arc<super::Shared>;
