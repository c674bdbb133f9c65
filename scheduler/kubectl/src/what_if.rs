//! `kubectl aliquot what-if`.

use std::io::Read;
use std::path::Path;

use aliquot_api_server::questions::{DeviceAsk, MakingWay, Part, Placement, WhatIf, WhatIfAnswer};
use aliquot_api_server::{QUEUE, message};
use aliquot_terminal::human::bytes_human;
use aliquot_terminal::look::{Colour, Look, paint};
use aliquot_terminal::points::points;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::Api;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{Format, WhatIfArgs};
use crate::cluster::Cluster;
use crate::document::document;
use crate::explain::percent;
use crate::failure::Failure;
use crate::quota::{Rules, Verdict};
use crate::{Printed, WOULD_WAIT, leader};

pub(crate) async fn what_if(cluster: &Cluster, args: &WhatIfArgs, look: Look) -> Result<Printed, Failure> {
    let Asked { mut pod, owner, made } = match &args.filename {
        Some(file) => asked(&manifest(file)?)?,
        None => Asked { pod: json!({"spec": {"containers": []}}), owner: None, made: 1 },
    };
    pod["metadata"]["namespace"] = match &pod["metadata"]["namespace"] {
        Value::String(namespace) => namespace.as_str().into(),
        _ => cluster.namespace.as_str().into(),
    };
    if let Some(queue) = &args.queue {
        pod["metadata"]["labels"][QUEUE] = queue.as_str().into();
    }
    if let Some(priority) = args.priority {
        pod["spec"]["priority"] = priority.into();
    }
    resolve_priority(cluster, &mut pod).await;
    let devices = args.gpu_core.map(|gpu_core_percent| DeviceAsk {
        gpus: args.gpus,
        gpu_core_percent,
        gpu_memory_bytes: args.gpu_memory.map(|bytes| bytes.0),
    });
    let count = args.count.unwrap_or(made);
    // Without a manifest the pod is not known in full.
    let rules = match &args.filename {
        Some(_) => Some(Rules::of_namespace(cluster, &pod).await),
        None => None,
    };
    if let Some(Ok(rules)) = &rules {
        rules.fill(&mut pod);
    }
    let question = WhatIf { pod: pod.clone(), owner, count, gang: args.gang, devices };
    let body = serde_json::to_vec(&question).map_err(|error| Failure::new(error.to_string()))?;
    let mut answer: WhatIfAnswer = leader::ask(cluster, "/v1/what-if", Some(body)).await?;
    // What the webhook fills in counts in the namespace, too.
    let pod = answer.pod.take().unwrap_or(pod);
    let Verdict { refused, mut notes } = match rules {
        Some(Ok(rules)) => rules.verdict(&pod, count),
        Some(Err(error)) => {
            let note = format!("ResourceQuotas and LimitRanges cannot be read, and do not count: {}", message(&error));
            Verdict { notes: vec![note], ..Verdict::default() }
        }
        None => Verdict::default(),
    };
    let exit = if answer.waiting == 0 && refused.is_empty() { 0 } else { WOULD_WAIT };
    let text = match args.output.output {
        format @ (Format::Json | Format::Yaml) => document(&Answer { answer, refused }, format)?,
        _ => text(&answer, &refused, look),
    };
    notes.dedup();
    Ok(Printed { text, notes, exit })
}

/// The scheduler's answer, and why the API server would refuse pods.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    answer: WhatIfAnswer,
    refused: Vec<String>,
}

/// Replaces the name of a cluster's own priority class by its value. The scheduler knows the shipped classes, and
/// reports names that it does not know.
async fn resolve_priority(cluster: &Cluster, pod: &mut Value) {
    let Some(name) = pod["spec"]["priorityClassName"].as_str().filter(|_| pod["spec"]["priority"].is_null()) else {
        return;
    };
    let classes: Api<PriorityClass> = Api::all(cluster.client.clone());
    if let Ok(Some(class)) = classes.get_opt(name).await {
        pod["spec"]["priority"] = class.value.into();
        pod["spec"]["preemptionPolicy"] = class.preemption_policy.map_or(Value::Null, Value::from);
    }
}

fn manifest(file: &Path) -> Result<Value, Failure> {
    let cannot = |error: String| Failure::new(format!("cannot read {}: {error}", file.display()));
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|error| cannot(error.to_string()))?;
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| cannot(error.to_string()))?;
    documents.retain(|document| !document.is_null());
    match documents.len() {
        1 => Ok(documents.remove(0)),
        count => Err(cannot(format!("it has {count} objects; ask about one at a time"))),
    }
}

/// The pods that a manifest makes.
struct Asked {
    pod: Value,
    /// The metadata of the pods' owner, if its labels and annotations count for them.
    owner: Option<Value>,
    /// How many they are.
    made: u32,
}

fn asked(manifest: &Value) -> Result<Asked, Failure> {
    let kind = manifest["kind"].as_str().unwrap_or_default();
    if kind == "Pod" {
        return Ok(Asked { pod: manifest.clone(), owner: None, made: 1 });
    }
    let object = if kind == "CronJob" { &manifest["spec"]["jobTemplate"] } else { manifest };
    let template = &object["spec"]["template"];
    if !template["spec"]["containers"].is_array() {
        return Err(Failure::new(format!("a {kind:?} has no pod template in a known place; give the pod itself")));
    }
    let spec = &object["spec"];
    let count = ["replicas", "parallelism"].into_iter().find_map(|field| spec[field].as_u64());
    // A Job makes no more pods than are to succeed.
    let count = count.map(|count| spec["completions"].as_u64().map_or(count, |completions| count.min(completions)));
    let mut pod = template.clone();
    if pod["metadata"]["namespace"].is_null() && !manifest["metadata"]["namespace"].is_null() {
        pod["metadata"]["namespace"] = manifest["metadata"]["namespace"].clone();
    }
    let (labels, annotations) = (&object["metadata"]["labels"], &object["metadata"]["annotations"]);
    let counts = ["CronJob", "Deployment", "Job", "StatefulSet"].contains(&kind);
    let counts = counts && (labels.is_object() || annotations.is_object());
    let owner = counts.then(|| json!({"labels": labels, "annotations": annotations}));
    Ok(Asked { pod, owner, made: count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1) })
}

fn text(answer: &WhatIfAnswer, refused: &[String], look: Look) -> String {
    let count = answer.placed.len();
    let of = count + usize::try_from(answer.waiting).unwrap_or(usize::MAX);
    let (verdict, colour) = match (count, answer.waiting) {
        (_, 0) if answer.making_way.is_empty() => ("would start now", Colour::Green),
        (_, 0) => ("would start when others have made way", Colour::Yellow),
        (0, _) => ("would wait", Colour::Red),
        _ => ("would start, and the rest would wait", Colour::Yellow),
    };
    let number = if count == 0 { of } else { count };
    let pods = if of == 1 { "The pod".to_owned() } else { format!("{number} of {of} pods") };
    let mut text = format!("{} (queue {})\n", paint(&format!("{pods} {verdict}"), colour, look.colours), answer.queue);
    let mut section = |heading: &str, sentences: &[String]| {
        if !sentences.is_empty() {
            let heading = paint(heading, Colour::Bold, look.colours);
            text.push_str(&format!("\n{heading}\n{}", points(sentences, look)));
        }
    };
    section("Refused by the namespace before they would be scheduled", refused);
    section("Where", &answer.placed.iter().map(place).collect::<Vec<_>>());
    section("Who would make way", &answer.making_way.iter().map(way).collect::<Vec<_>>());
    let reasons: Vec<String> =
        answer.reasons.iter().map(|reason| format!("{}: {}", reason.tier, reason.text)).collect();
    section("Why the rest would wait", &reasons);
    match answer.changes.as_slice() {
        [_] => section("What would help", &answer.changes),
        several => section("What would help, the smallest change first", several),
    }
    text
}

fn place(placement: &Placement) -> String {
    let part = |part: &Part| {
        let (core, memory) = (percent(part.core_thousandths), bytes_human(part.memory_bytes));
        format!("{core} and {memory} of {}", part.uuid)
    };
    let parts: Vec<String> = placement.devices.iter().map(part).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    let after = match placement.after.as_slice() {
        [] => String::new(),
        after => format!(", once {} has left", after.join(" and ")),
    };
    format!("node {}{parts}{after}", placement.node)
}

fn way(of: &MakingWay) -> String {
    let MakingWay { pod, queue, node, to, action } = of;
    let done = match action.as_str() {
        "preempt" => "has a lower priority",
        "consolidate" => "is moved to make room in one place",
        _ => "is above its queue's fair share",
    };
    let to = to.as_ref().map(|to| format!(" to node {to}")).unwrap_or_default();
    let verb = if to.is_empty() { "would be evicted" } else { "would be moved" };
    format!("{pod} of queue {queue} {verb} from node {node}{to}: it {done}")
}

#[cfg(test)]
mod tests {
    use aliquot_api_server::questions::Reason;

    use super::*;

    #[test]
    fn workloads_say_how_many_pods_they_make() {
        let template = json!({"spec": {"containers": [{"name": "main"}]}});
        let job = json!({
            "kind": "Job", "metadata": {"namespace": "team"}, "spec": {"parallelism": 3, "template": template},
        });
        let Asked { pod, made, .. } = asked(&job).unwrap();
        assert_eq!((made, &pod["metadata"]["namespace"]), (3, &json!("team")));
        let mut few = job;
        few["spec"]["completions"] = 2.into();
        assert_eq!(asked(&few).unwrap().made, 2);
        let cron = json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}});
        assert_eq!(asked(&cron).unwrap().made, 1);
        let error = asked(&json!({"kind": "Service", "spec": {}})).err().unwrap();
        assert!(error.to_string().contains("\"Service\""), "{error}");
    }

    #[test]
    fn the_owner_of_the_pods_speaks_for_them() {
        let template = json!({"spec": {"containers": [{"name": "main"}]}});
        let metadata = json!({"name": "w", "labels": {"team": "a"}});
        let of = |kind: &str, spec: Value| {
            let owner = asked(&json!({"kind": kind, "metadata": metadata, "spec": spec})).unwrap().owner;
            owner.map(|owner| owner["labels"].clone())
        };
        let spec = json!({"template": template});
        assert_eq!(of("Deployment", spec.clone()), Some(json!({"team": "a"})));
        // A CronJob's Jobs have the labels of their template.
        let in_template = json!({"jobTemplate": {"metadata": {"labels": {"team": "b"}}, "spec": spec}});
        assert_eq!(of("CronJob", in_template), Some(json!({"team": "b"})));
        assert_eq!(of("DaemonSet", spec.clone()), None);
        assert_eq!(asked(&json!({"kind": "Job", "spec": spec})).unwrap().owner, None);
    }

    #[test]
    fn the_answer_says_where_and_whom() {
        let part = Part { uuid: "GPU-1".into(), core_thousandths: 500, memory_bytes: 8 << 30 };
        let placed = Placement { node: "n".into(), devices: vec![part], after: vec!["team/b".into()] };
        let making_way = MakingWay {
            pod: "team/b".into(),
            queue: "low".into(),
            node: "n".into(),
            to: None,
            action: "preempt".into(),
        };
        let answer = WhatIfAnswer {
            queue: "vision".into(),
            placed: vec![placed],
            making_way: vec![making_way],
            ..WhatIfAnswer::default()
        };
        assert_eq!(
            text(&answer, &[], Look::PLAIN),
            "The pod would start when others have made way (queue vision)\n\
             \nWhere\n- node n: 50 % and 8 GiB of GPU-1, once team/b has left\n\
             \nWho would make way\n- team/b of queue low would be evicted from node n: it has a lower priority\n"
        );
        let reasons = vec![Reason { tier: "no-room".into(), text: "nothing is free".into() }];
        let waits = WhatIfAnswer { queue: "default".into(), waiting: 2, reasons, ..WhatIfAnswer::default() };
        let shown = text(&waits, &["a quota is full".to_owned()], Look::PLAIN);
        assert!(
            shown.contains("Refused by the namespace before they would be scheduled\n- a quota is full\n"),
            "{shown}"
        );
        assert!(shown.starts_with("2 of 2 pods would wait (queue default)\n"), "{shown}");
        assert!(shown.contains("Why the rest would wait\n- no-room: nothing is free\n"), "{shown}");
    }
}
