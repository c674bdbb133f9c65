//! The owner of a pod, and what its labels and annotations say of its pods. Users put such words on the object that they
//! write, whose controller does not copy them to the pods.

use std::collections::BTreeMap;

use aliquot_api_server::queue_of;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::gang::Address;
use crate::kai_words::{KaiWords, Preemptibility};
use crate::workload::WorkloadKind;

/// The label by which pods of a Deployment name their template. Their ReplicaSet has the name of the Deployment, a hyphen
/// and this.
const POD_TEMPLATE: &str = "pod-template-hash";

/// A kind of object that owns pods, or what makes them, and that is no gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnerKind {
    Deployment,
    Job,
    /// It makes the RayCluster, and a Job that submits to it.
    RayJob,
    StatefulSet,
    /// It makes a JobSet.
    TrainJob,
}

/// The owner that a pod or another object names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) kind: OwnerKind,
    pub(crate) name: String,
    /// `None`: the pod does not say. It names the ReplicaSet of a Deployment, whose name tells that of the Deployment.
    pub(crate) uid: Option<String>,
}

/// What is known of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerFacts {
    pub(crate) uid: String,
    /// `None`: it says nothing of its pods.
    pub(crate) words: Option<Box<OwnerWords>>,
    /// What has made it. Its words count where it says nothing itself.
    pub(crate) above: Option<Owner>,
}

/// What labels and annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerWords {
    pub(crate) queue: Option<String>,
    pub(crate) preemptibility: Option<Preemptibility>,
    pub(crate) kai: KaiWords,
}

impl OwnerKind {
    pub(crate) const ALL: [OwnerKind; 5] =
        [OwnerKind::Deployment, OwnerKind::Job, OwnerKind::RayJob, OwnerKind::StatefulSet, OwnerKind::TrainJob];

    pub(crate) fn api(self) -> Address {
        let of_apps = |kind, plural| Address { group: "apps", versions: &["v1"], kind, plural };
        match self {
            OwnerKind::Deployment => of_apps("Deployment", "deployments"),
            OwnerKind::StatefulSet => of_apps("StatefulSet", "statefulsets"),
            OwnerKind::Job => WorkloadKind::Job.api(),
            OwnerKind::RayJob => WorkloadKind::RayJob.api(),
            OwnerKind::TrainJob => WorkloadKind::TrainJob.api(),
        }
    }

    /// Whether it makes what makes pods.
    pub(crate) fn is_above_others(self) -> bool {
        matches!(self, OwnerKind::RayJob | OwnerKind::TrainJob)
    }

    /// The name of an object as `kubectl get` takes it.
    pub(crate) fn full_name(self, name: &str) -> String {
        let Address { group, plural, .. } = self.api();
        format!("{plural}.{group}/{name}")
    }
}

impl Owner {
    /// The owner of a pod with these references and labels.
    pub(crate) fn of_pod(owners: &[OwnerReference], labels: &BTreeMap<String, String>) -> Option<Owner> {
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        if owner.kind == "ReplicaSet" && owner.api_version.starts_with("apps/") {
            let name = owner.name.strip_suffix(labels.get(POD_TEMPLATE)?)?.strip_suffix('-')?;
            return Some(Owner { kind: OwnerKind::Deployment, name: name.to_owned(), uid: None });
        }
        Owner::of_object(owners)
    }

    /// The owner of an object with these references.
    pub(crate) fn of_object(owners: &[OwnerReference]) -> Option<Owner> {
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        let (group, _) = owner.api_version.split_once('/')?;
        let is_it = |kind: &OwnerKind| (kind.api().group, kind.api().kind) == (group, owner.kind.as_str());
        let kind = OwnerKind::ALL.into_iter().find(is_it)?;
        Some(Owner { kind, name: owner.name.clone(), uid: Some(owner.uid.clone()) })
    }
}

impl OwnerFacts {
    pub(crate) fn of(metadata: &ObjectMeta) -> OwnerFacts {
        let nothing = BTreeMap::new();
        let labels = metadata.labels.as_ref().unwrap_or(&nothing);
        let annotations = metadata.annotations.as_ref().unwrap_or(&nothing);
        let words = OwnerWords {
            queue: queue_of(labels, annotations).filter(|queue| !queue.is_empty()).cloned(),
            preemptibility: Preemptibility::of(labels, annotations),
            kai: KaiWords::of(labels, annotations),
        };
        let words = (words != OwnerWords::NONE).then(|| Box::new(words));
        let above = Owner::of_object(metadata.owner_references.as_deref().unwrap_or_default());
        OwnerFacts { uid: metadata.uid.clone().unwrap_or_default(), words, above }
    }
}

impl OwnerWords {
    const NONE: OwnerWords = OwnerWords { queue: None, preemptibility: None, kai: KaiWords::NONE };
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn owner(api_version: &str, kind: &str, name: &str) -> Option<(OwnerKind, String, bool)> {
        let owners = json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"},
            {"apiVersion": api_version, "kind": kind, "name": name, "uid": "u", "controller": true},
        ]);
        let owners: Vec<OwnerReference> = serde_json::from_value(owners).unwrap();
        let labels = BTreeMap::from([(POD_TEMPLATE.to_owned(), "6d4cf56db6".to_owned())]);
        Owner::of_pod(&owners, &labels).map(|of| (of.kind, of.name, of.uid.is_some()))
    }

    #[test]
    fn a_pod_is_owned_by_what_its_user_wrote() {
        let of = |kind, name: &str, has_uid| Some((kind, name.to_owned(), has_uid));
        assert_eq!(owner("batch/v1", "Job", "j"), of(OwnerKind::Job, "j", true));
        assert_eq!(owner("apps/v1", "StatefulSet", "s"), of(OwnerKind::StatefulSet, "s", true));
        assert_eq!(owner("apps/v1", "ReplicaSet", "web-6d4cf56db6"), of(OwnerKind::Deployment, "web", false));
        assert_eq!(owner("apps/v1", "ReplicaSet", "web"), None, "no Deployment has made it");
        assert_eq!(owner("apps.kruise.io/v1beta1", "StatefulSet", "s"), None);
        assert_eq!(owner("v1", "ReplicationController", "r"), None);
    }

    #[test]
    fn an_owner_without_words_takes_no_room() {
        let words = |metadata: Value| OwnerFacts::of(&serde_json::from_value(metadata).unwrap()).words;
        assert_eq!(words(json!({"labels": {"app": "web", "kai.scheduler/queue": ""}})), None);
        let found = words(json!({"labels": {"kai.scheduler/queue": "q"}})).unwrap();
        assert_eq!(found.queue.as_deref(), Some("q"));
        let annotations = json!({"kai.scheduler/preemption-delay": "5s"});
        assert_eq!(words(json!({"annotations": annotations})).unwrap().kai.preemption_delay_ms, Some(5_000));
    }
}
