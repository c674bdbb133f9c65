//! Makes the slice of a container that is about to start. Kubelet's request contains only the ids of its units.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_dialects::{NodeFacts, Placed, Priority, Spoken, Wish};
use aliquot_node::{self as node, Consumer, CreateError, Devices, Node, Part, QosClass, Slice, SliceRequest};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::info;

use super::choice::{Hint, NoDevice, choose};
use super::cluster::{Cluster, KnownPod, LOOK_TIMEOUT};
use super::decided::Decided;
use super::made::{is_of_another, is_rightful};
use super::resource::{Resource, kept_percent};
use super::slice_name::slice_name;
use super::stale::of_nobody;
use super::starting::{Candidate, RecordedNames, Starts, have_units_in_common};
use super::unit_id::{CdiName, device_of};
use super::waits::Waits;
use crate::pod_resources::{Holders, PodName, PodResources, Recorded};

mod error;
pub(super) use error::PrepareError;

/// The container that is about to start.
struct Starting {
    consumer: Consumer,
    /// The pod's UID, if kubelet has recorded it.
    pod_uid: Option<String>,
    /// The container's units, by resource that is served here.
    devices: BTreeMap<String, BTreeSet<String>>,
    /// The CDI names that kubelet was told for these units.
    aliases: BTreeSet<String>,
    /// The CDI names of the pod's containers that had some of its units before, and of the container itself.
    replaced: BTreeSet<String>,
}

/// Makes the slices of containers that start.
pub(super) struct Preparer {
    node: Arc<dyn Node>,
    cluster: Arc<dyn Cluster>,
    pod_resources: Arc<PodResources>,
    spoken: Spoken,
    facts: NodeFacts,
    starts: Starts,
    decided: Decided,
    waits: Waits,
    choice_lock: ChoiceLock,
}

/// A lock for two tasks. While a container's devices are chosen and its slice is made, no other container looks for
/// room. While slices without a container are removed, none of them gets a container.
pub(super) type ChoiceLock = Arc<Mutex<()>>;

impl Preparer {
    pub(super) fn new(
        node: Arc<dyn Node>,
        cluster: Arc<dyn Cluster>,
        pod_resources: Arc<PodResources>,
        spoken: Spoken,
        facts: NodeFacts,
        choice_lock: ChoiceLock,
    ) -> Preparer {
        Preparer {
            node,
            cluster,
            pod_resources,
            spoken,
            facts,
            starts: Starts::default(),
            decided: Decided::default(),
            waits: Waits::default(),
            choice_lock,
        }
    }

    /// Notes that kubelet is about to give these units of a resource away.
    pub(super) async fn admission_begins(&self, resource: &Resource, ids: BTreeSet<String>) {
        self.pod_resources.admission_begins(&resource.name, ids).await;
    }

    /// Makes the slice of the container that has these units of a resource, unless it exists. It exists if it was made
    /// for the container's units of another resource, or if the container is started again.
    ///
    /// # Errors
    /// See [`PrepareError`]; then no slice was made.
    pub(super) async fn prepare(&self, resource: &Resource, ids: &BTreeSet<String>) -> Result<(), PrepareError> {
        let holders = self.pod_resources.list().await?;
        self.starts.keep(&holders);
        let starting = self.starting(resource, ids, &holders).await?;
        let outcome = self.start(&starting, &holders).await;
        if let (Err(_), Some(uid)) = (&outcome, &starting.pod_uid) {
            self.starts.forget(uid);
        }
        outcome
    }

    /// The container that has these units and is starting.
    async fn starting(
        &self,
        resource: &Resource,
        ids: &BTreeSet<String>,
        holders: &Holders,
    ) -> Result<Starting, PrepareError> {
        let name = &resource.name;
        let recorded = holders.recorded().iter().filter(|recorded| recorded.devices.get(name) == Some(ids));
        let recorded = self.of_one_pod(recorded.collect()).await;
        let Some(first) = recorded.first().copied() else {
            let holder = holders.of(name, ids).ok_or_else(|| PrepareError::Nobody {
                resource: name.clone(),
                count: ids.len(),
                first: ids.first().cloned().unwrap_or_default(),
                unread: holders.unread().map(str::to_owned),
            })?;
            let devices = self.served(&holder.devices);
            let aliases = aliases(&devices);
            let (consumer, replaced) = (holder.consumer.clone(), aliases.clone());
            return Ok(Starting { consumer, pod_uid: None, devices, aliases, replaced });
        };
        let (namespace, pod) = match holders.of_any(name, ids) {
            Some(holder) => (holder.consumer.namespace.clone(), holder.consumer.pod.clone()),
            None => self.pod_of(first, holders).await?,
        };
        let consumer = |container: &str| Consumer {
            namespace: namespace.clone(),
            pod: pod.clone(),
            container: container.to_owned(),
        };
        let candidate = |recorded: &Recorded| {
            let devices = self.served(&recorded.devices);
            let listed = holders.of(name, ids).map(|holder| &holder.consumer);
            Candidate {
                container: recorded.container.clone(),
                aliases: aliases(&devices),
                devices,
                is_listed: listed == Some(&consumer(&recorded.container)),
            }
        };
        let candidates: Vec<Candidate> = recorded.into_iter().map(candidate).collect();
        let alias = CdiName::of_units(name, ids);
        let chosen = self.starts.choose(&first.pod_uid, alias.alias(), &candidates).ok_or_else(|| {
            // All candidates have these units.
            PrepareError::NoPod { uid: first.pod_uid.clone(), container: first.container.clone() }
        })?;
        let of_pod = holders.recorded().iter().filter(|recorded| recorded.pod_uid == first.pod_uid);
        let before = of_pod.map(|recorded| self.served(&recorded.devices));
        let before = before.filter(|devices| have_units_in_common(devices, &chosen.devices));
        Ok(Starting {
            consumer: consumer(&chosen.container),
            pod_uid: Some(first.pod_uid.clone()),
            replaced: before.flat_map(|devices| aliases(&devices)).collect(),
            devices: chosen.devices,
            aliases: chosen.aliases,
        })
    }

    /// The containers of one pod, among those that have the same units. If kubelet has given the units to several pods,
    /// it is the pod that has its slice already.
    async fn of_one_pod<'a>(&self, mut recorded: Vec<&'a Recorded>) -> Vec<&'a Recorded> {
        let Some(mut pod_uid) = recorded.first().map(|first| first.pod_uid.clone()) else { return recorded };
        if recorded.iter().any(|other| other.pod_uid != pod_uid) {
            let slices = node::blocking(&self.node, |node| node.list()).await;
            let has_slice = |recorded: &&&Recorded| {
                let aliases = aliases(&self.served(&recorded.devices));
                slices.iter().any(|slice| slice.content.aliases == aliases)
            };
            if let Some(with_slice) = recorded.iter().find(has_slice) {
                pod_uid.clone_from(&with_slice.pod_uid);
            }
            recorded.retain(|recorded| recorded.pod_uid == pod_uid);
        }
        recorded
    }

    /// The pod of a container that `PodResources` does not list. `PodResources` lists the pod, but not its UID.
    async fn pod_of(&self, recorded: &Recorded, holders: &Holders) -> Result<PodName, PrepareError> {
        let mut unknown = None;
        for (namespace, name) in holders.pods() {
            match self.cluster.pod(namespace, name).await {
                Ok(Some(pod)) if pod.uid == recorded.pod_uid => return Ok((namespace.clone(), name.clone())),
                Ok(_) => {}
                Err(reason) => unknown = Some(PrepareError::Pod { pod: format!("{namespace}/{name}"), reason }),
            }
        }
        let (uid, container) = (recorded.pod_uid.clone(), recorded.container.clone());
        Err(unknown.unwrap_or(PrepareError::NoPod { uid, container }))
    }

    async fn start(&self, starting: &Starting, holders: &Holders) -> Result<(), PrepareError> {
        let name = slice_name(&starting.consumer);
        if self.is_there(&name, starting).await {
            return Ok(());
        }
        let Consumer { namespace, pod, .. } = &starting.consumer;
        let failed = |reason| PrepareError::Pod { pod: format!("{namespace}/{pod}"), reason };
        let known = self.cluster.pod(namespace, pod).await.map_err(failed)?;
        let known = known.ok_or_else(|| failed("there is none of that name".into()))?;
        if let Some(text) = known.pod.unknown_annotations() {
            let (cluster, consumer) = (Arc::clone(&self.cluster), starting.consumer.clone());
            let uid = known.uid.clone();
            tokio::spawn(async move { cluster.not_read(&consumer, &uid, &text).await });
        }
        let (wish, outcome) = match self.wish(&starting.consumer, &known) {
            Ok(wish) => {
                let outcome = self.make_for(starting, holders, name, &wish).await;
                (Some(wish), outcome)
            }
            Err(error) => (None, Err(error)),
        };
        match (&outcome, &wish) {
            (Err(error), Some(wish)) if error.is_want_of_room() && self.fits_an_empty_node(wish) => {
                self.waits.refused(&known.uid, &starting.consumer, error.to_string());
                // A container with a decision on certain devices shows nothing about the others.
                if wish.constraints.decided.is_none() {
                    self.waits.found_split(&node::blocking(&self.node, |node| node.list()).await);
                }
            }
            _ => self.waits.served(&known.uid),
        }
        if let Err(error) = &outcome {
            // The event is written in the background, so that kubelet need not wait for it.
            let (cluster, reason) = (Arc::clone(&self.cluster), error.to_string());
            let (consumer, uid) = (starting.consumer.clone(), known.uid);
            tokio::spawn(async move { cluster.refused(&consumer, &uid, &reason).await });
        }
        outcome
    }

    /// Whether the container would find devices if all devices were healthy and free. If not, the container does not
    /// wait for room, because returned parts do not help it. A scheduler's decision on devices does not matter here:
    /// the scheduler decides anew for the pod that replaces this one.
    fn fits_an_empty_node(&self, wish: &Wish) -> bool {
        let mut devices = Devices::clone(&self.node.devices().borrow());
        devices.devices.iter_mut().for_each(|device| device.problem = None);
        let mut undecided = wish.clone();
        undecided.constraints.decided = None;
        choose(&undecided, &devices, &[], kept_percent(&self.facts), Hint::Rather(&[])).is_ok()
    }

    /// The slices among these for whose devices a scheduler has decided.
    pub(super) async fn decided(&self, slices: &[Slice]) -> BTreeSet<String> {
        let ask_for_all = async {
            for (slice, consumer) in self.decided.unknown(slices) {
                let Ok(known) = self.cluster.pod(&consumer.namespace, &consumer.pod).await else { break };
                let wish = known.and_then(|known| self.wish(&consumer, &known).ok());
                self.decided.note(slice, wish.is_some_and(|wish| wish.constraints.decided.is_some()));
            }
        };
        // Slices that are still unknown after that are asked for at the next look.
        let _ = timeout(LOOK_TIMEOUT, ask_for_all).await;
        self.decided.among(slices)
    }

    /// The containers that wait for room.
    pub(super) fn waits(&self) -> &Waits {
        &self.waits
    }

    async fn make_for(
        &self,
        starting: &Starting,
        holders: &Holders,
        name: String,
        wish: &Wish,
    ) -> Result<(), PrepareError> {
        let _held = self.choice_lock.lock().await;
        if self.is_there(&name, starting).await {
            return Ok(());
        }
        if let Some(other) = self.other_pods_container(starting, holders).await {
            return Err(PrepareError::GivenTwice { other });
        }
        self.make(wish, starting, name).await
    }

    /// A container of another pod that has a slice with some of these units. Kubelet may give units to two pods, see
    /// [`PodResources::admission_begins`]. Another process than this one may have asked at the wrong time.
    async fn other_pods_container(&self, starting: &Starting, holders: &Holders) -> Option<Consumer> {
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let recorded = RecordedNames::new(holders);
        let with_these = slices.iter().filter(|slice| !slice.content.aliases.is_disjoint(&starting.aliases));
        let mut consumers = with_these.filter_map(|slice| recorded.consumer_of(slice));
        let pod = |consumer: &Consumer| (consumer.namespace.clone(), consumer.pod.clone());
        consumers.find(|consumer| pod(consumer) != pod(&starting.consumer))
    }

    /// The units of the resources that are served here.
    fn served(&self, devices: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
        let known = self.node.devices().borrow().clone();
        let served = Resource::all(&self.spoken, &self.facts, &known);
        let units = served.into_iter().filter_map(|resource| Some((devices.get(&resource.name)?, resource.name)));
        units.map(|(ids, resource)| (resource, ids.clone())).collect()
    }

    /// Whether the container's slice exists. The slice of an earlier pod of the same name is not the container's.
    async fn is_there(&self, name: &str, starting: &Starting) -> bool {
        let name = name.to_owned();
        let slice = node::blocking(&self.node, move |node| node.get(&name)).await;
        slice.is_some_and(|slice| {
            let is_of_another = starting.pod_uid.as_ref().is_some_and(|uid| is_of_another(&slice, uid));
            !is_of_another && slice.content.aliases == starting.aliases
        })
    }

    /// The container's request, read in the words of its pod.
    fn wish(&self, consumer: &Consumer, known: &KnownPod) -> Result<Wish, PrepareError> {
        let asks_for_nothing = || PrepareError::AsksForNothing { container: consumer.to_string() };
        let index = known.pod.containers.iter().position(|container| container.name == consumer.container);
        let wish = self.spoken.translate(&known.pod, index.ok_or_else(asks_for_nothing)?, &self.facts)?;
        wish.ok_or_else(asks_for_nothing)
    }

    async fn make(&self, wish: &Wish, starting: &Starting, name: String) -> Result<(), PrepareError> {
        // An earlier container of that name had other units.
        self.remove(&name).await?;
        // These units belonged to other containers that have ended.
        self.remove_those_of(&starting.replaced, |_| false).await?;
        self.decided.note(name.clone(), wish.constraints.decided.is_some());
        let request = |parts: Vec<Part>, devices: &Devices| SliceRequest {
            name: name.clone(),
            environment: wish.environment(&placed(&parts, devices)).into_iter().collect(),
            parts,
            qos_class: wish.priority.map(qos_class),
            description: starting.consumer.to_string(),
            aliases: starting.aliases.clone(),
            pod_uid: starting.pod_uid.clone(),
            ..SliceRequest::default()
        };
        // Kubelet gives units out again as soon as their container is gone, while its slice may still exist. Such
        // slices are removed first. Otherwise the container would get another device than its units name, and kubelet
        // would find the room of both devices split.
        if self.is_kept_away(wish, &starting.devices).await {
            self.clear().await?;
        }
        let mut outcome = self.place(wish, &starting.devices, &request).await;
        if matches!(&outcome, Err(PrepareError::Create(CreateError::Unavailable(_)))) && self.clear().await? {
            outcome = self.place(wish, &starting.devices, &request).await;
        }
        let parts = outcome?;
        let consumers = BTreeSet::from([starting.consumer.clone()]);
        let devices: Vec<String> = parts.into_iter().map(|part| part.device_uuid).collect();
        info!(slice = name, container = %starting.consumer, devices = devices.join(","), "made a container's slice");
        node::blocking(&self.node, move |node| node.set_consumers(&name, &consumers)).await;
        Ok(())
    }

    /// Whether slices keep a container from the devices that it would get on a node without slices.
    async fn is_kept_away(&self, wish: &Wish, units: &BTreeMap<String, BTreeSet<String>>) -> bool {
        let devices = self.node.devices().borrow().clone();
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let chosen = |slices: &[Slice]| -> Option<Vec<String>> {
            let parts = self.choose(wish, units, &devices, slices).ok()?;
            Some(parts.into_iter().map(|part| part.device_uuid).collect())
        };
        chosen(&slices) != chosen(&[])
    }

    /// The parts that a container with these units would get beside these slices.
    fn choose(
        &self,
        wish: &Wish,
        units: &BTreeMap<String, BTreeSet<String>>,
        devices: &Devices,
        slices: &[Slice],
    ) -> Result<Vec<Part>, NoDevice> {
        let (uuids, exactly) = self.hinted(units, devices);
        // Kubelet does not know a scheduler's decision, so its choice does not bind.
        let exactly = exactly && wish.constraints.decided.is_none();
        let hint = if exactly { Hint::Exactly(&uuids) } else { Hint::Rather(&uuids) };
        choose(wish, devices, slices, kept_percent(&self.facts), hint)
    }

    /// Chooses devices and makes the slice there.
    async fn place(
        &self,
        wish: &Wish,
        units: &BTreeMap<String, BTreeSet<String>>,
        request: &(impl Fn(Vec<Part>, &Devices) -> SliceRequest + Sync),
    ) -> Result<Vec<Part>, PrepareError> {
        let devices = self.node.devices().borrow().clone();
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let parts = self.choose(wish, units, &devices, &slices)?;
        let request = request(parts.clone(), &devices);
        node::blocking(&self.node, move |node| node.create(&request)).await?;
        Ok(parts)
    }

    /// The devices that the container's units name, the one with the most units first, and whether the container must
    /// get exactly those.
    fn hinted(&self, units: &BTreeMap<String, BTreeSet<String>>, devices: &Devices) -> (Vec<String>, bool) {
        let served = Resource::all(&self.spoken, &self.facts, devices);
        let exactly =
            served.iter().any(|resource| resource.is_of_whole_devices() && units.contains_key(&resource.name));
        let ids = units.values().flatten();
        let mut counts: Vec<(usize, String)> = Vec::new();
        for uuid in ids.filter_map(|id| device_of(id)) {
            match counts.iter_mut().find(|(_, known)| known == uuid) {
                Some((count, _)) => *count += 1,
                None => counts.push((1, uuid.to_owned())),
            }
        }
        counts.sort_by(|(one, one_uuid), (other, other_uuid)| other.cmp(one).then_with(|| one_uuid.cmp(other_uuid)));
        (counts.into_iter().map(|(_, uuid)| uuid).collect(), exactly)
    }

    /// Removes the slices that no container has, to make room. Returns whether there were any.
    async fn clear(&self) -> Result<bool, PrepareError> {
        let slices = node::blocking(&self.node, |node| node.list()).await;
        // Asked after the slices were read: so each container that has one of these is in the answer.
        let holders = self.pod_resources.list().await?;
        let mut is_any_gone = false;
        for slice in of_nobody(&slices, &holders) {
            let name = slice.content.name.clone();
            if node::blocking(&self.node, move |node| node.remove_unused(&name)).await? {
                info!(slice = slice.content.name, "removed the slice of a container that is gone, to make room");
                is_any_gone = true;
            }
        }
        Ok(is_any_gone)
    }

    /// Removes the old slice that had these units, because kubelet has given them to a new container. The new
    /// container's own slice stays: a relay may report the units late, once for each of the container's resources.
    ///
    /// # Errors
    /// The node cannot remove it.
    pub(super) async fn retire(&self, cdi_name: &CdiName) -> Result<(), PrepareError> {
        let _held = self.choice_lock.lock().await;
        let recorded = self.pod_resources.recorded().await.unwrap_or_default();
        let stays = |slice: &Slice| is_rightful(slice, cdi_name, &recorded);
        self.remove_those_of(&BTreeSet::from([cdi_name.alias().to_owned()]), stays).await
    }

    /// Removes the slices that have one of these aliases, except those for which the given function says that they
    /// stay.
    async fn remove_those_of(
        &self,
        aliases: &BTreeSet<String>,
        stays: impl Fn(&Slice) -> bool,
    ) -> Result<(), PrepareError> {
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let of_aliases = slices.iter().filter(|slice| !slice.content.aliases.is_disjoint(aliases));
        for slice in of_aliases.filter(|slice| !stays(slice)) {
            self.remove(&slice.content.name).await?;
        }
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), PrepareError> {
        let name = name.to_owned();
        Ok(node::blocking(&self.node, move |node| node.remove(&name)).await?)
    }
}

/// The aliases of the slice of a container that has these units.
fn aliases(devices: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let names = devices.iter().map(|(resource, ids)| CdiName::of_units(resource, ids));
    names.map(|name| name.alias().to_owned()).collect()
}

fn placed(parts: &[Part], devices: &Devices) -> Vec<Placed> {
    let place = |part: &Part| {
        let device = devices.get(&part.device_uuid)?;
        let part = aliquot_dialects::Part {
            core_request_percent: part.core_request_percent,
            core_limit_percent: part.core_limit_percent,
            memory_bytes: part.memory_limit_bytes,
        };
        Some(Placed { device_index: device.index, device_memory_bytes: device.memory_bytes, part })
    };
    parts.iter().filter_map(place).collect()
}

fn qos_class(priority: Priority) -> QosClass {
    match priority {
        Priority::LatencyCritical => QosClass::LatencyCritical,
        Priority::Standard => QosClass::Standard,
        Priority::Batch => QosClass::Batch,
    }
}
