//! Prepares claims, and gives them up: the one place where the API, the checkpoint and the node meet.
//!
//! A claim is prepared in two phases, so that a driver that is killed between any two steps finds what it has begun:
//! `started` is written before its slice is made, `completed` when it is there; then kubelet is told. What is
//! completed is answered from the record as long as the machine lives, also while the API server does not answer. In
//! another life of the machine devices may be others, so everything is looked at again; a slice that is there and has
//! the right content is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tracing::{info, warn};

use super::allocation::{AllocatedDevice, Allocation, AllocationError, resolve};
use super::checkpoint::{Checkpoint, CheckpointError, Phase, Record};
use super::instances;
use super::locks::Locks;
use super::names::{ClaimUid, ClaimUidError};
use super::partitions::View;
use super::{pods, status};
use crate::api_server::{Patience, is_not_found, message};
use crate::events::Events;
use crate::node::{CreateError, Node, NodeError, Partition, Slice, blocking};

/// A claim as kubelet names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, not checked.
    pub uid: String,
}

/// A claim whose slice is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prepared {
    /// What kubelet is told of.
    pub devices: Vec<AllocatedDevice>,
    /// How containers get the slice.
    pub cdi_device: String,
}

/// Why a claim is not prepared or given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// No claim has such a UID.
    #[error(transparent)]
    Uid(#[from] ClaimUidError),
    /// The API server does not answer, or refuses.
    #[error("cannot read {what} from the API server: {message}")]
    Api {
        /// Which object.
        what: String,
        /// What it said.
        message: String,
    },
    /// The claim cannot be prepared on this node.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A container would be in two slices.
    #[error("pod {pod}: {reason}")]
    Pod {
        /// Its name.
        pod: String,
        /// Which container, and why not.
        reason: String,
    },
    /// The record.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The slice.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The slice cannot be removed.
    #[error("cannot remove what was made for the claim: {0}")]
    Remove(#[from] NodeError),
}

/// The claims of this node.
pub(super) struct Claims {
    node: Arc<dyn Node>,
    client: kube::Client,
    events: Events,
    pool: String,
    boot_id: String,
    checkpoint: Checkpoint,
    locks: Locks,
    /// Those that have a record that can be read.
    known: Mutex<BTreeMap<ClaimUid, Known>>,
}

/// What must be known of a claim at any time.
struct Known {
    namespace: String,
    name: String,
    /// The MIG instances that are its own, or will be.
    partitions: Vec<Partition>,
}

impl Known {
    fn of(record: &Record, boot_id: &str) -> Known {
        let is_own = record.boot_id == boot_id;
        let partitions = instances::partitions(record).filter(|_| is_own).cloned().collect();
        Known { namespace: record.namespace.clone(), name: record.name.clone(), partitions }
    }
}

impl Claims {
    /// The claims that `checkpoint` remembers, on the node whose pool is `pool`.
    pub(super) fn new(
        node: Arc<dyn Node>,
        client: kube::Client,
        events: Events,
        pool: String,
        boot_id: String,
        checkpoint: Checkpoint,
    ) -> Result<Claims, CheckpointError> {
        let mut known = BTreeMap::new();
        for uid in checkpoint.uids()? {
            match checkpoint.load(&uid) {
                Ok(Some(record)) => _ = known.insert(uid, Known::of(&record, &boot_id)),
                Ok(None) => {}
                Err(error) => warn!(claim = %uid, %error, "cannot read what is remembered of a claim"),
            }
        }
        let known = Mutex::new(known);
        Ok(Claims { node, client, events, pool, boot_id, checkpoint, locks: Locks::default(), known })
    }

    /// The node's pool.
    #[must_use]
    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    /// The node.
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

    /// The node's devices, and which of them are claims' own. Both are of one moment: a claim's instances are its own
    /// before they are there, and until they are not there any more.
    #[must_use]
    pub(super) fn view(&self) -> View {
        let known = self.known.lock();
        let devices = self.node.devices().borrow().clone();
        View { devices, own: known.values().flat_map(|known| &known.partitions).cloned().collect() }
    }

    /// Has the claim's slice made, if it is not there. `together` are the names of all claims that kubelet prepares
    /// with it, for one pod.
    pub(super) async fn prepare(
        self: &Arc<Claims>,
        claim: &ClaimName,
        together: &BTreeSet<ClaimName>,
    ) -> Result<Prepared, ClaimError> {
        let began = Instant::now();
        let outcome = self.try_prepare(claim, together).await;
        let ClaimName { namespace, name, uid } = claim;
        if let Err(error) = &outcome {
            warn!(namespace, name, uid, %error, "cannot prepare a claim");
            self.events.warn(reference(claim), "PrepareFailed", &error.to_string()).await;
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
    ) -> Result<Prepared, ClaimError> {
        let uid = ClaimUid::parse(&claim.uid)?;
        let guard = self.locks.lock(&uid).await;
        if let Some(prepared) = self.remembered(&uid).await? {
            return Ok(prepared);
        }
        let patience = Patience::begin();
        let object = self.read(claim, patience).await?;
        let devices = self.node.devices().borrow().clone();
        let allocation = resolve(&object, &uid, &self.pool, &devices)?;
        self.check_pods(claim, &object, &allocation, together, patience).await?;
        let record = Record {
            uid,
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            phase: Phase::Started,
            boot_id: self.boot_id.clone(),
            slice: allocation.slice,
            devices: allocation.devices,
        };
        let (record, slice) = self.carry_out(record, guard).await?;
        let (client, content) = (self.client.clone(), slice.content);
        let cdi_device = slice.cdi_device.clone();
        let devices = record.devices.clone();
        // Kubelet does not wait for it.
        tokio::spawn(async move { status::publish(&client, &record, &content, &cdi_device).await });
        Ok(Prepared { devices, cdi_device: slice.cdi_device })
    }

    /// The answer for a claim that was prepared in this life of the machine. Its slice is made again if somebody has
    /// removed it.
    async fn remembered(self: &Arc<Claims>, uid: &ClaimUid) -> Result<Option<Prepared>, ClaimError> {
        let (claims, uid) = (Arc::clone(self), uid.clone());
        let look = move |node: &dyn Node| {
            let record = match claims.checkpoint.load(&uid) {
                Ok(Some(record)) if record.phase == Phase::Completed && record.boot_id == claims.boot_id => record,
                Ok(_) => return Ok(None),
                Err(error @ CheckpointError::Damaged { .. }) => {
                    warn!(claim = %uid, %error, "prepares a claim from the beginning");
                    return Ok(None);
                }
                Err(error) => return Err(ClaimError::from(error)),
            };
            if !instances::are_there(&record, &node.devices().borrow()) {
                warn!(claim = %uid, "a MIG instance of a claim is gone: prepares the claim from the beginning");
                return Ok(None);
            }
            // One that somebody has resized meanwhile is left as it is.
            let slice = match node.get(&record.slice.name) {
                Some(slice) => slice,
                None => node.create(&record.slice)?,
            };
            Ok(Some(Prepared { devices: record.devices, cdi_device: slice.cdi_device }))
        };
        blocking(&self.node, look).await
    }

    /// Writes the record, makes the instances and the slice, and writes that they are there. It goes on to the end even
    /// if nobody waits any more.
    async fn carry_out(
        self: &Arc<Claims>,
        mut record: Record,
        guard: OwnedMutexGuard<()>,
    ) -> Result<(Record, Slice), ClaimError> {
        let claims = Arc::clone(self);
        let work = move |node: &dyn Node| {
            let _guard = guard;
            claims.roll_back(node, &record.uid)?;
            claims.reserve(node, &record)?;
            claims.checkpoint.save(&record)?;
            let made = instances::make(node, &mut record).map_err(CreateError::from);
            let slice = match made.map_err(ClaimError::from).and_then(|()| create(node, &record)) {
                Ok(slice) => slice,
                Err(error) => {
                    // The next try begins from nothing, unless something could not be removed.
                    if node.get(&record.slice.name).is_none() && instances::undo(node, &record).is_ok() {
                        claims.forget(&record.uid)?;
                    }
                    return Err(error);
                }
            };
            record.phase = Phase::Completed;
            claims.checkpoint.save(&record)?;
            Ok((record, slice))
        };
        blocking(&self.node, work).await
    }

    /// Removes what was made for a claim before, if MIG instances are among it: they are made where they are wanted
    /// now.
    fn roll_back(&self, node: &dyn Node, uid: &ClaimUid) -> Result<(), ClaimError> {
        let before = match self.checkpoint.load(uid) {
            Ok(before) => before,
            // That was told when it was looked for.
            Err(CheckpointError::Damaged { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let Some(before) = before.filter(|before| instances::partitions(before).next().is_some()) else {
            return Ok(());
        };
        node.remove(&before.slice.name)?;
        instances::destroy(node, &before, &self.boot_id)?;
        Ok(self.forget(uid)?)
    }

    /// Keeps others from the places of the claim's MIG instances, if they are free.
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

    /// Removes the claim's slice and instances, and forgets the claim. A claim that was never prepared is no error.
    pub(super) async fn unprepare(self: &Arc<Claims>, uid: &str) -> Result<(), ClaimError> {
        let uid = ClaimUid::parse(uid)?;
        let guard = self.locks.lock(&uid).await;
        let claims = Arc::clone(self);
        let work = move |node: &dyn Node| {
            let _guard = guard;
            let record = claims.checkpoint.load(&uid).unwrap_or_else(|error| {
                warn!(claim = %uid, %error, "MIG instances that were made for a claim, if any, stay");
                None
            });
            node.remove(&uid.slice_name())?;
            if let Some(record) = record {
                instances::destroy(node, &record, &claims.boot_id)?;
            }
            claims.forget(&uid)?;
            info!(claim = %uid, "gave up a claim");
            Ok(())
        };
        blocking(&self.node, work).await
    }

    fn forget(&self, uid: &ClaimUid) -> Result<(), CheckpointError> {
        self.checkpoint.remove(uid)?;
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

    /// Refuses a claim whose pods have a container that could not be in its slice alone.
    async fn check_pods(
        &self,
        claim: &ClaimName,
        object: &ResourceClaim,
        allocation: &Allocation,
        together: &BTreeSet<ClaimName>,
        patience: Patience,
    ) -> Result<(), ClaimError> {
        let ours = self.slices_of(claim, allocation, together);
        let reserved = object.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &claim.namespace);
        for consumer in reserved.filter(|consumer| consumer.resource == "pods") {
            let pod = match patience.ask(|| pods.get(&consumer.name)).await {
                Ok(pod) if pod.metadata.uid.as_deref() == Some(consumer.uid.as_str()) => pod,
                // It is on its way out.
                Ok(_) => continue,
                Err(error) if is_not_found(&error) => continue,
                Err(error) => {
                    let what = format!("pod {}/{}", claim.namespace, consumer.name);
                    return Err(ClaimError::Api { what, message: message(&error) });
                }
            };
            if let Some(reason) = pods::conflict(&pod, &ours) {
                return Err(ClaimError::Pod { pod: consumer.name.clone(), reason });
            }
        }
        Ok(())
    }

    /// The names of the namespace's claims that are slices here, with how many requests each has. Of the others that
    /// is not known, and was looked at when they were prepared.
    fn slices_of(
        &self,
        claim: &ClaimName,
        allocation: &Allocation,
        together: &BTreeSet<ClaimName>,
    ) -> BTreeMap<String, usize> {
        let known = self.known();
        let prepared = known.values().filter(|(namespace, _)| *namespace == claim.namespace).map(|(_, name)| name);
        let others = together.iter().filter(|other| other.namespace == claim.namespace).map(|other| &other.name);
        let mut ours: BTreeMap<String, usize> = prepared.chain(others).map(|name| (name.clone(), 1)).collect();
        ours.insert(claim.name.clone(), allocation.requests.len());
        ours
    }
}

/// The slice of a claim that nobody was told of yet: what of it has another content was begun before, for nobody.
fn create(node: &dyn Node, record: &Record) -> Result<Slice, ClaimError> {
    match node.create(&record.slice) {
        Err(CreateError::Differs { difference, .. }) => {
            warn!(claim = %record.uid, difference, "makes a slice anew that was made before it was allocated so");
            node.remove(&record.slice.name)?;
            Ok(node.create(&record.slice)?)
        }
        other => Ok(other?),
    }
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
