//! A node as its adapters see it: the trait [`Node`], and the types of devices, MIG instances, slices and their usage.
//!
//! The manager implements the trait, and tests have nodes of their own. An adapter joins a node to one system, such as
//! Kubernetes. It uses these types and no other adapter, and knows nothing of the manager. The manager translates
//! between its own types and these in one place.
//!
//! This crate imports no other crate of ours, and does no I/O. Of the runtime it uses a channel that announces changes
//! of the devices, and what [`aside`] needs.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

mod aside;
mod consumer;
mod device;
mod error;
mod mig;
mod policy;
mod shortcoming;
mod slice;
mod usage;

pub use aside::{aside, begin_aside, blocking};
pub use consumer::Consumer;
pub use device::{Device, Devices, Enforcement};
pub use error::{CreateError, NodeError};
pub use mig::{MigInstance, MigProfile, Partition, Partitioning, Placement};
pub use policy::{AuditPolicy, QosClass, UnknownQosClass};
pub use shortcoming::Shortcoming;
pub use slice::{Part, Slice, SliceRequest};
pub use usage::{
    MemoryUsage, NodeUsage, PartHistory, PartUsage, ProcessUsage, SliceHistory, SliceUsage, UsagePoint, WaitHistogram,
};

/// A node that gives out slices of its devices.
///
/// All methods but [`devices`](Node::devices) may write files and wait for other threads: asynchronous code calls them
/// through [`blocking`].
pub trait Node: Send + Sync + 'static {
    /// The node's devices. The channel has a new value whenever something about them has changed.
    fn devices(&self) -> watch::Receiver<Arc<Devices>>;

    /// Asks the driver for the devices now, without waiting for the next regular look.
    ///
    /// # Errors
    /// The driver does not answer.
    fn look(&self) -> Result<(), NodeError>;

    /// Makes a MIG instance at its place on a GPU in MIG mode. When this returns, the instance is among the devices.
    ///
    /// # Errors
    /// The driver refuses, because other instances have taken the place or for a reason of its own; then there is no
    /// new instance.
    fn create_instance(&self, partition: &Partition) -> Result<Device, NodeError>;

    /// Destroys the MIG instance of this profile at this place, even if another program has made it. When this returns,
    /// the instance is no longer among the devices. A missing instance is no error.
    ///
    /// # Errors
    /// The driver refuses because programs use the instance. Or the GPU does not answer; then it is missing among the
    /// devices, or has a problem.
    fn destroy_instance(&self, partition: &Partition) -> Result<(), NodeError>;

    /// Makes a slice, and publishes it as CDI devices. If there is a slice of that name with the same content, it is
    /// returned.
    ///
    /// # Errors
    /// See [`CreateError`]; then nothing has changed.
    fn create(&self, request: &SliceRequest) -> Result<Slice, CreateError>;

    /// Removes a slice, even if processes are in it: they can then use nothing more. A missing slice is no error.
    ///
    /// # Errors
    /// The slice cannot be removed; then nothing has changed.
    fn remove(&self, name: &str) -> Result<(), NodeError>;

    /// Removes a slice, unless a process is in it, or a process runs in a container that was given it, even if that
    /// process has not used a device yet. Returns whether the slice is gone.
    ///
    /// # Errors
    /// The slice cannot be removed, or it is not known whether a process has it; then nothing has changed.
    fn remove_unused(&self, name: &str) -> Result<bool, NodeError>;

    /// The slice of that name.
    fn get(&self, name: &str) -> Option<Slice>;

    /// All slices, by name, also those that other adapters have made.
    fn list(&self) -> Vec<Slice>;

    /// The slices whose names begin with `prefix`, by name. The cost does not depend on the number of other slices.
    fn list_beginning_with(&self, prefix: &str) -> Vec<Slice>;

    /// The present use of the node's devices.
    fn usage(&self) -> NodeUsage;

    /// Records which containers run in a slice, for people and metrics to read. The record is lost when the manager
    /// ends. A missing slice is no error.
    fn set_consumers(&self, name: &str, consumers: &BTreeSet<Consumer>);

    /// Records what the cluster lacks, if anything, for people to read. The record is lost when the manager ends.
    fn set_shortcoming(&self, shortcoming: Option<Shortcoming>);
}
