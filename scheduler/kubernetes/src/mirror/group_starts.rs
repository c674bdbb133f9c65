//! What is to be said of PodGroups: that they have started, or why they have not.

use std::collections::BTreeMap;

use super::{KnownPod, Mirror};
use crate::condition::Condition;
use crate::gang::{Gang, GangKind, Source};

/// The condition of a PodGroup that says that it has started, and its name in Kubernetes 1.36.
const STARTED: &str = "PodGroupInitiallyScheduled";
const STARTED_IN_1_36: &str = "PodGroupScheduled";

/// What the object of a gang says beside what its pods need to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GroupSaid {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) conditions: Vec<Condition>,
}

/// A PodGroup of which something is to be said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupStart {
    pub(crate) kind: GangKind,
    /// The version in which the API server has it.
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) said: GroupSaid,
    /// The pods that start together are bound. `Err`: why not.
    pub(crate) outcome: Result<(), Wait>,
}

/// Why a PodGroup has not started, as one of its pods says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The reason of the pod's condition.
    pub(crate) reason: String,
    pub(crate) text: String,
}

/// What is known of the objects of gangs beside what pods need to know.
#[derive(Debug, Default)]
pub(super) struct GroupsSaid {
    versions: BTreeMap<GangKind, String>,
    /// By kind, namespace and name.
    said: BTreeMap<(GangKind, (String, String)), GroupSaid>,
}

impl GroupStart {
    /// The condition that says it, of PodGroups that have such conditions.
    pub(crate) fn condition(&self) -> Option<&'static str> {
        match (self.kind, self.version.as_str()) {
            (GangKind::Native, "v1alpha2") => Some(STARTED_IN_1_36),
            (GangKind::Native, _) => Some(STARTED),
            _ => None,
        }
    }

    /// Whether it has said that it has started. It never takes that back.
    fn is_over(&self) -> bool {
        let Some(condition) = self.condition() else { return self.outcome.is_ok() };
        self.said.conditions.iter().any(|of| of.type_ == condition && of.status == "True")
    }
}

impl Mirror {
    /// The API server has the objects of a kind in this version.
    pub(crate) fn gangs_are_in(&mut self, kind: GangKind, version: &str) {
        self.groups_said.versions.insert(kind, version.to_owned());
    }

    /// Takes in what the object of a gang says beside what its pods need to know; `None`: it is gone.
    pub(crate) fn gang_says(&mut self, kind: GangKind, namespace: &str, name: &str, said: Option<GroupSaid>) {
        let key = (kind, (namespace.to_owned(), name.to_owned()));
        match said {
            Some(said) => _ = self.groups_said.said.insert(key, said),
            None => _ = self.groups_said.said.remove(&key),
        }
    }

    /// Whether one of Kubernetes' own PodGroups has said that it has started.
    pub(super) fn has_said_that_it_started(&self, namespace: &str, name: &str) -> bool {
        let key = (GangKind::Native, (namespace.to_owned(), name.to_owned()));
        let mut conditions = self.groups_said.said.get(&key).into_iter().flat_map(|said| &said.conditions);
        conditions.any(|of| [STARTED, STARTED_IN_1_36].contains(&of.type_.as_str()) && of.status == "True")
    }

    /// The PodGroups of which something is to be said.
    pub(crate) fn group_starts(&self) -> Vec<GroupStart> {
        let groups = self.groups_said.said.iter().filter(|((kind, _), _)| !kind.is_workload());
        groups.filter_map(|((kind, (namespace, name)), said)| self.group_start(*kind, namespace, name, said)).collect()
    }

    fn group_start(&self, kind: GangKind, namespace: &str, name: &str, said: &GroupSaid) -> Option<GroupStart> {
        let start = GroupStart {
            kind,
            version: self.groups_said.versions.get(&kind)?.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            said: said.clone(),
            outcome: Ok(()),
        };
        if start.condition().is_some() && start.is_over() {
            return None;
        }
        let is_member = |pod: &&KnownPod| {
            let source = match &pod.facts.gang {
                Some(Ok(Gang { source, .. })) => source,
                _ => return false,
            };
            matches!(source, Source::Object(of, group) if *of == kind && group == name)
        };
        let pods = || self.pods_of_object(kind, namespace, name).filter(is_member);
        let least = self.least_of_object(kind, namespace, name);
        let bound = pods().filter(|pod| pod.facts.node.is_some()).count();
        let outcome = if least.is_some_and(|least| u32::try_from(bound).unwrap_or(u32::MAX) >= least.max(1)) {
            Ok(())
        } else {
            let waits = |pod: &&KnownPod| pod.facts.node.is_none() && pod.instance.is_none();
            let waiting = pods().filter(waits).filter(|pod| pod.facts.said.is_some());
            let first = waiting.min_by_key(|pod| (pod.facts.created_ms, &pod.facts.name))?;
            let (reason, text) = first.facts.said.clone()?;
            Err(Wait { reason, text: format!("pod {}: {text}", first.facts.name) })
        };
        let start = GroupStart { outcome, ..start };
        (!start.is_over()).then_some(start)
    }
}
