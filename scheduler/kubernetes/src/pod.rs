//! A pod, as far as the scheduler needs to know it.

mod seen;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_api_server::queue_of;
use aliquot_dialects::{Container, DECISION, Decision, GENERATION, LABELS, Pod as Words};
use aliquot_scheduler_engine::Generation;
use k8s_openapi::api::core::v1::{
    Affinity, Container as CoreContainer, EphemeralVolumeSource, NodeAffinity, Pod, PodSpec, PodStatus, Volume,
};

use crate::budget::Standing;
use crate::dra::User;
use crate::gang::{self, Gang};
use crate::kai_words::{KaiWords, Preemptibility};
use crate::one_per_node;
use crate::owner::{Owner, OwnerWords};
use crate::peers::PeerRules;
use crate::placement;
use crate::resources;
use crate::workload::Workload;

pub(crate) use seen::{SeenPod, WORKLOAD_REF};

/// What the claim for a pod's extended resources is called. No claim in a pod's specification can have this name.
pub(crate) const EXTENDED_RESOURCES: &str = "extended resources";

/// What scheduling needs to know of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodFacts {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    /// When kubelet began to start it.
    pub(crate) started_ms: Option<u64>,
    /// The name of the scheduler that it waits for.
    pub(crate) scheduler: String,
    /// The node that it is bound to.
    pub(crate) node: Option<String>,
    /// The node that a scheduler has decided on for it, before it is bound.
    pub(crate) nominated: Option<String>,
    /// Which of our commands has bound it.
    pub(crate) generation: Option<Generation>,
    pub(crate) standing: Standing,
    /// None of its containers runs or will run.
    pub(crate) has_ended: bool,
    /// When it has ended with success. 2^64 − 1: kubelet has not said when.
    pub(crate) succeeded_ms: Option<u64>,
    /// The UID of the object that made it and makes another one in its place.
    pub(crate) controller: Option<String>,
    /// The owner whose words count for it. Those of other schedulers' pods are not read.
    pub(crate) owner: Option<Owner>,
    /// The highest workload that it names and that can be suspended.
    pub(crate) workload: Option<Workload>,
    /// It is being deleted.
    pub(crate) is_leaving: bool,
    /// It must not be scheduled yet.
    pub(crate) is_gated: bool,
    /// What it says of devices.
    pub(crate) words: Words,
    /// What it may use of devices, if a scheduler has decided. `Err`: the annotation cannot be read.
    pub(crate) decision: Option<Result<Decision, String>>,
    pub(crate) claims: Vec<PodClaim>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Its rules about other pods. `Err`: what they say is not supported.
    pub(crate) peer_rules: Result<PeerRules, String>,
    /// The gang that it is in. Other schedulers' pods are in none. `Err`: what it says of one is not definite.
    pub(crate) gang: Option<Result<Gang, String>>,
    /// The gang of its workload, if it does not start with that one.
    pub(crate) apart_from: Option<Gang>,
    pub(crate) queue: Option<String>,
    pub(crate) priority: i32,
    /// Which pods of its group may be evicted for others, as its labels say.
    pub(crate) preemptibility: Option<Preemptibility>,
    /// See [`PodFacts::kai_words`]. Most pods say nothing in these words.
    pub(crate) kai_words: Option<Box<KaiWords>>,
    /// No pod is to be evicted for it. For their own pods, other schedulers decide that.
    pub(crate) never_preempts: bool,
    /// The features that its node must declare.
    pub(crate) needed_features: BTreeSet<&'static str>,
    /// What kubelet counts, and where it may run.
    pub(crate) spec: Box<PodSpec>,
    /// Why it waits, as its condition says already: the reason and the message.
    pub(crate) said: Option<(String, String)>,
}

/// A resource claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodClaim {
    /// What the pod calls it.
    pub(crate) name: String,
    /// The object; `None`: it has not been made yet.
    pub(crate) claim: Option<String>,
    /// It is made for this pod or its PodGroup, from a template.
    pub(crate) is_made_for_it: bool,
}

impl PodFacts {
    /// What is known of a pod; `None` if it has no UID or no name. `own_name` is the name of this scheduler.
    pub(crate) fn of(seen: SeenPod, own_name: &str) -> Option<PodFacts> {
        let SeenPod { pod: Pod { metadata, spec, status }, workload } = seen;
        let (mut spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let labels = metadata.labels.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let owners = metadata.owner_references.unwrap_or_default();
        let scheduler = spec.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".to_owned());
        let priority = spec.priority.unwrap_or(0);
        let decision =
            annotations.get(DECISION).map(|text| text.parse::<Decision>().map_err(|error| error.to_string()));
        let is_own = scheduler == own_name;
        let created = metadata.creation_timestamp.map(|time| time.0.as_millisecond());
        let namespace = metadata.namespace.unwrap_or_default();
        let is_bound = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
        let peer_rules = match PeerRules::of(&spec, &namespace, &labels) {
            // What decides about its own place only does not matter here.
            Err(_) if is_bound || !is_own => Ok(PeerRules::lasting(&spec, &namespace)),
            rules => rules,
        };
        resources::count_what_is_held(&mut spec, &status);
        let gang = is_own.then(|| gang::of_pod(&spec, workload.as_deref(), &labels, &annotations, &owners)).flatten();
        let apart_from = gang::apart_from(gang.as_ref(), &labels, &annotations, &owners);
        let of_workload = gang::of_workload(&labels, &annotations, &owners);
        let kai_words = is_own.then(|| KaiWords::of(&labels, &annotations)).filter(|words| *words != KaiWords::NONE);
        let controller = owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone());
        Some(PodFacts {
            uid: metadata.uid?,
            resource_version: metadata.resource_version.unwrap_or_default(),
            namespace,
            peer_rules,
            name: metadata.name?,
            created_ms: created.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0),
            started_ms: status.start_time.as_ref().and_then(|time| u64::try_from(time.0.as_millisecond()).ok()),
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            standing: Standing::of(&status),
            generation: annotations.get(GENERATION).and_then(|text| generation(text)),
            has_ended: status.phase.as_deref().is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase)),
            succeeded_ms: (status.phase.as_deref() == Some("Succeeded")).then(|| ended_ms(&status)),
            controller,
            owner: is_own.then(|| Owner::of_pod(&owners, &labels)).flatten(),
            workload: Workload::of_pod(of_workload.as_ref(), &owners),
            is_leaving: metadata.deletion_timestamp.is_some(),
            is_gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
            gang,
            apart_from,
            queue: queue_of(&labels, &annotations).cloned(),
            priority,
            preemptibility: Preemptibility::of(&labels, &annotations),
            kai_words: kai_words.map(Box::new),
            never_preempts: !is_own || spec.preemption_policy.as_deref() == Some("Never"),
            nominated: status.nominated_node_name.clone().filter(|node| !node.is_empty()),
            said: said(&status),
            claims: claims(&spec, &status),
            words: words(&spec, &labels, annotations),
            needed_features: placement::needed_features(&spec),
            labels,
            spec: Box::new(without_what_is_long(spec)),
            scheduler,
            decision,
        })
    }

    /// The same with what the words of its owner mean for it, if the owner is only imagined.
    pub(crate) fn with_words_of(self, owner: Option<&OwnerWords>) -> PodFacts {
        let Some(words) = owner else { return self };
        let own_queue = self.queue.clone().filter(|queue| !queue.is_empty());
        PodFacts {
            queue: own_queue.or_else(|| words.queue.clone()),
            preemptibility: words.preemptibility.or(self.preemptibility),
            kai_words: Some(Box::new(words.kai.clone().or(self.kai_words()))),
            ..self
        }
    }

    /// The pod, as `namespace/name`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Checks that a pod that is not bound has no decision: its binding would make that decision ours.
    ///
    /// # Errors
    /// There is such a decision.
    pub(crate) fn check_undecided(&self) -> Result<(), String> {
        match self.decision {
            None => Ok(()),
            Some(_) => Err(format!(
                "the pod has the annotation {DECISION}, which only the scheduler may write when it binds the pod; \
                 create the pod again without it"
            )),
        }
    }

    /// Kubernetes' own PodGroup that it is in.
    pub(crate) fn pod_group(&self) -> Option<&str> {
        self.spec.scheduling_group.as_ref()?.pod_group_name.as_deref().filter(|name| !name.is_empty())
    }

    /// What it says of its group in KAI's words. Those of other schedulers' pods are not read.
    pub(crate) fn kai_words(&self) -> &KaiWords {
        self.kai_words.as_deref().unwrap_or(&KaiWords::NONE)
    }

    /// Whether it has ended without success.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_ended && self.succeeded_ms.is_none()
    }

    /// The pod as a user of claims.
    pub(crate) fn as_user(&self) -> User<'_> {
        User { uid: &self.uid, group: self.pod_group() }
    }

    /// The node on which it holds room.
    pub(crate) fn holds_room_on(&self) -> Option<&str> {
        self.node.as_deref().filter(|_| !self.has_ended)
    }
}

fn generation(text: &str) -> Option<Generation> {
    let (term, number) = text.split_once('.')?;
    Some(Generation { term: term.parse().ok()?, number: number.parse().ok()? })
}

/// What a pod's containers, labels and annotations ask for. Init containers stand behind the others, as on the node.
pub(crate) fn words(spec: &PodSpec, labels: &BTreeMap<String, String>, annotations: BTreeMap<String, String>) -> Words {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let container = |of: &CoreContainer| Container {
        name: of.name.clone(),
        resources: of
            .resources
            .iter()
            .flat_map(|resources| resources.limits.iter().flatten())
            .map(|(name, quantity)| (name.clone(), quantity.0.clone()))
            .collect(),
    };
    let containers = containers.map(container).collect();
    // A decision says where the pod is, not what it asks for. kubectl's annotations can be long, and do not matter.
    let is_read = |key: &String| key != DECISION && !key.starts_with("kubectl.kubernetes.io/");
    let annotations = annotations.into_iter().filter(|(key, _)| is_read(key)).collect();
    let labels = LABELS.into_iter().filter_map(|key| labels.get_key_value(key));
    Words { labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(), annotations, containers }
}

/// A specification without what can be long and does not matter here. Most pods that are known are bound: of these it
/// matters what they hold, and to which nodes they can be moved.
fn without_what_is_long(mut spec: PodSpec) -> PodSpec {
    let is_bound = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let CoreContainer { name, mut resources, restart_policy, ports, .. } = std::mem::take(container);
        if let Some(resources) = resources.as_mut().filter(|_| is_bound) {
            // A limit counts where nothing is requested.
            let requests = resources.requests.as_ref();
            let mut limits = resources.limits.take().unwrap_or_default();
            limits.retain(|name, _| requests.is_none_or(|requests| !requests.contains_key(name)));
            resources.limits = Some(limits).filter(|limits| !limits.is_empty());
        }
        let ports = ports.map(|ports| ports.into_iter().filter(|port| port.host_port.is_some()).collect::<Vec<_>>());
        let ports = ports.filter(|ports| !ports.is_empty());
        *container = CoreContainer { name, resources, restart_policy, ports, ..CoreContainer::default() };
    }
    // Every pod has a volume with its token.
    let volumes = spec.volumes.take().into_iter().flatten();
    let mut volumes: Vec<Volume> = volumes.filter_map(only_what_counts).collect();
    volumes.shrink_to_fit();
    spec.containers.shrink_to_fit();
    spec.volumes = Some(volumes).filter(|volumes| !volumes.is_empty());
    if !is_bound {
        return spec;
    }
    let of_nodes = spec.affinity.and_then(|affinity| affinity.node_affinity);
    let required = of_nodes.and_then(|of| of.required_during_scheduling_ignored_during_execution);
    let node_affinity = required.map(|required| NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(required),
        ..NodeAffinity::default()
    });
    PodSpec {
        affinity: node_affinity.map(|of| Affinity { node_affinity: Some(of), ..Affinity::default() }),
        node_selector: spec.node_selector,
        tolerations: spec.tolerations,
        containers: spec.containers,
        init_containers: spec.init_containers,
        volumes: spec.volumes,
        resources: spec.resources,
        overhead: spec.overhead,
        resource_claims: spec.resource_claims,
        scheduling_group: spec.scheduling_group,
        ..PodSpec::default()
    }
}

/// What a volume says of its claim, or what one pod of a node can have of it.
fn only_what_counts(volume: Volume) -> Option<Volume> {
    if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() {
        return one_per_node::only_what_counts(&volume);
    }
    let ephemeral = volume.ephemeral.map(|_| EphemeralVolumeSource::default());
    let persistent_volume_claim = volume.persistent_volume_claim;
    Some(Volume { name: volume.name, persistent_volume_claim, ephemeral, ..Volume::default() })
}

/// When the last of a pod's containers has ended.
fn ended_ms(status: &PodStatus) -> u64 {
    let containers = status.container_statuses.iter().flatten();
    let ends = containers.filter_map(|of| of.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    ends.filter_map(|time| u64::try_from(time.0.as_millisecond()).ok()).max().unwrap_or(u64::MAX)
}

/// The claims of a pod. A template for which no claim is needed makes none.
///
/// A bound pod also has the claim that was made for its extended resources. Until the pod is bound, that claim is made
/// anew with each try.
fn claims(spec: &PodSpec, status: &PodStatus) -> Vec<PodClaim> {
    let made = |name: &String| {
        let statuses = status.resource_claim_statuses.iter().flatten();
        statuses.clone().find(|of| of.name == *name).map(|of| of.resource_claim_name.clone())
    };
    let claims = spec.resource_claims.iter().flatten().filter_map(|of| {
        let is_made_for_it = of.resource_claim_name.is_none();
        let claim = match (&of.resource_claim_name, made(&of.name)) {
            (Some(name), _) => Some(name.clone()),
            (None, Some(None)) => return None,
            (None, made) => made.flatten(),
        };
        Some(PodClaim { name: of.name.clone(), claim, is_made_for_it })
    });
    let is_bound = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    let extended = status.extended_resource_claim_status.as_ref().filter(|_| is_bound);
    let extended = extended.map(|of| PodClaim {
        name: EXTENDED_RESOURCES.to_owned(),
        claim: Some(of.resource_claim_name.clone()),
        is_made_for_it: true,
    });
    claims.chain(extended).collect()
}

/// The reason and the message of its condition `PodScheduled`, if the condition is false.
fn said(status: &PodStatus) -> Option<(String, String)> {
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")?;
    let is_false = condition.status == "False";
    is_false.then(|| (condition.reason.clone().unwrap_or_default(), condition.message.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(pod: Value) -> PodFacts {
        let mut pod = pod;
        pod["metadata"]["uid"] = "u".into();
        pod["metadata"]["name"] = "p".into();
        PodFacts::of(serde_json::from_value(pod).unwrap(), "aliquot").unwrap()
    }

    #[test]
    fn labels_go_before_the_priority_in_what_may_be_evicted() {
        let of = |labels: Value, priority: i32| {
            let spec = json!({"containers": [], "priority": priority});
            let said = facts(json!({"metadata": {"labels": labels}, "spec": spec})).preemptibility;
            Preemptibility::lets_one_go(said, priority)
        };
        assert!(of(json!({}), 0) && of(json!({}), 99) && !of(json!({}), 100));
        assert!(!of(json!({"aliquot.dev/preemptible": "false"}), 0));
        let kai = |word: &str| json!({"kai.scheduler/preemptibility": word});
        assert!(of(kai("preemptible"), 200) && !of(kai("non-preemptible"), 0));
        assert!(!of(kai("semi-preemptible"), 0), "it is all of the minimum that it needs");
        assert!(of(kai("sometimes"), 0) && !of(kai("sometimes"), 200), "KAI knows no such word");
        let both = json!({"aliquot.dev/preemptible": "true", "kai.scheduler/preemptibility": "non-preemptible"});
        assert!(of(both, 200));
        assert!(!of(json!({"aliquot.dev/preemptible": "true"}), 1_000_000), "a pod of ml-critical");
    }

    /// A pod as the API server makes it of a short manifest.
    fn usual(node: Option<&str>) -> Value {
        let resources = json!({
            "limits": {"aliquot.dev/gpu-core": "50", "cpu": "1", "memory": "1Gi"},
            "requests": {"aliquot.dev/gpu-core": "50", "cpu": "1", "memory": "1Gi"},
        });
        let token = json!({"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]}});
        let tolerations = ["not-ready", "unreachable"].map(|what| {
            let key = format!("node.kubernetes.io/{what}");
            json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
        });
        json!({
            "metadata": {"namespace": "default", "labels": {"app": "train"}},
            "spec": {
                "containers": [{
                    "name": "main", "image": "registry.example.com/train:1", "resources": resources,
                    "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}],
                }],
                "volumes": [token, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "tolerations": tolerations, "nodeSelector": {"gpu": "h100"}, "schedulerName": "aliquot",
                "serviceAccountName": "default", "nodeName": node,
            },
        })
    }

    #[test]
    fn of_a_bound_pod_only_what_matters_is_kept() {
        let waits = facts(usual(None));
        assert!(waits.spec.service_account_name.is_some());
        for found in [&waits, &facts(usual(Some("n")))] {
            let volumes = found.spec.volumes.as_ref().unwrap();
            assert_eq!(volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["data"]);
            assert_eq!(found.spec.containers[0].ports.as_ref().unwrap().len(), 1);
        }
        let bound = facts(usual(Some("n")));
        // It can be moved only where it could have started.
        assert!(bound.spec.tolerations.is_some() && bound.spec.node_selector.is_some());
        assert!(bound.spec.service_account_name.is_none());
        assert!(bound.spec.containers[0].resources.as_ref().unwrap().limits.is_none());
        let held = |facts: &PodFacts| resources::Amounts::of_pod(&facts.spec, |_| true).unwrap();
        assert_eq!(held(&bound), held(&waits));
    }

    /// `cargo test -p aliquot-kubernetes-scheduler --lib what_a_bound_pod_takes -- --ignored --nocapture`
    #[test]
    #[ignore = "a figure"]
    fn what_a_bound_pod_takes() {
        const PODS: u32 = 20_000;
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<u32>().unwrap() * 4096
        };
        let bound = serde_json::to_string(&usual(Some("n"))).unwrap();
        let seen = || SeenPod::from(serde_json::from_str::<Pod>(&bound).unwrap());
        let named = |number: u32| {
            let mut pod = seen();
            pod.pod.metadata.name = Some(format!("p{number}"));
            pod.pod.metadata.uid = Some(format!("uid-{number}"));
            pod
        };
        let before = resident();
        let kept: Vec<PodFacts> = (0..PODS).filter_map(|number| PodFacts::of(named(number), "aliquot")).collect();
        let between = resident();
        // As it was when only the containers were shortened.
        let whole = |number: u32| {
            let mut spec = named(number).pod.spec.unwrap();
            for container in &mut spec.containers {
                let CoreContainer { name, resources, ports, .. } = std::mem::take(container);
                *container = CoreContainer { name, resources, ports, ..CoreContainer::default() };
            }
            PodFacts { spec: Box::new(spec), ..PodFacts::of(named(number), "aliquot").unwrap() }
        };
        let with_whole: Vec<PodFacts> = (0..PODS).map(whole).collect();
        let after = resident();
        let each = |bytes: u32| bytes / u32::try_from(kept.len().min(with_whole.len())).unwrap();
        println!(
            "a bound pod: {} bytes, and with its whole specification {}",
            each(between - before),
            each(after - between)
        );
    }

    #[test]
    fn labels_that_requests_depend_on_are_among_the_words() {
        let metadata = json!({"labels": {"app": "x", "aliyun.com/gpu-count": "2"}});
        let found = facts(json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}));
        let expected = BTreeMap::from([("aliyun.com/gpu-count".to_owned(), "2".to_owned())]);
        assert_eq!((found.words.labels, found.labels.len()), (expected, 2));
    }

    #[test]
    fn what_ours_have_decided_is_read_and_kept_out_of_the_request() {
        let annotations = json!({"aliquot.dev/devices": "main=GPU-1/300/1", "aliquot.dev/generation": "3.17"});
        let spec = json!({"containers": [{"name": "main"}], "nodeName": "n", "schedulerName": "aliquot"});
        let found = facts(json!({"metadata": {"annotations": annotations}, "spec": spec}));
        assert_eq!(found.generation, Some(Generation { term: 3, number: 17 }));
        assert_eq!(found.decision.unwrap().unwrap().to_string(), "main=GPU-1/300/1");
        assert!(!found.words.annotations.contains_key("aliquot.dev/devices"));
        let wrong = json!({"metadata": {"annotations": {"aliquot.dev/devices": "x", "aliquot.dev/generation": "3"}}});
        let found = facts(wrong);
        assert!(found.generation.is_none() && found.decision.unwrap().is_err());
    }
}
