//! ResourceQuotas and LimitRanges of namespaces. The API server heeds them when pods are made; here it is said what
//! they do.

use std::collections::BTreeMap;

use aliquot_dialects::quantity::thousandths;
use k8s_openapi::api::core::v1::{Event, LimitRange, LimitRangeItem, Namespace, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::{Cluster, is_forbidden};
use crate::what_if::QUEUE;

/// The labels of a namespace that name its queue.
const QUEUES: [&str; 2] = [QUEUE, "kai.scheduler/queue"];
/// The queue of other namespaces.
const DEFAULT_QUEUE: &str = "default";
/// The reason of events of controllers that cannot make pods.
const FAILED: &str = "FailedCreate";

type Quantities = BTreeMap<String, Quantity>;

/// What a quota says of one resource.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) namespace: String,
    /// The queue of the namespace; `None`: this user may not read namespaces.
    pub(crate) queue: Option<String>,
    pub(crate) quota: String,
    pub(crate) resource: String,
    pub(crate) used: String,
    pub(crate) hard: String,
}

/// What the quotas that this user may read say of devices.
pub(crate) async fn of_devices(cluster: &Cluster) -> kube::Result<Vec<Row>> {
    let everywhere: Api<ResourceQuota> = Api::all(cluster.client.clone());
    let quotas = match everywhere.list(&ListParams::default()).await {
        Err(error) if is_forbidden(&error) => {
            let here: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
            here.list(&ListParams::default()).await?
        }
        listed => listed?,
    };
    let rows: Vec<Row> = quotas.items.iter().flat_map(rows).collect();
    if rows.is_empty() {
        return Ok(rows);
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let Ok(namespaces) = namespaces.list(&ListParams::default()).await else { return Ok(rows) };
    let queue = |namespace: &Namespace| {
        let labels = namespace.labels();
        QUEUES.into_iter().find_map(|key| labels.get(key).cloned()).unwrap_or_else(|| DEFAULT_QUEUE.to_owned())
    };
    let queues: BTreeMap<String, String> = namespaces.items.iter().map(|of| (of.name_any(), queue(of))).collect();
    let with_queue = |row: Row| Row { queue: queues.get(&row.namespace).cloned(), ..row };
    Ok(rows.into_iter().map(with_queue).collect())
}

fn rows(quota: &ResourceQuota) -> Vec<Row> {
    let (namespace, name) = (quota.namespace().unwrap_or_default(), quota.name_any());
    let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
    let hard = hard(quota).into_iter().flatten().filter(|(resource, _)| is_of_devices(resource));
    let row = |(resource, hard): (&String, &Quantity)| Row {
        namespace: namespace.clone(),
        queue: None,
        quota: name.clone(),
        used: used.and_then(|used| used.get(resource)).map_or_else(|| "0".to_owned(), |used| used.0.clone()),
        resource: resource.clone(),
        hard: hard.0.clone(),
    };
    hard.map(row).collect()
}

fn hard(quota: &ResourceQuota) -> Option<&Quantities> {
    let enforced = quota.status.as_ref().and_then(|status| status.hard.as_ref());
    enforced.or_else(|| quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()))
}

/// Whether a name in a quota stands for devices: an extended resource, a device class, or claims.
fn is_of_devices(resource: &str) -> bool {
    match resource.strip_prefix("count/") {
        Some(objects) => ["resourceclaims.resource.k8s.io", "elasticgpuclaims.aliquot.dev"].contains(&objects),
        None => resource.contains('/') && !resource.contains(".storageclass.storage.k8s.io/"),
    }
}

/// What becomes of pods when they are made.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Why some or all of them are refused.
    pub(crate) refused: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// Adds to a pod what the limit ranges of its namespace add, and says whether so many of them may be made.
pub(crate) async fn admit(cluster: &Cluster, pod: &mut Value, count: u32) -> kube::Result<Verdict> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let ranges: Api<LimitRange> = Api::namespaced(cluster.client.clone(), &namespace);
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), &namespace);
    let ranges = ranges.list(&ListParams::default()).await?.items;
    let quotas = quotas.list(&ListParams::default()).await?.items;
    Ok(verdict(&ranges, &quotas, pod, count))
}

fn verdict(ranges: &[LimitRange], quotas: &[ResourceQuota], pod: &mut Value, count: u32) -> Verdict {
    let mut verdict = Verdict::default();
    fill_requests(pod);
    for range in ranges {
        for item in range.spec.iter().flat_map(|spec| &spec.limits).filter(|item| item.type_ == "Container") {
            fill(pod, item);
            verdict.refused.extend(refusals(pod, &range.name_any(), item));
        }
    }
    for quota in quotas {
        let spec = quota.spec.as_ref();
        let is_scoped = |of: &k8s_openapi::api::core::v1::ResourceQuotaSpec| {
            of.scope_selector.is_some() || of.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty())
        };
        if spec.is_some_and(is_scoped) {
            verdict.notes.push(format!("the ResourceQuota {:?} has scopes, and was not looked at", quota.name_any()));
            continue;
        }
        verdict.refused.extend(exceeded(quota, pod, count));
    }
    verdict
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["containers", "initContainers"].into_iter().flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
}

fn for_each_container(pod: &mut Value, change: impl Fn(&mut Value)) {
    for list in ["containers", "initContainers"] {
        pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(&change);
    }
}

fn set(resources: &mut Value, kind: &str, name: &str, amount: &Value) {
    if resources[kind][name].is_null() {
        resources[kind][name] = amount.clone();
    }
}

/// What a container limits it also requests. A manifest can say amounts as numbers; they become text, as the API server
/// stores them.
fn fill_requests(pod: &mut Value) {
    for_each_container(pod, |container| {
        for kind in ["limits", "requests"] {
            let amounts = container["resources"].get_mut(kind).and_then(Value::as_object_mut).into_iter().flatten();
            amounts
                .filter(|(_, amount)| amount.is_number())
                .for_each(|(_, amount)| *amount = amount.to_string().into());
        }
        let limits = container["resources"]["limits"].clone();
        for (name, amount) in limits.as_object().into_iter().flatten() {
            set(&mut container["resources"], "requests", name, amount);
        }
    });
}

fn fill(pod: &mut Value, item: &LimitRangeItem) {
    for_each_container(pod, |container| {
        for (kind, amounts) in [("limits", &item.default), ("requests", &item.default_request)] {
            for (name, amount) in amounts.iter().flatten() {
                set(&mut container["resources"], kind, name, &json!(amount.0));
            }
        }
    });
}

/// The containers that a limit range refuses.
fn refusals(pod: &Value, range: &str, item: &LimitRangeItem) -> Vec<String> {
    let mut refused = Vec::new();
    for container in containers(pod) {
        let name = container["name"].as_str().unwrap_or_default();
        for (kind, bounds, is_least) in [("limits", &item.max, false), ("requests", &item.min, true)] {
            for (resource, bound) in bounds.iter().flatten() {
                let asked = container["resources"][kind][resource].as_str().and_then(|text| thousandths(text).ok());
                let (Some(asked), Ok(bound_of)) = (asked, thousandths(&bound.0)) else { continue };
                let is_within = if is_least { asked >= bound_of } else { asked <= bound_of };
                if !is_within {
                    let word = if is_least { "at least" } else { "at most" };
                    refused.push(format!(
                        "container {name:?}: the LimitRange {range:?} wants {word} {} of {resource}",
                        bound.0
                    ));
                }
            }
        }
    }
    refused
}

/// What a pod takes of what a quota counts; `None`: the quota does not count this of pods. `Err`: this container does
/// not say it, but must.
fn taken(pod: &Value, counted: &str) -> Result<Option<u128>, String> {
    if ["pods", "count/pods"].contains(&counted) {
        return Ok(Some(1000));
    }
    let (kind, resource) = match counted.split_once('.') {
        Some((kind @ ("requests" | "limits"), resource)) => (kind, resource),
        _ => ("requests", counted),
    };
    let must_be_said = ["cpu", "memory"].contains(&resource);
    if !must_be_said && !resource.contains('/') {
        return Ok(None);
    }
    let of =
        |container: &Value| container["resources"][kind][resource].as_str().and_then(|text| thousandths(text).ok());
    if let Some(silent) = containers(pod).find(|container| must_be_said && of(container).is_none()) {
        return Err(silent["name"].as_str().unwrap_or_default().to_owned());
    }
    let list = |name: &str| pod["spec"][name].as_array().cloned().unwrap_or_default();
    let is_sidecar = |container: &&Value| container["restartPolicy"] == "Always";
    let init = list("initContainers");
    let sidecars: u128 = init.iter().filter(is_sidecar).filter_map(of).sum();
    let together = list("containers").iter().filter_map(of).sum::<u128>() + sidecars;
    let before = init.iter().filter(|of| !is_sidecar(of)).filter_map(of).max().unwrap_or(0);
    Ok(Some(together.max(before)))
}

/// Why a quota refuses some or all of the pods.
fn exceeded(quota: &ResourceQuota, pod: &Value, count: u32) -> Vec<String> {
    let name = quota.name_any();
    let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
    let mut refused = Vec::new();
    for (counted, hard) in hard(quota).into_iter().flatten() {
        let used = used.and_then(|used| used.get(counted)).map_or("0", |used| used.0.as_str());
        let each = match taken(pod, counted) {
            Ok(Some(each)) if each > 0 => each,
            Ok(_) => continue,
            Err(container) => {
                refused
                    .push(format!("container {container:?} must say {counted}: the ResourceQuota {name:?} counts it"));
                continue;
            }
        };
        let (Ok(most), Ok(taken)) = (thousandths(&hard.0), thousandths(used)) else { continue };
        let fit = most.saturating_sub(taken) / each;
        if fit < u128::from(count) {
            refused.push(format!(
                "the ResourceQuota {name:?} has room for {fit} of {count}: of {counted} {} are allowed and {used} used, \
                 and each pod takes {}",
                hard.0,
                amount(each)
            ));
        }
    }
    refused
}

fn amount(thousandths: u128) -> String {
    match thousandths % 1000 {
        0 => (thousandths / 1000).to_string(),
        _ => format!("{thousandths}m"),
    }
}

/// Why controllers of this name, or those that a Deployment or a CronJob of this name has made, cannot make pods.
pub(crate) async fn why_no_pods(cluster: &Cluster, name: &str) -> kube::Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let events = events.list(&ListParams::default().fields(&format!("reason={FAILED}"))).await?.items;
    Ok(failures(name, events))
}

fn failures(name: &str, mut events: Vec<Event>) -> Vec<String> {
    let is_of_it = |event: &Event| {
        let of = event.involved_object.name.as_deref().unwrap_or_default();
        of == name || of.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && !rest[1..].contains('-'))
    };
    events.retain(is_of_it);
    events.sort_by_key(|event| std::cmp::Reverse(event.last_timestamp.as_ref().map(|at| at.0)));
    let mut said = BTreeMap::new();
    for event in events {
        let of = (event.involved_object.kind.unwrap_or_default(), event.involved_object.name.unwrap_or_default());
        // The latest of each controller.
        said.entry(of).or_insert(event.message.unwrap_or_default());
    }
    said.into_iter().map(|((kind, name), message)| format!("{kind} {name:?} cannot make pods: {message}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(hard: Value, used: Value) -> ResourceQuota {
        let quota = json!({
            "metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used},
        });
        serde_json::from_value(quota).unwrap()
    }

    fn range(item: Value) -> LimitRange {
        serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"limits": [item]}})).unwrap()
    }

    fn pod(limits: Value) -> Value {
        json!({"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}})
    }

    #[test]
    fn quotas_of_devices_are_listed() {
        let hard = json!({
            "requests.nvidia.com/gpu": "4", "requests.cpu": "9", "count/resourceclaims.resource.k8s.io": "5",
            "gold.storageclass.storage.k8s.io/requests.storage": "1Gi", "h100.deviceclass.resource.k8s.io/devices": "2",
        });
        let rows = rows(&quota(hard, json!({"requests.nvidia.com/gpu": "3"})));
        let shown: Vec<_> =
            rows.iter().map(|row| (row.resource.as_str(), row.used.as_str(), row.hard.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("count/resourceclaims.resource.k8s.io", "0", "5"),
                ("h100.deviceclass.resource.k8s.io/devices", "0", "2"),
                ("requests.nvidia.com/gpu", "3", "4"),
            ]
        );
    }

    #[test]
    fn a_quota_refuses_what_goes_beyond_it() {
        let gpus = quota(json!({"requests.nvidia.com/gpu": "4"}), json!({"requests.nvidia.com/gpu": "1"}));
        let refused = |count: u32| {
            verdict(&[], std::slice::from_ref(&gpus), &mut pod(json!({"nvidia.com/gpu": "2"})), count).refused
        };
        assert_eq!(refused(1), [""; 0]);
        let text = "the ResourceQuota \"q\" has room for 1 of 2: of requests.nvidia.com/gpu 4 are allowed and 1 used, and \
                    each pod takes 2";
        assert_eq!(refused(2), [text]);
        let with_numbers = verdict(&[], std::slice::from_ref(&gpus), &mut pod(json!({"nvidia.com/gpu": 2})), 2);
        assert_eq!(with_numbers.refused, [text]);
        let pods = quota(json!({"pods": "1"}), json!({"pods": "1"}));
        assert_eq!(verdict(&[], &[pods], &mut pod(json!({})), 1).refused.len(), 1);
        // Who counts CPU wants every container to say it.
        let cpu = quota(json!({"limits.cpu": "4"}), json!({}));
        let silent = verdict(&[], std::slice::from_ref(&cpu), &mut pod(json!({})), 1).refused;
        assert_eq!(silent, ["container \"main\" must say limits.cpu: the ResourceQuota \"q\" counts it"]);
        let range = range(json!({"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}));
        let mut filled = pod(json!({}));
        assert_eq!(verdict(&[range], &[cpu], &mut filled, 2).refused, [""; 0]);
        let resources = &filled["spec"]["containers"][0]["resources"];
        assert_eq!(*resources, json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}));
    }

    #[test]
    fn a_limit_range_fills_in_and_refuses() {
        let most = range(json!({"type": "Container", "max": {"aliquot.dev/gpu-core": "50"}}));
        let refused = verdict(&[most], &[], &mut pod(json!({"aliquot.dev/gpu-core": "60"})), 1).refused;
        assert_eq!(refused, ["container \"main\": the LimitRange \"r\" wants at most 50 of aliquot.dev/gpu-core"]);
    }

    #[test]
    fn controllers_that_cannot_make_pods_say_why() {
        let event = |kind: &str, name: &str, message: &str| {
            let event = json!({
                "metadata": {}, "reason": FAILED, "message": message, "involvedObject": {"kind": kind, "name": name},
            });
            serde_json::from_value::<Event>(event).unwrap()
        };
        let events = vec![
            event("Job", "train", "exceeded quota: q"),
            event("ReplicaSet", "train-5c8f", "exceeded quota: q"),
            event("ReplicaSet", "train-other-5c8f", "exceeded quota: q"),
        ];
        let said = failures("train", events);
        assert_eq!(
            said,
            [
                "Job \"train\" cannot make pods: exceeded quota: q",
                "ReplicaSet \"train-5c8f\" cannot make pods: exceeded quota: q",
            ]
        );
    }
}
