//! `kubectl aliquot explain`.

use aliquot_api_server::message;
use aliquot_api_server::questions::{PodAnswer, PodState, Reason};
use aliquot_dialects::{DECISION, Decision};
use aliquot_terminal::human::{bytes_human, span_human};
use aliquot_terminal::look::{Colour, Look, paint};
use aliquot_terminal::points::points;
use aliquot_terminal::table::{definitions, printable};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use serde::Serialize;

use crate::args::{ExplainArgs, Format};
use crate::cluster::{Cluster, cannot};
use crate::document::document;
use crate::failure::Failure;
use crate::holdings::{self, Holding};
use crate::{Printed, leader, quota};

/// The reasons of those events that tell why a pod waits or was removed.
const TELLING: [&str; 9] = [
    "DevicesNotReady",
    "VolumesNotReady",
    "FailedScheduling",
    "Preempted",
    "Evicted",
    "SliceRefused",
    "FailedAdmission",
    "UnexpectedAdmissionError",
    "Failed",
];
/// The most events that are shown. The latest ones are chosen.
const EVENTS_MAX: usize = 5;

/// The data of the cluster and the scheduler about a pod.
#[derive(Debug, Default, Serialize)]
struct Explanation {
    pod: String,
    /// The phase of the pod; empty: the pod does not exist any more.
    phase: String,
    node: Option<String>,
    queue: Option<String>,
    /// The parts of devices that its containers have.
    parts: Vec<String>,
    /// The state of the pod in the scheduler.
    state: Option<PodState>,
    reasons: Vec<Reason>,
    changes: Vec<String>,
    evictions: Vec<String>,
    /// The message of the pod's condition.
    condition: Option<String>,
    events: Vec<String>,
    /// The name is that of a workload whose pods cannot be made, or not all of them.
    lacks_pods: bool,
}

pub(crate) async fn explain(cluster: &Cluster, args: &ExplainArgs, look: Look) -> Result<Printed, Failure> {
    let name = args.pod.0.as_str();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let pod = pods.get_opt(name).await.map_err(|error| cannot("read the pod", &error))?;
    let mut notes = Vec::new();
    let events = match events(cluster, name, pod.as_ref()).await {
        Ok(events) => events,
        Err(error) => {
            notes.push(format!("the pod's events cannot be read: {}", message(&error)));
            Vec::new()
        }
    };
    let full_name = format!("{}/{name}", cluster.namespace);
    let Some(pod) = pod else {
        let reasons = why_no_pods(cluster, name, &mut notes).await;
        if !reasons.is_empty() {
            let without = Explanation { pod: full_name, reasons, events, lacks_pods: true, ..Explanation::default() };
            return printed(&without, args.output.output, notes, look);
        }
        if events.is_empty() {
            return Err(Failure::new(format!("there is no pod {full_name}, and no event mentions it")));
        }
        let gone = Explanation { pod: full_name, events, ..Explanation::default() };
        return printed(&gone, args.output.output, notes, look);
    };
    let mut found = Explanation { pod: full_name, events, ..of_pod(&pod) };
    let has_claims = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref()).is_some();
    if found.node.is_some() && has_claims {
        match holdings::read(cluster, false).await {
            Ok(objects) => {
                let own = objects.holdings.iter().filter(|of| of.pod == name);
                found.parts.extend(own.filter_map(by_claim));
                notes.extend(objects.notes);
            }
            Err(error) => notes.push(format!("the parts of claims are not known: {error}")),
        }
    }
    let path = format!("/v1/pods/{}/{name}", cluster.namespace);
    match leader::ask::<PodAnswer>(cluster, &path, None).await {
        Ok(answer) => {
            found.node = found.node.or(answer.node);
            (found.queue, found.state) = (Some(answer.queue), Some(answer.state));
            (found.reasons, found.changes, found.evictions) = (answer.reasons, answer.changes, answer.evictions);
        }
        Err(no_answer) => {
            let instead = "this is what the pod and its events say";
            notes.push(format!("{}; {instead}", no_answer.why()));
        }
    }
    printed(&found, args.output.output, notes, look)
}

/// Why there are no pods of a workload: a ResourceQuota is exceeded, for example.
async fn why_no_pods(cluster: &Cluster, name: &str, notes: &mut Vec<String>) -> Vec<Reason> {
    match quota::why_no_pods(cluster, name).await {
        Ok(said) => {
            let tier = |text: &String| if text.contains("exceeded quota") { "quota" } else { "refused" };
            said.into_iter().map(|text| Reason { tier: tier(&text).to_owned(), text }).collect()
        }
        Err(error) => {
            notes.push(format!("the events of workloads cannot be read: {}", message(&error)));
            Vec::new()
        }
    }
}

fn printed(found: &Explanation, format: Format, notes: Vec<String>, look: Look) -> Result<Printed, Failure> {
    let text = match format {
        Format::Json | Format::Yaml => document(found, format)?,
        Format::Table | Format::Wide => text(found, look),
    };
    Ok(Printed { text, notes, exit: 0 })
}

/// What a pod has by a claim.
fn by_claim(holding: &Holding) -> Option<String> {
    let claim = holding.claim.as_ref()?;
    let time = holding.core_thousandths.map_or("part".to_owned(), percent);
    let memory = holding.memory_bytes.map_or("part".to_owned(), bytes_human);
    Some(format!("by claim {claim} it has {time} of the time and {memory} of the memory of {}", holding.device))
}

/// The part of an explanation that the pod's own object contains.
fn of_pod(pod: &Pod) -> Explanation {
    let annotations = pod.metadata.annotations.as_ref();
    let decision = annotations.and_then(|annotations| annotations.get(DECISION)?.parse::<Decision>().ok());
    let parts = decision.iter().flat_map(|decision| &decision.containers).flat_map(|(container, parts)| {
        parts.iter().map(move |part| {
            let (percent, memory) = (percent(part.core_thousandths), bytes_human(part.memory_bytes));
            format!("container {container} has {percent} of the time and {memory} of the memory of {}", part.uuid)
        })
    });
    let status = pod.status.as_ref();
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let waits = |condition: &&k8s_openapi::api::core::v1::PodCondition| {
        let is_telling = ["PodScheduled", "DisruptionTarget"].contains(&condition.type_.as_str());
        is_telling && condition.message.as_ref().is_some_and(|message| !message.is_empty())
    };
    let condition = conditions.rfind(waits).map(|condition| {
        let reason = condition.reason.as_ref().map(|reason| format!("{reason}: ")).unwrap_or_default();
        format!("{reason}{}", condition.message.as_deref().unwrap_or_default())
    });
    let phase = match pod.metadata.deletion_timestamp {
        Some(_) => "Terminating".to_owned(),
        None => status.and_then(|status| status.phase.clone()).unwrap_or_default(),
    };
    Explanation {
        phase,
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty()),
        parts: parts.collect(),
        condition,
        ..Explanation::default()
    }
}

/// Thousandths as a percentage: `30 %`, `33.3 %`.
pub(crate) fn percent(thousandths: u32) -> String {
    match thousandths % 10 {
        0 => format!("{} %", thousandths / 10),
        tenths => format!("{}.{tenths} %", thousandths / 10),
    }
}

/// The latest events with one of these reasons, the latest first. For an existing pod, events of an earlier pod with
/// the same name are left out.
async fn events(cluster: &Cluster, name: &str, pod: Option<&Pod>) -> kube::Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let of_pod = ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={name}"));
    let uid = pod.and_then(|pod| pod.metadata.uid.as_ref());
    let time = |event: &Event| {
        let last = event.last_timestamp.as_ref().map(|Time(at)| *at);
        last.or_else(|| event.event_time.as_ref().map(|at| at.0))
    };
    let is_telling = |event: &Event| {
        let is_of_it = uid.is_none_or(|uid| event.involved_object.uid.as_ref().is_none_or(|of| of == uid));
        is_of_it && event.reason.as_deref().is_some_and(|reason| TELLING.contains(&reason))
    };
    let mut found: Vec<Event> = events.list(&of_pod).await?.items.into_iter().filter(is_telling).collect();
    found.sort_by_key(|event| std::cmp::Reverse(time(event)));
    let said = |event: &Event| {
        let ago = time(event).map(|at| Timestamp::now().duration_since(at).as_secs());
        let ago =
            ago.and_then(|seconds| u64::try_from(seconds).ok()).map(|seconds| format!("{} ago, ", span_human(seconds)));
        let (reason, message) = (event.reason.as_deref(), event.message.as_deref());
        format!("{}{}: {}", ago.unwrap_or_default(), reason.unwrap_or_default(), message.unwrap_or_default())
    };
    Ok(found.iter().take(EVENTS_MAX).map(said).collect())
}

fn text(found: &Explanation, look: Look) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let state = match (&found.state, found.phase.as_str()) {
        _ if found.lacks_pods => "lacks pods".to_owned(),
        (_, "") => "is gone".to_owned(),
        (Some(state), phase) => format!("{} ({phase})", state.words()),
        (None, phase) => phase.to_owned(),
    };
    let lines = [
        ("Pod:", found.pod.clone()),
        ("State:", state),
        ("Queue:", or_dash(&found.queue)),
        ("Node:", or_dash(&found.node)),
    ];
    let mut text = definitions(&lines);
    let mut section = |heading: &str, sentences: &[String]| {
        if !sentences.is_empty() {
            let heading = paint(heading, Colour::Bold, look.colours);
            text.push_str(&format!("\n{heading}\n{}", points(sentences, look)));
        }
    };
    section("What it has", &found.parts);
    let reasons: Vec<String> = found.reasons.iter().map(|reason| format!("{}: {}", reason.tier, reason.text)).collect();
    let waits = !matches!(found.state, Some(PodState::Bound | PodState::Leaving | PodState::Binding));
    let why = if found.lacks_pods { "Why pods are not made" } else { "Why it waits" };
    section(if waits { why } else { "What is known of it" }, &reasons);
    if found.state.is_none() && found.node.is_none() {
        section("Why it waits", &found.condition.iter().map(|text| printable(text)).collect::<Vec<_>>());
    }
    match found.changes.as_slice() {
        [_] => section("What would help", &found.changes),
        several => section("What would help, the smallest change first", several),
    }
    section("What happened before", &found.evictions);
    section("Events", &found.events);
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_waits_is_explained_in_tiers() {
        let found = Explanation {
            pod: "team/a".into(),
            phase: "Pending".into(),
            queue: Some("vision".into()),
            state: Some(PodState::Waiting),
            reasons: vec![Reason { tier: "quota".into(), text: "queue \"vision\" is full".into() }],
            changes: vec!["ask for less".into()],
            ..Explanation::default()
        };
        assert_eq!(
            text(&found, Look::PLAIN),
            "Pod:    team/a\nState:  waits (Pending)\nQueue:  vision\nNode:   -\n\
             \nWhy it waits\n- quota: queue \"vision\" is full\n\nWhat would help\n- ask for less\n"
        );
    }

    #[test]
    fn a_bound_pod_says_what_it_has() {
        let pod = json!({
            "metadata": {"name": "a", "annotations": {"aliquot.dev/devices": "main=GPU-1/333/8589934592"}},
            "spec": {"containers": [], "nodeName": "n"}, "status": {"phase": "Running"},
        });
        let found = of_pod(&serde_json::from_value(pod).unwrap());
        assert_eq!(found.parts, ["container main has 33.3 % of the time and 8 GiB of the memory of GPU-1"]);
        assert_eq!((found.node.as_deref(), found.phase.as_str()), (Some("n"), "Running"));
    }
}
