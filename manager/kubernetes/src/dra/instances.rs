//! MIG instances that are made for claims.
//!
//! A claim's record names them before they are made, so that all leftovers of a kill are named. They belong to the
//! driver only until the machine restarts: instances do not outlive a restart, so an instance in the same place after a
//! restart was made by another program.

use aliquot_node::{CreateError, Devices, Node, NodeError, Part, Partition};

use super::allocation::ClaimSlice;
use super::names::ClaimUid;
use super::prepared_claims::Record;

/// The instances of a claim.
pub(super) fn partitions(record: &Record) -> impl Iterator<Item = &Partition> {
    record.devices().filter_map(|device| device.partition.as_ref())
}

/// Refuses a claim whose instances have no room beside those of other claims, whether these were made yet or not.
///
/// # Errors
/// The place belongs to another claim; the error names it.
pub(super) fn check_claims<'known>(
    record: &Record,
    known: impl Iterator<Item = (&'known ClaimUid, &'known [Partition])>,
) -> Result<(), CreateError> {
    let wanted: Vec<&Partition> = partitions(record).collect();
    if wanted.is_empty() {
        // Most claims have no instances, and need not look at all others.
        return Ok(());
    }
    for (uid, theirs) in known.filter(|(uid, _)| **uid != record.uid) {
        for wanted in &wanted {
            if let Some(other) = theirs.iter().find(|other| other.excludes(wanted)) {
                return Err(CreateError::Unavailable(format!(
                    "no room for {wanted}: {other} is still claim {uid}'s, which kubelet has not given up yet"
                )));
            }
        }
    }
    Ok(())
}

/// Refuses a claim whose instances have no room beside the existing ones.
///
/// # Errors
/// The place is taken; the error names what is there.
pub(super) fn check_room(record: &Record, devices: &Devices) -> Result<(), CreateError> {
    for wanted in partitions(record) {
        let partitioning = devices.get(&wanted.gpu_uuid).and_then(|gpu| gpu.partitioning.as_ref());
        let Some(partitioning) = partitioning else {
            return Err(CreateError::Unavailable(format!("{} is not in MIG mode any more", wanted.gpu_uuid)));
        };
        if let Some(taken) = partitioning.occupied.iter().find(|taken| taken.overlaps(wanted.placement)) {
            return Err(CreateError::Unavailable(format!(
                "no room for {wanted}: there is an instance at {taken} that was made for no claim; destroy it, or delete \
                 the pod and the claim, so that another place is chosen"
            )));
        }
    }
    Ok(())
}

/// Makes the instances of a claim, and enters them into its slices and its record.
///
/// # Errors
/// An instance cannot be made. Those before it exist until they are [undone](undo).
pub(super) fn make(node: &dyn Node, record: &mut Record) -> Result<(), NodeError> {
    for ClaimSlice { slice, devices, .. } in &mut record.slices {
        for device in devices {
            let Some(partition) = &device.partition else { continue };
            let instance = node.create_instance(partition)?;
            device.instance_uuid = Some(instance.uuid.clone());
            slice.parts.push(Part {
                device_uuid: instance.uuid,
                core_request_percent: 100,
                core_limit_percent: 100,
                memory_limit_bytes: instance.memory_bytes,
            });
        }
    }
    Ok(())
}

/// Destroys the instances of a claim that were just made, and no other instance in one of their places.
///
/// # Errors
/// An instance cannot be destroyed.
pub(super) fn undo(node: &dyn Node, record: &Record) -> Result<(), NodeError> {
    let made = record.devices().filter(|device| device.instance_uuid.is_some());
    made.filter_map(|device| device.partition.as_ref()).try_for_each(|partition| node.destroy_instance(partition))
}

/// Why an instance was not destroyed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DestroyError {
    /// Its GPU does not answer. Whether the instance still exists is not known.
    #[error("its GPU does not answer: {0}")]
    Silent(NodeError),
    /// Programs use it.
    #[error(transparent)]
    Refused(NodeError),
}

impl From<DestroyError> for NodeError {
    fn from(error: DestroyError) -> NodeError {
        match error {
            DestroyError::Silent(error) | DestroyError::Refused(error) => error,
        }
    }
}

/// Destroys the instances of a claim, if it was prepared in the present boot `boot_id` of the machine. One on a GPU
/// that does not answer keeps no other from being destroyed.
///
/// # Errors
/// See [`DestroyError`].
pub(super) fn destroy(node: &dyn Node, record: &Record, boot_id: &str) -> Result<(), DestroyError> {
    if record.boot_id != boot_id {
        return Ok(());
    }
    let mut outcome = Ok(());
    for partition in partitions(record) {
        let Err(error) = node.destroy_instance(partition) else { continue };
        let devices = node.devices().borrow().clone();
        if devices.get(&partition.gpu_uuid).is_some_and(|gpu| gpu.problem.is_none()) {
            return Err(DestroyError::Refused(error));
        }
        outcome = Err(DestroyError::Silent(error));
    }
    outcome
}

/// Whether all instances of a claim still exist, as far as the GPUs that answer show.
#[must_use]
pub(super) fn are_there(record: &Record, devices: &Devices) -> bool {
    record.devices().all(|device| {
        let Some(partition) = &device.partition else { return true };
        if devices.get(&partition.gpu_uuid).is_none() {
            return true;
        }
        let found = device.instance_uuid.as_ref().and_then(|uuid| devices.get(uuid));
        let instance = found.and_then(|found| found.mig_instance.as_ref());
        instance.is_some_and(|instance| {
            let is_there = |placement| placement == partition.placement;
            instance.gpu_uuid == partition.gpu_uuid && instance.placement.is_none_or(is_there)
        })
    })
}
