//! Slices whose devices a scheduler has decided on. They do not reduce the offer to kubelet.
//!
//! Kube-scheduler knows no device, so the offer shrinks by the parts that slices take (see [`super::units`]), and grows
//! again at the plugin's first look after a pod has ended. A scheduler that decides on devices counts their room
//! itself, and binds the next pod as soon as the old pod's object is gone. If the offer had not grown by then, kubelet
//! would refuse that pod for good, with `UnexpectedAdmissionError`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_node::{Consumer, Slice};

use super::slice_name::made_for;
use super::stale::is_of_units;

/// For each slice, whether a scheduler has decided on its devices. For slices of an earlier process this is looked up.
#[derive(Debug, Default)]
pub(super) struct Decided(Mutex<BTreeMap<String, bool>>);

impl Decided {
    pub(super) fn note(&self, slice: String, is_decided: bool) {
        self.lock().insert(slice, is_decided);
    }

    /// The slices among these for which a scheduler has decided. Other slices are forgotten.
    pub(super) fn among(&self, slices: &[Slice]) -> BTreeSet<String> {
        let there: BTreeSet<&str> = slices.iter().map(|slice| slice.content.name.as_str()).collect();
        let mut known = self.lock();
        known.retain(|slice, _| there.contains(slice.as_str()));
        known.iter().filter(|(_, is_decided)| **is_decided).map(|(slice, _)| slice.clone()).collect()
    }

    /// The slices for which this is not known, each with the container that it was made for.
    pub(super) fn unknown(&self, slices: &[Slice]) -> Vec<(String, Consumer)> {
        let known = self.lock();
        let unknown = slices.iter().filter(|slice| is_of_units(slice) && !known.contains_key(&slice.content.name));
        unknown.filter_map(|slice| Some((slice.content.name.clone(), made_for(slice)?))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
