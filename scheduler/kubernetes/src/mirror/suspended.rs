//! Workloads that are suspended instead of their pods being evicted one by one, until no pod of theirs is left.

use std::collections::{BTreeMap, BTreeSet};

use super::commands::Eviction;
use super::{Access, KnownPod, Mirror, Write};
use crate::workload::{Workload, WorkloadKind, is_kueues};

/// A workload stays suspended so long at most, whatever holds up its pods.
const LONGEST_MS: u64 = 3_600_000;
/// For so long after a suspension none of the workload's pods is evicted: its controller deletes them. It is a little
/// less than the minute after which the engine repeats a command to stop.
const CONTROLLER_MS: u64 = 45_000;

/// What is known of suspended workloads.
#[derive(Debug, Default)]
pub(super) struct SuspendedWorkloads {
    /// Whether those of a kind can be found again. Only then one of them is suspended.
    access: BTreeMap<WorkloadKind, Access>,
    /// The version in which the API server has a kind.
    versions: BTreeMap<WorkloadKind, &'static str>,
    /// Those with our mark, by namespace.
    workloads: BTreeMap<(String, Workload), Suspended>,
}

/// A workload that a leader has suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspended {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) workload: Workload,
    /// What its pods name: a workload below it, or itself.
    pub(crate) pods_of: Workload,
    pub(crate) since_ms: u64,
}

/// Evictions of all pods of a workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Suspension {
    pub(crate) namespace: String,
    /// What the pods name.
    pub(crate) workload: Workload,
    pub(crate) evictions: Vec<Eviction>,
}

impl Mirror {
    pub(crate) fn suspendables_are(&mut self, kind: WorkloadKind, access: Access) {
        self.suspended.access.insert(kind, access);
    }

    pub(crate) fn suspendables_are_in(&mut self, kind: WorkloadKind, version: &'static str) {
        self.suspended.versions.insert(kind, version);
    }

    /// The version in which workloads of a kind are suspended; `None`: they are not.
    pub(crate) fn suspends_in(&self, kind: WorkloadKind) -> Option<&'static str> {
        let is_read = self.suspended.access.get(&kind) == Some(&Access::Read);
        self.suspended.versions.get(&kind).copied().filter(|_| is_read)
    }

    pub(crate) fn suspended(&mut self, suspended: Suspended) {
        let key = (suspended.namespace.clone(), suspended.workload.clone());
        self.suspended.workloads.insert(key, suspended);
    }

    pub(crate) fn suspended_no_more(&mut self, namespace: &str, workload: &Workload) {
        self.suspended.workloads.remove(&(namespace.to_owned(), workload.clone()));
    }

    pub(crate) fn suspended_names(&self, kind: WorkloadKind) -> impl Iterator<Item = (&str, &str)> {
        let of_kind = self.suspended.workloads.keys().filter(move |(_, workload)| workload.kind == kind);
        of_kind.map(|(namespace, workload)| (namespace.as_str(), workload.name.as_str()))
    }

    /// Writes of one moment, with one suspension in place of the evictions of all pods of a workload. Evictions from a
    /// workload that was suspended just now, for example by an earlier leader, are left out.
    pub(crate) fn with_suspensions(&self, mut writes: Vec<Write>, now_ms: u64) -> Vec<Write> {
        writes.retain(|write| !self.is_left_to_a_controller(write, now_ms));
        let mut evicted: BTreeMap<(&str, &Workload), Vec<&str>> = BTreeMap::new();
        for write in &writes {
            let Write::Evict(Eviction { uid, .. }) = write else { continue };
            let Some((uid, pod)) = self.pods.get_key_value(uid) else { continue };
            if let Some(workload) = self.suspendable_of(pod) {
                evicted.entry((&pod.facts.namespace, workload)).or_default().push(uid);
            }
        }
        if evicted.is_empty() {
            return writes;
        }
        for (uid, pod) in &self.pods {
            let Some(workload) = &pod.facts.workload else { continue };
            let key = (pod.facts.namespace.as_str(), workload);
            if evicted.get(&key).is_some_and(|evicted| !evicted.contains(&uid.as_str())) && !is_nothing_lost(pod) {
                evicted.remove(&key);
            }
        }
        let whole: BTreeMap<&str, (&str, &Workload)> =
            evicted.iter().flat_map(|(key, uids)| uids.iter().map(|uid| (*uid, *key))).collect();
        let mut suspensions: BTreeMap<(&str, &Workload), Suspension> = BTreeMap::new();
        let mut others = Vec::new();
        for write in writes {
            match write {
                Write::Evict(eviction) if whole.contains_key(eviction.uid.as_str()) => {
                    let (namespace, workload) = whole[eviction.uid.as_str()];
                    let new = || Suspension {
                        namespace: namespace.to_owned(),
                        workload: workload.clone(),
                        evictions: Vec::new(),
                    };
                    suspensions.entry((namespace, workload)).or_insert_with(new).evictions.push(eviction);
                }
                write => others.push(write),
            }
        }
        others.extend(suspensions.into_values().map(Write::Suspend));
        others
    }

    fn is_left_to_a_controller(&self, write: &Write, now_ms: u64) -> bool {
        let Write::Evict(Eviction { uid, .. }) = write else { return false };
        let workload = self.pods.get(uid).and_then(|pod| Some((&pod.facts, pod.facts.workload.as_ref()?)));
        let suspended = workload.and_then(|(facts, workload)| self.suspension_of(&facts.namespace, workload));
        suspended.is_some_and(|suspended| suspended.since_ms.abs_diff(now_ms) < CONTROLLER_MS)
    }

    /// The suspension of the workload that pods name.
    fn suspension_of(&self, namespace: &str, pods_of: &Workload) -> Option<&Suspended> {
        let mut suspended = self.suspended.workloads.values();
        suspended.find(|of| of.namespace == namespace && of.pods_of == *pods_of)
    }

    /// The workload of a bound pod, if it may be suspended.
    fn suspendable_of<'a>(&self, pod: &'a KnownPod) -> Option<&'a Workload> {
        let facts = &pod.facts;
        let workload = facts.workload.as_ref()?;
        self.suspends_in(workload.kind)?;
        let is_of_kueue = facts.labels.keys().chain(facts.words.annotations.keys()).any(|key| is_kueues(key));
        // One of its pods is still there after a suspension: that did not help.
        let is_suspended = self.suspension_of(&facts.namespace, workload).is_some();
        let is_bound = pod.instance.as_ref().is_some_and(|instance| instance.is_bound);
        (is_bound && !is_of_kueue && !is_suspended).then_some(workload)
    }

    /// Whether a suspension still takes nothing but the pods that are to be evicted. Pods may have been bound since it
    /// was decided.
    pub(crate) fn is_whole(&self, suspension: &Suspension) -> bool {
        let Suspension { namespace, workload, evictions } = suspension;
        let is_of_it =
            |pod: &KnownPod| pod.facts.namespace == *namespace && pod.facts.workload.as_ref() == Some(workload);
        let is_evicted = |uid: &String| evictions.iter().any(|eviction| eviction.uid == *uid);
        self.pods.iter().all(|(uid, pod)| !is_of_it(pod) || is_evicted(uid) || is_nothing_lost(pod))
    }

    /// When the first of the pods was created, in milliseconds since 1970; `None`: that is not known.
    pub(crate) fn first_created_ms(&self, evictions: &[Eviction]) -> Option<u64> {
        let created = evictions.iter().filter_map(|of| Some(self.pods.get(&of.uid)?.facts.created_ms));
        created.filter(|created_ms| *created_ms > 0).min()
    }

    /// The suspended workloads that have no pod left, and those that were suspended for too long. Each with whether it
    /// has pods.
    pub(crate) fn to_resume(&self, now_ms: u64) -> Vec<(Suspended, bool)> {
        if self.suspended.workloads.is_empty() {
            return Vec::new();
        }
        let is_there = |pod: &&KnownPod| !pod.is_gone && (!pod.facts.has_ended || pod.facts.is_leaving);
        let there = self.pods.values().filter(is_there);
        let with_pods: BTreeSet<(&str, &Workload)> =
            there.filter_map(|pod| Some((pod.facts.namespace.as_str(), pod.facts.workload.as_ref()?))).collect();
        let due = |of: &Suspended| {
            let has_pods = with_pods.contains(&(of.namespace.as_str(), &of.pods_of));
            let is_due = !has_pods || now_ms >= of.since_ms.saturating_add(LONGEST_MS);
            is_due.then(|| (of.clone(), has_pods))
        };
        self.suspended.workloads.values().filter_map(due).collect()
    }
}

/// Whether a pod may go with its workload without being evicted: it ends anyway, or it has no place yet.
fn is_nothing_lost(pod: &KnownPod) -> bool {
    let facts = &pod.facts;
    let has_place = facts.node.is_some() || pod.instance.is_some() || pod.binding_to.is_some();
    pod.is_gone || facts.has_ended || facts.is_leaving || !has_place
}
