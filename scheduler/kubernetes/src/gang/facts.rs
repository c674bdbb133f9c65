//! What an object says of the pods that start together.

use std::collections::BTreeMap;

use aliquot_api_server::queue_of;
use aliquot_scheduler_core::{GroupPlacement, SubGroup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{Gang, GangKind, Network};
use crate::kai_words::{KaiWords, Preemptibility};
use crate::owner::Owner;
use crate::queue::milliseconds;

/// The parts of a group of a LeaderWorkerSet.
pub(super) const LEADER: &str = "leader";
pub(super) const WORKERS: &str = "workers";
/// What Ray's pods call the group of the head.
const RAY_HEAD: &str = "headgroup";
/// The label of a Ray cluster that names its priority class.
const RAY_CLASS: &str = "ray.io/priority-class-name";

/// How many pods start together, and how they are treated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GangFacts {
    /// The UID of the object that says it; empty: the pods say it.
    pub(crate) uid: String,
    /// What has made the object.
    pub(crate) above: Option<Owner>,
    /// The claims that its pods share.
    pub(crate) claims: Vec<SharedClaim>,
    /// At least so many pods start together; the others follow one by one.
    pub(crate) min_members: u32,
    pub(crate) sub_groups: Vec<SubGroup>,
    /// The number of pods of each part of the object, if its parts are made one after the other. Then each part is a
    /// gang of its own.
    pub(crate) parts: BTreeMap<String, u32>,
    pub(crate) spread: GroupPlacement,
    /// Where its pods may be, in Volcano's words.
    pub(crate) network: Option<Network>,
    pub(crate) queue: Option<String>,
    /// Its priority counts for its pods, instead of theirs; `None`: it says none.
    pub(crate) priority: Option<GroupPriority>,
    /// The priority class that a label of the object names. It counts if `priority` is `None` and if there is such a
    /// class.
    pub(crate) labelled_class: Option<String>,
    /// Whether no pod is evicted for it; `None`: it does not say.
    pub(crate) never_preempts: Option<bool>,
    /// Its pods may be evicted only all together.
    pub(crate) is_evicted_whole: bool,
    /// Which of its pods may be evicted for others; `None`: it does not say.
    pub(crate) preemptibility: Option<Preemptibility>,
    pub(crate) preemption_delay_ms: Option<u64>,
    /// How long fewer pods than needed may run on; `None`: it does not say. `Some(None)`: for ever.
    pub(crate) staleness_grace_ms: Option<Option<u64>>,
}

/// A priority that an object gives to its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupPriority {
    Value(i32),
    /// That of the PriorityClass of this name.
    Class(String),
}

/// A claim that the pods of a PodGroup share, as the group names it. The pods name it in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedClaim {
    pub(crate) name: String,
    pub(crate) claim: Option<String>,
    pub(crate) template: Option<String>,
}

impl GangFacts {
    pub(crate) fn new(min_members: u32) -> GangFacts {
        GangFacts {
            uid: String::new(),
            above: None,
            claims: Vec::new(),
            min_members,
            sub_groups: Vec::new(),
            parts: BTreeMap::new(),
            spread: GroupPlacement::default(),
            network: None,
            queue: None,
            priority: None,
            labelled_class: None,
            never_preempts: None,
            is_evicted_whole: false,
            preemptibility: None,
            preemption_delay_ms: None,
            staleness_grace_ms: None,
        }
    }

    /// What an object of this kind says. Labels and annotations count where its specification says nothing.
    ///
    /// # Errors
    /// What it asks for that is not supported.
    pub(crate) fn of(kind: GangKind, metadata: &ObjectMeta, spec: &Value) -> Result<GangFacts, String> {
        let said = GangFacts::said(kind, spec)?;
        let nothing = BTreeMap::new();
        let labels = metadata.labels.as_ref().unwrap_or(&nothing);
        let annotations = metadata.annotations.as_ref().unwrap_or(&nothing);
        let queue = || queue_of(labels, annotations).filter(|queue| !queue.is_empty()).cloned();
        let mut words = KaiWords::of(labels, annotations);
        if let (GangKind::RayCluster, Some(class)) = (kind, labels.get(RAY_CLASS)) {
            words.class = Some(class.clone());
        }
        Ok(GangFacts {
            uid: metadata.uid.clone().unwrap_or_default(),
            above: Owner::of_object(metadata.owner_references.as_deref().unwrap_or_default()),
            queue: said.queue.clone().or_else(queue),
            preemptibility: said.preemptibility.or_else(|| Preemptibility::of(labels, annotations)),
            ..said.or_in_words(&words)
        })
    }

    /// The same, and what these words say where it says nothing.
    pub(crate) fn or_in_words(self, words: &KaiWords) -> GangFacts {
        let KaiWords { class, required_level, preferred_level, preemption_delay_ms, staleness_grace_ms } =
            words.clone();
        GangFacts {
            labelled_class: self.labelled_class.or(class),
            spread: GroupPlacement {
                required_level: self.spread.required_level.or(required_level),
                preferred_level: self.spread.preferred_level.or(preferred_level),
                ..self.spread
            },
            preemption_delay_ms: self.preemption_delay_ms.or(preemption_delay_ms),
            staleness_grace_ms: self.staleness_grace_ms.or(staleness_grace_ms),
            ..self
        }
    }

    /// The number of pods that must start together.
    pub(crate) fn minimum(&self) -> u32 {
        self.sub_groups.iter().map(|of| of.min_members).fold(0, u32::saturating_add).max(self.min_members)
    }

    /// The same for a gang with pods that say themselves how many they are. A group of a LeaderWorkerSet keeps its size
    /// until it is made anew.
    pub(crate) fn of_size(mut self, size: Option<u32>) -> GangFacts {
        match (size, self.parts.get_mut(WORKERS)) {
            (Some(size), Some(workers)) => *workers = size.saturating_sub(1),
            (Some(size), None) => self.min_members = size,
            (None, _) => {}
        }
        self
    }

    /// The part of the object that a pod of its gang is in, and the number of the part's pods.
    pub(crate) fn part_of<'a>(&self, gang: &'a Gang) -> Option<(&'a str, u32)> {
        let part = gang.sub_group.as_deref()?;
        Some((part, *self.parts.get(part)?))
    }

    /// The name of the group of pods that a pod of this gang starts with.
    pub(crate) fn name_of_group(&self, gang: &Gang) -> String {
        match self.part_of(gang) {
            Some((part, _)) => format!("{}/{part}", gang.name),
            None => gang.name.clone(),
        }
    }

    fn said(kind: GangKind, spec: &Value) -> Result<GangFacts, String> {
        match kind {
            GangKind::Native => native(spec),
            GangKind::Kai => kai(spec),
            GangKind::Volcano => volcano(spec),
            GangKind::Coscheduling => Ok(GangFacts::new(count(&spec["minMember"], 1))),
            GangKind::JobSet => Ok(job_set(spec)),
            GangKind::LeaderWorkerSet => Ok(leader_worker_set(spec)),
            GangKind::RayCluster => Ok(ray_cluster(spec)),
            GangKind::PyTorchJob
            | GangKind::TfJob
            | GangKind::MpiJob
            | GangKind::XgBoostJob
            | GangKind::PaddleJob
            | GangKind::JaxJob => Ok(training_job(spec)),
        }
    }
}

fn native(spec: &Value) -> Result<GangFacts, String> {
    if spec["parentCompositePodGroupName"].is_string() {
        return Err("groups of PodGroups (parentCompositePodGroupName) are not supported".into());
    }
    // The `basic` policy: pods start one by one.
    let mut facts = GangFacts::new(count(&spec["schedulingPolicy"]["gang"]["minCount"], 1));
    let claim = |of: &Value| SharedClaim {
        name: text(&of["name"]).unwrap_or_default(),
        claim: text(&of["resourceClaimName"]),
        template: text(&of["resourceClaimTemplateName"]),
    };
    facts.claims = items(&spec["resourceClaims"]).iter().map(claim).collect();
    let value = spec["priority"].as_i64().and_then(|value| i32::try_from(value).ok());
    facts.priority = value.map(GroupPriority::Value).or_else(|| class_of(spec));
    facts.never_preempts = match text(&spec["preemptionPolicy"]).as_deref() {
        None => None,
        Some("Never") => Some(true),
        Some("PreemptLowerPriority") => Some(false),
        Some(other) => return Err(format!("preemptionPolicy {other:?} is not supported")),
    };
    facts.is_evicted_whole = is_evicted_whole(&spec["disruptionMode"])?;
    if facts.is_evicted_whole && !spec["schedulingPolicy"]["gang"].is_object() {
        let mode = &spec["disruptionMode"];
        return Err(format!("disruptionMode {mode} is supported only together with schedulingPolicy gang"));
    }
    let constraints = &spec["schedulingConstraints"]["topology"];
    facts.spread.required_level = match items(constraints) {
        [] => None,
        [one] => text(&one["key"]),
        _ => return Err("more than one of schedulingConstraints.topology is not supported".into()),
    };
    Ok(facts)
}

/// Whether pods are evicted only all together. The mode is a word in the first version that has it, and an object later.
///
/// # Errors
/// The mode is not known.
fn is_evicted_whole(mode: &Value) -> Result<bool, String> {
    let is = |word: &str, member: &str| mode == word || mode[member].is_object();
    match (is("Pod", "single"), is("PodGroup", "all")) {
        (true, false) => Ok(false),
        (false, true) => Ok(true),
        _ if mode.is_null() => Ok(false),
        _ => Err(format!("disruptionMode {mode} is not supported")),
    }
}

/// The class that a group names.
fn class_of(spec: &Value) -> Option<GroupPriority> {
    text(&spec["priorityClassName"]).map(GroupPriority::Class)
}

fn kai(spec: &Value) -> Result<GangFacts, String> {
    let mut facts = GangFacts::new(count(&spec["minMember"], 1));
    for sub_group in items(&spec["subGroups"]) {
        let name = text(&sub_group["name"]).unwrap_or_default();
        if !sub_group["parent"].is_null() || !sub_group["minSubGroup"].is_null() {
            return Err(format!("sub-group {name:?} has others above or below it, which is not supported"));
        }
        let constraint = &sub_group["topologyConstraint"];
        facts.sub_groups.push(SubGroup {
            name,
            min_members: count(&sub_group["minMember"], 1),
            required_level: text(&constraint["requiredTopologyLevel"]),
            preferred_level: text(&constraint["preferredTopologyLevel"]),
        });
    }
    if !facts.sub_groups.is_empty() && spec["minMember"].is_null() {
        // The numbers that the sub-groups need are the minimum already.
        facts.min_members = 0;
    }
    facts.spread.required_level = text(&spec["topologyConstraint"]["requiredTopologyLevel"]);
    facts.spread.preferred_level = text(&spec["topologyConstraint"]["preferredTopologyLevel"]);
    facts.queue = text(&spec["queue"]);
    facts.priority = class_of(spec);
    facts.preemptibility = match text(&spec["preemptibility"]) {
        None => None,
        Some(word) => {
            let known = Preemptibility::named(&word);
            Some(known.ok_or_else(|| format!("preemptibility {word:?} is not supported"))?)
        }
    };
    facts.preemption_delay_ms = text(&spec["preemptionDelay"]).and_then(|text| milliseconds(&text));
    // A negative duration: for ever.
    facts.staleness_grace_ms = text(&spec["stalenessGracePeriod"]).map(|text| milliseconds(&text));
    Ok(facts)
}

fn volcano(spec: &Value) -> Result<GangFacts, String> {
    let mut facts = GangFacts::new(count(&spec["minMember"], 1));
    facts.network = Network::of(spec)?;
    for (name, least) in spec["minTaskMember"].as_object().into_iter().flatten() {
        let (name, min_members) = (name.clone(), count(least, 0));
        facts.sub_groups.push(SubGroup { name, min_members, ..SubGroup::default() });
    }
    if facts.minimum() > facts.min_members {
        // Volcano's Jobs have a number for each task, all its pods if nothing is said. If the number for all tasks
        // together is less, any pods will do.
        facts.sub_groups.iter_mut().for_each(|task| task.min_members = 0);
    }
    // Volcano writes `default` if no queue was chosen.
    facts.queue = text(&spec["queue"]).filter(|queue| queue != "default");
    facts.priority = class_of(spec);
    Ok(facts)
}

/// All pods. If some jobs are made only when others are ready or done, each replicated job is a gang.
///
/// Each replicated job with a topology of its own, by annotations of its Jobs or of its pods, is a sub-group.
fn job_set(spec: &Value) -> GangFacts {
    let jobs = items(&spec["replicatedJobs"]);
    let in_order = spec["startupPolicy"]["startupPolicyOrder"] == "InOrder";
    let pods_of = |job: &Value| {
        let of_each = &job["template"]["spec"];
        let parallelism = count(&of_each["parallelism"], 1);
        count(&job["replicas"], 1).saturating_mul(parallelism.min(count(&of_each["completions"], parallelism)))
    };
    let sub_group = |job: &Value| {
        let templates = [&job["template"], &job["template"]["spec"]["template"]];
        sub_group_with_level(text(&job["name"])?, pods_of(job), &templates)
    };
    let sub_groups = jobs.iter().filter_map(sub_group).collect();
    if in_order || jobs.iter().any(|job| !items(&job["dependsOn"]).is_empty()) {
        let parts = jobs.iter().filter_map(|job| Some((text(&job["name"])?, pods_of(job)))).collect();
        return GangFacts { parts, sub_groups, ..GangFacts::new(1) };
    }
    GangFacts { sub_groups, ..GangFacts::new(jobs.iter().map(pods_of).fold(0, u32::saturating_add)) }
}

/// A leader and its workers. If the workers are made only when the leader is ready, they are a gang without it.
fn leader_worker_set(spec: &Value) -> GangFacts {
    let size = count(&spec["leaderWorkerTemplate"]["size"], 1);
    if spec["startupPolicy"] == "LeaderReady" {
        let parts = [(LEADER.to_owned(), 1), (WORKERS.to_owned(), size.saturating_sub(1))].into();
        return GangFacts { parts, ..GangFacts::new(1) };
    }
    GangFacts::new(size)
}

/// The head and the least of each kind of workers. More may follow. As many workers are made as `replicas` says, within
/// the bounds of `minReplicas` and `maxReplicas`. An autoscaler changes `replicas` at any time.
///
/// Each group with a topology of its own, by annotations of its pods, is a sub-group.
fn ray_cluster(spec: &Value) -> GangFacts {
    let is_scaled = spec["enableInTreeAutoscaling"] == true;
    let workers_of = |group: &Value| {
        if group["suspend"] == true {
            return 0;
        }
        let replicas = match count(&group["minReplicas"], 0) {
            0 if is_scaled => 0,
            0 => count(&group["replicas"], 0).min(count(&group["maxReplicas"], u32::MAX)),
            least => least,
        };
        replicas.saturating_mul(count(&group["numOfHosts"], 1).max(1))
    };
    let workers = items(&spec["workerGroupSpecs"]);
    let head = sub_group_with_level(RAY_HEAD.to_owned(), 1, &[&spec["headGroupSpec"]["template"]]);
    let of_workers = |of_group: &Value| {
        sub_group_with_level(text(&of_group["groupName"])?, workers_of(of_group), &[&of_group["template"]])
    };
    GangFacts {
        sub_groups: head.into_iter().chain(workers.iter().filter_map(of_workers)).collect(),
        ..GangFacts::new(workers.iter().map(workers_of).fold(1, u32::saturating_add))
    }
}

/// A sub-group of pods of these templates, if annotations of one of these name a level. The first one that does counts.
fn sub_group_with_level(name: String, min_members: u32, templates: &[&Value]) -> Option<SubGroup> {
    let words = |template: &&Value| {
        let annotations = template["metadata"]["annotations"].clone();
        let annotations: BTreeMap<String, String> = serde_json::from_value(annotations).unwrap_or_default();
        KaiWords::of(&BTreeMap::new(), &annotations)
    };
    let mut levels = templates.iter().map(words).map(|words| (words.required_level, words.preferred_level));
    let (required_level, preferred_level) =
        levels.find(|(required, preferred)| required.is_some() || preferred.is_some())?;
    Some(SubGroup { name, min_members, required_level, preferred_level })
}

/// A job of Kubeflow. Where gangs are left to the operator, it makes a PodGroup with the same words.
fn training_job(spec: &Value) -> GangFacts {
    let policy = &spec["runPolicy"]["schedulingPolicy"];
    GangFacts {
        queue: text(&policy["queue"]),
        priority: text(&policy["priorityClass"]).map(GroupPriority::Class),
        ..GangFacts::new(training_pods(spec))
    }
}

/// All replicas of a job of Kubeflow, or as many as it says.
fn training_pods(spec: &Value) -> u32 {
    if let Some(least) = spec["runPolicy"]["schedulingPolicy"]["minAvailable"].as_u64() {
        return u32::try_from(least).unwrap_or(u32::MAX);
    }
    let replicas = spec.as_object().into_iter().flatten().find(|(field, _)| field.ends_with("ReplicaSpecs"));
    let waits = spec["launcherCreationPolicy"] == "WaitForWorkersReady";
    let elastic = spec["elasticPolicy"]["minReplicas"].as_u64().map(|least| u32::try_from(least).unwrap_or(u32::MAX));
    let pods_of = |(role, of_role): (&String, &Value)| match role.as_str() {
        // The launcher is made when the workers are ready.
        "Launcher" if waits => 0,
        "Worker" => count(&of_role["replicas"], 1).min(elastic.unwrap_or(u32::MAX)),
        _ => count(&of_role["replicas"], 1),
    };
    let of_roles = replicas.and_then(|(_, roles)| roles.as_object()).into_iter().flatten();
    of_roles.map(pods_of).fold(0, u32::saturating_add)
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn count(value: &Value, otherwise: u32) -> u32 {
    match value.as_i64() {
        Some(number) => u32::try_from(number.max(0)).unwrap_or(u32::MAX),
        None => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(kind: GangKind, spec: Value) -> Result<GangFacts, String> {
        GangFacts::said(kind, &spec)
    }

    #[test]
    fn pod_groups_of_four_projects_say_how_many() {
        for (kind, spec) in [
            (GangKind::Native, json!({"schedulingPolicy": {"gang": {"minCount": 4}}})),
            (GangKind::Kai, json!({"minMember": 4})),
            (GangKind::Volcano, json!({"minMember": 4})),
            (GangKind::Coscheduling, json!({"minMember": 4})),
        ] {
            assert_eq!(facts(kind, spec), Ok(GangFacts::new(4)), "{kind:?}");
        }
        assert_eq!(facts(GangKind::Native, json!({"schedulingPolicy": {"basic": {}}})), Ok(GangFacts::new(1)));
    }

    #[test]
    fn what_else_pod_groups_say_is_heeded() {
        let native =
            facts(GangKind::Native, json!({"schedulingConstraints": {"topology": [{"key": "rack"}]}})).unwrap();
        assert_eq!(native.spread.required_level.as_deref(), Some("rack"));
        let claims = json!([{"name": "c", "resourceClaimTemplateName": "t"}, {"name": "d", "resourceClaimName": "e"}]);
        let native = facts(GangKind::Native, json!({"resourceClaims": claims})).unwrap();
        let claim = |name: &str, claim: Option<&str>, template: Option<&str>| SharedClaim {
            name: name.into(),
            claim: claim.map(Into::into),
            template: template.map(Into::into),
        };
        assert_eq!(native.claims, [claim("c", None, Some("t")), claim("d", Some("e"), None)]);
        let kai = facts(
            GangKind::Kai,
            json!({
                "queue": "q", "preemptibility": "non-preemptible", "preemptionDelay": "90s",
                "stalenessGracePeriod": "-1s",
                "topologyConstraint": {"topology": "t", "preferredTopologyLevel": "rack"},
                "subGroups": [{"name": "head", "minMember": 1}, {"name": "workers", "minMember": 3}],
            }),
        )
        .unwrap();
        assert_eq!((kai.min_members, kai.sub_groups.len(), kai.sub_groups[1].min_members), (0, 2, 3));
        assert_eq!((kai.queue.as_deref(), kai.preemptibility), (Some("q"), Some(Preemptibility::None)));
        assert_eq!((kai.preemption_delay_ms, kai.staleness_grace_ms), (Some(90_000), Some(None)));
        assert_eq!(kai.spread.preferred_level.as_deref(), Some("rack"));
        let volcano =
            facts(GangKind::Volcano, json!({"minMember": 3, "minTaskMember": {"ps": 1, "worker": 2}})).unwrap();
        assert_eq!((volcano.min_members, volcano.sub_groups[1].name.as_str()), (3, "worker"));
    }

    #[test]
    fn pod_groups_say_how_they_stand_among_others() {
        let class = |name: &str| Some(GroupPriority::Class(name.into()));
        let resolved = json!({"priority": 70, "priorityClassName": "c", "preemptionPolicy": "Never"});
        let native = facts(GangKind::Native, resolved).unwrap();
        assert_eq!((native.priority, native.never_preempts), (Some(GroupPriority::Value(70)), Some(true)));
        for kind in [GangKind::Native, GangKind::Kai, GangKind::Volcano] {
            assert_eq!(facts(kind, json!({"priorityClassName": "c"})).unwrap().priority, class("c"), "{kind:?}");
            assert_eq!(facts(kind, json!({"priorityClassName": ""})).unwrap().priority, None, "{kind:?}");
        }
        let gang = json!({"gang": {"minCount": 2}});
        for (mode, expected) in [
            (json!(null), false),
            (json!("Pod"), false),
            (json!({"single": {}}), false),
            (json!("PodGroup"), true),
            (json!({"all": {}}), true),
        ] {
            let of = facts(GangKind::Native, json!({"schedulingPolicy": gang, "disruptionMode": mode})).unwrap();
            assert_eq!(of.is_evicted_whole, expected, "{mode}");
        }
    }

    #[test]
    fn what_pod_groups_ask_for_and_cannot_have_is_said() {
        for (kind, spec, said) in [
            (GangKind::Native, json!({"parentCompositePodGroupName": "p"}), "groups of PodGroups"),
            (GangKind::Kai, json!({"subGroups": [{"name": "s", "parent": "p"}]}), "\"s\""),
            (GangKind::Kai, json!({"preemptibility": "sometimes"}), "preemptibility \"sometimes\""),
            (GangKind::Volcano, json!({"subGroupPolicy": [{"name": "p", "minSubGroups": 1}]}), "subGroupPolicy \"p\""),
            (GangKind::Native, json!({"preemptionPolicy": "Sometimes"}), "\"Sometimes\""),
            (GangKind::Native, json!({"disruptionMode": {"some": {}}}), "disruptionMode {\"some\":{}}"),
            (
                GangKind::Native,
                json!({"disruptionMode": "PodGroup", "schedulingPolicy": {"basic": {}}}),
                "\"PodGroup\"",
            ),
        ] {
            let error = facts(kind, spec).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn workloads_say_how_many_pods_they_make_at_once() {
        let job = |replicas: u32, parallelism: u32| {
            let spec = json!({"spec": {"parallelism": parallelism, "completions": parallelism}});
            json!({"name": "j", "replicas": replicas, "template": spec})
        };
        let jobs = json!([job(1, 1), job(2, 4)]);
        let ray = json!({"workerGroupSpecs": [
            {"replicas": 4, "minReplicas": 2, "numOfHosts": 2},
            {"replicas": 3, "minReplicas": 0},
            {"replicas": 1, "minReplicas": 2},
            {"replicas": 9, "minReplicas": 0, "maxReplicas": 5},
            {"replicas": 9, "suspend": true},
            {"minReplicas": 0},
        ]});
        let mut scaled_ray = ray.clone();
        scaled_ray["enableInTreeAutoscaling"] = true.into();
        let training = json!({"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}});
        let elastic = json!({
            "elasticPolicy": {"minReplicas": 2},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 8}},
        });
        let told = json!({
            "runPolicy": {"schedulingPolicy": {"minAvailable": 2}},
            "tfReplicaSpecs": {"Worker": {"replicas": 8}},
        });
        let mpi = json!({"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}});
        let mut mpi_waits = mpi.clone();
        mpi_waits["launcherCreationPolicy"] = "WaitForWorkersReady".into();
        for (kind, spec, expected) in [
            (GangKind::JobSet, json!({"replicatedJobs": jobs}), 9),
            (GangKind::LeaderWorkerSet, json!({"leaderWorkerTemplate": {"size": 4}}), 4),
            (GangKind::RayCluster, ray, 1 + 4 + 3 + 2 + 5),
            (GangKind::RayCluster, scaled_ray, 1 + 4 + 2),
            (GangKind::PyTorchJob, training, 4),
            (GangKind::PyTorchJob, elastic, 2),
            (GangKind::TfJob, told, 2),
            (GangKind::MpiJob, mpi, 3),
            (GangKind::MpiJob, mpi_waits, 2),
        ] {
            assert_eq!(facts(kind, spec.clone()), Ok(GangFacts::new(expected)), "{spec}");
        }
    }

    #[test]
    fn parts_that_are_made_one_after_the_other_are_gangs() {
        let job = |name: &str, replicas: u32| {
            let spec = json!({"parallelism": 2, "completions": 2});
            json!({"name": name, "replicas": replicas, "template": {"spec": spec}})
        };
        let mut depends = job("train", 3);
        depends["dependsOn"] = json!([{"name": "prepare", "status": "Complete"}]);
        let in_order = json!({"startupPolicyOrder": "InOrder"});
        let group = json!({"leaderWorkerTemplate": {"size": 4}, "startupPolicy": "LeaderReady"});
        for (kind, spec, parts) in [
            (GangKind::JobSet, json!({"replicatedJobs": [job("prepare", 1), depends]}), [("prepare", 2), ("train", 6)]),
            (
                GangKind::JobSet,
                json!({"replicatedJobs": [job("a", 1), job("b", 2)], "startupPolicy": in_order}),
                [("a", 2), ("b", 4)],
            ),
            (GangKind::LeaderWorkerSet, group, [("leader", 1), ("workers", 3)]),
        ] {
            let parts = parts.map(|(name, size)| (name.to_owned(), size)).into();
            assert_eq!(facts(kind, spec.clone()), Ok(GangFacts { parts, ..GangFacts::new(1) }), "{spec}");
        }
    }

    #[test]
    fn pods_can_say_how_many_they_are() {
        let set = |policy: &str| json!({"leaderWorkerTemplate": {"size": 4}, "startupPolicy": policy});
        let of_size = |policy: &str, size| facts(GangKind::LeaderWorkerSet, set(policy)).unwrap().of_size(size);
        assert_eq!(of_size("LeaderCreated", None).min_members, 4);
        assert_eq!(of_size("LeaderCreated", Some(8)).min_members, 8);
        assert_eq!(of_size("LeaderReady", Some(8)).parts, [("leader".into(), 1), ("workers".into(), 7)].into());
    }
}
