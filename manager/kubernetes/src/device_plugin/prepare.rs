//! Makes the slice of a container that is about to start. Kubelet asks for it with nothing but the ids of its units.

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
    /// Of its pod, if kubelet has recorded it.
    pod_uid: Option<String>,
    /// Its units, by resource that is served here.
    devices: BTreeMap<String, BTreeSet<String>>,
    /// The CDI names that kubelet was told for them.
    aliases: BTreeSet<String>,
    /// The CDI names of those containers of the pod that had some of its units before, and its own.
    replaced: BTreeSet<String>,
}

/// Makes containers' slices.
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

/// Who chooses devices holds this, so that what is chosen is made before the next one looks for room; and who removes
/// what is nobody's, so that it is not somebody's by then.
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

    /// Notes that kubelet is about to give units away.
    pub(super) async fn admission_begins(&self) {
        self.pod_resources.admission_begins().await;
    }

    /// Makes the slice of the container that has these units of a resource, unless it is there: the container has
    /// units of other resources as well, for which it was made, or it is started again.
    ///
    /// # Errors
    /// See [`PrepareError`]; then nothing was made.
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

    /// Who has these units and is starting.
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
            // All of them have these units.
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

    /// Of those who have the same units, the containers of one pod. If kubelet has given them to several pods, it is the one
    /// that has its slice already.
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

    /// The pod of a container that `PodResources` does not list: it lists the pod, but not its UID.
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
                // Who was sent to certain devices finds out nothing about the others.
                if wish.constraints.decided.is_none() {
                    self.waits.found_split(&node::blocking(&self.node, |node| node.list()).await);
                }
            }
            _ => self.waits.served(&known.uid),
        }
        if let Err(error) = &outcome {
            // Kubelet is not kept waiting for it.
            let (cluster, reason) = (Arc::clone(&self.cluster), error.to_string());
            let (consumer, uid) = (starting.consumer.clone(), known.uid);
            tokio::spawn(async move { cluster.refused(&consumer, &uid, &reason).await });
        }
        outcome
    }

    /// Whether the container would find devices if all were well and nobody else had a part of them. If not, it waits for
    /// no room, and what others give back does not help it. On which devices a scheduler has decided does not matter: it
    /// decides anew for the pod that comes in place of this one.
    fn fits_an_empty_node(&self, wish: &Wish) -> bool {
        let mut devices = Devices::clone(&self.node.devices().borrow());
        devices.devices.iter_mut().for_each(|device| device.problem = None);
        let mut undecided = wish.clone();
        undecided.constraints.decided = None;
        choose(&undecided, &devices, &[], kept_percent(&self.facts), Hint::Rather(&[])).is_ok()
    }

    /// Those of these slices on whose devices a scheduler has decided.
    pub(super) async fn decided(&self, slices: &[Slice]) -> BTreeSet<String> {
        let ask_for_all = async {
            for (slice, consumer) in self.decided.unknown(slices) {
                let Ok(known) = self.cluster.pod(&consumer.namespace, &consumer.pod).await else { break };
                let wish = known.and_then(|known| self.wish(&consumer, &known).ok());
                self.decided.note(slice, wish.is_some_and(|wish| wish.constraints.decided.is_some()));
            }
        };
        // What is not known by then is asked for at the next look.
        let _ = timeout(LOOK_TIMEOUT, ask_for_all).await;
        self.decided.among(slices)
    }

    /// Whom room is short for.
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
    /// [`PodResources::admission_begins`]; it need not be this process that asked at the wrong time.
    async fn other_pods_container(&self, starting: &Starting, holders: &Holders) -> Option<Consumer> {
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let recorded = RecordedNames::new(holders);
        let with_these = slices.iter().filter(|slice| !slice.content.aliases.is_disjoint(&starting.aliases));
        let mut consumers = with_these.filter_map(|slice| recorded.consumer_of(slice));
        let pod = |consumer: &Consumer| (consumer.namespace.clone(), consumer.pod.clone());
        consumers.find(|consumer| pod(consumer) != pod(&starting.consumer))
    }

    /// Units of what is served here.
    fn served(&self, devices: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
        let known = self.node.devices().borrow().clone();
        let served = Resource::all(&self.spoken, &self.facts, &known);
        let units = served.into_iter().filter_map(|resource| Some((devices.get(&resource.name)?, resource.name)));
        units.map(|(ids, resource)| (resource, ids.clone())).collect()
    }

    /// Whether the container's slice is there. That of an earlier pod of its name is not the container's.
    async fn is_there(&self, name: &str, starting: &Starting) -> bool {
        let name = name.to_owned();
        let slice = node::blocking(&self.node, move |node| node.get(&name)).await;
        slice.is_some_and(|slice| {
            let is_of_another = starting.pod_uid.as_ref().is_some_and(|uid| is_of_another(&slice, uid));
            !is_of_another && slice.content.aliases == starting.aliases
        })
    }

    /// What the container asks for, in its pod's own words.
    fn wish(&self, consumer: &Consumer, known: &KnownPod) -> Result<Wish, PrepareError> {
        let asks_for_nothing = || PrepareError::AsksForNothing { container: consumer.to_string() };
        let index = known.pod.containers.iter().position(|container| container.name == consumer.container);
        let wish = self.spoken.translate(&known.pod, index.ok_or_else(asks_for_nothing)?, &self.facts)?;
        wish.ok_or_else(asks_for_nothing)
    }

    async fn make(&self, wish: &Wish, starting: &Starting, name: String) -> Result<(), PrepareError> {
        // A container of that name had other units before.
        self.remove(&name).await?;
        // And these units were another container's that has ended.
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
        // Kubelet gives units out again as soon as their container is gone, and its slice may still be there. Such
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

    /// Whether slices keep a container from the devices that it would have if there were none.
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
        // Kubelet does not know what a scheduler has decided.
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

    /// The devices that the container's units name, the one with the most units first, and whether it must be those.
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

    /// Removes the slices that are nobody's, to make room; whether there were any.
    async fn clear(&self) -> Result<bool, PrepareError> {
        let slices = node::blocking(&self.node, |node| node.list()).await;
        // Asked for after the slices were looked at: whose slice is among them is among these.
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

    /// Removes the slice that these units were for: kubelet has given them to a new container. The new container's own
    /// slice stays: a relay may tell of the units late, once by each of the container's resources.
    ///
    /// # Errors
    /// The node cannot remove it.
    pub(super) async fn retire(&self, cdi_name: &CdiName) -> Result<(), PrepareError> {
        let _held = self.choice_lock.lock().await;
        let recorded = self.pod_resources.recorded().await.unwrap_or_default();
        let stays = |slice: &Slice| is_rightful(slice, cdi_name, &recorded);
        self.remove_those_of(&BTreeSet::from([cdi_name.alias().to_owned()]), stays).await
    }

    /// Removes the slices that have one of these aliases, but those that are to stay.
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
