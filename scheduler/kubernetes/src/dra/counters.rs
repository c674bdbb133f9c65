//! Counters that the devices of a pool share: what there is of each, what each device takes of it, and which devices can
//! take of one set at the same time.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, ResourceSliceSpec};

use super::take::thousandths;

/// A set of counters of a pool, and a counter in it.
pub(crate) type CounterName = (String, String);

/// The counters of a pool, in thousandths. An amount that is no quantity counts as none.
pub(crate) type Counters = BTreeMap<CounterName, u128>;

/// The compatibility groups that a device names for a set of counters.
pub(crate) type Groups = BTreeSet<String>;

/// The counters that slices of a pool define; `None`: two of them define the same set.
pub(super) fn defined(slices: &[&ResourceSliceSpec]) -> Option<Counters> {
    let mut sets = BTreeSet::new();
    let mut counters = Counters::new();
    for set in slices.iter().flat_map(|slice| slice.shared_counters.iter().flatten()) {
        if !sets.insert(&set.name) {
            return None;
        }
        for (name, counter) in &set.counters {
            let amount = thousandths(&counter.value.0).unwrap_or_default();
            counters.insert((set.name.clone(), name.clone()), amount);
        }
    }
    Some(counters)
}

/// What a device takes of its pool's counters, in thousandths. An amount that is no quantity counts as more than there
/// is.
pub(crate) fn taken_by(device: &Device) -> Counters {
    let of_sets = device.consumes_counters.iter().flatten();
    let amounts = of_sets.flat_map(|of| {
        of.counters.iter().map(|(name, counter)| {
            let amount = thousandths(&counter.value.0).unwrap_or(u128::MAX);
            ((of.counter_set.clone(), name.clone()), amount)
        })
    });
    amounts.collect()
}

/// The sets of counters that a device takes of, each with the compatibility groups that it names for this set. Devices can
/// be given out at the same time only if all that take of a set have a group in common, or if none of them names any.
pub(crate) fn groups_of(device: &Device) -> impl Iterator<Item = (&str, Groups)> {
    let of_sets = device.consumes_counters.iter().flatten();
    of_sets.map(|of| (of.counter_set.as_str(), of.compatibility_groups.iter().flatten().cloned().collect()))
}
