//! Facts about each claim that are needed at any time, found by its UID or by its name.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_node::Partition;

use super::holding::Holding;
use crate::dra::instances;
use crate::dra::names::ClaimUid;
use crate::dra::prepared_claims::Record;

/// Facts about a claim that are needed at any time.
pub(super) struct Known {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The MIG instances that are or will be its own.
    pub(super) partitions: Vec<Partition>,
    /// The containers that have each of its slices.
    pub(super) holding: Holding,
}

impl Known {
    pub(super) fn of(record: &Record, boot_id: &str) -> Known {
        let is_own = record.boot_id == boot_id;
        let partitions = instances::partitions(record).filter(|_| is_own).cloned().collect();
        let holding = Holding::of(record);
        Known { namespace: record.namespace.clone(), name: record.name.clone(), partitions, holding }
    }
}

/// The claims that have a readable record.
#[derive(Default)]
pub(super) struct Register {
    by_uid: BTreeMap<ClaimUid, Known>,
    /// The UIDs by namespace and name. A claim that was made anew under its name has another UID, and kubelet may still
    /// have the former one prepared.
    by_name: BTreeMap<(String, String), BTreeSet<ClaimUid>>,
}

impl Register {
    pub(super) fn get(&self, uid: &ClaimUid) -> Option<&Known> {
        self.by_uid.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &ClaimUid) -> Option<&mut Known> {
        self.by_uid.get_mut(uid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ClaimUid, &Known)> {
        self.by_uid.iter()
    }

    /// Whether a claim of this name has a record.
    pub(super) fn has_name(&self, namespace: &str, name: &str) -> bool {
        self.by_name.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// Adds a claim, or replaces its facts.
    pub(super) fn insert(&mut self, uid: ClaimUid, known: Known) {
        self.remove(&uid);
        let name = (known.namespace.clone(), known.name.clone());
        self.by_name.entry(name).or_default().insert(uid.clone());
        self.by_uid.insert(uid, known);
    }

    pub(super) fn remove(&mut self, uid: &ClaimUid) {
        let Some(Known { namespace, name, .. }) = self.by_uid.remove(uid) else { return };
        let name = (namespace, name);
        if let Some(uids) = self.by_name.get_mut(&name) {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_name.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_until_the_last_claim_that_had_it_is_given_up() {
        let uid = |text: &str| ClaimUid::parse(text).unwrap();
        let known = |name: &str| Known {
            namespace: "team".into(),
            name: name.into(),
            partitions: Vec::new(),
            holding: Holding::default(),
        };
        let mut register = Register::default();
        register.insert(uid("former"), known("train"));
        register.insert(uid("anew"), known("train"));
        register.insert(uid("anew"), known("train"));
        assert!(register.has_name("team", "train") && !register.has_name("other", "train"));
        register.remove(&uid("former"));
        assert!(register.has_name("team", "train"));
        register.remove(&uid("anew"));
        register.remove(&uid("anew"));
        assert!(!register.has_name("team", "train") && register.iter().next().is_none());
    }
}
