//! Pods that could never have what they ask for.
//!
//! Pods that name this scheduler are judged as a whole. Of other pods only what is in Aliquot's own words is judged: a
//! container that asks in another system's words may be meant for that system, which reads them in its own way.

use aliquot_api_server::queue_of;
use aliquot_dialects::{Dialect, Refusal};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;

use super::known::Known;
use super::review::Answer;
use crate::gang;
use crate::mirror::POLICY;
use crate::pod::{self, WORKLOAD_REF};

/// What is said about a pod.
///
/// # Errors
/// The object is no pod.
pub(super) fn judge(object: &Value, scheduler: &str, known: &Known) -> Result<Answer, String> {
    let pod = Pod::deserialize(object).map_err(|error| format!("the object is no pod: {error}"))?;
    let (metadata, spec) = (pod.metadata, pod.spec.unwrap_or_default());
    let annotations = metadata.annotations.unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default();
    let owners = metadata.owner_references.unwrap_or_default();
    let is_ours = spec.scheduler_name.as_deref() == Some(scheduler);
    let words = pod::words(&spec, &labels, annotations.clone());
    if let Some(unknown) = words.unknown_annotations() {
        return Ok(Answer::refused("annotation", format!("the annotation {unknown}")));
    }
    if let Err(refusal) = words.check_annotations() {
        return Ok(Answer::refused("annotation", format!("the annotation {refusal}")));
    }
    let workload = object["spec"][WORKLOAD_REF]["name"].as_str();
    if let Some(Err(why)) = gang::of_pod(&spec, workload, &labels, &annotations, &owners).filter(|_| is_ours) {
        return Ok(Answer::refused("gang", why));
    }
    for (index, container) in words.containers.iter().enumerate() {
        let is_judged = is_ours || container.resources.keys().any(|name| Dialect::Own.has_resource(name));
        if let Some(refusal) = words.refused_everywhere(index).filter(|_| is_judged) {
            return Ok(Answer::refused(reason(&refusal), format!("container {:?}: {refusal}", container.name)));
        }
    }
    let mut warnings = Vec::new();
    if is_ours {
        let queue = queue_of(&labels, &annotations).filter(|queue| known.lacks_queue(queue));
        warnings.extend(queue.map(|queue| format!("there is no Queue {queue:?}: the pod waits until it is made")));
        let policy = labels.get(POLICY).filter(|policy| known.lacks_policy(policy));
        let lacking = |policy| format!("there is no SchedulingPolicy {policy:?}: the pod waits until it is made");
        warnings.extend(policy.map(lacking));
    }
    Ok(Answer { warnings, ..Answer::default() })
}

fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Value { .. } => "value",
        Refusal::Together { .. } => "contradiction",
        Refusal::Alone { .. } => "incomplete",
        Refusal::Mixed { .. } => "mixed",
        Refusal::Undecided { .. } => "undecided",
        Refusal::NotSpoken { .. } => "not-spoken",
        Refusal::NotOffered { .. } => "not-offered",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The answer to a pod of the scheduler `aliquot` whose second container has these limits.
    fn answer(limits: Value, annotations: Value) -> Answer {
        judge(&pod("aliquot", &limits, &annotations), "aliquot", &Known::default()).unwrap()
    }

    fn pod(scheduler: &str, limits: &Value, annotations: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", "annotations": annotations},
            "spec": {
                "schedulerName": scheduler,
                "containers": [{"name": "side"}, {"name": "main", "resources": {"limits": limits}}],
            },
        })
    }

    #[test]
    fn each_dialect_is_admitted_and_refused_by_what_it_asks() {
        for (good, bad, reason, words) in [
            (json!({"aliquot.dev/gpu-core": "30"}), json!({"aliquot.dev/gpu-core": "150"}), "value", "is \"150\""),
            (json!({"aliquot.dev/gpu": "2"}), json!({"aliquot.dev/gpu-memory": "-1"}), "value", "is \"-1\""),
            (json!({"nvidia.com/gpu": "1"}), json!({"nvidia.com/gpu": "0.5"}), "value", "a whole number"),
            (
                json!({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}),
                json!({"tencent.com/vcuda-core": "30"}),
                "incomplete",
                "units of 256 MiB",
            ),
            (json!({"aliyun.com/gpu-mem": "8"}), json!({"aliyun.com/gpu-mem": "-8"}), "value", "a whole number"),
            (
                json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "15"}),
                json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "12"}),
                "value",
                "a multiple of 5",
            ),
            (
                json!({"tke.cloud.tencent.com/qgpu-core": "10", "tke.cloud.tencent.com/qgpu-memory": "4"}),
                json!({"tke.cloud.tencent.com/qgpu-core": "7", "tke.cloud.tencent.com/qgpu-memory": "4"}),
                "value",
                "a multiple of 5",
            ),
            (
                json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}),
                json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1", "nvidia.com/gpumem-percentage": "1"}),
                "contradiction",
                "in MiB or in percent",
            ),
            (
                json!({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "0"}),
                json!({"volcano.sh/vgpu-number": "0", "volcano.sh/vgpu-memory": "4"}),
                "value",
                "at least 1",
            ),
            // Charts write 0 for a container without a device. In Aliquot's own words it is a mistake.
            (json!({"nvidia.com/gpu": "0"}), json!({"aliquot.dev/gpu": "0"}), "value", "at least 1"),
            (json!({"elasticgpu.io/gpu-core": "30"}), json!({"elasticgpu.io/gpu-core": "130"}), "value", "is \"130\""),
            (json!({"k8s.amazonaws.com/vgpu": "5"}), json!({"k8s.amazonaws.com/vgpu": "49"}), "value", "1 to 48"),
            (
                json!({"cpu": "1"}),
                json!({"aliquot.dev/gpu-core": "30", "nvidia.com/gpumem": "1"}),
                "mixed",
                "use the resources of one",
            ),
        ] {
            assert_eq!(answer(good.clone(), json!({})), Answer::default(), "{good}");
            let refused = answer(bad.clone(), json!({})).refused.unwrap_or_else(|| panic!("admitted: {bad}"));
            assert_eq!(refused.reason, reason, "{bad}: {}", refused.message);
            let names_container = refused.message.starts_with("container \"main\": ");
            assert!(names_container && refused.message.contains(words), "{bad}: {}", refused.message);
        }
    }

    #[test]
    fn annotations_of_ours_are_those_there_are_with_values_that_fit() {
        let half = json!({"aliquot.dev/gpu-core": "30"});
        for (annotations, reason, words) in [
            (json!({"aliquot.dev/gpu-core-limt": "50"}), "annotation", "aliquot.dev/gpu-core-limt changes nothing"),
            (json!({"aliquot.dev/gpu-core-limit": "NaN"}), "annotation", "is \"NaN\"; it must be a whole number"),
            (json!({"aliquot.dev/priority-class": "high"}), "annotation", "latency-critical, standard or batch"),
            (json!({"aliquot.dev/gpu-core-limit": "20"}), "value", "at least aliquot.dev/gpu-core, which is 30"),
            (json!({"aliquot.dev/gang": "g"}), "gang", "gang-size is \"\""),
            (json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "0"}), "gang", "gang-size is \"0\""),
            (json!({"aliquot.dev/gang-size": "2"}), "gang", "neither aliquot.dev/gang nor a controller"),
        ] {
            let refused = answer(half.clone(), annotations.clone()).refused.expect("refused");
            assert_eq!(refused.reason, reason, "{annotations}: {}", refused.message);
            assert!(refused.message.contains(words), "{annotations}: {}", refused.message);
        }
        let good = json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2", "aliquot.dev/gpu-core-limit": "50"});
        assert_eq!(answer(half, good), Answer::default());
    }

    #[test]
    fn kai_s_annotations_are_judged_as_kai_does() {
        let judged = |annotations: Value, other: Value| {
            let mut pod = pod("aliquot", &json!({"aliquot.dev/kai-gpu": "1"}), &annotations);
            pod["metadata"]["annotations"]["gpu-fraction-container-name"] = "main".into();
            pod["spec"]["containers"][0]["resources"] = other;
            judge(&pod, "aliquot", &Known::default()).unwrap().refused.map(|refused| refused.message)
        };
        let none = || json!({});
        assert_eq!(judged(json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}), none()), None);
        assert_eq!(judged(json!({"gpu-memory": "4096"}), none()), None);
        let whole = json!({"limits": {"nvidia.com/gpu": "1"}});
        for (annotations, other, words) in [
            (json!({"gpu-fraction": "1"}), none(), "from 0.01 to less than 1"),
            (json!({"gpu-fraction": "half"}), none(), "from 0.01 to less than 1"),
            (json!({"gpu-memory": "4Gi"}), none(), "a whole number from 1"),
            (json!({"gpu-memory": "1", "gpu-fraction": "0.5"}), none(), "say the part of the device or its memory"),
            (json!({"gpu-fraction-num-devices": "2"}), none(), "add the part of each device"),
            (json!({"gpu-fraction": "0.5"}), whole.clone(), "a pod has parts of devices or whole ones"),
            (json!({"gpu-memory": "1"}), whole, "gpu-memory and nvidia.com/gpu cannot be asked for together"),
        ] {
            let message = judged(annotations.clone(), other).unwrap_or_else(|| panic!("admitted: {annotations}"));
            assert!(message.starts_with("container \"main\": ") && message.contains(words), "{annotations}: {message}");
        }
    }

    #[test]
    fn of_pods_of_other_schedulers_only_our_words_are_judged() {
        let judged = |limits: Value, annotations: Value| {
            judge(&pod("default-scheduler", &limits, &annotations), "aliquot", &Known::default()).unwrap().refused
        };
        assert_eq!(judged(json!({"nvidia.com/gpu": "0"}), json!({"gpu-fraction": "NaN"})), None);
        assert_eq!(judged(json!({}), json!({"aliquot.dev/gang": "g"})), None);
        assert!(judged(json!({"aliquot.dev/gpu-core": "0"}), json!({})).is_some());
        assert!(judged(json!({"aliquot.dev/gpu-core": "5", "volcano.sh/vgpu-number": "1"}), json!({})).is_some());
        assert!(judged(json!({}), json!({"aliquot.dev/prioity-class": "batch"})).is_some());
    }

    #[test]
    fn a_queue_or_a_policy_that_there_is_not_is_a_warning() {
        let known = Known::of(["there"], ["there"]);
        let warnings = |labels: Value| {
            let pod = json!({"metadata": {"labels": labels}, "spec": {"schedulerName": "aliquot", "containers": []}});
            let answer = judge(&pod, "aliquot", &known).unwrap();
            assert_eq!(answer.refused, None);
            answer.warnings
        };
        assert_eq!(
            warnings(json!({"aliquot.dev/queue": "gone"})),
            ["there is no Queue \"gone\": the pod waits until it is made"]
        );
        assert_eq!(warnings(json!({"kai.scheduler/queue": "gone", "aliquot.dev/scheduling-policy": "gone"})).len(), 2);
        let there = json!({"aliquot.dev/queue": "there", "aliquot.dev/scheduling-policy": "there"});
        assert_eq!(warnings(there), [""; 0]);
        // Before the names are known nothing is said.
        let unknown = json!({"metadata": {"labels": {"aliquot.dev/queue": "gone"}}, "spec": {"containers": []}});
        assert_eq!(judge(&unknown, "aliquot", &Known::default()).unwrap(), Answer::default());
    }

    #[test]
    fn what_is_no_pod_is_an_error_and_no_verdict() {
        let error = judge(&json!({"spec": {"containers": 7}}), "aliquot", &Known::default()).unwrap_err();
        assert!(error.starts_with("the object is no pod"), "{error}");
    }
}
