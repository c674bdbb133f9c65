//! Jobs, nodes and queues in the form in which users see them.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_core::explain::{Change, Exclusion, Reason};
use aliquot_scheduler_core::{DEFAULT_QUEUE, NodeOperator, NodeTerm};
use aliquot_scheduler_engine::{NodeView, Phase, View, Whereabouts};
use aliquot_telemetry::{NodeState, ResourceUse, device_uses, queue_uses};

use crate::jobs::{
    ClaimName, End, Entry, Exit, IMAGES_LABEL, JobSpec, Member, Mount, NODE_LABEL, PriorityClass, Restart,
    SECRETS_LABEL, SecretUse, Task, TaskState, Then,
};
use crate::sessions::Sessions;

/// The most nodes that a reason names of those on which a job may run.
const NODES_NAMED: usize = 3;

/// A job for a user; `is_private`: without the parts that other users must not see.
pub(crate) fn job(entry: &Entry, view: Option<&View>, is_private: bool) -> wire::Job {
    let job = &entry.job;
    // All members ask for the same, so what keeps one task from all nodes keeps the others, too. What it is tells what
    // they ask for.
    let why_never = (!is_private).then(OnceCell::new);
    let tasks = entry.tasks.values().map(|of| task(entry, of, view, why_never.as_ref(), is_private));
    let tasks: Vec<wire::Task> = tasks.collect();
    let state = state(entry);
    let reason = tasks.iter().filter(|task| task.state() == state).map(|task| task.reason.clone());
    wire::Job {
        id: job.id,
        spec: Some(spec(&job.spec, is_private)),
        user: job.user.clone(),
        uid: job.uid,
        is_remote: job.is_remote,
        submitted_unix_ms: job.submitted_ms,
        state: state.into(),
        reason: reason.into_iter().find(|reason| !reason.is_empty()).unwrap_or_default(),
        tasks,
        changes_only: false,
    }
}

/// The state of a job for users.
pub(crate) fn state(entry: &Entry) -> wire::JobState {
    match entry.end() {
        Some(end) => of_end(end),
        None => state_of_parts(entry.tasks.values().map(task_state)),
    }
}

fn task_state(task: &Task) -> wire::JobState {
    match task.state {
        TaskState::Ended(end) => of_end(end),
        TaskState::Leaving { then: Then::End(_) } => wire::JobState::Stopping,
        TaskState::Active if task.runs() => wire::JobState::Running,
        TaskState::Blocked | TaskState::Retrying { .. } | TaskState::Active | TaskState::Leaving { .. } => {
            wire::JobState::Pending
        }
    }
}

/// The state of something with parts of which at least one has not ended.
fn state_of_parts(parts: impl Iterator<Item = wire::JobState>) -> wire::JobState {
    let parts: Vec<wire::JobState> = parts.collect();
    let order = [wire::JobState::Running, wire::JobState::Pending, wire::JobState::Stopping];
    order.into_iter().find(|state| parts.contains(state)).unwrap_or(wire::JobState::Pending)
}

fn of_end(end: End) -> wire::JobState {
    match end {
        End::Succeeded => wire::JobState::Succeeded,
        End::Failed => wire::JobState::Failed,
        End::Cancelled => wire::JobState::Cancelled,
    }
}

fn task(
    entry: &Entry,
    task: &Task,
    view: Option<&View>,
    why_never: Option<&OnceCell<Option<Reason>>>,
    is_private: bool,
) -> wire::Task {
    let state = task_state(task);
    let claims = task.claims(entry.job.id).zip(&task.members).enumerate();
    let members = claims.map(|(rank, (_, of))| member(rank, of, task.state)).collect();
    let reason = match (state, task.state) {
        (wire::JobState::Pending, TaskState::Active) => {
            let waits_for = view.and_then(|view| waits_for(view, task.claims(entry.job.id), why_never));
            waits_for.unwrap_or_else(|| task.reason.clone())
        }
        // The reason may be a node's message that contains the command.
        _ if is_private => String::new(),
        _ => task.reason.clone(),
    };
    wire::Task {
        index: task.index,
        state: state.into(),
        attempt: task.starts,
        failures: task.failures,
        members,
        reason,
        ended_unix_ms: task.ended_ms.unwrap_or(0),
        retry_unix_ms: match task.state {
            TaskState::Retrying { at_ms } => at_ms,
            _ => 0,
        },
    }
}

/// Why a task waits, according to the last cycle. This is cheap, and has no suggestions.
fn waits_for(
    view: &View,
    mut claims: impl Iterator<Item = ClaimName>,
    why_never: Option<&OnceCell<Option<Reason>>>,
) -> Option<String> {
    claims.find_map(|claim| {
        let uid = claim.to_string().into();
        let known = view.claim(&uid)?;
        match known.whereabouts {
            Whereabouts::Refused(why) => Some(why.to_string()),
            Whereabouts::Placed(node) => {
                Some(format!("it has a place on node {node} and waits for others to leave it"))
            }
            Whereabouts::There { node, phase: Phase::Starting, .. } => Some(format!("it starts on node {node}")),
            Whereabouts::There { node, phase: Phase::Stopping, .. } => Some(format!("it makes way on node {node}")),
            Whereabouts::There { .. } => None,
            Whereabouts::Waiting => {
                let group = view.cluster().group_of(view.claim_id(&uid)?)?;
                let complaint = known.complaint.map(|complaint| complaint.to_string());
                complaint.or_else(|| {
                    let (pending, cluster) = (view.pending(group)?, view.cluster());
                    let reason = pending.reason(cluster);
                    let why_never = match (&reason, why_never) {
                        (Reason::NoRoom { .. }, Some(known)) => {
                            known.get_or_init(|| pending.why_never(cluster)).as_ref()
                        }
                        _ => None,
                    };
                    Some(words(why_never.unwrap_or(&reason)))
                })
            }
        }
    })
}

fn member(rank: usize, member: &Member, task: TaskState) -> wire::Member {
    let state = match (&member.exit, member.is_leaving, task) {
        (Some(exit), ..) if exit.has_succeeded() => wire::JobState::Succeeded,
        (Some(Exit { code: None, signal: 0, .. }), _, TaskState::Ended(end)) => of_end(end),
        (Some(_), ..) => wire::JobState::Failed,
        (None, true, _) => wire::JobState::Stopping,
        (None, false, TaskState::Ended(end)) => of_end(end),
        (None, false, _) if member.started_ms.is_some() => wire::JobState::Running,
        (None, false, _) => wire::JobState::Pending,
    };
    let place = member.place.as_ref();
    let devices = place.into_iter().flat_map(|place| &place.devices).map(|(uuid, core_millis, memory_bytes)| {
        wire::MemberDevice { uuid: uuid.clone(), core_millis: *core_millis, memory_bytes: *memory_bytes }
    });
    wire::Member {
        rank: u32::try_from(rank).unwrap_or(u32::MAX),
        state: state.into(),
        node: place.map(|place| place.node.clone()).unwrap_or_default(),
        devices: devices.collect(),
        started_unix_ms: member.started_ms.unwrap_or(0),
        exit_code: member.exit.as_ref().and_then(|exit| exit.code),
        signal: member.exit.as_ref().map_or(0, |exit| exit.signal),
    }
}

fn spec(spec: &JobSpec, is_private: bool) -> wire::JobSpec {
    let seen = |text: &str| if is_private { String::new() } else { text.to_owned() };
    wire::JobSpec {
        name: spec.name.clone(),
        queue: if spec.queue.is_empty() { DEFAULT_QUEUE.to_owned() } else { spec.queue.clone() },
        command: if is_private { Vec::new() } else { spec.command.clone() },
        environment: if is_private { Default::default() } else { spec.environment.clone().into_iter().collect() },
        work_dir: seen(&spec.work_dir),
        gpu_core_percent: spec.gpu_core_percent,
        gpu_memory_bytes: spec.gpu_memory_bytes,
        gpus: spec.gpus,
        cpu_millis: spec.cpu_millis,
        memory_bytes: spec.memory_bytes,
        gang: spec.gang,
        array: if spec.has_array { spec.array.clone() } else { Vec::new() },
        priority: spec.priority,
        non_preemptible: !spec.preemptible,
        retries: spec.retries,
        retry_delay_ms: spec.retry_delay_ms,
        time_limit_ms: spec.time_limit_ms,
        grace_ms: spec.grace_ms,
        restart: match spec.restart {
            Restart::Always => wire::Restart::Unspecified,
            Restart::Never => wire::Restart::Never,
        }
        .into(),
        node_labels: spec.node_labels.clone().into_iter().collect(),
        nodes: spec.nodes.clone(),
        gpu_models: spec.gpu_models.clone(),
        tolerations: spec
            .tolerations
            .iter()
            .map(|(key, value)| wire::Toleration { key: key.clone(), value: value.clone() })
            .collect(),
        after: spec.after.clone(),
        image: spec.image.as_ref().map(|image| seen(&image.reference)).unwrap_or_default(),
        mounts: spec.image.iter().filter(|_| !is_private).flat_map(|image| &image.mounts).map(mount).collect(),
        shm_bytes: spec.image.as_ref().map_or(0, |image| image.shm_bytes),
        secrets: spec.secrets.iter().filter(|_| !is_private).map(secret).collect(),
        gpu_core_limit_percent: spec.gpu_core_limit_percent,
        priority_class: PriorityClass::for_users(spec.priority_class).into(),
    }
}

fn mount(mount: &Mount) -> wire::Mount {
    wire::Mount { source: mount.source.clone(), target: mount.target.clone(), read_only: mount.read_only }
}

fn secret(of: &SecretUse) -> wire::SecretUse {
    wire::SecretUse { name: of.name.clone(), variable: of.variable.clone() }
}

/// The state of a node for users.
pub(crate) fn node_state(of: &NodeView, sessions: &Sessions) -> NodeState {
    let is_cordoned = sessions.reported(of.name.as_str()).is_some_and(|reported| reported.cordoned);
    match (of.is_up && sessions.is_connected(of.name.as_str()), is_cordoned) {
        (false, _) => NodeState::Silent,
        (true, true) => NodeState::Cordoned,
        (true, false) => NodeState::Up,
    }
}

/// All nodes in the form for users.
pub(crate) fn nodes(view: &View, sessions: &Sessions) -> Vec<wire::Node> {
    view.nodes().map(|of| node(view, &of, sessions)).collect()
}

fn node(view: &View, of: &NodeView, sessions: &Sessions) -> wire::Node {
    let books = view.cluster().node_named(of.name.as_str()).and_then(|id| view.cluster().node(id));
    let reported = sessions.reported(of.name.as_str()).unwrap_or_default();
    let state = match node_state(of, sessions) {
        NodeState::Silent => wire::NodeState::Silent,
        NodeState::Cordoned => wire::NodeState::Cordoned,
        NodeState::Up => wire::NodeState::Up,
    };
    let devices = books.into_iter().flat_map(device_uses).map(|device| wire::NodeDevice {
        uuid: device.uuid,
        model: device.model,
        memory_bytes: device.memory_bytes,
        healthy: device.is_healthy,
        core_given_millis: device.core_given_millis,
        memory_given_bytes: device.memory_given_bytes,
    });
    let spec = books.map(|node| node.spec());
    let labels = spec.into_iter().flat_map(|spec| spec.labels.iter());
    wire::Node {
        name: of.name.to_string(),
        state: state.into(),
        version: reported.version,
        address: reported.address,
        devices: devices.collect(),
        labels: labels.map(|(key, text)| (key.to_owned(), text.to_owned())).collect(),
        instances: u32::try_from(of.instances).unwrap_or(u32::MAX),
        heard_unix_ms: of.heard_ms,
        lease_unix_ms: of.lease_until_ms.unwrap_or(0),
        problem: reported.problem,
        cpu_millis: spec.map_or(0, |spec| spec.cpu.get()),
        memory_bytes: spec.map_or(0, |spec| spec.memory.get()),
    }
}

/// All queues, each before the queues below it.
pub(crate) fn queues(view: &View) -> Vec<wire::Queue> {
    let queues = queue_uses(view).into_iter().map(|queue| {
        let spec = view.cluster().queue_named(&queue.name).and_then(|id| view.cluster().queue(id));
        let shown = spec.map(|queue| crate::queues::shown(queue.spec())).unwrap_or_default();
        wire::Queue {
            held_gpu_millis: queue.gpu.held,
            fair_share_gpu_millis: queue.gpu.fair_share.unwrap_or(0),
            past_usage_ppm: queue.past_usage_ppm,
            pending_gpu_millis: queue.gpu.pending,
            running: queue.running,
            pending: queue.waiting,
            cpu_millis: shown.cpu_millis.map(|amounts| with_use(amounts, queue.cpu)),
            memory_bytes: shown.memory_bytes.map(|amounts| with_use(amounts, queue.memory)),
            ..shown
        }
    });
    queues.collect()
}

fn with_use(amounts: wire::QueueAmounts, of: ResourceUse) -> wire::QueueAmounts {
    wire::QueueAmounts { held: of.held, fair_share: of.fair_share, pending: of.pending, ..amounts }
}

/// Why a task waits, and suggested changes.
pub(crate) fn explanation(entry: &Entry, task: &Task, view: &View, now_ms: u64) -> wire::ExplainResponse {
    let mut reasons = Vec::new();
    let mut remedies = Vec::new();
    match task.state {
        TaskState::Ended(end) => {
            let how = match end {
                End::Succeeded => "it has succeeded",
                End::Failed => "it has failed",
                End::Cancelled => "it was cancelled",
            };
            reasons.push(how.to_owned());
            reasons.extend(Some(&task.reason).filter(|reason| !reason.is_empty()).cloned());
        }
        TaskState::Blocked => reasons.push(task.reason.clone()),
        TaskState::Retrying { at_ms } => {
            let seconds = at_ms.saturating_sub(now_ms).div_ceil(1000);
            reasons.push(format!("it has failed ({}) and is tried again in {seconds} s", task.reason));
        }
        TaskState::Leaving { .. } => reasons.push(format!("it is stopped ({})", task.reason)),
        TaskState::Active => of_claims(entry, task, view, &mut reasons, &mut remedies),
    }
    wire::ExplainResponse { reasons, remedies, state: task_state(task).into() }
}

/// A reason in the words of users. The scheduler adds some labels and terms to jobs by itself; users know the options
/// because of which it does.
fn words(reason: &Reason) -> String {
    let mut text = reason.to_string();
    let Reason::NoSuchNode { excluded, .. } = reason else { return text };
    for of in excluded {
        let (key, value) = match &of.what {
            Exclusion::Label { key, value } => (key, value),
            Exclusion::NodeTerms(terms) => {
                text = with_named_nodes(&text, terms);
                continue;
            }
            _ => continue,
        };
        let (one, several, what) = match (key.as_str(), value.as_str()) {
            label if label == IMAGES_LABEL => ("runs", "run", "no images (`cluster.podman`)".to_owned()),
            label if label == SECRETS_LABEL => {
                ("gives", "give", "no secrets to jobs (the manager is too old)".to_owned())
            }
            (NODE_LABEL, node) => ("is", "are", format!("not {node:?} (--node)")),
            _ => continue,
        };
        let label = format!("the label {key}={value}");
        text = text.replace(&format!("lacks {label}"), &format!("{one} {what}"));
        text = text.replace(&format!("lack {label}"), &format!("{several} {what}"));
    }
    text
}

/// A reason that names the nodes on which a job may run as its user did. Only these nodes are terms of its request.
fn with_named_nodes(text: &str, terms: &BTreeSet<NodeTerm>) -> String {
    let of_requirements = terms.iter().flat_map(|term| &term.requirements).filter_map(|of| match &of.operator {
        NodeOperator::In(nodes) => Some(nodes),
        _ => None,
    });
    let nodes: Vec<String> = of_requirements.flatten().map(|node| format!("{node:?}")).collect();
    let named = nodes.iter().take(NODES_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let others = match nodes.len().saturating_sub(NODES_NAMED) {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        others => format!(" and {others} others"),
    };
    let what = format!("none of {named}{others} (--node)");
    let terms = terms.iter().map(NodeTerm::to_string).collect::<Vec<_>>().join(" or ");
    let affinity = format!("no term of the node affinity ({terms})");
    text.replace(&format!("matches {affinity}"), &format!("is {what}"))
        .replace(&format!("match {affinity}"), &format!("are {what}"))
}

/// A suggested change in the words of users.
fn remedy(change: &Change) -> String {
    const OTHER_NODES: &str = "leave out --node, or name another node: aliquot nodes";
    let (key, value) = match change {
        Change::DropLabel { key, value } => (key, value),
        // Only --node makes them.
        Change::DropNodeTerms => return OTHER_NODES.to_owned(),
        _ => return change.to_string(),
    };
    match (key.as_str(), value.as_str()) {
        label if label == IMAGES_LABEL => {
            "set `cluster.podman` in the configuration of a node's manager, or leave out --image".to_owned()
        }
        label if label == SECRETS_LABEL => {
            "update the managers of nodes: those of older versions give no secrets to jobs".to_owned()
        }
        (NODE_LABEL, _) => OTHER_NODES.to_owned(),
        _ => change.to_string(),
    }
}

fn of_claims(entry: &Entry, task: &Task, view: &View, reasons: &mut Vec<String>, remedies: &mut Vec<String>) {
    for (rank, claim) in task.claims(entry.job.id).enumerate() {
        let uid = claim.to_string().into();
        let Some(known) = view.claim(&uid) else { continue };
        let subject = if task.members.len() > 1 { format!("rank {rank} ") } else { "it ".to_owned() };
        match known.whereabouts {
            Whereabouts::There { node, phase: Phase::Running, .. } => {
                reasons.push(format!("{subject}runs on node {node}"));
                continue;
            }
            Whereabouts::There { node, phase: Phase::Starting, .. } => {
                reasons.push(format!("{subject}starts on node {node}"));
                continue;
            }
            Whereabouts::Refused(why) => {
                reasons.push(why.to_string());
                continue;
            }
            _ => {}
        }
        reasons.extend(known.complaint.map(|complaint| complaint.to_string()));
        if let Some(explanation) = view.explain(&uid) {
            reasons.extend(explanation.reasons.iter().map(words));
            remedies.extend(explanation.changes.iter().map(remedy));
            reasons.extend(explanation.evictions.iter().map(ToString::to_string));
        }
        // All pending members wait for the same reason: that of the gang.
        return;
    }
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_core::NodeRequirement;
    use aliquot_scheduler_core::explain::NodeCount;

    use super::*;

    fn lacking(nodes: u32, labels: &[(&str, &str)]) -> String {
        let label =
            |(key, value): &(&str, &str)| Exclusion::Label { key: (*key).to_owned(), value: (*value).to_owned() };
        let excluded = labels.iter().map(|of| NodeCount { nodes, what: label(of) }).collect();
        words(&Reason::NoSuchNode { nodes, excluded })
    }

    #[test]
    fn labels_that_the_scheduler_adds_are_said_in_other_words() {
        let images = lacking(2, &[IMAGES_LABEL]);
        assert_eq!(images, "none of 2 nodes may take it: 2 nodes run no images (`cluster.podman`)");
        let secrets = lacking(1, &[SECRETS_LABEL]);
        assert_eq!(secrets, "none of 1 node may take it: 1 node gives no secrets to jobs (the manager is too old)");
        let named = lacking(3, &[(NODE_LABEL, "nosuch"), ("disk", "ssd")]);
        assert_eq!(
            named,
            "none of 3 nodes may take it: 3 nodes are not \"nosuch\" (--node) and 3 nodes lack the label disk=ssd"
        );
        assert_eq!(
            lacking(1, &[("images", "docker")]),
            "none of 1 node may take it: 1 node lacks the label images=docker"
        );
    }

    #[test]
    fn nodes_that_are_not_among_the_named_ones_are_said_to_be() {
        let not_among = |nodes: u32, named: &[&str]| {
            let operator = NodeOperator::In(named.iter().map(|node| (*node).to_owned()).collect());
            let requirements = [NodeRequirement { key: NODE_LABEL.to_owned(), operator }].into();
            let what = Exclusion::NodeTerms([NodeTerm { requirements }].into());
            words(&Reason::NoSuchNode { nodes, excluded: vec![NodeCount { nodes, what }] })
        };
        assert_eq!(not_among(2, &["a", "b"]), "none of 2 nodes may take it: 2 nodes are none of \"a\", \"b\" (--node)");
        let many = not_among(1, &["a", "b", "c", "d", "e"]);
        assert_eq!(many, "none of 1 node may take it: 1 node is none of \"a\", \"b\", \"c\" and 2 others (--node)");
    }

    #[test]
    fn what_users_can_do_about_such_labels_names_their_options() {
        let dropped =
            |(key, value): (&str, &str)| remedy(&Change::DropLabel { key: key.to_owned(), value: value.to_owned() });
        assert!(dropped(IMAGES_LABEL).contains("--image"));
        assert!(dropped(SECRETS_LABEL).contains("update the managers"));
        assert!(dropped((NODE_LABEL, "nosuch")).contains("--node"));
        assert!(remedy(&Change::DropNodeTerms).contains("--node"));
        assert!(dropped(("disk", "ssd")).contains("disk=ssd"));
    }
}
