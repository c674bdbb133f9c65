//! For which pods slices were made, by UID: a pod that comes again under its name has a slice of the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_node::Slice;

use super::unit_id::CdiName;
use crate::pod_resources::Recorded;

/// The UIDs of the pods of the slices that this process has made, by slice. An earlier process's slices are not in it.
#[derive(Debug, Default)]
pub(super) struct Made(Mutex<BTreeMap<String, String>>);

impl Made {
    /// Notes that a slice was made for a pod.
    pub(super) fn note(&self, slice: String, pod_uid: String) {
        self.lock().insert(slice, pod_uid);
    }

    /// Whether a slice was made for another pod than this one, as far as is known.
    pub(super) fn is_of_another(&self, slice: &str, pod_uid: &str) -> bool {
        self.lock().get(slice).is_some_and(|made_for| made_for != pod_uid)
    }

    /// Whether a slice was made for a pod to which kubelet has given the units with this name since then, as it records.
    pub(super) fn is_rightful(&self, slice: &str, units: &CdiName, recorded: &[Recorded]) -> bool {
        let made = self.lock();
        let Some(pod_uid) = made.get(slice) else { return false };
        let of_pod = recorded.iter().filter(|recorded| recorded.pod_uid == *pod_uid);
        of_pod.flat_map(|recorded| &recorded.devices).any(|(resource, ids)| CdiName::of_units(resource, ids) == *units)
    }

    /// Forgets the slices that are gone.
    pub(super) fn keep(&self, slices: &[Slice]) {
        let there: BTreeSet<&str> = slices.iter().map(|slice| slice.content.name.as_str()).collect();
        self.lock().retain(|slice, _| there.contains(slice.as_str()));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
