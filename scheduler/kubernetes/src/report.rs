//! Says on each pod why it waits: as its condition `PodScheduled`, and as an event.
//!
//! What is said first of a pod is said at once: its user waits for it, and so does a cluster autoscaler. What changes
//! later is said slowly. However many pods wait, the API server has few writes of this at a time.

mod explained;
mod turns;
mod words;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, Events, is_conflict, is_not_found, pod_reference};
use aliquot_scheduler_engine::{Shown, View};
use futures_util::stream::{self, FuturesUnordered, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, interval, sleep, timeout};

use crate::mirror::AboutDevices;
use crate::serve::Shared;
use crate::telemetry::Written;
use explained::Explained;
use turns::{LOOK, Look, Outcome, Turns};
use words::{About, Devices, Said};

pub(crate) use words::{
    UNSUPPORTED, about_other_devices, about_our_devices, asks_for_devices, changes_worth_saying, lacks_any_devices,
};

/// The field of a pod's status that names the node that is decided on for it.
pub(crate) const NOMINATED: &str = "nominatedNodeName";

/// Time between two looks for pods that no node may take.
const HOPELESS: Duration = Duration::from_secs(1);
/// Pods that are written at the same time, at most.
const AT_ONCE: usize = 16;

/// Says why pods wait, for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, shown: Shown, events: Events) {
    let mut turns = Turns::default();
    let (mut found, mut writes) = (None, FuturesUnordered::new());
    let (mut to_tell, mut tells) = (VecDeque::new(), FuturesUnordered::new());
    let (mut pause, mut hopeless) = (Box::pin(sleep(Duration::ZERO)), interval(HOPELESS));
    loop {
        // Events come after conditions, which programs wait for.
        while found.is_none() && writes.len() + tells.len() < AT_ONCE {
            let Some((about, said)) = to_tell.pop_front() else { break };
            tells.push(tell(&shared, &events, about, said));
        }
        // A write that hangs is in the way of no other.
        tokio::select! {
            () = &mut pause, if found.is_none() => {
                if let (Some(view), Some(_)) = (shown.get(), shared.fence.left()) {
                    hear(&shared, &mut turns);
                    let due = turns.take_due(Instant::now());
                    found = (!due.is_empty()).then(|| Box::pin(find(Arc::clone(&shared), view, due)));
                }
                pause.as_mut().reset(Instant::now() + LOOK);
            }
            next = next_of(&mut found), if found.is_some() && writes.len() + tells.len() < AT_ONCE => match next {
                Some((look, Ok((about, said)))) => writes.push(say(&client, &shared, look, about, said)),
                Some((look, Err(outcome))) => turns.looked(&look.uid, outcome, Instant::now()),
                None => {
                    found = None;
                    pause.as_mut().reset(Instant::now() + LOOK);
                }
            },
            Some((about, said, outcome)) = writes.next() => {
                turns.looked(&about.uid, outcome, Instant::now());
                to_tell.extend(matches!(outcome, Outcome::Said(_)).then_some((about, said)));
            }
            Some(()) = tells.next() => {}
            _ = hopeless.tick() => look_for_hopeless(&shared, &shown),
        }
    }
}

fn look_for_hopeless(shared: &Shared, shown: &Shown) {
    let Some(view) = shown.get() else { return };
    if let Some(hopeless) = shared.read(|mirror| mirror.newly_hopeless(&view)) {
        shared.change(|mirror| mirror.note_hopeless(hopeless));
    }
}

/// Hears which pods have begun or ceased to wait.
fn hear(shared: &Shared, turns: &mut Turns) {
    let now = Instant::now();
    let news = shared.take_to_report(|waiting| {
        let is_claim = waiting.problem.is_none();
        (waiting.facts.said.as_ref().is_some_and(|(reason, _)| words::is_of(reason, is_claim)), is_claim)
    });
    for (uid, waits) in news {
        match waits {
            Some((is_said, is_claim)) => turns.waits(uid, is_said, is_claim, now),
            None => turns.forget(&uid),
        }
    }
}

/// What is to be said of a pod, or what has come of the look at it instead.
type Found = Result<(About, Said), Outcome>;

/// Finds what is to be said of these pods.
fn find(shared: Arc<Shared>, view: Arc<View>, due: Vec<Look>) -> impl Stream<Item = (Look, Found)> {
    stream::unfold((due.into_iter(), Finder::new(shared, view)), |(mut due, mut finder)| async move {
        let look = due.next()?;
        // In a large cluster an explanation takes long.
        match spawn_blocking(move || (finder.find(look), finder)).await.map_err(JoinError::try_into_panic) {
            Ok((found, finder)) => Some((found, (due, finder))),
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The whole process ends.
            Err(Err(_)) => None,
        }
    })
}

async fn next_of<S: Stream + Unpin>(stream: &mut Option<S>) -> Option<S::Item> {
    stream.as_mut()?.next().await
}

/// Finds what is to be said of pods, as one view shows it.
struct Finder {
    shared: Arc<Shared>,
    view: Arc<View>,
    explained: Explained,
    devices: Devices,
    seen: AboutDevices,
}

impl Finder {
    fn new(shared: Arc<Shared>, view: Arc<View>) -> Finder {
        let (ill, idle) = shared.read(|mirror| (mirror.ill_devices(), mirror.idle_parts()));
        let (explained, seen) = Default::default();
        Finder { shared, view, explained, devices: Devices { ill, idle }, seen }
    }

    fn find(&mut self, look: Look) -> (Look, Found) {
        let Finder { shared, view, explained, devices, seen } = self;
        let Some(about) = shared.read(|mirror| mirror.waiting(&look.uid).map(About::of)) else {
            return (look, Err(Outcome::Gone));
        };
        let of_devices = || shared.read(|mirror| mirror.about_devices(&look.uid, seen));
        let said = words::find(view, explained, &about, devices, &look, of_devices);
        (look, said.map(|said| (about, said)))
    }
}

/// Writes the condition, unless it is as it should be.
async fn say(client: &Client, shared: &Shared, look: Look, about: About, said: Said) -> (About, Said, Outcome) {
    let is_said = about.nominated == said.node
        && about.before.as_ref().is_some_and(|(reason, text)| *reason == said.reason && *text == said.message);
    let outcome = match is_said || look.just_said == Some(said.tier) {
        true => Outcome::IsSaid(said.tier),
        false => say_anew(client, shared, &about, &said).await,
    };
    (about, said, outcome)
}

/// Writes the condition, if this replica still leads.
async fn say_anew(client: &Client, shared: &Shared, about: &About, said: &Said) -> Outcome {
    let Some(left) = shared.fence.left() else { return Outcome::Failed };
    match timeout(left, write_condition(client, about, said)).await {
        Ok(Ok(())) => Outcome::Said(said.tier),
        // The next look sees how it is now.
        Ok(Err(error)) if is_conflict(&error) || is_not_found(&error) => Outcome::Changed,
        Ok(Err(error)) => {
            shared.status.write_refused(Written::Condition, &about.name, &error);
            Outcome::Failed
        }
        Err(_) => {
            shared.status.write_failed(Written::Condition);
            Outcome::Failed
        }
    }
}

/// Writes the event. The condition says the same.
async fn tell(shared: &Shared, events: &Events, about: About, said: Said) {
    let reference = pod_reference(&about.namespace, &about.name, &about.uid);
    shared.fence.within(events.warn(reference, "FailedScheduling", &said.message)).await;
}

/// Writes the condition and the node that is decided on, if the pod is still as it was looked at: it may be bound by now.
///
/// # Errors
/// The condition was not written.
async fn write_condition(client: &Client, about: &About, said: &Said) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &about.namespace);
    let mut condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "reason": said.reason,
        "message": said.message,
    });
    if about.before.is_none() {
        condition["lastTransitionTime"] = json!(Timestamp::now());
    }
    let metadata = json!({"uid": about.uid, "resourceVersion": about.resource_version});
    let mut patch = json!({"metadata": metadata, "status": {"conditions": [condition]}});
    if about.nominated != said.node {
        patch["status"][NOMINATED] = json!(said.node);
    }
    pods.patch_status(&about.name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
}

#[cfg(test)]
mod tests;
