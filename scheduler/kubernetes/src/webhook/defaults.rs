//! What users leave out of pods.
//!
//! * A limit where only the request of a device's resource is said. The API server wants both and takes the request from
//!   the limit, but not the limit from the request.
//! * A number of devices where HAMi's or Volcano's words only say how much of each: kubelet hands out nothing of those,
//!   so the container would start without a device. HAMi's own webhook fills in the same. The resource for what an
//!   `ElasticGPUClaim` says, where a container only names the claim, and the resource for what KAI's annotations say: the
//!   annotations stay the request, and so nothing is counted twice.
//! * In namespaces that say so: the scheduler of pods that are meant for it, unless they name another one. Only pods
//!   that ask for devices, or name a queue, a policy or a gang of Aliquot's, or that a workload made which is a gang,
//!   are meant: others are kube-scheduler's as ever. KAI, HAMi and Volcano let pods name their scheduler; HAMi names it
//!   for every pod with its resources, also where others serve them, and so a namespace says it here. Pods that name a
//!   scheduler that this one stands in for are all meant: nobody else would place them.
//!
//! Priority classes, queues and gangs are not filled in: the scheduler reads them from the namespace and the owner when it
//! decides, and what changes there later counts.

use aliquot_api_server::QUEUE;
use aliquot_dialects::{Dialect, GANG, GANG_SIZE};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::review::Answer;
use crate::gang;
use crate::mirror::POLICY;
use crate::pod;

/// What the API server itself fills in before it asks.
const OF_KUBERNETES: &str = "default-scheduler";

/// What is filled in: see [`filled_in`].
///
/// # Errors
/// The object is no pod.
pub(super) fn fill_in(
    object: &Value,
    scheduler: &str,
    is_namespace_ours: bool,
    stands_in_for: &[String],
) -> Result<Answer, String> {
    let filled = filled_in(object, scheduler, is_namespace_ours, stands_in_for)?;
    let patch = (filled != *object).then(|| json_patch::diff(object, &filled));
    Ok(Answer { patch, ..Answer::default() })
}

/// The pod as it is made. `is_namespace_ours`: the pod's namespace says that such pods are Aliquot's. `stands_in_for`: the
/// schedulers whose pods are ours there.
///
/// # Errors
/// The object is no pod.
pub(crate) fn filled_in(
    object: &Value,
    scheduler: &str,
    is_namespace_ours: bool,
    stands_in_for: &[String],
) -> Result<Value, String> {
    let mut filled = object.clone();
    for list in ["/spec/containers", "/spec/initContainers"] {
        let containers = filled.pointer_mut(list).and_then(Value::as_array_mut);
        containers.into_iter().flatten().for_each(set_limits);
    }
    let pod = Pod::deserialize(&filled).map_err(|error| format!("the object is no pod: {error}"))?;
    let (metadata, spec) = (pod.metadata, pod.spec.unwrap_or_default());
    let annotations = metadata.annotations.unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default();
    let is_named = |key: &str| labels.contains_key(key);
    let is_in_gang = [GANG, GANG_SIZE].into_iter().any(|key| annotations.contains_key(key));
    let owners = metadata.owner_references.unwrap_or_default();
    let is_of_workload = gang::of_workload(&labels, &annotations, &owners).is_some();
    let words = pod::words(&spec, &labels, annotations);
    let asks = (0..words.containers.len()).any(|index| words.asks_for_devices(index));
    // Its other pods start with those that ask for devices.
    let is_meant = asks || is_in_gang || is_of_workload || is_named(QUEUE) || is_named(POLICY);
    let named = spec.scheduler_name.as_deref().unwrap_or(OF_KUBERNETES);
    let is_left = stands_in_for.iter().any(|of| of == named);
    let is_taken = is_left || is_meant && named == OF_KUBERNETES;
    if is_namespace_ours && is_taken && spec.node_name.is_none() {
        filled["spec"]["schedulerName"] = scheduler.into();
    }
    if filled["spec"]["schedulerName"] == scheduler {
        // Init containers stand behind the others.
        let first_init = spec.containers.len();
        for (index, resource) in (0..words.containers.len()).filter_map(|at| Some((at, words.left_out(at)?))) {
            let (list, index) = match index.checked_sub(first_init) {
                None => ("containers", index),
                Some(index) => ("initContainers", index),
            };
            let resources = &mut filled["spec"][list][index]["resources"];
            for field in ["requests", "limits"] {
                resources[field][resource] = "1".into();
            }
        }
    }
    Ok(filled)
}

/// Sets the limits of devices' resources that are only requested.
fn set_limits(container: &mut Value) {
    let Some(resources) = container.get_mut("resources") else { return };
    if !resources["limits"].is_object() && !resources["limits"].is_null() {
        return;
    }
    let is_of_devices = |name: &str| Dialect::ALL.into_iter().any(|dialect| dialect.has_resource(name));
    let requests = resources["requests"].as_object().into_iter().flatten();
    let missing = requests.filter(|(name, _)| is_of_devices(name) && resources["limits"].get(name.as_str()).is_none());
    let missing: Map<String, Value> = missing.map(|(name, amount)| (name.clone(), amount.clone())).collect();
    for (name, amount) in missing {
        resources["limits"][name] = amount;
    }
}

#[cfg(test)]
mod tests {
    use json_patch::patch;
    use serde_json::json;

    use super::*;

    /// The pod as it is after the answer, which is the same when it is asked again.
    fn filled(pod: &Value, is_namespace_ours: bool) -> Value {
        let mut filled = pod.clone();
        if let Some(changes) = fill_in(pod, "aliquot", is_namespace_ours, &[]).unwrap().patch {
            patch(&mut filled, &changes).unwrap();
        }
        let again = fill_in(&filled, "aliquot", is_namespace_ours, &[]).unwrap();
        assert_eq!(again, Answer::default(), "{filled}");
        filled
    }

    fn pod(scheduler: Option<&str>, resources: &Value) -> Value {
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "main", "resources": resources}]}});
        if let Some(scheduler) = scheduler {
            pod["spec"]["schedulerName"] = scheduler.into();
        }
        pod
    }

    #[test]
    fn limits_come_from_requests_of_devices_alone() {
        let asked = json!({"requests": {"aliquot.dev/gpu-core": "30", "cpu": "1", "example.com/nic": "1"}});
        let found = filled(&pod(None, &asked), false);
        let resources = &found["spec"]["containers"][0]["resources"];
        assert_eq!(resources["limits"], json!({"aliquot.dev/gpu-core": "30"}));
        assert_eq!(resources["requests"], asked["requests"]);
        let both = json!({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}});
        assert_eq!(filled(&pod(None, &both), false), pod(None, &both));
    }

    #[test]
    fn amounts_for_each_device_get_a_number_of_devices() {
        let amounts = json!({"limits": {"nvidia.com/gpumem": "1024"}, "requests": {"nvidia.com/gpumem": "1024"}});
        let found = filled(&pod(Some("aliquot"), &amounts), false);
        let resources = &found["spec"]["containers"][0]["resources"];
        for field in ["limits", "requests"] {
            assert_eq!(resources[field], json!({"nvidia.com/gpumem": "1024", "nvidia.com/gpu": "1"}), "{field}");
        }
        let mut claiming = pod(Some("aliquot"), &json!({}));
        claiming["metadata"]["annotations"] = json!({"elastic-gpu-claim.aliquot.dev/main": "part"});
        let one = json!({"aliquot.dev/elastic-gpu": "1"});
        let found = filled(&claiming, false);
        assert_eq!(found["spec"]["containers"][0]["resources"], json!({"limits": one, "requests": one}));
        // Another scheduler's webhook has its own way.
        assert_eq!(filled(&pod(Some("hami-scheduler"), &amounts), false), pod(Some("hami-scheduler"), &amounts));
        let mut in_init = pod(Some("aliquot"), &json!({}));
        in_init["spec"]["initContainers"] =
            json!([{"name": "init", "resources": {"requests": {"volcano.sh/vgpu-memory": "1024"}}}]);
        let found = filled(&in_init, false);
        assert_eq!(found["spec"]["initContainers"][0]["resources"]["limits"]["volcano.sh/vgpu-number"], "1");
    }

    #[test]
    fn what_kai_s_annotations_ask_for_is_made_known_to_kubelet() {
        let mut half = pod(Some("aliquot"), &json!({"limits": {"cpu": "1"}}));
        half["metadata"]["annotations"] = json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"});
        let found = filled(&half, false);
        let resources = &found["spec"]["containers"][0]["resources"];
        assert_eq!(resources["limits"], json!({"cpu": "1", "aliquot.dev/kai-gpu": "1"}));
        assert_eq!(resources["requests"], json!({"aliquot.dev/kai-gpu": "1"}));
        assert_eq!(found["metadata"], half["metadata"]);
        let mut of_init = half.clone();
        of_init["spec"]["initContainers"] = json!([{"name": "init"}]);
        of_init["metadata"]["annotations"]["gpu-fraction-container-name"] = "init".into();
        let found = filled(&of_init, false);
        assert_eq!(found["spec"]["initContainers"][0]["resources"]["limits"], json!({"aliquot.dev/kai-gpu": "1"}));
        assert_eq!(found["spec"]["containers"], of_init["spec"]["containers"]);
        let mut of_two = of_init.clone();
        of_two["metadata"]["annotations"] = json!({
            "nvidia.com/container.main.gpu-memory.limit": "2Gi", "nvidia.com/container.init.gpu-memory.request": "1Gi",
        });
        let found = filled(&of_two, false);
        for list in ["containers", "initContainers"] {
            assert_eq!(found["spec"][list][0]["resources"]["limits"]["aliquot.dev/kai-gpu"], "1", "{list}");
        }
        // KAI's own pods stay as they are, and what is refused gets no third word.
        half["spec"]["schedulerName"] = "kai-scheduler".into();
        assert_eq!(filled(&half, true), half);
        let mut mixed = pod(Some("aliquot"), &json!({"limits": {"aliquot.dev/gpu-core": "30"}}));
        mixed["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
        assert_eq!(filled(&mixed, false), mixed);
    }

    #[test]
    fn a_namespace_names_the_scheduler_of_pods_that_are_meant() {
        let scheduler = |pod: &Value, is_ours| filled(pod, is_ours)["spec"]["schedulerName"].clone();
        let asks = json!({"limits": {"aliquot.dev/gpu-core": "30"}});
        let hami = json!({"limits": {"nvidia.com/gpumem": "1024"}});
        assert_eq!(scheduler(&pod(None, &asks), true), "aliquot");
        assert_eq!(scheduler(&pod(Some("default-scheduler"), &hami), true), "aliquot");
        assert_eq!(scheduler(&pod(None, &asks), false), Value::Null);
        assert_eq!(scheduler(&pod(Some("hami-scheduler"), &hami), true), "hami-scheduler");
        let mut of_kai = pod(None, &json!({}));
        of_kai["metadata"]["annotations"] = json!({"gpu-memory": "1024"});
        assert_eq!(scheduler(&of_kai, true), "aliquot");
        let plain = pod(Some("default-scheduler"), &json!({"limits": {"cpu": "1"}}));
        assert_eq!(scheduler(&plain, true), "default-scheduler");
        let without_devices = pod(None, &json!({"limits": {"nvidia.com/gpu": "0"}}));
        assert_eq!(filled(&without_devices, true), without_devices);
        for metadata in [
            json!({"labels": {"aliquot.dev/queue": "q"}}),
            json!({"labels": {"aliquot.dev/scheduling-policy": "p"}}),
            json!({"annotations": {"aliquot.dev/gang": "g"}}),
            json!({"annotations": {"aliquot.dev/gang-size": "2"}}),
            json!({"labels": {"ray.io/cluster": "c", "ray.io/node-type": "head"}}),
        ] {
            let mut meant = plain.clone();
            meant["metadata"] = metadata;
            assert_eq!(scheduler(&meant, true), "aliquot", "{meant}");
        }
        // It has a node already.
        let mut bound = pod(Some("default-scheduler"), &asks);
        bound["spec"]["nodeName"] = "n".into();
        assert_eq!(scheduler(&bound, true), "default-scheduler");
    }

    #[test]
    fn all_pods_of_a_scheduler_that_left_are_taken_where_it_is_said() {
        let mut of_kai = pod(Some("kai-scheduler"), &json!({}));
        let found = |pod: &Value, is_ours: bool| {
            let mut filled = pod.clone();
            let left = ["kai-scheduler".to_owned()];
            if let Some(changes) = fill_in(pod, "aliquot", is_ours, &left).unwrap().patch {
                patch(&mut filled, &changes).unwrap();
            }
            filled["spec"].clone()
        };
        assert_eq!(found(&of_kai, true)["schedulerName"], "aliquot");
        assert_eq!(found(&of_kai, false), of_kai["spec"]);
        of_kai["metadata"]["annotations"] = json!({"gpu-fraction": "0.5"});
        assert_eq!(found(&of_kai, true)["containers"][0]["resources"]["limits"]["aliquot.dev/kai-gpu"], "1");
        of_kai["spec"]["nodeName"] = "n".into();
        assert_eq!(found(&of_kai, true), of_kai["spec"]);
    }

    #[test]
    fn what_is_no_pod_is_an_error_and_never_a_panic() {
        let wrong = json!({"requests": {"aliquot.dev/gpu-core": "1"}, "limits": "none"});
        for object in [
            json!({"spec": {"containers": 7}}),
            json!({"spec": {"containers": [7]}}),
            json!({"spec": {"containers": [{"name": "main", "resources": wrong}]}}),
        ] {
            assert!(fill_in(&object, "aliquot", true, &[]).is_err(), "{object}");
        }
        for object in [json!({}), json!({"spec": {"containers": []}})] {
            assert_eq!(fill_in(&object, "aliquot", true, &[]), Ok(Answer::default()), "{object}");
        }
    }
}
