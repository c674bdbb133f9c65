//! Says on PodGroups that they have started, or why they have not: as a condition, where they have one, and as an event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, Events, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, interval, timeout};

use crate::condition::Condition;
use crate::gang::Address;
use crate::mirror::{GroupStart, Mirror, Wait};
use crate::report::UNSUPPORTED;
use crate::serve::Shared;
use crate::telemetry::Written;

/// The reason of these events.
const REASON: &str = "FailedScheduling";
/// Time between two looks at groups.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two reasons for which one group waits, at least.
const PAUSE: Duration = Duration::from_secs(10);
/// Groups of which something is said after one look, at most.
const AT_A_LOOK: usize = 50;

/// When something was said of a group last, and why it waits.
type Said = BTreeMap<String, (Instant, String)>;

/// Looks for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, events: Events) {
    let mut looks = interval(LOOK);
    let mut said = Said::new();
    loop {
        looks.tick().await;
        if shared.fence.left().is_none() {
            continue;
        }
        let starts = shared.read(Mirror::group_starts);
        let mut news = news(&mut said, starts, Timestamp::now());
        // Successes go first, then the groups of which something was said longest ago: groups whose reasons change all the
        // time hold up no others.
        news.sort_by_key(|(start, _)| (start.outcome.is_err(), said.get(&start.said.uid).map(|(at, _)| *at)));
        for (start, condition) in news.into_iter().take(AT_A_LOOK) {
            let Some(left) = shared.fence.left() else { break };
            let text = start.outcome.as_ref().err().map(|wait| wait.text.clone()).unwrap_or_default();
            said.insert(start.said.uid.clone(), (Instant::now(), text.clone()));
            if let Some(condition) = condition {
                let write = write(&client, &start, &condition);
                match timeout(left, write).await {
                    Ok(Err(error)) if !is_not_found(&error) => {
                        shared.status.write_refused(Written::PodGroupStatus, &start.name, &error);
                    }
                    _ => {}
                }
            }
            if start.outcome.is_err() {
                // The condition says the same.
                shared.fence.within(events.warn(reference(&start), REASON, &text)).await;
            }
        }
    }
}

/// What is to be said now, with the condition of groups that have one.
fn news(said: &mut Said, starts: Vec<GroupStart>, now: Timestamp) -> Vec<(GroupStart, Option<Condition>)> {
    let before = std::mem::take(said);
    let mut news = Vec::new();
    for start in starts {
        let known = before.get(&start.said.uid);
        said.extend(known.map(|known| (start.said.uid.clone(), known.clone())));
        let condition = start.condition().map(|type_| {
            let (reason, text) = match &start.outcome {
                Ok(()) => ("Scheduled", String::new()),
                // So Kubernetes calls what cannot be scheduled whatever room there is.
                Err(Wait { reason, text }) if reason == UNSUPPORTED => ("SchedulerError", text.clone()),
                Err(Wait { text, .. }) => ("Unschedulable", text.clone()),
            };
            Condition::new(type_, start.outcome.is_ok(), reason, text, &start.said.conditions, now)
        });
        let is_said = match (&condition, &start.outcome) {
            (Some(condition), _) => start.said.conditions.contains(condition),
            (None, Err(wait)) => known.is_some_and(|(_, text)| *text == wait.text),
            (None, Ok(())) => true,
        };
        let may_wait = start.outcome.is_err() && known.is_some_and(|(at, _)| at.elapsed() < PAUSE);
        if !is_said && !may_wait {
            news.push((start, condition));
        }
    }
    news
}

async fn write(client: &Client, start: &GroupStart, condition: &Condition) -> kube::Result<()> {
    let Address { group, kind, plural, .. } = start.kind.api();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, &start.version, kind), plural);
    let groups: Api<DynamicObject> = Api::namespaced_with(client.clone(), &start.namespace, &resource);
    let mut condition = json!(condition);
    condition["observedGeneration"] = start.said.generation.into();
    let status = json!({"metadata": {"uid": start.said.uid}, "status": {"conditions": [condition]}});
    groups.patch_status(&start.name, &PatchParams::default(), &Patch::Strategic(status)).await.map(drop)
}

fn reference(start: &GroupStart) -> ObjectReference {
    let Address { group, kind, .. } = start.kind.api();
    ObjectReference {
        api_version: Some(format!("{group}/{}", start.version)),
        kind: Some(kind.into()),
        namespace: Some(start.namespace.clone()),
        name: Some(start.name.clone()),
        uid: Some(start.said.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::GangKind;
    use crate::mirror::GroupSaid;

    fn start(kind: GangKind, outcome: Result<(), (&str, &str)>, conditions: Vec<Condition>) -> GroupStart {
        GroupStart {
            kind,
            version: "v1beta1".into(),
            namespace: "default".into(),
            name: "g".into(),
            said: GroupSaid { uid: "u".into(), generation: 1, conditions },
            outcome: outcome.map_err(|(reason, text)| Wait { reason: reason.into(), text: text.into() }),
        }
    }

    #[test]
    fn a_group_says_once_why_it_waits_and_that_it_has_started() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut said = Said::new();
        let found = news(&mut said, vec![start(GangKind::Native, Err(("Waiting", "no room")), vec![])], at(1));
        let waits = found[0].1.clone().unwrap();
        let text = (waits.type_.as_str(), waits.status.as_str(), waits.reason.as_str(), waits.message.as_str());
        assert_eq!(text, ("PodGroupInitiallyScheduled", "False", "Unschedulable", "no room"));
        let again = start(GangKind::Native, Err(("Waiting", "no room")), vec![waits.clone()]);
        assert!(news(&mut said, vec![again], at(2)).is_empty());
        said.insert("u".into(), (Instant::now(), "no room".into()));
        let other = || start(GangKind::Native, Err((UNSUPPORTED, "a word")), vec![waits.clone()]);
        assert!(news(&mut said, vec![other()], at(2)).is_empty(), "not so soon again");
        said.clear();
        let found = news(&mut said, vec![other()], at(2))[0].1.clone().unwrap();
        assert_eq!(
            (found.reason.as_str(), found.last_transition_time.as_str()),
            ("SchedulerError", "1970-01-01T00:00:01Z")
        );
        said.insert("u".into(), (Instant::now(), "a word".into()));
        let found = news(&mut said, vec![start(GangKind::Native, Ok(()), vec![waits])], at(3));
        let started = found[0].1.clone().unwrap();
        assert_eq!((started.status.as_str(), started.reason.as_str()), ("True", "Scheduled"));
    }

    #[test]
    fn groups_without_conditions_have_events_only() {
        let mut said = Said::new();
        let waits = || vec![start(GangKind::Volcano, Err(("Waiting", "no room")), vec![])];
        let found = news(&mut said, waits(), Timestamp::UNIX_EPOCH);
        assert!(found.len() == 1 && found[0].1.is_none());
        said.insert("u".into(), (Instant::now(), "no room".into()));
        assert!(news(&mut said, waits(), Timestamp::UNIX_EPOCH).is_empty());
        assert!(news(&mut said, vec![start(GangKind::Volcano, Ok(()), vec![])], Timestamp::UNIX_EPOCH).is_empty());
    }
}
