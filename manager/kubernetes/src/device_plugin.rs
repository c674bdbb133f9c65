//! The device plugin: parts of devices as countable resources, for clusters without DRA or its consumable capacity.
//!
//! A device offers units of each resource (`aliquot.dev/gpu-core`: a percent of its time; `aliquot.dev/gpu-memory`: an
//! amount of its memory), and units of the resources of the dialects that the node speaks. Kubelet hands out units by
//! id:
//!
//! 1. *Allocate*, when a pod is admitted, does not name the container. The answer is the name of a CDI device that
//!    follows from the ids alone; that device does not exist yet.
//! 2. *PreStartContainer*, before the container is created, comes with the same ids. Kubelet's `PodResources` names the
//!    container that has them; for init containers its checkpoint does. The pod says what that container requests
//!    ([`aliquot_dialects`]). The slice is then made once for all of the container's resources, and published under the
//!    names that kubelet was told for each.
//!
//! So a container is never found by matching amounts, and its device is decided when the container is known: units of
//! shares only count. Units of whole devices are the devices, unless a scheduler has decided on others. If the plugin
//! refuses, PreStartContainer returns an error, which kubelet writes into an event of the pod, and the plugin writes an
//! event of its own. Kubelet hands out each resource by itself, so a container's units of time and of memory need not
//! be of one device.
//!
//! An init container that ends before the others start has a slice of its own, which is removed for theirs: kubelet
//! gives them the same units. Containers with exactly the same request share the slice. A sidecar is a container like
//! others.
//!
//! Units do not describe the devices. So a scheduler that chooses devices reads their description in an annotation of
//! the node ([`aliquot_api_server::Inventory`]), and writes its choice into an annotation of the pod.
//!
//! The plugin keeps no state: the owner of each slice follows from the ids, which kubelet keeps, and from the pod's
//! UID, which the slice keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::{self as node, Node, Slice};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use crate::pod_resources::{Holders, PodResources};
use crate::relay::Meeting;

mod choice;
mod cluster;
mod counted;
mod decided;
mod given;
mod held;
mod inventory;
mod listeners;
mod made;
mod preferred;
mod prepare;
mod publisher;
mod registration;
mod resource;
mod server;
mod settings;
mod slice_name;
mod stale;
mod starting;
#[cfg(test)]
pub(crate) mod test_kubelet;
#[cfg(test)]
pub(crate) mod test_node;
#[cfg(test)]
mod tests;
mod unit_id;
mod units;
mod waits;

pub use cluster::{ApiServer, Cluster, KnownPod};
pub use settings::{Config, Settings, SettingsError};
pub use unit_id::CdiName;

pub(crate) use given::{Given, Ids};
pub(crate) use listeners::Listeners;
#[cfg(test)]
pub(crate) use registration::keep_serving_unregistered;
pub(crate) use registration::{MESSAGE_BYTES_MAX, Plugin as RegisteredPlugin, SOCKET_PREFIX, keep_serving};
pub(crate) use server::{UNHEALTHY, options};
pub(crate) use starting::RecordedNames;

use held::Held;
use prepare::{ChoiceLock, Preparer};
use publisher::{Publisher, withdraw_inventory};
use resource::Resource;
use server::{Server, Units};
use stale::{Sweeper, of_nobody};
use units::units_of;

/// Time between two looks at kubelet's answers, besides the looks after each change.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The clients that the plugins of the node's resources are served to.
#[derive(Clone, Debug)]
pub enum Serves {
    /// Kubelet, with this directory: `/var/lib/kubelet`.
    Kubelet(PathBuf),
    /// Relays, which find the plugins at this meeting place.
    Relays(Meeting),
}

/// Serves the node's resources until this is dropped.
pub async fn run(
    config: Config,
    serves: Serves,
    node: Arc<dyn Node>,
    cluster: Arc<dyn Cluster>,
    pod_resources: Arc<PodResources>,
) {
    let choice_lock = ChoiceLock::default();
    let preparer = Arc::new(Preparer::new(
        Arc::clone(&node),
        Arc::clone(&cluster),
        Arc::clone(&pod_resources),
        config.spoken.clone(),
        config.facts.clone(),
        Arc::clone(&choice_lock),
    ));
    let sweeper = Sweeper::new(
        Arc::clone(&node),
        Arc::clone(&cluster),
        Arc::clone(&pod_resources),
        choice_lock,
        config.gone_grace,
    );
    let publisher = Publisher::new(Arc::clone(&cluster));
    let mut plugin = Plugin {
        config,
        serves,
        node,
        cluster,
        pod_resources,
        preparer,
        changed: Arc::new(Notify::new()),
        served: BTreeMap::new(),
        tasks: JoinSet::new(),
        holders: Arc::new(Holders::default()),
        sweeper,
        publisher,
    };
    plugin.run().await;
}

/// Removes what a plugin has left behind on a node that it does not serve any more: the node's inventory, and the
/// slices. A slice is removed once its pod is gone, or once no container has had it for `grace`. This goes on until it
/// is dropped.
pub async fn clear_up(
    node: Arc<dyn Node>,
    cluster: Arc<dyn Cluster>,
    pod_resources: Arc<PodResources>,
    grace: Duration,
) {
    tokio::join!(withdraw_inventory(&*cluster), sweep_for_ever(node, Arc::clone(&cluster), pod_resources, grace));
}

async fn sweep_for_ever(
    node: Arc<dyn Node>,
    cluster: Arc<dyn Cluster>,
    pod_resources: Arc<PodResources>,
    grace: Duration,
) {
    let mut sweeper =
        Sweeper::new(Arc::clone(&node), cluster, Arc::clone(&pod_resources), ChoiceLock::default(), grace);
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let slices = node::blocking(&node, |node| node.list()).await;
        if slices.iter().any(stale::is_of_units)
            && let Ok(holders) = pod_resources.list().await
        {
            sweeper.sweep(&slices, &holders).await;
        }
    }
}

struct Plugin {
    config: Config,
    serves: Serves,
    node: Arc<dyn Node>,
    cluster: Arc<dyn Cluster>,
    pod_resources: Arc<PodResources>,
    preparer: Arc<Preparer>,
    changed: Arc<Notify>,
    /// The units that kubelet is told of, by resource. A resource that no longer exists stays, with no units.
    served: BTreeMap<String, watch::Sender<Units>>,
    tasks: JoinSet<()>,
    /// The last answer of kubelet.
    holders: Arc<Holders>,
    sweeper: Sweeper,
    publisher: Publisher,
}

impl Plugin {
    async fn run(&mut self) {
        let mut devices = self.node.devices();
        let mut ticks = interval(LOOK_INTERVAL.min(self.config.gone_grace.max(Duration::from_millis(100))));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.changed.notified() => {}
                () = changed(&mut devices) => {}
            }
            self.look().await;
        }
    }

    /// Looks which containers have units, removes slices without a container, and tells kubelet the remaining units.
    async fn look(&mut self) {
        // A set keeps ended tasks until they are joined.
        while self.tasks.try_join_next().is_some() {}
        let slices = node::blocking(&self.node, |node| node.list()).await;
        // Asked after the slices were read: so each container that has one of these is in the answer.
        match self.pod_resources.list().await {
            Ok(holders) => {
                self.sweeper.sweep(&slices, &holders).await;
                self.evict(&holders);
                self.holders = holders;
            }
            // Kubelet does not answer. It takes no units either, so its last answer still holds.
            Err(error) => debug!("{error}"),
        }
        let devices = self.node.devices().borrow().clone();
        let amounts = counted::counted(&self.config.spoken, &self.config.facts, &devices, &slices);
        let inventory = inventory::inventory(&self.config.spoken, &self.config.facts, &devices);
        let decided = self.preparer.decided(&slices).await;
        self.offer(slices, &decided);
        self.publisher.publish(&devices, amounts, inventory).await;
    }

    /// Evicts the pods that have waited too long for room.
    fn evict(&mut self, holders: &Holders) {
        for (pod_uid, waiting) in self.preparer.waits().for_long(self.config.room_grace, holders) {
            let cluster = Arc::clone(&self.cluster);
            self.tasks.spawn(async move { cluster.evict(&waiting.container, &pod_uid, &waiting.reason).await });
        }
    }

    /// Tells kubelet all units, and which of them it may hand out. `slices` must not include a slice whose holder is
    /// not known yet: its units would be taken for free ones without room.
    fn offer(&mut self, mut slices: Vec<Slice>, decided: &BTreeSet<String>) {
        let devices = self.node.devices().borrow().clone();
        // A container that needs the room of such slices gets it at once.
        let of_nobody: BTreeSet<String> =
            of_nobody(&slices, &self.holders).into_iter().map(|slice| slice.content.name.clone()).collect();
        slices.retain(|slice| !of_nobody.contains(&slice.content.name));
        let is_split = self.preparer.waits().are_split(&slices);
        let undecided: Vec<Slice> =
            slices.iter().filter(|slice| !decided.contains(&slice.content.name)).cloned().collect();
        let resources = Resource::all(&self.config.spoken, &self.config.facts, &devices);
        for (name, units) in &self.served {
            if !resources.iter().any(|resource| resource.name == *name) {
                units.send_if_modified(|units| !std::mem::take(units).is_empty());
            }
        }
        for resource in resources {
            let held = Held::new(&resource, &self.holders, &slices);
            let units = match units_of(&resource, &devices, &undecided, &held, is_split) {
                Ok(units) => Arc::new(units),
                Err(error) => {
                    if !self.served.contains_key(&resource.name) {
                        warn!("{error}");
                        let cluster = Arc::clone(&self.cluster);
                        self.tasks.spawn(async move { cluster.not_offered(&error.to_string()).await });
                    }
                    Units::default()
                }
            };
            match self.served.get(&resource.name) {
                Some(known) => {
                    known.send_if_modified(|known| {
                        let is_new = *known != units;
                        *known = units;
                        is_new
                    });
                }
                None => self.serve(resource, units),
            }
        }
    }

    fn serve(&mut self, resource: Resource, units: Units) {
        let (sender, receiver) = watch::channel(units);
        self.served.insert(resource.name.clone(), sender);
        let server = Arc::new(Server {
            resource,
            node: Arc::clone(&self.node),
            units: receiver,
            preparer: Arc::clone(&self.preparer),
            changed: Arc::clone(&self.changed),
            listeners: Listeners::default(),
            given: matches!(self.serves, Serves::Kubelet(_)).then(Given::default),
        });
        match &self.serves {
            Serves::Kubelet(kubelet_dir) => {
                let plugin = RegisteredPlugin {
                    resource: server.resource.name.clone(),
                    instance: None,
                    listeners: server.listeners.clone(),
                    service: server,
                };
                self.tasks.spawn(keep_serving(plugin, kubelet_dir.join("device-plugins")));
            }
            Serves::Relays(meeting) => {
                let socket = meeting.plugin(&server.resource.name);
                self.tasks.spawn(registration::keep_serving_unregistered(server, socket));
            }
        }
    }
}

/// Returns when the devices have changed; never, if the node no longer watches them.
async fn changed(devices: &mut watch::Receiver<Arc<node::Devices>>) {
    if devices.changed().await.is_err() {
        pending::<()>().await;
    }
}
