//! Device plugins: they register at `device-plugins/kubelet.sock`, tell their devices, and are asked before containers
//! get them.

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

/// What a device says of itself when it can be given out.
const HEALTHY: &str = "Healthy";

/// Whose devices are whose.
#[derive(Debug)]
pub(super) struct DeviceManager {
    checkpoint: Checkpoint,
    state: Mutex<State>,
    /// Pods are admitted one after the other.
    admission: tokio::sync::Mutex<()>,
    /// Who changes what can be given out holds this until the node's status says so, and who looks at it.
    publishing: Mutex<()>,
}

/// What is known of devices now.
#[derive(Debug, Default)]
struct State {
    endpoints: BTreeMap<String, Endpoint>,
    /// The client of each resource that registered last, as long as that counts: telling it ends it.
    clients: BTreeMap<String, Arc<Notify>>,
    given: BTreeMap<Owner, BTreeMap<String, Given>>,
    /// Resources that were registered at any time.
    known: BTreeSet<String>,
}

/// A container: its pod's UID and its name.
type Owner = (String, String);

/// A registered plugin.
#[derive(Debug)]
struct Endpoint {
    client: DevicePluginClient<Channel>,
    options: DevicePluginOptions,
    /// By id, as told last; all unhealthy once the plugin is gone.
    devices: BTreeMap<String, Device>,
}

/// What a container has got of one resource.
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

    /// Keeps others from changing what can be given out, and from looking at it.
    pub(super) fn in_turn(&self) -> MutexGuard<'_, ()> {
        self.publishing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All units of a resource, and those that can be given out, as the node's status has it.
    pub(super) fn capacity(&self, resource: &str) -> Option<(usize, usize)> {
        let _in_turn = self.in_turn();
        let state = self.lock();
        let devices = &state.endpoints.get(resource)?.devices;
        Some((devices.len(), devices.values().filter(|device| device.health == HEALTHY).count()))
    }

    /// Whether a unit of any resource can be given out, as the node's status has it.
    pub(super) fn has_units(&self) -> bool {
        let _in_turn = self.in_turn();
        self.allocatable().values().any(|count| *count > 0)
    }

    /// How many units of each resource can be given out that some plugin has registered.
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

    /// What a container has got, by resource, each device with its NUMA nodes.
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

    /// Takes back what the containers of a pod have.
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
    /// The ids of a resource that some container has.
    fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let given = self.given.values().filter_map(|given| given.get(resource));
        given.flat_map(|given| given.ids.iter().cloned()).collect()
    }
}

/// The same numbers in an order that nobody can rely on, but that is the same each time. A plugin that works only by
/// the order of ids must fail.
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

/// What the manager of devices shares with the kubelet.
type Shared = Arc<super::Shared>;
