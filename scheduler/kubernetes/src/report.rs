//! Says on each pod why it waits: as its condition `PodScheduled`, and as an event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, Events, pod_reference};
use aliquot_scheduler_core::Toleration;
use aliquot_scheduler_core::explain::{Change, Explanation, Tier};
use aliquot_scheduler_engine::{ClaimUid, Shown, View, Whereabouts};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, interval, timeout};

use crate::mirror::{AboutDevices, IllDevice, KeptPart};
use crate::serve::Shared;
use crate::telemetry::Written;

/// The reason by which a cluster autoscaler knows pods that more nodes would help.
const UNSCHEDULABLE: &str = "Unschedulable";
/// The reason of pods that wait for something else than nodes.
const WAITING: &str = "Waiting";
/// The reason of pods that are not scheduled as they are.
const NOT_SUPPORTED: &str = "NotSupported";

/// What is said of other drivers' devices, of which the books know only the free ones.
const ALLOCATED_DO_NOT_COUNT: &str = "devices that are allocated already do not count as there";

/// The prefix of the taints by which Kubernetes says what is wrong with a node.
const NODE_TAINTS: &str = "node.kubernetes.io/";

/// Time between two looks at the pods that wait.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two changes of what is said of one pod, at least.
const PAUSE: Duration = Duration::from_secs(10);
/// Pods that are looked at together, at most.
const AT_A_LOOK: usize = 100;

/// What is to be said of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    reason: &'static str,
    text: String,
}

/// A pod of which something is to be said.
struct About {
    uid: String,
    namespace: String,
    name: String,
    /// Its condition's reason and message.
    before: Option<(String, String)>,
    problem: Option<String>,
    /// The name in the books of a place with devices of other drivers for it.
    place: Option<String>,
    /// The pod that it follows.
    follows: Option<String>,
}

/// Says why pods wait, for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, shown: Shown, events: Events) {
    let mut looks = interval(LOOK);
    let mut said_at: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        looks.tick().await;
        let (Some(view), Some(left)) = (shown.get(), shared.fence.left()) else { continue };
        if let Some(hopeless) = shared.read(|mirror| mirror.newly_hopeless(&view)) {
            shared.change(|mirror| mirror.note_hopeless(hopeless));
        }
        let waiting = waiting(&shared);
        said_at.retain(|uid, _| waiting.contains_key(uid));
        let is_due = |uid: &String| said_at.get(uid).is_none_or(|at| at.elapsed() >= PAUSE);
        // Pods of which nothing was said yet come first, and then those of which something was said longest ago.
        let mut due: Vec<&About> = waiting.values().filter(|about| is_due(&about.uid)).collect();
        due.sort_by_key(|about| said_at.get(&about.uid).copied());
        let (ill, idle) = shared.read(|mirror| (mirror.ill_devices(), mirror.idle_parts()));
        let mut seen = AboutDevices::default();
        for about in due.into_iter().take(AT_A_LOOK) {
            let of_devices = || shared.read(|mirror| mirror.about_devices(&about.uid, &mut seen));
            let Some(said) = what_to_say(&view, about, &ill, &idle, of_devices) else { continue };
            said_at.insert(about.uid.clone(), Instant::now());
            let is_said =
                about.before.as_ref().is_some_and(|(reason, text)| *reason == said.reason && *text == said.text);
            if is_said {
                continue;
            }
            match timeout(left, write(&client, &events, about, &said)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.status.write_refused(Written::Condition, &about.name, &error),
                Err(_) => shared.status.write_failed(Written::Condition),
            }
        }
    }
}

fn waiting(shared: &Shared) -> BTreeMap<String, About> {
    shared.read(|mirror| {
        let about = mirror.waiting().map(|waiting| About {
            uid: waiting.facts.uid.clone(),
            namespace: waiting.facts.namespace.clone(),
            name: waiting.facts.name.clone(),
            before: waiting.facts.said.clone(),
            problem: waiting.problem.map(str::to_owned),
            place: waiting.place.map(str::to_owned),
            follows: waiting.follows,
        });
        about.map(|about| (about.uid.clone(), about)).collect()
    })
}

/// What is said of devices of our driver for a pod that waits for room on devices: of those that get nothing new, and of
/// parts whose room is kept.
pub(crate) fn about_our_devices(
    asks_for_devices: bool,
    explanation: &Explanation,
    ill: &[IllDevice],
    idle: &[KeptPart],
) -> impl Iterator<Item = String> {
    let lacks_devices = lacks_devices(asks_for_devices, explanation);
    [about_ill_devices(ill), about_idle_parts(idle)].into_iter().flatten().filter(move |_| lacks_devices)
}

/// What is said of devices that get nothing new.
fn about_ill_devices(ill: &[IllDevice]) -> Option<String> {
    let first = ill.first()?;
    let others = match ill.len() {
        1 => String::new(),
        2 => "; nor does another device".to_owned(),
        all => format!("; nor do {} other devices", all - 1),
    };
    let IllDevice { node, uuid, problem } = first;
    Some(format!("device {uuid} of node {node} gets nothing new: {problem}{others}"))
}

/// What is said of parts whose room is kept though no pod uses them.
fn about_idle_parts(idle: &[KeptPart]) -> Option<String> {
    let KeptPart { of, node, part } = idle.first()?;
    let (bytes, percent) = (part.memory.get(), part.core.get() / 10);
    let others = match idle.len() {
        1 => String::new(),
        all => format!("; so are {} other parts", all - 1),
    };
    Some(format!(
        "{bytes} bytes and {percent} % of device {} of node {node} are kept for {of}, which no pod uses now{others}",
        part.uuid
    ))
}

/// Whether a pod asks for devices that the books know.
pub(crate) fn asks_for_devices(view: &View, uid: &ClaimUid) -> bool {
    let claim = view.claim_id(uid).and_then(|id| view.cluster().claim(id));
    claim.is_some_and(|claim| claim.request.device_count() > 0)
}

/// Whether a pod waits for room on devices.
fn lacks_devices(asks_for_devices: bool, explanation: &Explanation) -> bool {
    let is_matter_of_room =
        explanation.reasons.iter().any(|reason| matches!(reason.tier(), Tier::Device | Tier::Model | Tier::Size));
    is_matter_of_room && asks_for_devices
}

/// Whether a pod waits for devices of our driver or of others. `place`: as for [`about_other_devices`].
pub(crate) fn lacks_any_devices(asks_for_devices: bool, explanation: &Explanation, place: Option<&str>) -> bool {
    lacks_devices(asks_for_devices, explanation) || about_other_devices(explanation, place).is_some()
}

/// What is said of other drivers' devices, if a pod lacks them, with the tier of the reason that says so. `place`: the
/// name in the books of a place with such devices for it. The books know the devices that are free, and those of pods
/// that this leader has bound.
pub(crate) fn about_other_devices(explanation: &Explanation, place: Option<&str>) -> Option<(Tier, &'static str)> {
    let place = place?;
    let lacking = explanation.reasons.iter().find(|reason| reason.to_string().contains(place))?;
    Some((lacking.tier(), ALLOCATED_DO_NOT_COUNT))
}

/// What is to be said of a pod; `None`: nothing yet. `of_devices`: what keeps devices from the pod.
fn what_to_say(
    view: &View,
    about: &About,
    ill: &[IllDevice],
    idle: &[KeptPart],
    of_devices: impl FnOnce() -> Vec<String>,
) -> Option<Said> {
    if let Some(problem) = &about.problem {
        return Some(Said { reason: NOT_SUPPORTED, text: problem.clone() });
    }
    let uid = ClaimUid::from(about.uid.as_str());
    let claim = view.claim(&uid)?;
    match claim.whereabouts {
        Whereabouts::Refused(why) => Some(Said { reason: WAITING, text: why.to_string() }),
        Whereabouts::Placed(node) => {
            let text = format!("node {node} is kept for the pod, which starts there when others have left");
            Some(Said { reason: WAITING, text })
        }
        Whereabouts::There { .. } => None,
        Whereabouts::Waiting => {
            let explanation = view.explain(&uid)?;
            let complaint = claim.complaint.map(|complaint| format!("it could not be bound: {complaint}"));
            let mut reasons: Vec<String> =
                explanation.reasons.iter().map(ToString::to_string).chain(complaint).collect();
            if reasons.is_empty() {
                return None;
            }
            reasons.splice(0..0, about.follows.clone());
            let asks_for_devices = asks_for_devices(view, &uid);
            let of_others = about_other_devices(&explanation, about.place.as_deref());
            reasons.extend(of_others.map(|(_, text)| text.to_owned()));
            if lacks_any_devices(asks_for_devices, &explanation, about.place.as_deref()) {
                reasons.extend(of_devices());
            }
            reasons.extend(about_our_devices(asks_for_devices, &explanation, ill, idle));
            let help = changes_worth_saying(&explanation).next().map(|change| format!("; this would help: {change}"));
            let calls_for_nodes =
                of_others.is_some() || explanation.reasons.iter().any(|reason| reason.calls_for_nodes());
            let reason = if calls_for_nodes { UNSCHEDULABLE } else { WAITING };
            Some(Said { reason, text: format!("{}{}", reasons.join("; "), help.unwrap_or_default()) })
        }
    }
}

/// The changes that would let something be placed, and keep it working.
pub(crate) fn changes_worth_saying(explanation: &Explanation) -> impl Iterator<Item = &Change> {
    explanation.changes.iter().filter(|change| !is_about_the_node(change))
}

/// Whether a change would only hide that a node cannot run the pod now.
fn is_about_the_node(change: &Change) -> bool {
    let of_kubernetes =
        |toleration: &Toleration| toleration.key.as_ref().is_some_and(|key| key.starts_with(NODE_TAINTS));
    matches!(change, Change::Tolerate(toleration) if of_kubernetes(toleration))
}

/// Writes the condition and then the event.
///
/// # Errors
/// The condition was not written.
async fn write(client: &Client, events: &Events, about: &About, said: &Said) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &about.namespace);
    let condition = json!({"metadata": {"uid": about.uid}, "status": {"conditions": [{
        "type": "PodScheduled",
        "status": "False",
        "reason": said.reason,
        "message": said.text,
        "lastTransitionTime": Timestamp::now(),
    }]}});
    pods.patch_status(&about.name, &PatchParams::default(), &Patch::Strategic(condition)).await?;
    events.warn(pod_reference(&about.namespace, &about.name, &about.uid), "FailedScheduling", &said.text).await;
    Ok(())
}
