//! A node as its adapters see it: the trait [`Node`], and the types of devices, MIG instances, slices and their usage.
//!
//! The manager implements the trait, and tests have nodes of their own. An adapter joins a node to one system, such as
//! Kubernetes. It uses these types and no other adapter, and knows nothing of the manager. The manager translates
//! between its own types and these in one place.
//!
//! This crate imports no other of ours, and does no I/O. Of the runtime it uses a channel, for what is told when it has
//! changed, and [`blocking`].

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

mod consumer;
mod device;
mod error;
mod mig;
mod policy;
mod slice;
mod usage;

pub use consumer::Consumer;
pub use device::{Device, Devices, Enforcement};
pub use error::{CreateError, NodeError};
pub use mig::{MigInstance, MigProfile, Partition, Partitioning, Placement};
pub use policy::{AuditPolicy, QosClass, UnknownQosClass};
pub use slice::{Part, Slice, SliceRequest};
pub use usage::{
    MemoryUsage, NodeUsage, PartHistory, PartUsage, ProcessUsage, SliceHistory, SliceUsage, UsagePoint, WaitHistogram,
};

/// A node that gives out slices of its devices.
///
/// All but [`devices`](Node::devices) may write files and wait for other threads: asynchronous code calls them through
/// [`blocking`].
pub trait Node: Send + Sync + 'static {
    /// The node's devices, now and whenever something about them has changed.
    fn devices(&self) -> watch::Receiver<Arc<Devices>>;

    /// Asks the driver for the devices now, rather than when it is time to.
    ///
    /// # Errors
    /// It does not answer.
    fn look(&self) -> Result<(), NodeError>;

    /// Makes a MIG instance at its place on a GPU in MIG mode. It is among the devices when this returns.
    ///
    /// # Errors
    /// The driver refuses, because others are there by now or for a reason of its own; then there is no new instance.
    fn create_instance(&self, partition: &Partition) -> Result<Device, NodeError>;

    /// Destroys the MIG instance of this profile at this place, whoever has made it. It is not among the devices any
    /// more when this returns. That there is none is no error.
    ///
    /// # Errors
    /// The driver refuses: programs use it.
    fn destroy_instance(&self, partition: &Partition) -> Result<(), NodeError>;

    /// Makes a slice, and publishes it as CDI devices. If there is one of that name with the same content, that one
    /// is the answer.
    ///
    /// # Errors
    /// See [`CreateError`]; then nothing has changed.
    fn create(&self, request: &SliceRequest) -> Result<Slice, CreateError>;

    /// Removes a slice, also under processes that are in it: they can then use nothing more. No slice of that name is
    /// no error.
    ///
    /// # Errors
    /// It cannot be removed; then nothing has changed.
    fn remove(&self, name: &str) -> Result<(), NodeError>;

    /// Removes a slice unless a process has it: one that is in it, or one of a container that was given it, whether that
    /// has used a device or not. Whether there is no slice of that name any more.
    ///
    /// # Errors
    /// It cannot be removed, or it is not known who has it; then nothing has changed.
    fn remove_unused(&self, name: &str) -> Result<bool, NodeError>;

    /// The slice of that name.
    fn get(&self, name: &str) -> Option<Slice>;

    /// All slices, by name; also those that others have made.
    fn list(&self) -> Vec<Slice>;

    /// The slices whose names begin so, by name. Others are not looked at, however many there are.
    fn list_beginning_with(&self, prefix: &str) -> Vec<Slice>;

    /// What is used of its devices now.
    fn usage(&self) -> NodeUsage;

    /// Says who runs in a slice, for people and metrics to read. It is forgotten when the manager ends. No slice of
    /// that name is no error.
    fn set_consumers(&self, name: &str, consumers: &BTreeSet<Consumer>);
}

/// Calls `node` where waiting holds up nobody.
pub async fn blocking<T: Send + 'static>(
    node: &Arc<dyn Node>,
    work: impl FnOnce(&dyn Node) -> T + Send + 'static,
) -> T {
    let node = Arc::clone(node);
    match tokio::task::spawn_blocking(move || work(node.as_ref())).await {
        Ok(outcome) => outcome,
        // It is never aborted, so it has panicked.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
