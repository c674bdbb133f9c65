//! Finds out which container is starting, when kubelet's request contains only the ids of its units.
//!
//! Nearly always only one container has them. But kubelet gives an init container's units to the later containers, too:
//! then both may have the same units of one resource. Kubelet sends the units of all resources of a container one after
//! the other, and all of them together identify the container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_node::{Consumer, Slice};

use super::slice_name::slice_name;
use super::unit_id::CdiName;
use crate::pod_resources::{Holders, Recorded};

/// A container that has the units in kubelet's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The container's name in the pod.
    pub(super) container: String,
    /// Its units, by resource that is served here.
    pub(super) devices: BTreeMap<String, BTreeSet<String>>,
    /// The CDI names that kubelet was told for these units.
    pub(super) aliases: BTreeSet<String>,
    /// Whether `PodResources` lists the container. If so, it is not an init container that ends before the others
    /// start.
    pub(super) is_listed: bool,
}

/// The requests of kubelet for the containers that it is starting, by pod.
#[derive(Debug, Default)]
pub(super) struct Starts(Mutex<BTreeMap<String, Start>>);

/// A start that may not be complete.
#[derive(Debug, Default)]
struct Start {
    /// The CDI names of the units in the requests so far.
    told: BTreeSet<String>,
    /// The container that these requests were attributed to.
    taken: Option<Candidate>,
}

impl Starts {
    /// Decides which container of a pod is starting, among those that have the units with this CDI name.
    ///
    /// The container has all units that were requested since the last start was complete. Among several candidates the
    /// one with the fewest resources is taken; requests for further units show if it was another one. Containers with
    /// the same units of all resources get the same slice.
    pub(super) fn choose(&self, pod_uid: &str, alias: &str, candidates: &[Candidate]) -> Option<Candidate> {
        let mut starts = self.lock();
        let start = starts.entry(pod_uid.to_owned()).or_default();
        start.told(alias, candidates);
        start.taken.clone()
    }

    /// Forgets the requests for a pod's container, which does not start now.
    pub(super) fn forget(&self, pod_uid: &str) {
        self.lock().remove(pod_uid);
    }

    /// Forgets the pods that are gone.
    pub(super) fn keep(&self, holders: &Holders) {
        let known: BTreeSet<&str> = holders.recorded().iter().map(|recorded| recorded.pod_uid.as_str()).collect();
        self.lock().retain(|pod_uid, _| known.contains(pod_uid.as_str()));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Start>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Start {
    fn told(&mut self, alias: &str, candidates: &[Candidate]) {
        let was_complete = self.taken.as_ref().is_some_and(|taken| taken.aliases == self.told);
        let is_again = !self.told.insert(alias.to_owned());
        let found = self.fitting(candidates).filter(|_| !is_again);
        let is_next = match (&self.taken, found) {
            (_, None) => true,
            // The earlier requests may have been complete for another container. An init container never comes after a
            // container that is listed: in that case the earlier requests were for the init container as well.
            (Some(taken), Some(found)) => {
                was_complete && taken.container != found.container && (found.is_listed || !taken.is_listed)
            }
            (None, Some(_)) => false,
        };
        if is_next {
            self.told = BTreeSet::from([alias.to_owned()]);
        }
        let found = if is_next && found.is_none() { self.fitting(candidates) } else { found };
        self.taken = found.cloned();
    }

    /// The candidate that has all units that were requested, with the fewest others.
    fn fitting<'a>(&self, candidates: &'a [Candidate]) -> Option<&'a Candidate> {
        let fit = candidates.iter().filter(|candidate| candidate.aliases.is_superset(&self.told));
        fit.min_by_key(|candidate| (candidate.aliases.len(), !candidate.is_listed))
    }
}

/// Whether two containers have a unit in common: then one of them ends before the other starts.
#[must_use]
pub(super) fn have_units_in_common(
    one: &BTreeMap<String, BTreeSet<String>>,
    other: &BTreeMap<String, BTreeSet<String>>,
) -> bool {
    one.iter().any(|(resource, ids)| other.get(resource).is_some_and(|held| !held.is_disjoint(ids)))
}

/// The containers that kubelet's checkpoint records, by the CDI names of their units.
pub(crate) struct RecordedNames<'a> {
    by_alias: BTreeMap<String, Vec<&'a Recorded>>,
    holders: &'a Holders,
}

impl<'a> RecordedNames<'a> {
    pub(crate) fn new(holders: &'a Holders) -> RecordedNames<'a> {
        let mut by_alias: BTreeMap<String, Vec<&Recorded>> = BTreeMap::new();
        for recorded in holders.recorded() {
            for (resource, ids) in &recorded.devices {
                by_alias.entry(CdiName::of_units(resource, ids).alias().to_owned()).or_default().push(recorded);
            }
        }
        RecordedNames { by_alias, holders }
    }

    /// The container that a slice was made for, if kubelet has not taken its units back and its pod has not ended.
    pub(crate) fn consumer_of(&self, slice: &Slice) -> Option<Consumer> {
        let recorded = slice.content.aliases.iter().filter_map(|alias| self.by_alias.get(alias)).flatten();
        let consumers = recorded.flat_map(|recorded| {
            self.holders.pods().map(|(namespace, pod)| Consumer {
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: recorded.container.clone(),
            })
        });
        consumers.into_iter().find(|consumer| slice_name(consumer) == slice.content.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(container: &str, aliases: &[&str], is_listed: bool) -> Candidate {
        let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        Candidate { container: container.into(), devices: BTreeMap::new(), aliases, is_listed }
    }

    /// The containers that are chosen as kubelet requests one name after the other.
    fn taken(starts: &Starts, containers: &[Candidate], told: &[&str]) -> Vec<String> {
        let choose = |alias: &&str| {
            let candidates: Vec<Candidate> =
                containers.iter().filter(|container| container.aliases.contains(*alias)).cloned().collect();
            starts.choose("pod", alias, &candidates).unwrap().container
        };
        told.iter().map(choose).collect()
    }

    #[test]
    fn a_container_with_other_units_is_known_by_them_whatever_kubelet_tells_first() {
        let containers =
            [candidate("init", &["core-50", "memory"], false), candidate("main", &["core-30", "memory"], true)];
        for (told, last) in [
            (["core-50", "memory", "core-30", "memory"], "main"),
            (["memory", "core-50", "memory", "core-30"], "main"),
            (["core-50", "memory", "memory", "core-30"], "main"),
            (["memory", "core-50", "core-30", "memory"], "main"),
        ] {
            let found = taken(&Starts::default(), &containers, &told);
            assert_eq!((found[1].as_str(), found[3].as_str()), ("init", last), "{told:?}");
        }
    }

    #[test]
    fn who_has_a_part_of_another_ones_units_is_known_as_well() {
        let containers = [candidate("init", &["core", "memory"], false), candidate("main", &["core"], true)];
        for init in [["core", "memory"], ["memory", "core"]] {
            let starts = Starts::default();
            assert_eq!(taken(&starts, &containers, &init)[1], "init");
            assert_eq!(taken(&starts, &containers, &["core"]), ["main"]);
            // The same again, after a failure.
            assert_eq!(taken(&starts, &containers, &["core"]), ["main"]);
        }
        let containers = [candidate("init", &["core"], false), candidate("main", &["core", "memory"], true)];
        for main in [["core", "memory"], ["memory", "core"]] {
            let starts = Starts::default();
            assert_eq!(taken(&starts, &containers, &["core"]), ["init"]);
            assert_eq!(taken(&starts, &containers, &main)[1], "main");
            // The same again, in either order.
            for again in [["core", "memory"], ["memory", "core"], ["core", "memory"]] {
                assert_eq!(taken(&starts, &containers, &again)[1], "main");
            }
        }
    }

    #[test]
    fn who_has_the_same_units_of_everything_is_the_one_that_stays() {
        let containers = [candidate("init", &["core"], false), candidate("main", &["core"], true)];
        assert_eq!(taken(&Starts::default(), &containers, &["core", "core"]), ["main", "main"]);
    }

    #[test]
    fn a_start_that_failed_is_begun_anew() {
        let containers = [candidate("init", &["core", "memory"], false), candidate("main", &["core"], true)];
        let starts = Starts::default();
        assert_eq!(taken(&starts, &containers, &["memory"]), ["init"]);
        starts.forget("pod");
        assert_eq!(taken(&starts, &containers, &["core", "memory"])[1], "init");
    }
}
