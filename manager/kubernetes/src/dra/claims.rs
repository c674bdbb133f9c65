//! Prepares and unprepares claims: the one place where the API, the records of prepared claims and the node meet.
//!
//! A claim is prepared in two phases, so that a driver that is killed between any two steps finds the work that it has
//! begun: `started` is written before its slice is made, and `completed` once the slice exists; then kubelet is told. A
//! completed claim is answered from the record until the machine restarts, even while the API server does not answer.
//! After a restart the devices may have changed, so everything is checked again; an existing slice with the right
//! content is kept.
//!
//! A claim is divided into slices ([`pods`]) when it is first prepared. The division depends on the requests of each
//! container of the pods for which the claim is reserved then. If it is reserved for a PodGroup, the group's pods on this
//! node are meant. The division stays as long as the claim is prepared: kubelet keeps the CDI devices of each request, and
//! does not ask again for a pod that joins later. What the containers of such a pod have is asked afterwards ([`holding`]),
//! for people and metrics.

mod error;
mod holding;
mod register;
mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_node::{Consumer, CreateError, Node, NodeError, Slice, blocking};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tracing::{info, warn};

use super::allocation::{AllocatedDevice, ClaimSlice, requests, resolve};
use super::instances::{self, DestroyError};
use super::locks::Locks;
use super::names::ClaimUid;
use super::partitions::View;
use super::pods::{Misfit, Seen};
use super::prepared_claims::{Phase, PreparedClaims, PreparedClaimsError, Record};
use super::{pods, status};
use crate::pod_resources::{Parts, PodResources};
use aliquot_api_server::{Events, NOT_READ, Patience, is_not_found, message, pod_reference};
pub(super) use error::ClaimError;
use register::{Known, Register};
use slices::{create, of_claim, remove_others};

/// Time between a failure to publish a claim's status and the first new try. It doubles with each further failure.
const STATUS_RETRY_MIN: Duration = Duration::from_secs(1);
const STATUS_RETRY_MAX: Duration = Duration::from_secs(300);

/// A claim as kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClaimName {
    /// The namespace of the claim.
    pub namespace: String,
    /// The name of the claim.
    pub name: String,
    /// Its UID, not checked.
    pub uid: String,
}

/// A slice of a claim, made and ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prepared {
    /// The devices to report to kubelet.
    pub devices: Vec<AllocatedDevice>,
    /// How containers get the slice.
    pub cdi_device: String,
}

/// The record of a claim that kubelet wants prepared.
enum Remembered {
    /// It is prepared, with these slices.
    Prepared(Vec<Prepared>),
    /// It is not prepared, or not any more. Contains its last record, if that can be read.
    Before(Option<Record>),
}

/// The claims of this node.
pub(super) struct Claims {
    node: Arc<dyn Node>,
    client: kube::Client,
    events: Events,
    pool: String,
    boot_id: String,
    prepared: PreparedClaims,
    locks: Locks,
    /// The claims that have a readable record.
    known: Mutex<Register>,
    /// Kubelet's list of the pods on this node.
    pod_resources: Arc<PodResources>,
    /// Containers with slices of several claims, of which their pods were told.
    torn: Mutex<BTreeSet<Consumer>>,
}

impl Claims {
    /// The claims that have a record in `prepared`, on the node whose pool is `pool`.
    pub(super) fn new(
        node: Arc<dyn Node>,
        client: kube::Client,
        events: Events,
        pool: String,
        boot_id: String,
        prepared: PreparedClaims,
        pod_resources: Arc<PodResources>,
    ) -> Result<Claims, PreparedClaimsError> {
        let mut known = Register::default();
        for uid in prepared.uids()? {
            match prepared.load(&uid) {
                Ok(Some(record)) => known.insert(uid, Known::of(&record, &boot_id)),
                Ok(None) => {}
                Err(error) => warn!(claim = %uid, %error, "cannot read what is remembered of a claim"),
            }
        }
        let known = Mutex::new(known);
        let (locks, torn) = (Locks::default(), Mutex::default());
        Ok(Claims { node, client, events, pool, boot_id, prepared, locks, known, pod_resources, torn })
    }

    /// The name of the node's pool.
    #[must_use]
    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    /// The node that makes the slices.
    #[must_use]
    pub(super) fn node(&self) -> &Arc<dyn Node> {
        &self.node
    }

    /// The claims with a record, by namespace and name.
    #[must_use]
    pub(super) fn known(&self) -> BTreeMap<ClaimUid, (String, String)> {
        let named = |known: &Known| (known.namespace.clone(), known.name.clone());
        self.known.lock().iter().map(|(uid, known)| (uid.clone(), named(known))).collect()
    }

    /// The node's devices, and which of them are claims' own. Both are from the same moment. A claim's instances count
    /// as its own before they exist, and until they no longer exist.
    #[must_use]
    pub(super) fn view(&self) -> View {
        let known = self.known.lock();
        let devices = self.node.devices().borrow().clone();
        View { devices, own: known.iter().flat_map(|(_, known)| &known.partitions).cloned().collect() }
    }

    /// Makes the claim's slices, unless they exist. `together` are the names of all claims that kubelet prepares with
    /// it, for one pod.
    pub(super) async fn prepare(
        self: &Arc<Claims>,
        claim: &ClaimName,
        together: &BTreeSet<ClaimName>,
    ) -> Result<Vec<Prepared>, ClaimError> {
        let began = Instant::now();
        let outcome = self.try_prepare(claim, together).await;
        let ClaimName { namespace, name, uid } = claim;
        if let Err(error) = &outcome {
            warn!(namespace, name, uid, %error, "cannot prepare a claim");
            let (events, about, text) = (self.events.clone(), reference(claim), error.to_string());
            // Kubelet does not wait for the event.
            tokio::spawn(async move { events.warn(about, "PrepareFailed", &text).await });
        } else {
            let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            info!(namespace, name, uid, took_us, "prepared a claim");
        }
        outcome
    }

    async fn try_prepare(
        self: &Arc<Claims>,
        claim: &ClaimName,
        together: &BTreeSet<ClaimName>,
    ) -> Result<Vec<Prepared>, ClaimError> {
        let uid = ClaimUid::parse(&claim.uid)?;
        let guard = self.locks.lock(&uid).await;
        let before = match self.remembered(&uid).await? {
            Remembered::Prepared(prepared) => return Ok(prepared),
            Remembered::Before(before) => before,
        };
        let patience = Patience::begin();
        let object = self.read(claim, patience).await?;
        let requests = requests(&object, &uid)?;
        let seen = self.seen(claim, &object, &requests, together, patience).await?;
        // Kubelet was told which requests form a slice together.
        let told = before.as_ref().filter(|before| before.phase == Phase::Completed).map(Record::division);
        let told = told.filter(|told| told.iter().flatten().cloned().collect::<BTreeSet<_>>() == requests);
        let division = told.unwrap_or_else(|| pods::divide(&requests, &seen));
        if let Some(Misfit { pod, reason }) = pods::misfit(&claim.name, &division, &seen) {
            return Err(ClaimError::Pod { pod, reason });
        }
        let devices = self.node.devices().borrow().clone();
        let mut slices = resolve(&object, &uid, &self.pool, &devices, &division)?;
        if slices.len() > 1 {
            slices.iter_mut().for_each(|slice| slice.containers = containers(slice, &seen));
        }
        let record = Record {
            uid,
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            phase: Phase::Started,
            boot_id: self.boot_id.clone(),
            slices,
        };
        let (record, made) = self.carry_out(before, record, guard).await?;
        let prepared = prepared(&record, &made);
        // Kubelet does not wait for the status.
        tokio::spawn(Arc::clone(self).publish_status(record, made));
        Ok(prepared)
    }

    /// Writes the claim's slices into its status. After a failure it tries again, until the claim is gone or its record
    /// is another one.
    async fn publish_status(self: Arc<Claims>, record: Record, made: Vec<Slice>) {
        let mut retry = STATUS_RETRY_MIN;
        loop {
            match status::publish(&self.client, &record, &made).await {
                Ok(()) => return,
                Err(error) if is_not_found(&error) => return,
                Err(error) => {
                    let Record { namespace, name, .. } = &record;
                    let (error, retry_s) = (message(&error), retry.as_secs());
                    warn!(namespace, name, error, retry_s, "cannot publish the status of a claim's devices");
                }
            }
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(STATUS_RETRY_MAX);
            let (claims, uid) = (Arc::clone(&self), record.uid.clone());
            let now = blocking(&self.node, move |_| claims.prepared.load(&uid)).await;
            if now.ok().flatten().as_ref() != Some(&record) {
                return;
            }
        }
    }

    /// The record of a claim. If the claim was prepared since the machine's last restart, the record is the answer; a
    /// slice of it that is missing is made again.
    async fn remembered(self: &Arc<Claims>, uid: &ClaimUid) -> Result<Remembered, ClaimError> {
        let (claims, uid) = (Arc::clone(self), uid.clone());
        let look = move |node: &dyn Node| {
            let record = match claims.prepared.load(&uid) {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(Remembered::Before(None)),
                Err(error @ PreparedClaimsError::Damaged { .. }) => {
                    warn!(claim = %uid, %error, "prepares a claim from the beginning");
                    return Ok(Remembered::Before(None));
                }
                Err(error) => return Err(ClaimError::from(error)),
            };
            if record.phase != Phase::Completed || record.boot_id != claims.boot_id {
                return Ok(Remembered::Before(Some(record)));
            }
            if !instances::are_there(&record, &node.devices().borrow()) {
                warn!(claim = %uid, "a MIG instance of a claim is gone: prepares the claim from the beginning");
                return Ok(Remembered::Before(Some(record)));
            }
            // A slice that was resized meanwhile is left as it is.
            let there = |slice: &ClaimSlice| match node.get(&slice.slice.name) {
                Some(slice) => Ok(slice),
                None => node.create(&slice.slice),
            };
            let made = record.slices.iter().map(there).collect::<Result<Vec<_>, _>>()?;
            Ok(Remembered::Prepared(prepared(&record, &made)))
        };
        blocking(&self.node, look).await
    }

    /// Writes the record in place of `before`, makes the instances and the slices, and records that they exist. It
    /// finishes even if the caller no longer waits.
    async fn carry_out(
        self: &Arc<Claims>,
        before: Option<Record>,
        mut record: Record,
        guard: OwnedMutexGuard<()>,
    ) -> Result<(Record, Vec<Slice>), ClaimError> {
        let claims = Arc::clone(self);
        let work = move |node: &dyn Node| {
            let _guard = guard;
            before.map_or(Ok(()), |before| claims.roll_back(node, &before))?;
            claims.reserve(node, &record)?;
            claims.prepared.save(&record)?;
            remove_others(node, &record)?;
            let made = instances::make(node, &mut record).map_err(CreateError::from);
            let slices = match made.map_err(ClaimError::from).and_then(|()| create(node, &record)) {
                Ok(slices) => slices,
                Err(error) => {
                    // The next try starts from nothing, unless a slice could not be removed.
                    let is_left = record.slices.iter().any(|slice| node.get(&slice.slice.name).is_some());
                    if !is_left && instances::undo(node, &record).is_ok() {
                        claims.forget(&record.uid)?;
                    }
                    return Err(error);
                }
            };
            record.phase = Phase::Completed;
            claims.prepared.save(&record)?;
            Ok((record, slices))
        };
        blocking(&self.node, work).await
    }

    /// Removes what was made for a claim before, if MIG instances are part of it: they are made where they are wanted
    /// now.
    fn roll_back(&self, node: &dyn Node, before: &Record) -> Result<(), ClaimError> {
        if instances::partitions(before).next().is_none() {
            return Ok(());
        }
        before.slices.iter().try_for_each(|slice| node.remove(&slice.slice.name))?;
        instances::destroy(node, before, &self.boot_id).map_err(NodeError::from)?;
        Ok(self.forget(&before.uid)?)
    }

    /// Reserves the places of the claim's MIG instances, if they are free.
    fn reserve(&self, node: &dyn Node, record: &Record) -> Result<(), CreateError> {
        if instances::partitions(record).next().is_some() {
            node.look()?;
        }
        let mut known = self.known.lock();
        let own = known.iter().map(|(uid, known)| (uid, known.partitions.as_slice()));
        instances::check_claims(record, own)?;
        instances::check_room(record, &node.devices().borrow())?;
        known.insert(record.uid.clone(), Known::of(record, &self.boot_id));
        Ok(())
    }

    /// Removes the claim's slices and instances, and forgets the claim. A claim that was never prepared is no error.
    ///
    /// If the GPU of an instance does not answer, the claim stays known, so that no other claim gets the place. That is
    /// no error: the pod would wait for its end until somebody repairs the GPU. [`stale`](super::stale) gives up the
    /// rest.
    pub(super) async fn unprepare(self: &Arc<Claims>, uid: &str) -> Result<(), ClaimError> {
        let uid = ClaimUid::parse(uid)?;
        let guard = self.locks.lock(&uid).await;
        let claims = Arc::clone(self);
        let work = move |node: &dyn Node| {
            let _guard = guard;
            let record = claims.prepared.load(&uid).unwrap_or_else(|error| {
                warn!(claim = %uid, %error, "MIG instances that were made for a claim, if any, stay");
                None
            });
            // The slices are found by their names, so they are removed even if the record cannot be read.
            of_claim(node, &uid).iter().try_for_each(|slice| node.remove(&slice.content.name))?;
            match record.map_or(Ok(()), |record| instances::destroy(node, &record, &claims.boot_id)) {
                Ok(()) => {
                    claims.forget(&uid)?;
                    info!(claim = %uid, "gave up a claim");
                }
                Err(error @ DestroyError::Silent(_)) => {
                    warn!(claim = %uid, %error, "keeps the place of a claim's MIG instance, which may still exist");
                }
                Err(DestroyError::Refused(error)) => return Err(error.into()),
            }
            Ok(())
        };
        blocking(&self.node, work).await
    }

    fn forget(&self, uid: &ClaimUid) -> Result<(), PreparedClaimsError> {
        self.prepared.remove(uid)?;
        self.known.lock().remove(uid);
        Ok(())
    }

    async fn read(&self, claim: &ClaimName, patience: Patience) -> Result<ResourceClaim, ClaimError> {
        let ClaimName { namespace, name, .. } = claim;
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        patience
            .ask(|| api.get(name))
            .await
            .map_err(|error| ClaimError::Api { what: format!("claim {namespace}/{name}"), message: message(&error) })
    }

    /// The containers' parts of the claim's `requests`, for all pods that the claim is reserved for. Refuses a claim if
    /// a container of these pods also has another claim that becomes a slice.
    async fn seen(
        &self,
        claim: &ClaimName,
        object: &ResourceClaim,
        requests: &BTreeSet<String>,
        together: &BTreeSet<ClaimName>,
        patience: Patience,
    ) -> Result<Vec<Seen>, ClaimError> {
        let reserved = object.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        let mut seen = Vec::new();
        for consumer in reserved {
            // Of a claim with one request, all containers have the same.
            let is_told_apart = requests.len() > 1;
            let users = match consumer.resource.as_str() {
                "pods" => {
                    let pod = self.pod(&claim.namespace, &consumer.name, patience).await?;
                    // The pod with this UID may be gone, and another one have its name.
                    pod.into_iter().filter(|pod| pod.metadata.uid.as_ref() == Some(&consumer.uid)).collect()
                }
                "podgroups" if is_told_apart => self.members(claim, &consumer.name, patience).await?,
                resource if is_told_apart => {
                    let (resource, name) = (resource.to_owned(), consumer.name.clone());
                    return Err(ClaimError::Reserved { resource, name });
                }
                _ => Vec::new(),
            };
            for pod in users {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                if let Some(reason) = pods::conflict(&pod, |name| self.is_ours(name, claim, together)) {
                    return Err(ClaimError::Pod { pod: name.to_owned(), reason });
                }
                if let Some(text) = pods::unread_annotations(&pod) {
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    let (events, about) = (self.events.clone(), pod_reference(&claim.namespace, name, uid));
                    tokio::spawn(async move { events.warn(about, NOT_READ, &text).await });
                }
                seen.extend(pods::seen(&pod, &claim.name, requests));
            }
        }
        Ok(seen)
    }

    /// A pod; `None`: there is none of this name.
    async fn pod(&self, namespace: &str, name: &str, patience: Patience) -> Result<Option<Pod>, ClaimError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match patience.ask(|| pods.get(name)).await {
            Ok(pod) => Ok(Some(pod)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => {
                let what = format!("pod {namespace}/{name}");
                Err(ClaimError::Api { what, message: message(&error) })
            }
        }
    }

    /// The pods of a PodGroup that are on this node. A claim that is reserved for the group does not name them. Kubelet lists
    /// those that it has admitted, and so the pod for which it wants the claim prepared.
    async fn members(&self, claim: &ClaimName, group: &str, patience: Patience) -> Result<Vec<Pod>, ClaimError> {
        let here = self.pod_resources.list().await?;
        let mut members = Vec::new();
        for (_, name) in here.pods().filter(|(namespace, _)| *namespace == claim.namespace) {
            let pod = self.pod(&claim.namespace, name, patience).await?;
            members.extend(pod.filter(|pod| pods::is_member(pod, group)));
        }
        match members.is_empty() {
            true => Err(ClaimError::NoMember { group: group.to_owned() }),
            false => Ok(members),
        }
    }

    /// Tells pods of containers that have slices of several claims. They were not refused: kubelet does not ask again
    /// for claims that are prepared when a pod joins.
    async fn tell_torn(&self, torn: BTreeSet<&Consumer>, patience: Patience) -> Result<(), ClaimError> {
        self.torn.lock().retain(|told| torn.contains(told));
        for consumer in torn {
            if self.torn.lock().contains(consumer) {
                continue;
            }
            let Consumer { namespace, pod: name, container } = consumer;
            if let Some(pod) = self.pod(namespace, name, patience).await? {
                let is_ours = |claim: &str| self.known.lock().has_name(namespace, claim);
                if let Some(reason) = pods::conflict(&pod, is_ours) {
                    let text = format!(
                        "{reason}. The claims were prepared before, so the pod was not refused, and the container can \
                         use the devices of only one of them: delete the pod, and make it with one claim"
                    );
                    warn!(namespace, pod = name, container, "{text}");
                    let about = pod_reference(namespace, name, pod.metadata.uid.as_deref().unwrap_or_default());
                    let events = self.events.clone();
                    tokio::spawn(async move { events.warn(about, "ContainerInTwoSlices", &text).await });
                }
            }
            self.torn.lock().insert(consumer.clone());
        }
        Ok(())
    }

    /// Whether the claim of this name, in the namespace of `claim`, is a slice here: it has a record, or is prepared now.
    fn is_ours(&self, name: &str, claim: &ClaimName, together: &BTreeSet<ClaimName>) -> bool {
        let namespace = &claim.namespace;
        name == claim.name
            || together.iter().any(|other| other.namespace == *namespace && other.name == name)
            || self.known.lock().has_name(namespace, name)
    }
}

#[tonic::async_trait]
impl Parts for Claims {
    async fn learn(&self, listed: &BTreeMap<String, BTreeSet<Consumer>>) -> Result<(), String> {
        let mut of_claims: BTreeMap<ClaimUid, BTreeSet<&Consumer>> = BTreeMap::new();
        for (slice, consumers) in listed {
            if let Some(uid) = ClaimUid::of_slice(slice) {
                of_claims.entry(uid).or_default().extend(consumers);
            }
        }
        let patience = Patience::begin();
        let mut once: BTreeSet<&Consumer> = BTreeSet::new();
        let torn = of_claims.values().flatten().copied().filter(|consumer| !once.insert(consumer)).collect();
        self.tell_torn(torn, patience).await.map_err(|error| error.to_string())?;
        for (uid, consumers) in of_claims {
            let unknown = self.known.lock().get_mut(&uid).map(|known| {
                let pods = known.holding.look(&consumers);
                (known.namespace.clone(), known.name.clone(), known.holding.requests(), pods)
            });
            let Some((namespace, claim, requests, pods)) = unknown else { continue };
            for name in pods {
                let pod = self.pod(&namespace, &name, patience).await.map_err(|error| error.to_string())?;
                if let (Some(pod), Some(known)) = (pod, self.known.lock().get_mut(&uid)) {
                    known.holding.join(&name, &pods::seen(&pod, &claim, &requests));
                }
            }
        }
        Ok(())
    }

    fn has(&self, slice: &str, consumer: &Consumer) -> bool {
        let known = self.known.lock();
        let of_slice = ClaimUid::of_slice(slice).and_then(|uid| known.get(&uid));
        of_slice.is_none_or(|known| known.holding.has(slice, consumer))
    }
}

/// The answer to kubelet about the claim's slices.
fn prepared(record: &Record, made: &[Slice]) -> Vec<Prepared> {
    let slices = record.slices.iter().zip(made);
    let prepared = |(slice, made): (&ClaimSlice, &Slice)| Prepared {
        devices: slice.devices.clone(),
        cdi_device: made.cdi_device.clone(),
    };
    slices.map(prepared).collect()
}

/// The containers that have this slice.
fn containers(slice: &ClaimSlice, seen: &[Seen]) -> BTreeSet<(String, String)> {
    let requests = slice.requests();
    let have = seen.iter().filter(|seen| seen.requests == requests);
    have.map(|seen| (seen.pod.clone(), seen.container.clone())).collect()
}

fn reference(claim: &ClaimName) -> ObjectReference {
    ObjectReference {
        api_version: Some("resource.k8s.io/v1".into()),
        kind: Some("ResourceClaim".into()),
        namespace: Some(claim.namespace.clone()),
        name: Some(claim.name.clone()),
        uid: Some(claim.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
pub(super) mod tests;
