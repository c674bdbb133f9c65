//! Writes the status of each queue: what it holds, may have and waits for, and whether the books have it as it is
//! defined.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, is_not_found};
use aliquot_scheduler_engine::Shown;
use aliquot_telemetry::{Head, QueueUse, ResourceUse, queue_uses};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, interval, timeout};

use crate::condition::Condition;
use crate::mirror::QueueSaid;
use crate::queue::{Fault, Queue, QueueShare, QueueStatus};
use crate::serve::Shared;
use crate::telemetry::Written;

/// Time between two looks at the queues.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two writes of one queue's status, at least.
const PAUSE: Duration = Duration::from_secs(10);
/// Queues that are written at a look, at most.
const AT_A_LOOK: usize = 20;

/// The condition that says whether a queue is as it is defined.
const VALID: &str = "Valid";
/// The condition that says whether pods of a queue wait, and why the first of them does.
const WAITS: &str = "Waiting";

/// Keeps the status of queues, for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, shown: Shown) {
    let queues: Api<Queue> = Api::all(client);
    let mut looks = interval(LOOK);
    let mut written_at: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        looks.tick().await;
        let (Some(view), Some(_)) = (shown.get(), shared.fence.left()) else { continue };
        let uses: BTreeMap<String, QueueUse> =
            queue_uses(&view).into_iter().map(|queue| (queue.name.clone(), queue)).collect();
        let now = Timestamp::now();
        let wanted: BTreeMap<String, QueueStatus> = shared.read(|mirror| {
            let defined = mirror.defined_queues();
            let changed = defined.filter_map(|(name, said, fault)| {
                let status = status(uses.get(name), said, fault, now);
                (said.status.as_ref() != Some(&status)).then(|| (name.to_owned(), status))
            });
            changed.collect()
        });
        for (name, status) in due(wanted, &mut written_at, Instant::now()) {
            let Some(left) = shared.fence.left() else { break };
            written_at.insert(name.clone(), Instant::now());
            let patch = Patch::Merge(patch(&status));
            match timeout(left, queues.patch_status(&name, &PatchParams::default(), &patch)).await {
                Ok(Err(error)) if !is_not_found(&error) => {
                    shared.status.write_refused(Written::QueueStatus, &name, &error);
                }
                _ => {}
            }
        }
    }
}

/// The writes of this look. Those that were written longest ago go first, so queues that change all the time hold up no
/// others.
fn due(
    wanted: BTreeMap<String, QueueStatus>,
    written_at: &mut BTreeMap<String, Instant>,
    now: Instant,
) -> Vec<(String, QueueStatus)> {
    let is_over = |at: Instant| now.saturating_duration_since(at) >= PAUSE;
    written_at.retain(|name, at| wanted.contains_key(name) || !is_over(*at));
    let is_due = |name: &String| written_at.get(name).is_none_or(|at| is_over(*at));
    let mut due: Vec<(String, QueueStatus)> = wanted.into_iter().filter(|(name, _)| is_due(name)).collect();
    due.sort_by_key(|(name, _)| written_at.get(name).copied());
    due.truncate(AT_A_LOOK);
    due
}

/// The patch that writes a status. It also removes amounts that are not there any more.
fn patch(status: &QueueStatus) -> serde_json::Value {
    let mut status = json!(status);
    for resource in ["cpu", "memory"] {
        if status.get(resource).is_none() {
            status[resource] = serde_json::Value::Null;
        }
    }
    json!({"status": status})
}

/// A queue's amounts of a resource, in units of this many of the resource's own.
fn share(of: ResourceUse, unit: f64) -> QueueShare {
    let amount = |amount: u64| amount as f64 / unit;
    QueueShare { fair_share: amount(of.fair_share.unwrap_or(0)), held: amount(of.held), pending: amount(of.pending) }
}

fn status(queue: Option<&QueueUse>, said: &QueueSaid, fault: Option<Fault>, now: Timestamp) -> QueueStatus {
    let allotted = |of: ResourceUse, unit: f64| of.is_allotted().then(|| share(of, unit));
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let (is_valid, reason, text) = match fault {
        None => (true, "Used", String::new()),
        Some(Fault { reason, text }) => (false, reason, text),
    };
    let before = said.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let valid = Condition::new(VALID, is_valid, reason, text, before, now);
    let head = queue.and_then(|queue| queue.head.as_ref());
    let (reason, text) = match head {
        None => ("NothingWaits".to_owned(), String::new()),
        Some(Head { name, tier, reason }) => (camel_case(tier), format!("{name}: {tier}: {reason}")),
    };
    let waits = Condition::new(WAITS, head.is_some(), &reason, text, before, now);
    QueueStatus {
        observed_generation: said.generation,
        gpu: queue.map(|queue| share(queue.gpu, 1000.0)).unwrap_or_default(),
        cpu: queue.and_then(|queue| allotted(queue.cpu, 1.0)),
        memory: queue.and_then(|queue| allotted(queue.memory, 1_000_000.0)),
        running: count(queue.map_or(0, |queue| queue.running)),
        waiting: count(queue.map_or(0, |queue| queue.waiting)),
        conditions: vec![valid, waits],
    }
}

/// A tier's word as the reason of a condition: `FairShare` for `fair-share`.
fn camel_case(word: &str) -> String {
    let parts = word.split('-').filter_map(|part| part.split_at_checked(1));
    parts.map(|(first, rest)| first.to_ascii_uppercase() + rest).collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::lease::Fence;
    use crate::played::{self, Call};
    use crate::queue::QueueDefinition;

    #[test]
    fn the_time_of_a_condition_is_that_of_its_last_change() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let first = status(None, &QueueSaid::default(), None, at(1));
        assert_eq!(first.conditions[0].last_transition_time, "1970-01-01T00:00:01Z");
        let said = QueueSaid { generation: 2, status: Some(first) };
        assert_eq!(status(None, &said, None, at(9)).conditions[0].last_transition_time, "1970-01-01T00:00:01Z");
        let fault = Fault { reason: "Cycle", text: "it is below itself".into() };
        let wrong = status(None, &said, Some(fault), at(9));
        let condition = &wrong.conditions[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Cycle"));
        assert_eq!((condition.last_transition_time.as_str(), wrong.observed_generation), ("1970-01-01T00:00:09Z", 2));
    }

    #[test]
    fn queues_that_always_change_hold_up_no_others() {
        let mut written_at = BTreeMap::new();
        let mut written = BTreeMap::<String, usize>::new();
        let first = Instant::now();
        for look in 0..60 {
            let wanted = (0..300).map(|number| (format!("q{number:03}"), QueueStatus::default())).collect();
            let now = first + LOOK * look;
            for (name, _) in due(wanted, &mut written_at, now) {
                *written.entry(name.clone()).or_default() += 1;
                written_at.insert(name, now);
            }
        }
        // 60 looks write 20 each.
        assert_eq!(written.len(), 300);
        assert!(written.values().all(|times| *times == 4), "{written:?}");
    }

    #[test]
    fn a_queue_says_why_its_first_pod_waits() {
        let at = Timestamp::from_second(1).unwrap();
        let condition = |head| {
            let queue = QueueUse { head, ..QueueUse::default() };
            status(Some(&queue), &QueueSaid::default(), None, at).conditions.remove(1)
        };
        let head = Head { name: "team/a".into(), tier: "fair-share", reason: "others have less".into() };
        let waits = condition(Some(head));
        assert_eq!(
            (waits.type_.as_str(), waits.status.as_str(), waits.reason.as_str()),
            ("Waiting", "True", "FairShare")
        );
        assert_eq!(waits.message, "team/a: fair-share: others have less");
        let idle = condition(None);
        assert_eq!((idle.status.as_str(), idle.reason.as_str(), idle.message.as_str()), ("False", "NothingWaits", ""));
    }

    #[test]
    fn cpu_and_memory_are_shown_where_a_queue_has_some() {
        let at = Timestamp::from_second(1).unwrap();
        let memory = ResourceUse {
            limit: Some(4_000_000),
            fair_share: Some(3_000_000),
            held: 2_500_000,
            ..ResourceUse::default()
        };
        // It uses CPU, but has no quota and no limit of it.
        let cpu = ResourceUse { held: 500, ..ResourceUse::default() };
        let queue = QueueUse { cpu, memory, ..QueueUse::default() };
        let shown = status(Some(&queue), &QueueSaid::default(), None, at);
        assert_eq!((shown.cpu, shown.memory), (None, Some(QueueShare { fair_share: 3.0, held: 2.5, pending: 0.0 })));
        let patch = patch(&shown);
        assert_eq!(patch["status"]["memory"]["held"], 2.5);
        // What a queue had before must go, and a merge patch keeps what it does not name.
        assert!(patch["status"].as_object().unwrap().get("cpu").is_some_and(serde_json::Value::is_null), "{patch}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_end_of_the_lease() {
        let end = Instant::now() + Duration::from_millis(50);
        let shared = played::leader(Fence::until(end));
        let names = (0..AT_A_LOOK).map(|queue| format!("q{queue}"));
        shared.change(|mirror| names.for_each(|name| mirror.queue(&name, &QueueDefinition::default())));
        let shown = Shown::default();
        shown.set(played::engine().view());
        let begun = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&begun);
        let client = played::client(move |call: Call| {
            seen.lock().push(Instant::now());
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                (200, json!({"metadata": {"name": call.name()}, "spec": {}}))
            }
        });
        assert!(timeout(Duration::from_secs(60), run(client, shared, shown)).await.is_err());
        let begun = begun.lock();
        assert!((2..4).contains(&begun.len()) && begun.iter().all(|at| *at < end), "{begun:?}");
    }
}
