//! Makes the slice of a container that is about to start. Kubelet asks for it with nothing but the ids of its units.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_dialects::{NodeFacts, Placed, Priority, Refusal, Spoken, Wish};
use tokio::sync::Mutex;
use tonic::{Code, Status};
use tracing::info;

use super::choice::{Hint, NoDevice, choose};
use super::pods::Pods;
use super::resource::Resource;
use super::slice_name::slice_name;
use super::stale::of_nobody;
use super::unit_id::{CdiName, device_of};
use crate::node::{self, CreateError, Devices, Node, NodeError, Part, PriorityClass, SliceRequest};
use crate::pod_resources::{Holder, ListError, PodResources};

/// Why a container cannot start. Kubelet writes it into an event of the pod, and tries again.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// It is not known who asks.
    #[error(transparent)]
    List(#[from] ListError),
    /// Nobody has these units.
    #[error(
        "no container that kubelet's PodResources lists has the {count} units of {resource} that begin with {first}; \
         an init container that ends before the others start cannot have a device: ask in a container or a sidecar"
    )]
    Nobody { resource: String, count: usize, first: String },
    /// The API server does not tell what the pod says.
    #[error("cannot read pod {pod} from the API server: {reason}")]
    Pod { pod: String, reason: String },
    /// The pod is another one than kubelet's.
    #[error("{container} asks for no device in the pod that the API server has; was the pod replaced?")]
    AsksForNothing { container: String },
    /// What it asks for cannot be given.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no room.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The node does not make the slice.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// An old slice stands in the way.
    #[error("the slice of a container that is gone cannot be removed: {0}")]
    Remove(#[from] NodeError),
}

impl From<PrepareError> for Status {
    fn from(error: PrepareError) -> Status {
        let code = match &error {
            PrepareError::List(_) | PrepareError::Pod { .. } => Code::Unavailable,
            PrepareError::Nobody { .. } | PrepareError::AsksForNothing { .. } => Code::NotFound,
            PrepareError::Refused(_) | PrepareError::Create(CreateError::Invalid(_)) => Code::InvalidArgument,
            PrepareError::NoDevice(_) | PrepareError::Create(CreateError::Unavailable(_)) => Code::ResourceExhausted,
            PrepareError::Create(_) | PrepareError::Remove(_) => Code::Internal,
        };
        Status::new(code, error.to_string())
    }
}

/// Makes containers' slices.
pub(super) struct Preparer {
    node: Arc<dyn Node>,
    pods: Arc<dyn Pods>,
    pod_resources: Arc<PodResources>,
    spoken: Spoken,
    facts: NodeFacts,
    /// Who chooses devices holds this: what is chosen is made before the next one looks for room.
    turn: Mutex<()>,
}

impl Preparer {
    pub(super) fn new(
        node: Arc<dyn Node>,
        pods: Arc<dyn Pods>,
        pod_resources: Arc<PodResources>,
        spoken: Spoken,
        facts: NodeFacts,
    ) -> Preparer {
        Preparer { node, pods, pod_resources, spoken, facts, turn: Mutex::new(()) }
    }

    /// Makes the slice of the container that has these units of a resource, unless it is there: the container has
    /// units of other resources as well, for which it was made, or it is started again.
    ///
    /// # Errors
    /// See [`PrepareError`]; then nothing was made.
    pub(super) async fn prepare(&self, resource: &Resource, ids: &BTreeSet<String>) -> Result<(), PrepareError> {
        let holders = self.pod_resources.list().await?;
        let holder = holders.of(&resource.name, ids).ok_or_else(|| PrepareError::Nobody {
            resource: resource.name.clone(),
            count: ids.len(),
            first: ids.first().cloned().unwrap_or_default(),
        })?;
        let (name, aliases) = (slice_name(&holder.consumer), self.aliases(holder));
        if self.is_there(&name, &aliases).await {
            return Ok(());
        }
        let wish = self.wish(holder).await?;
        let turn = self.turn.lock().await;
        if self.is_there(&name, &aliases).await {
            return Ok(());
        }
        let made = self.make(&wish, holder, name, aliases).await;
        drop(turn);
        made
    }

    /// The CDI names that kubelet was told for the container's units, of all resources that are served here.
    fn aliases(&self, holder: &Holder) -> BTreeSet<String> {
        let devices = self.node.devices().borrow().clone();
        let served = Resource::all(&self.spoken, &self.facts, &devices);
        let units = served.iter().filter_map(|resource| Some((&resource.name, holder.devices.get(&resource.name)?)));
        units.map(|(resource, ids)| CdiName::of_units(resource, ids).alias().to_owned()).collect()
    }

    async fn is_there(&self, name: &str, aliases: &BTreeSet<String>) -> bool {
        let name = name.to_owned();
        let slice = node::blocking(&self.node, move |node| node.get(&name)).await;
        slice.is_some_and(|slice| slice.content.aliases == *aliases)
    }

    /// What the container asks for, in its pod's own words.
    async fn wish(&self, holder: &Holder) -> Result<Wish, PrepareError> {
        let consumer = &holder.consumer;
        let pod = self
            .pods
            .get(&consumer.namespace, &consumer.pod)
            .await
            .map_err(|reason| PrepareError::Pod { pod: format!("{}/{}", consumer.namespace, consumer.pod), reason })?;
        let asks_for_nothing = || PrepareError::AsksForNothing { container: consumer.to_string() };
        let index = pod.containers.iter().position(|container| container.name == consumer.container);
        let wish = self.spoken.translate(&pod, index.ok_or_else(asks_for_nothing)?, &self.facts)?;
        wish.ok_or_else(asks_for_nothing)
    }

    async fn make(
        &self,
        wish: &Wish,
        holder: &Holder,
        name: String,
        aliases: BTreeSet<String>,
    ) -> Result<(), PrepareError> {
        // A container of that name had other units before.
        self.remove(&name).await?;
        let request = |parts: Vec<Part>, devices: &Devices| SliceRequest {
            name: name.clone(),
            environment: wish.environment(&placed(&parts, devices)).into_iter().collect(),
            parts,
            priority_class: wish.priority.map(priority_class),
            description: holder.consumer.to_string(),
            aliases: aliases.clone(),
            ..SliceRequest::default()
        };
        let mut outcome = self.place(wish, holder, &request).await;
        if matches!(&outcome, Err(PrepareError::NoDevice(_) | PrepareError::Create(CreateError::Unavailable(_))))
            && self.clear().await?
        {
            outcome = self.place(wish, holder, &request).await;
        }
        let parts = outcome?;
        let consumers = BTreeSet::from([holder.consumer.clone()]);
        let devices: Vec<String> = parts.into_iter().map(|part| part.device_uuid).collect();
        info!(slice = name, container = %holder.consumer, devices = devices.join(","), "made a container's slice");
        node::blocking(&self.node, move |node| node.set_consumers(&name, &consumers)).await;
        Ok(())
    }

    /// Chooses devices and makes the slice there.
    async fn place(
        &self,
        wish: &Wish,
        holder: &Holder,
        request: &(impl Fn(Vec<Part>, &Devices) -> SliceRequest + Sync),
    ) -> Result<Vec<Part>, PrepareError> {
        let devices = self.node.devices().borrow().clone();
        let slices = node::blocking(&self.node, |node| node.list()).await;
        let (uuids, exactly) = self.hinted(holder, &devices);
        let hint = if exactly { Hint::Exactly(&uuids) } else { Hint::Rather(&uuids) };
        let parts = choose(wish, &devices, &slices, hint)?;
        let request = request(parts.clone(), &devices);
        node::blocking(&self.node, move |node| node.create(&request)).await?;
        Ok(parts)
    }

    /// The devices that the container's units name, the one with the most units first, and whether it must be those.
    fn hinted(&self, holder: &Holder, devices: &Devices) -> (Vec<String>, bool) {
        let served = Resource::all(&self.spoken, &self.facts, devices);
        let exactly =
            served.iter().any(|resource| resource.is_of_whole_devices() && holder.devices.contains_key(&resource.name));
        let ids = served.iter().filter_map(|resource| holder.devices.get(&resource.name)).flatten();
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
        let stale = of_nobody(&slices, &holders);
        for slice in &stale {
            info!(slice = slice.content.name, "removing the slice of a container that is gone, to make room");
            self.remove(&slice.content.name).await?;
        }
        Ok(!stale.is_empty())
    }

    /// Removes the slice that these units were for: kubelet is giving them to a new container.
    ///
    /// # Errors
    /// The node cannot remove it.
    pub(super) async fn retire(&self, cdi_name: &CdiName) -> Result<(), PrepareError> {
        let alias = cdi_name.alias().to_owned();
        let _turn = self.turn.lock().await;
        let slices = node::blocking(&self.node, |node| node.list()).await;
        match slices.into_iter().find(|slice| slice.content.aliases.contains(&alias)) {
            Some(slice) => self.remove(&slice.content.name).await,
            None => Ok(()),
        }
    }

    async fn remove(&self, name: &str) -> Result<(), PrepareError> {
        let name = name.to_owned();
        Ok(node::blocking(&self.node, move |node| node.remove(&name)).await?)
    }
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

fn priority_class(priority: Priority) -> PriorityClass {
    match priority {
        Priority::LatencyCritical => PriorityClass::LatencyCritical,
        Priority::Standard => PriorityClass::Standard,
        Priority::Batch => PriorityClass::Batch,
    }
}
