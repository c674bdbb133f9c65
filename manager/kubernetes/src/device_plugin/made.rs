//! Finds out whether a slice was made for a given pod: a new pod of the same name would have a slice of the same name.
//!
//! The slice itself keeps the pod's UID, so a later process knows it, too. A slice has no UID if kubelet had not
//! recorded its pod, or if an older manager has made it.

use aliquot_node::Slice;

use super::unit_id::CdiName;
use crate::pod_resources::Recorded;

/// Whether a slice was made for another pod than this one, as far as the slice's UID tells.
#[must_use]
pub(super) fn is_of_another(slice: &Slice, pod_uid: &str) -> bool {
    slice.content.pod_uid.as_ref().is_some_and(|made_for| made_for != pod_uid)
}

/// Whether a slice was made for a pod that has the units with this name in kubelet's record.
#[must_use]
pub(super) fn is_rightful(slice: &Slice, units: &CdiName, recorded: &[Recorded]) -> bool {
    let Some(pod_uid) = &slice.content.pod_uid else { return false };
    let of_pod = recorded.iter().filter(|recorded| recorded.pod_uid == *pod_uid);
    of_pod.flat_map(|recorded| &recorded.devices).any(|(resource, ids)| CdiName::of_units(resource, ids) == *units)
}
