//! ResourceQuotas and LimitRanges of namespaces. The API server heeds them when pods are made; here it is said what
//! they do.

use std::collections::BTreeMap;

use aliquot_api_server::{is_forbidden, queue_of};
use aliquot_dialects::quantity::thousandths;
use k8s_openapi::api::core::v1::{Event, LimitRange, LimitRangeItem, Namespace, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cluster::Cluster;

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
    let queue = |of: &Namespace| {
        queue_of(of.labels(), of.annotations()).map_or_else(|| DEFAULT_QUEUE.to_owned(), String::clone)
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

/// What a namespace says about its pods.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    ranges: Vec<LimitRange>,
    quotas: Vec<ResourceQuota>,
}

impl Rules {
    /// Reads those for a pod.
    pub(crate) async fn of_namespace(cluster: &Cluster, pod: &Value) -> kube::Result<Rules> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let ranges: Api<LimitRange> = Api::namespaced(cluster.client.clone(), namespace);
        let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), namespace);
        let ranges = ranges.list(&ListParams::default()).await?.items;
        let quotas = quotas.list(&ListParams::default()).await?.items;
        Ok(Rules { ranges, quotas })
    }

    /// The items of limit ranges, each with the range's name.
    fn items(&self) -> impl Iterator<Item = (String, &LimitRangeItem)> {
        self.ranges.iter().flat_map(|range| {
            let items = range.spec.iter().flat_map(|spec| &spec.limits);
            items.map(|item| (range.name_any(), item))
        })
    }

    /// Adds to a pod what the limit ranges add.
    pub(crate) fn fill(&self, pod: &mut Value) {
        fill_requests(pod);
        self.items().filter(|(_, item)| item.type_ == "Container").for_each(|(_, item)| fill(pod, item));
    }

    /// Whether so many of a pod may be made that has everything that is filled in.
    pub(crate) fn verdict(&self, pod: &Value, count: u32) -> Verdict {
        let mut verdict = Verdict::default();
        for (range, item) in self.items() {
            match item.type_.as_str() {
                "Container" => {
                    for container in containers(pod) {
                        let of = format!("container {}", container["name"]);
                        let asked = |kind: &str, resource: &str| amount_of(&container["resources"], kind, resource);
                        verdict.refused.extend(refusals(&of, asked, &range, item));
                    }
                }
                "Pod" => {
                    let asked = |kind: &str, resource: &str| sum(pod, kind, resource);
                    verdict.refused.extend(refusals("each pod", asked, &range, item));
                }
                _ => continue,
            }
            if item.max_limit_request_ratio.as_ref().is_some_and(|ratios| !ratios.is_empty()) {
                verdict.notes.push(format!("the maxLimitRequestRatio of the LimitRange {range:?} was not looked at"));
            }
        }
        for quota in &self.quotas {
            let spec = quota.spec.as_ref();
            let is_scoped = |of: &k8s_openapi::api::core::v1::ResourceQuotaSpec| {
                of.scope_selector.is_some() || of.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty())
            };
            if spec.is_some_and(is_scoped) {
                let name = quota.name_any();
                verdict.notes.push(format!("the ResourceQuota {name:?} has scopes, and was not looked at"));
                continue;
            }
            verdict.refused.extend(exceeded(quota, pod, count));
        }
        verdict
    }
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["containers", "initContainers"].into_iter().flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
}

/// Changes the resources of all containers. What is no object in a manifest is left for the scheduler to refuse.
fn for_each_container(pod: &mut Value, change: impl Fn(&mut Map<String, Value>)) {
    for list in ["containers", "initContainers"] {
        let containers = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let resources = container.entry("resources").or_insert(Value::Null);
            if resources.is_null() {
                *resources = json!({});
            }
            resources.as_object_mut().into_iter().for_each(&change);
        }
    }
}

fn set(resources: &mut Map<String, Value>, kind: &str, name: &str, amount: &Value) {
    let amounts = resources.entry(kind).or_insert(Value::Null);
    if amounts.is_null() {
        *amounts = json!({});
    }
    if let Some(known) = amounts.as_object_mut().map(|amounts| amounts.entry(name).or_insert(Value::Null))
        && known.is_null()
    {
        *known = amount.clone();
    }
}

/// What a container limits it also requests. A manifest can say amounts as numbers; they become text, as the API server
/// stores them.
fn fill_requests(pod: &mut Value) {
    for_each_container(pod, |resources| {
        for kind in ["limits", "requests"] {
            let amounts = resources.get_mut(kind).and_then(Value::as_object_mut).into_iter().flatten();
            amounts
                .filter(|(_, amount)| amount.is_number())
                .for_each(|(_, amount)| *amount = amount.to_string().into());
        }
        let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, amount) in &limits {
            set(resources, "requests", name, amount);
        }
    });
}

fn fill(pod: &mut Value, item: &LimitRangeItem) {
    for_each_container(pod, |resources| {
        for (kind, amounts) in [("limits", &item.default), ("requests", &item.default_request)] {
            for (name, amount) in amounts.iter().flatten() {
                set(resources, kind, name, &json!(amount.0));
            }
        }
    });
}

/// Why a limit range refuses `what`, a container or all containers of a pod, that asks for `asked(KIND, RESOURCE)`. As in
/// Kubernetes, who must not have more than a bound must say its limit, and who must not have less its request.
fn refusals(what: &str, asked: impl Fn(&str, &str) -> Option<u128>, range: &str, item: &LimitRangeItem) -> Vec<String> {
    let mut refused = Vec::new();
    for (kind, bounds, is_least) in [("limits", &item.max, false), ("requests", &item.min, true)] {
        for (resource, bound) in bounds.iter().flatten() {
            let Ok(bound_of) = thousandths(&bound.0) else { continue };
            let is_within = |asked: u128| if is_least { asked >= bound_of } else { asked <= bound_of };
            if !asked(kind, resource).is_some_and(is_within) {
                let word = if is_least { "at least" } else { "at most" };
                refused.push(format!("{what}: the LimitRange {range:?} wants {word} {} of {resource}", bound.0));
            }
        }
    }
    refused
}

/// What `resources` say of one resource, in thousandths.
fn amount_of(resources: &Value, kind: &str, resource: &str) -> Option<u128> {
    thousandths(resources[kind][resource].as_str()?).ok()
}

/// What a pod needs of a resource, in thousandths; `None`: it says nothing of it. Init containers run one after the
/// other, each beside the sidecars that were started before it.
fn sum(pod: &Value, kind: &str, resource: &str) -> Option<u128> {
    if let Some(of_pod) = amount_of(&pod["spec"]["resources"], kind, resource) {
        return Some(of_pod);
    }
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    let of = |container: &Value| amount_of(&container["resources"], kind, resource);
    let (mut sidecars, mut most) = (None, None);
    for container in list("initContainers") {
        let own = of(container);
        let beside = plus(sidecars, own);
        most = most.max(beside);
        if container["restartPolicy"] == "Always" {
            sidecars = beside;
        }
    }
    list("containers").map(of).fold(sidecars, plus).max(most)
}

fn plus(one: Option<u128>, other: Option<u128>) -> Option<u128> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        _ => one.or(other),
    }
}

/// What a pod takes of what a quota counts; `None`: the quota does not count this of pods. `Err`: this container does
/// not say it, but must.
fn taken(pod: &Value, counted: &str) -> Result<Option<u128>, String> {
    if ["pods", "count/pods"].contains(&counted) {
        return Ok(Some(1000));
    }
    let (kind, resource) = match counted.split_once('.') {
        Some((kind @ ("requests" | "limits"), resource)) => (Some(kind), resource),
        _ => (None, counted),
    };
    let must_be_said = ["cpu", "memory"].contains(&resource);
    let is_of_pods = match resource {
        "cpu" | "memory" | "ephemeral-storage" => true,
        _ if resource.starts_with("hugepages-") => kind != Some("limits"),
        // Kubernetes counts extended resources only in this form.
        _ => resource.contains('/') && kind == Some("requests"),
    };
    if !is_of_pods {
        return Ok(None);
    }
    let kind = kind.unwrap_or("requests");
    let is_silent = |resources: &Value| amount_of(resources, kind, resource).is_none();
    if must_be_said
        && is_silent(&pod["spec"]["resources"])
        && let Some(silent) = containers(pod).find(|container| is_silent(&container["resources"]))
    {
        return Err(silent["name"].as_str().unwrap_or_default().to_owned());
    }
    Ok(sum(pod, kind, resource))
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
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    Ok(failures(name, events, &pods.list(&ListParams::default()).await?.items))
}

fn failures(name: &str, mut events: Vec<Event>, pods: &[Pod]) -> Vec<String> {
    // A controller that has made a pod since has no reason to complain any more.
    let has_made_since = |event: &Event| {
        let is_of_it = |pod: &&Pod| {
            pod.owner_references().iter().any(|owner| Some(&owner.uid) == event.involved_object.uid.as_ref())
        };
        let newest =
            pods.iter().filter(is_of_it).filter_map(|pod| Some(pod.metadata.creation_timestamp.as_ref()?.0)).max();
        newest.zip(event.last_timestamp.as_ref()).is_some_and(|(made, failed)| made > failed.0)
    };
    let is_of_it = |event: &Event| {
        let of = event.involved_object.name.as_deref().unwrap_or_default();
        // The name of what a Deployment or a CronJob makes.
        let is_made_by = || of.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && !rest[1..].contains('-'));
        let is_made = ["ReplicaSet", "Job"].contains(&event.involved_object.kind.as_deref().unwrap_or_default());
        of == name || (is_made && is_made_by())
    };
    events.retain(|event| is_of_it(event) && !has_made_since(event));
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

    fn verdict(ranges: &[LimitRange], quotas: &[ResourceQuota], pod: &mut Value, count: u32) -> Verdict {
        let rules = Rules { ranges: ranges.to_vec(), quotas: quotas.to_vec() };
        rules.fill(pod);
        rules.verdict(pod, count)
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
        let of_pods = range(json!({"type": "Pod", "max": {"cpu": "3"}, "maxLimitRequestRatio": {"cpu": "2"}}));
        let two = json!([
            {"name": "a", "resources": {"limits": {"cpu": "2"}}}, {"name": "b", "resources": {"limits": {"cpu": "2"}}},
        ]);
        let verdict = verdict(&[of_pods], &[], &mut json!({"spec": {"containers": two}}), 1);
        assert_eq!(verdict.refused, ["each pod: the LimitRange \"r\" wants at most 3 of cpu"]);
        assert_eq!(verdict.notes, ["the maxLimitRequestRatio of the LimitRange \"r\" was not looked at"]);
    }

    #[test]
    fn a_limit_range_judges_what_all_of_them_have_filled_in() {
        let most = range(json!({"type": "Container", "max": {"cpu": "2"}}));
        let given = range(json!({"type": "Container", "default": {"cpu": "1"}}));
        for ranges in [[most.clone(), given.clone()], [given, most]] {
            assert_eq!(verdict(&ranges, &[], &mut pod(json!({})), 1).refused, [""; 0]);
        }
    }

    #[test]
    fn a_manifest_that_is_none_is_left_to_the_scheduler() {
        let given = range(json!({"type": "Container", "default": {"cpu": "1"}}));
        let containers = |container: Value| json!({"spec": {"containers": [container]}});
        let odd = [
            json!("text"),
            json!({"spec": "text"}),
            containers(json!(3)),
            containers(json!({"resources": "text"})),
            containers(json!({"resources": {"limits": "text", "requests": [1]}})),
        ];
        for mut pod in odd {
            verdict(std::slice::from_ref(&given), &[], &mut pod, 1);
        }
    }

    #[test]
    fn only_what_kubernetes_counts_of_pods_is_counted() {
        let pod = json!({"spec": {
            "containers": [{"resources": {"requests": {
                "nvidia.com/gpu": "1", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi",
            }}}],
        }});
        let counted = |name: &str| taken(&pod, name).unwrap();
        assert_eq!(counted("requests.nvidia.com/gpu"), Some(1000));
        assert_eq!(counted("nvidia.com/gpu").or(counted("limits.nvidia.com/gpu")), None);
        assert_eq!(counted("ephemeral-storage"), Some((1 << 30) * 1000));
        assert_eq!(counted("requests.hugepages-2Mi"), Some((4 << 20) * 1000));
        assert_eq!(counted("services"), None);
    }

    #[test]
    fn an_init_container_runs_beside_the_sidecars_before_it() {
        let with = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let sidecar = json!({"restartPolicy": "Always", "resources": with("2")});
        let init = json!({"resources": with("4")});
        let pod = |init: Value| json!({"spec": {"initContainers": init, "containers": [{"resources": with("1")}]}});
        assert_eq!(sum(&pod(json!([sidecar, init])), "requests", "cpu"), Some(6000));
        assert_eq!(sum(&pod(json!([init, sidecar])), "requests", "cpu"), Some(4000));
        assert_eq!(sum(&pod(json!([sidecar])), "requests", "cpu"), Some(3000));
        let mut whole = pod(json!([]));
        whole["spec"]["resources"] = with("9");
        assert_eq!(sum(&whole, "requests", "cpu"), Some(9000));
    }

    #[test]
    fn controllers_that_cannot_make_pods_say_why() {
        let event = |kind: &str, name: &str, message: &str| {
            let event = json!({
                "metadata": {}, "reason": FAILED, "message": message, "lastTimestamp": "2026-11-30T10:00:00Z",
                "involvedObject": {"kind": kind, "name": name, "uid": name},
            });
            serde_json::from_value::<Event>(event).unwrap()
        };
        let events = vec![
            event("Job", "train", "exceeded quota: q"),
            event("ReplicaSet", "train-5c8f", "exceeded quota: q"),
            event("ReplicaSet", "train-7d9a", "exceeded quota: q"),
            event("ReplicaSet", "train-other-5c8f", "exceeded quota: q"),
            event("StatefulSet", "train-db", "exceeded quota: q"),
        ];
        let pod = |owner: &str, created: &str| {
            let owner = json!({"apiVersion": "v1", "kind": "any", "name": owner, "uid": owner});
            let metadata = json!({"ownerReferences": [owner], "creationTimestamp": created});
            serde_json::from_value::<Pod>(json!({"metadata": metadata})).unwrap()
        };
        let pods = [pod("train-5c8f", "2026-11-30T09:59:00Z"), pod("train-7d9a", "2026-11-30T10:01:00Z")];
        let said = failures("train", events, &pods);
        assert_eq!(
            said,
            [
                "Job \"train\" cannot make pods: exceeded quota: q",
                "ReplicaSet \"train-5c8f\" cannot make pods: exceeded quota: q",
            ]
        );
    }
}
