//! For which pod a slice was made: a pod that comes again under its name has a slice of the same name.
//!
//! The slice itself keeps the pod's UID, so a later process knows it, too. The slice of a pod that kubelet had not recorded
//! has none, and neither has one that a manager of before has made.

use aliquot_node::Slice;

use super::unit_id::CdiName;
use crate::pod_resources::Recorded;

/// Whether a slice was made for another pod than this one, as far as the slice says.
#[must_use]
pub(super) fn is_of_another(slice: &Slice, pod_uid: &str) -> bool {
    slice.content.pod_uid.as_ref().is_some_and(|made_for| made_for != pod_uid)
}

/// Whether a slice was made for a pod that has the units with this name, as kubelet records.
#[must_use]
pub(super) fn is_rightful(slice: &Slice, units: &CdiName, recorded: &[Recorded]) -> bool {
    let Some(pod_uid) = &slice.content.pod_uid else { return false };
    let of_pod = recorded.iter().filter(|recorded| recorded.pod_uid == *pod_uid);
    of_pod.flat_map(|recorded| &recorded.devices).any(|(resource, ids)| CdiName::of_units(resource, ids) == *units)
}
