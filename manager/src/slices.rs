//! The slices of this node, and the rules by which one is made, changed and removed.
//!
//! Everything here is a pure function of the existing slices, the devices, and a request. A function either returns the
//! resulting slice, or the reason against it; it changes nothing. The caller that carries out the decision then calls
//! [`Slices::put`] or [`Slices::take`].
//!
//! Invariant: on each device the guaranteed shares add up to at most 100 percent, and the memory limits to at most its
//! memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::SystemTime;

use aliquot_abi::ledger::BYTES_MAX;
use aliquot_abi::region::DEVICES_MAX;
use aliquot_node::{AuditPolicy, QosClass};
use aliquot_proto::node::v1::DESCRIPTION_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::inventory::{DeviceUuid, Inventory};

mod error;
pub(crate) use error::{CreateError, HostMemoryError, PartError, RemoveError, ResizeError};
mod id;
pub(crate) use id::SliceId;
mod name;
pub(crate) use name::NameError;
mod placement;
use placement::Shares;
mod published;
pub(crate) use published::{Published, VariableError};

/// A slice's part of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The UUID of the device.
    pub device: DeviceUuid,
    /// Guaranteed share of the device's time.
    pub core_request_percent: u32,
    /// Maximum share of the device's time.
    pub core_limit_percent: u32,
    /// Maximum memory of the device.
    pub memory_limit_bytes: u64,
}

/// A process at whose end a slice is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// The pid in the manager's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// A container's parts of devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// The name, unique on the node.
    pub name: String,
    /// The id, which is never reused.
    pub id: SliceId,
    /// At least one, each on a different device. The devices of a slice never change.
    pub parts: Vec<Part>,
    /// Maximum page-locked host memory; 0: no limit. Missing in checkpoints from before this limit existed.
    #[serde(default)]
    pub host_memory_limit_bytes: u64,
    /// Missing in checkpoints from before QoS classes existed.
    #[serde(default, rename = "priority_class")]
    pub qos_class: QosClass,
    /// The policy for processes that get past the slice, if it is stricter than the node's policy.
    #[serde(default)]
    pub audit_policy: Option<AuditPolicy>,
    /// Additional names and variables by which containers get the slice.
    #[serde(default)]
    pub published: Published,
    /// When it was made.
    pub created: SystemTime,
    /// For people to read.
    pub description: String,
    /// The UID of the pod that the slice is for, if an adapter has told it. Missing in checkpoints from before it was
    /// kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The process at whose end the slice is removed.
    pub owner: Option<Owner>,
    /// Users of this node, besides the manager's own, who may run programs in it outside of containers.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub users: BTreeSet<u32>,
}

impl Slice {
    /// The names of its CDI device, the slice's name first.
    pub(crate) fn cdi_names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.published.aliases).map(String::as_str)
    }
}

/// A request for a part of one device. 0 and `None` leave the value to the manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartRequest {
    /// The device; `None`: any device that has room.
    pub device: Option<DeviceUuid>,
    /// Guaranteed share in percent.
    pub core_request_percent: u32,
    /// Maximum share in percent; 0: equal to the guaranteed share.
    pub core_limit_percent: u32,
    /// Memory limit; 0: the same fraction of the memory as the guaranteed share.
    pub memory_limit_bytes: u64,
}

/// A request for a new slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CreateRequest {
    /// The name. If it is empty, a name is derived from the id.
    pub name: String,
    /// One for each device.
    pub parts: Vec<PartRequest>,
    /// Maximum page-locked host memory; 0: no limit.
    pub host_memory_limit_bytes: u64,
    /// `None` stands for the node's default.
    pub qos_class: Option<QosClass>,
    /// The policy for processes that get past the slice, if it is stricter than the node's policy.
    pub audit_policy: Option<AuditPolicy>,
    /// Additional names and variables by which containers get the slice.
    pub published: Published,
    /// For people to read.
    pub description: String,
    /// The UID of the pod that the slice is for, if an adapter tells it.
    pub pod_uid: Option<String>,
    /// The process at whose end the slice will be removed.
    pub owner: Option<Owner>,
    /// Users of this node, besides the manager's own, who may run programs in it outside of containers.
    pub users: BTreeSet<u32>,
}

/// A request to change a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResizeRequest {
    /// The changes of parts. Fields that are 0 keep their values. A change without a device applies to all parts.
    pub parts: Vec<PartRequest>,
    /// A new limit on page-locked host memory, 0 for none; `None`: unchanged.
    pub host_memory_limit_bytes: Option<u64>,
    /// `None` leaves the class unchanged.
    pub qos_class: Option<QosClass>,
    /// Users of this node who may run programs in it outside of containers, besides those who already may.
    pub users: BTreeSet<u32>,
}

impl ResizeRequest {
    fn changes_nothing(&self) -> bool {
        self.parts.is_empty()
            && self.host_memory_limit_bytes.is_none()
            && self.qos_class.is_none()
            && self.users.is_empty()
    }
}

/// The part of one device that is given to slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// Sum of the guaranteed shares.
    pub core_request_percent: u32,
    /// Sum of the memory limits.
    pub memory_bytes: u64,
}

/// The slices of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slices {
    by_name: BTreeMap<String, Slice>,
    /// The class of a slice that does not ask for one.
    default_qos_class: QosClass,
}

/// The greatest limit on host memory: a ledger cannot count further.
pub(crate) const HOST_MEMORY_BYTES_MAX: u64 = BYTES_MAX;

impl Slices {
    /// No slices. A slice that does not ask for a priority class gets `default_qos_class`.
    #[must_use]
    pub(crate) fn new(default_qos_class: QosClass) -> Slices {
        Slices { by_name: BTreeMap::new(), default_qos_class }
    }

    /// The slice of that name.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<&Slice> {
        self.by_name.get(name)
    }

    /// All slices, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.by_name.values()
    }

    /// The slices whose names begin with `prefix`, in the order of their names.
    pub(crate) fn beginning_with(&self, prefix: &str) -> impl Iterator<Item = &Slice> {
        let from = self.by_name.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(move |(name, _)| name.starts_with(prefix)).map(|(_, slice)| slice)
    }

    /// Adds a slice, replacing the one of the same name if there is one.
    pub(crate) fn put(&mut self, slice: Slice) {
        self.by_name.insert(slice.name.clone(), slice);
    }

    /// Removes the slice of that name, and returns it.
    pub(crate) fn take(&mut self, name: &str) -> Option<Slice> {
        self.by_name.remove(name)
    }

    /// The part of `device` that is given to slices other than `except`.
    #[must_use]
    pub(crate) fn given(&self, device: &DeviceUuid, except: Option<SliceId>) -> Given {
        let slices = self.by_name.values().filter(|slice| Some(slice.id) != except);
        let parts = slices.flat_map(|slice| &slice.parts).filter(|part| part.device == *device);
        parts.fold(Given::default(), |given, part| Given {
            core_request_percent: given.core_request_percent.saturating_add(part.core_request_percent),
            memory_bytes: given.memory_bytes.saturating_add(part.memory_limit_bytes),
        })
    }

    /// The slice for `request`, with the new id `id`.
    ///
    /// # Errors
    /// See [`CreateError`].
    pub(crate) fn create(
        &self,
        inventory: &Inventory,
        request: CreateRequest,
        id: SliceId,
        now: SystemTime,
    ) -> Result<Slice, CreateError> {
        let name = if request.name.is_empty() { format!("slice-{:.8}", id.to_string()) } else { request.name };
        name::check(&name)?;
        request.published.check_aliases()?;
        request.published.check_environment()?;
        if let Some(name) = self.taken(&name, &request.published) {
            return Err(CreateError::Exists { name });
        }
        if request.description.len() > DESCRIPTION_BYTES_MAX {
            return Err(CreateError::Description { found_bytes: request.description.len() });
        }
        if request.parts.is_empty() || request.parts.len() > DEVICES_MAX {
            return Err(CreateError::PartCount { found: request.parts.len() });
        }
        Ok(Slice {
            name,
            id,
            parts: self.place(inventory, &request.parts)?,
            host_memory_limit_bytes: checked_host_memory(request.host_memory_limit_bytes)?,
            qos_class: request.qos_class.unwrap_or(self.default_qos_class),
            audit_policy: request.audit_policy,
            published: request.published,
            created: now,
            description: request.description,
            pod_uid: request.pod_uid,
            owner: request.owner,
            users: request.users,
        })
    }

    /// The first name of the new slice that another slice has, or that the new one has twice.
    fn taken(&self, name: &str, published: &Published) -> Option<String> {
        let is_taken = |name: &&str| self.iter().flat_map(Slice::cdi_names).any(|taken| taken == *name);
        let twice = published.aliases.get(name).map(String::as_str);
        let mut names = std::iter::once(name).chain(published.aliases.iter().map(String::as_str));
        names.find(is_taken).or(twice).map(ToOwned::to_owned)
    }

    /// The slice `name`, changed by `request`.
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub(crate) fn resize(
        &self,
        inventory: &Inventory,
        name: &str,
        request: &ResizeRequest,
    ) -> Result<Slice, ResizeError> {
        let mut slice = self.get(name).ok_or_else(|| ResizeError::NotFound { name: name.into() })?.clone();
        if request.changes_nothing() {
            return Err(ResizeError::NoChange { name: name.into() });
        }
        if let Some(bytes) = request.host_memory_limit_bytes {
            slice.host_memory_limit_bytes = checked_host_memory(bytes)?;
        }
        slice.qos_class = request.qos_class.unwrap_or(slice.qos_class);
        slice.users.extend(&request.users);
        for change in &request.parts {
            let mut met = false;
            for part in &mut slice.parts {
                if change.device.as_ref().is_some_and(|device| *device != part.device) {
                    continue;
                }
                met = true;
                let shares = Shares::changed(part, change)?;
                let device =
                    inventory.device(&part.device).ok_or_else(|| PartError::unknown(&part.device, inventory))?;
                *part = self.fit(device, &shares, Some(slice.id))?;
            }
            if let (false, Some(device)) = (met, &change.device) {
                return Err(ResizeError::NotItsDevice { name: name.into(), device: device.clone() });
            }
        }
        Ok(slice)
    }

    /// The slice `name`, if it may be removed while `attached` processes use it.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub(crate) fn remove(&self, name: &str, attached: usize, force: bool) -> Result<&Slice, RemoveError> {
        let slice = self.get(name).ok_or_else(|| RemoveError::NotFound { name: name.into() })?;
        if attached > 0 && !force {
            return Err(RemoveError::InUse { name: name.into(), attached });
        }
        Ok(slice)
    }
}

/// Checks a host memory limit. It is not deducted from the machine's memory: the kernel limits the memory that a
/// container may use.
fn checked_host_memory(limit_bytes: u64) -> Result<u64, HostMemoryError> {
    if limit_bytes > HOST_MEMORY_BYTES_MAX {
        return Err(HostMemoryError { found_bytes: limit_bytes });
    }
    Ok(limit_bytes)
}

#[cfg(test)]
mod tests;
