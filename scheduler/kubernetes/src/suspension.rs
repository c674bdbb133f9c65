//! Suspends a workload instead of evicting each of its pods, and resumes it when none of them is left.
//!
//! A mark on the workload says that a leader has suspended it. The next leader finds the mark, and resumes it in its
//! place. A workload without the mark is never resumed.

use std::time::Duration;

use aliquot_api_server::{Client, Events, Patience, is_conflict, is_not_found, is_passing};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{interval, timeout};
use tracing::{debug, info};

use crate::mirror::{Suspended, Suspension};
use crate::peers;
use crate::serve::Shared;
use crate::telemetry::Written;
use crate::workload::{Workload, WorkloadKind};

/// The label of a workload that a leader has suspended. The annotation of the same name is a [`Mark`].
const MARK: &str = "aliquot.dev/suspended";
/// Selects the workloads with the label.
pub(crate) const SELECTOR: &str = "aliquot.dev/suspended=true";
/// Time between two looks at suspended workloads.
const LOOK: Duration = Duration::from_secs(1);
/// Times that a suspension is tried if the workload changes meanwhile.
const TRIES: usize = 5;

/// The reasons of events about workloads.
const SUSPENDED: &str = "Suspended";
const RESUMED: &str = "Resumed";

/// What is written on a suspended workload.
#[derive(Debug, Deserialize, Serialize)]
struct Mark {
    /// When it was suspended.
    at: String,
    why: String,
    /// What its pods name: `PLURAL.GROUP/NAME`.
    pods: String,
}

/// What became of a suspension.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The workload with this name is suspended.
    Suspended(String),
    /// It is not suspended, and its pods are to be evicted.
    Not(String),
    /// It may be suspended or not: there is no answer. The engine tries again later.
    Unknown,
}

/// A suspended workload, as its metadata says.
pub(crate) fn read(kind: WorkloadKind, metadata: &ObjectMeta) -> Suspended {
    let workload = Workload { kind, name: metadata.name.clone().unwrap_or_default() };
    let mark = metadata.annotations.as_ref().and_then(|of| serde_json::from_str::<Mark>(of.get(MARK)?).ok());
    Suspended {
        uid: metadata.uid.clone().unwrap_or_default(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        pods_of: mark.as_ref().and_then(|mark| Workload::parse(&mark.pods)).unwrap_or_else(|| workload.clone()),
        // Somebody may have changed the annotation.
        since_ms: mark
            .and_then(|mark| u64::try_from(mark.at.parse::<Timestamp>().ok()?.as_millisecond()).ok())
            .unwrap_or_else(now_ms),
        workload,
    }
}

/// Now, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// Suspends the topmost workload of pods that are all to be evicted.
pub(crate) async fn suspend(
    client: &Client,
    shared: &Shared,
    events: &Events,
    suspension: &Suspension,
    cause: Option<&str>,
) -> Outcome {
    let Suspension { namespace, workload, .. } = suspension;
    match disturbs_a_budget(client, shared, suspension).await {
        Ok(None) => {}
        Ok(Some(budget)) => {
            return Outcome::Not(format!("the PodDisruptionBudget {budget:?} is about one of its pods"));
        }
        Err(why) => return why,
    }
    for _ in 0..TRIES {
        let (top, object) = match topmost(client, shared, suspension).await {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        if !shared.read(|mirror| mirror.is_whole(suspension)) {
            return Outcome::Not("others of its pods have a place now".into());
        }
        let name = top.full_name();
        let why = cause.unwrap_or_default().to_owned();
        let mark = Mark { at: Timestamp::now().to_string(), why, pods: workload.full_name() };
        let mark = serde_json::to_string(&mark).unwrap_or_default();
        let patch = json!({
            "metadata": {
                "uid": object["metadata"]["uid"], "resourceVersion": object["metadata"]["resourceVersion"],
                "labels": {MARK: "true"}, "annotations": {MARK: mark},
            },
            "spec": top.kind.suspended(true),
        });
        let after = match write(client, shared, namespace, &top, &patch).await {
            Ok(after) => after,
            Err(Failed::Changed) => continue,
            Err(Failed::Otherwise(outcome)) => return outcome,
        };
        if !top.kind.is_suspended(&after) {
            // The definition of the kind is older than the field, and the API server has dropped it.
            let none = json!({"labels": {MARK: null}, "annotations": {MARK: null}});
            _ = write(client, shared, namespace, &top, &json!({"metadata": none})).await;
            return Outcome::Not(format!("{} cannot be suspended in this cluster", top.kind.full_plural()));
        }
        // The watch says the same a little later.
        let metadata: ObjectMeta = serde_json::from_value(after["metadata"].clone()).unwrap_or_default();
        shared.change(|mirror| mirror.suspended(read(top.kind, &metadata)));
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let text = format!("it is suspended until its pods are gone, and is resumed then{cause}");
        shared.fence.within(events.warn(reference(&after), SUSPENDED, &text)).await;
        return Outcome::Suspended(name);
    }
    Outcome::Not("it changes all the time".into())
}

/// Resumes what has no pod left, for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: std::sync::Arc<Shared>, events: Events) {
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
        for (suspended, has_pods) in shared.read(|mirror| mirror.to_resume(now_ms())) {
            let text = match has_pods {
                false => "its pods are gone, and it starts anew when it has its turn",
                true => "it was suspended for an hour, although some of its pods are not gone",
            };
            resume(&client, &shared, &events, &suspended, text).await;
        }
    }
}

async fn resume(client: &Client, shared: &Shared, events: &Events, suspended: &Suspended, text: &str) {
    let Suspended { uid, namespace, workload, .. } = suspended;
    let object = match get(client, shared, namespace, workload).await {
        Ok(object) => object,
        Err(outcome) => return debug!(workload = workload.full_name(), ?outcome, "cannot be resumed yet"),
    };
    let has_mark = object["metadata"]["labels"][MARK] == "true";
    if object["metadata"]["uid"] != uid.as_str() || !has_mark {
        return;
    }
    let is_suspended = workload.kind.is_suspended(&object);
    let mut patch = json!({"metadata": {
        "uid": uid, "resourceVersion": object["metadata"]["resourceVersion"],
        "labels": {MARK: null}, "annotations": {MARK: null},
    }});
    if is_suspended {
        patch["spec"] = workload.kind.suspended(false);
    }
    if write(client, shared, namespace, workload, &patch).await.is_err() {
        // The next look tries again.
        return;
    }
    info!(workload = %format_args!("{namespace}/{}", workload.full_name()), "resumed");
    shared.change(|mirror| mirror.suspended_no_more(namespace, workload));
    if is_suspended {
        shared.fence.within(events.note(reference(&object), RESUMED, text)).await;
    }
}

/// The name of a budget that is about one of the pods.
async fn disturbs_a_budget(
    client: &Client,
    shared: &Shared,
    suspension: &Suspension,
) -> Result<Option<String>, Outcome> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &suspension.namespace);
    let Some(left) = shared.fence.left() else { return Err(Outcome::Unknown) };
    let all = ListParams::default();
    let budgets = match timeout(left, Patience::begin().ask(|| budgets.list(&all))).await {
        Ok(Ok(budgets)) => budgets.items,
        Ok(Err(error)) => {
            shared.status.write_refused(Written::Suspension, "poddisruptionbudgets", &error);
            return Err(not_read(&error, "the disruption budgets"));
        }
        Err(_) => return Err(Outcome::Unknown),
    };
    Ok(shared.read(|mirror| {
        let labels: Vec<_> = suspension.evictions.iter().filter_map(|of| mirror.labels_of(&of.uid)).collect();
        let is_about = |budget: &&PodDisruptionBudget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            labels.iter().any(|labels| peers::selects(selector, labels))
        };
        budgets.iter().find(is_about).map(|budget| budget.metadata.name.clone().unwrap_or_default())
    }))
}

/// What it means that something cannot be read.
fn not_read(error: &kube::Error, what: &str) -> Outcome {
    match is_passing(error) {
        true => Outcome::Unknown,
        false => Outcome::Not(format!("{what} cannot be read")),
    }
}

/// The topmost workload above pods, and its object.
async fn topmost(client: &Client, shared: &Shared, suspension: &Suspension) -> Result<(Workload, Value), Outcome> {
    let Suspension { namespace, workload, evictions } = suspension;
    let mut top = workload.clone();
    let mut uid = None;
    loop {
        let object = get(client, shared, namespace, &top).await?;
        let is_another = match uid {
            Some(uid) => object["metadata"]["uid"] != uid,
            // Pods name their workload without its UID.
            None => {
                let pods = shared.read(|mirror| mirror.first_created_ms(evictions));
                created_ms(&object).zip(pods).is_some_and(|(workload, pods)| workload > pods)
            }
        };
        if is_another {
            return Err(Outcome::Not(format!("{} is another one now", top.full_name())));
        }
        let above = top.kind.workload_above(&object).map_err(Outcome::Not)?;
        let Some((above, uid_above)) = above else {
            top.kind.check(&object).map_err(Outcome::Not)?;
            return Ok((top, object));
        };
        (top, uid) = (above, Some(uid_above));
    }
}

fn created_ms(object: &Value) -> Option<u64> {
    let created: Timestamp = object["metadata"]["creationTimestamp"].as_str()?.parse().ok()?;
    u64::try_from(created.as_millisecond()).ok()
}

fn api(client: &Client, shared: &Shared, namespace: &str, workload: &Workload) -> Option<Api<DynamicObject>> {
    let version = shared.read(|mirror| mirror.suspends_in(workload.kind))?;
    Some(Api::namespaced_with(client.clone(), namespace, &workload.kind.resource(version)))
}

async fn get(client: &Client, shared: &Shared, namespace: &str, workload: &Workload) -> Result<Value, Outcome> {
    let Some(api) = api(client, shared, namespace, workload) else {
        return Err(Outcome::Not(format!("{} are not watched", workload.kind.full_plural())));
    };
    let Some(left) = shared.fence.left() else { return Err(Outcome::Unknown) };
    match timeout(left, Patience::begin().ask(|| api.get(&workload.name))).await {
        Ok(Ok(object)) => Ok(serde_json::to_value(object).unwrap_or_default()),
        Ok(Err(error)) if is_not_found(&error) => Err(Outcome::Not("it is gone".into())),
        Ok(Err(error)) => {
            shared.status.write_refused(Written::Suspension, &workload.full_name(), &error);
            Err(not_read(&error, &workload.full_name()))
        }
        Err(_) => Err(Outcome::Unknown),
    }
}

/// Why a write has no effect, or may have none.
enum Failed {
    /// The object has changed since it was read.
    Changed,
    Otherwise(Outcome),
}

async fn write(
    client: &Client,
    shared: &Shared,
    namespace: &str,
    workload: &Workload,
    patch: &Value,
) -> Result<Value, Failed> {
    let Some(api) = api(client, shared, namespace, workload) else {
        return Err(Failed::Otherwise(Outcome::Unknown));
    };
    let Some(left) = shared.fence.left() else { return Err(Failed::Otherwise(Outcome::Unknown)) };
    match timeout(left, api.patch(&workload.name, &PatchParams::default(), &Patch::Merge(patch))).await {
        Ok(Ok(object)) => Ok(serde_json::to_value(object).unwrap_or_default()),
        Ok(Err(error)) if is_conflict(&error) => Err(Failed::Changed),
        Ok(Err(error)) => {
            shared.status.write_refused(Written::Suspension, &workload.full_name(), &error);
            Err(Failed::Otherwise(match &error {
                kube::Error::Api(status) if (400..500).contains(&status.code) && ![408, 429].contains(&status.code) => {
                    Outcome::Not(status.message.clone())
                }
                _ => Outcome::Unknown,
            }))
        }
        Err(_) => Err(Failed::Otherwise(Outcome::Unknown)),
    }
}

fn reference(object: &Value) -> ObjectReference {
    let text = |field: &Value| field.as_str().map(str::to_owned);
    ObjectReference {
        api_version: text(&object["apiVersion"]),
        kind: text(&object["kind"]),
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"]),
        uid: text(&object["metadata"]["uid"]),
        ..ObjectReference::default()
    }
}
