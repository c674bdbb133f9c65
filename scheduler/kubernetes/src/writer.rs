//! Carries out writes to the API server, and finds out what became of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, Events, is_not_found, message, pod_reference};
use aliquot_dialects::{DECISION, GENERATION};
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{self as core, ObjectReference, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::mirror::{Binding, Eviction, Suspension, Write};
use crate::serve::Shared;
use crate::suspension::{self, Outcome};
use crate::{evicted, readiness, reservation, volumes};

/// Writes under way at the same time, at most.
const AT_ONCE: usize = 64;
/// Times that a binding is tried if the pod changes meanwhile.
const TRIES: usize = 5;
/// A request that has not arrived after so long never does: the API server ends each one after 60 s, and our connections
/// earlier.
const ON_ITS_WAY_MAX: Duration = Duration::from_secs(120);
/// Time between two tries to find out what became of a write.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries out the writes that come, one of each pod at a time, until no more can come.
pub(crate) async fn run(
    client: Client,
    shared: Arc<Shared>,
    events: Events,
    mut writes: mpsc::UnboundedReceiver<Write>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    // Writes that wait for another one of their pod. A pod without an entry has none under way.
    let mut waiting: BTreeMap<String, VecDeque<Write>> = BTreeMap::new();
    let (done, mut is_done) = mpsc::unbounded_channel::<String>();
    loop {
        let next = tokio::select! {
            write = writes.recv() => match write {
                None => return,
                Some(write) => match waiting.get_mut(write.uid()) {
                    Some(queue) => {
                        queue.push_back(write);
                        None
                    }
                    None => {
                        waiting.insert(write.uid().to_owned(), VecDeque::new());
                        Some(write)
                    }
                },
            },
            Some(uid) = is_done.recv() => {
                let next = waiting.get_mut(&uid).and_then(VecDeque::pop_front);
                if next.is_none() {
                    waiting.remove(&uid);
                }
                next
            }
        };
        if let Some(write) = next {
            let (client, shared, done, places) =
                (client.clone(), Arc::clone(&shared), done.clone(), Arc::clone(&places));
            let events = events.clone();
            tokio::spawn(async move {
                let uid = write.uid().to_owned();
                carry_out(&client, &shared, &events, &places, write).await;
                _ = done.send(uid);
            });
        }
    }
}

async fn carry_out(client: &Client, shared: &Arc<Shared>, events: &Events, places: &Semaphore, write: Write) {
    match write {
        Write::Bind(binding) => {
            let began = Instant::now();
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &binding.namespace);
            if !binding.volume_claims.is_empty() {
                readiness::nominate(client, &binding, shared).await;
            }
            let place = places.acquire().await;
            let reserved = match volumes::ask_for(&claims, &binding, shared).await {
                Ok(()) => reservation::reserve(client, &binding, shared).await,
                Err(why) => Err(why),
            };
            drop(place);
            let reserved = match reserved {
                Ok(changed) => readiness::wait(client, &binding, shared, events).await.map(|()| changed),
                Err(why) => {
                    // Members of its gang are not to be bound while its claims are given back.
                    shared.change(|mirror| mirror.will_not_be_bound(&binding.uid, &why));
                    Err(why)
                }
            };
            let _place = places.acquire().await;
            let outcome = match reserved {
                Ok(changed) => {
                    let resource_version = changed.unwrap_or_else(|| binding.resource_version.clone());
                    Bind { pods: Api::namespaced(client.clone(), &binding.namespace), binding: &binding }
                        .carry_out(resource_version, shared)
                        .await
                }
                Err(why) => Err(why),
            };
            if outcome.is_err() {
                reservation::give_back(client, &binding, shared).await;
            }
            let Binding { namespace, name, node, .. } = &binding;
            info!(pod = %format_args!("{namespace}/{name}"), node, ?outcome, "bind");
            shared.status.bound(outcome.is_ok(), began.elapsed(), shared.age_of(&binding.uid));
            shared.change(|mirror| mirror.bound(&binding, outcome));
        }
        Write::Evict(eviction) => {
            if is_to_evict(shared, &eviction) {
                let cause = evicted::cause(shared, &eviction.uid).await;
                carry_out_eviction(client, shared, events, places, eviction, cause).await;
            }
        }
        Write::Suspend(suspension) => carry_out_suspension(client, shared, events, places, suspension).await,
    }
}

fn is_to_evict(shared: &Shared, eviction: &Eviction) -> bool {
    shared.read(|mirror| mirror.is_to_evict(&eviction.uid, eviction.instance))
}

async fn carry_out_eviction(
    client: &Client,
    shared: &Shared,
    events: &Events,
    places: &Semaphore,
    eviction: Eviction,
    cause: Option<String>,
) {
    let Eviction { uid, namespace, name, instance, generation } = eviction;
    let _place = places.acquire().await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let outcome = evict(&pods, &uid, &name, shared).await;
    info!(pod = %format_args!("{namespace}/{name}"), ?outcome, "evict");
    match outcome {
        Evicted::Yes => {
            shared.status.evicted(true);
            if let Some(cause) = cause {
                let said = events.warn(pod_reference(&namespace, &name, &uid), evicted::REASON, &cause);
                shared.fence.within(said).await;
            }
        }
        Evicted::Refused(why) => {
            shared.status.evicted(false);
            shared.change(|mirror| mirror.eviction_refused(&uid, instance, generation, why));
        }
        Evicted::Gone | Evicted::Unknown => {}
    }
}

/// Suspends the workload of these pods. If that is not possible, they are evicted.
async fn carry_out_suspension(
    client: &Client,
    shared: &Arc<Shared>,
    events: &Events,
    places: &Semaphore,
    suspension: Suspension,
) {
    let Suspension { namespace, workload, evictions } = &suspension;
    let Some(first) = evictions.iter().find(|eviction| is_to_evict(shared, eviction)) else { return };
    let cause = evicted::cause(shared, &first.uid).await;
    let outcome = {
        let _place = places.acquire().await;
        suspension::suspend(client, shared, events, &suspension, cause.as_deref()).await
    };
    info!(workload = %format_args!("{namespace}/{}", workload.full_name()), ?outcome, "suspend");
    match outcome {
        Outcome::Suspended(of) => {
            for Eviction { uid, namespace, name, .. } in evictions {
                shared.status.evicted(true);
                if let Some(cause) = &cause {
                    let text = format!("{cause}; {of} is suspended until its pods are gone");
                    let said = events.warn(pod_reference(namespace, name, uid), evicted::REASON, &text);
                    shared.fence.within(said).await;
                }
            }
        }
        Outcome::Unknown => {}
        Outcome::Not(_) => {
            let evictions = suspension.evictions.into_iter().filter(|eviction| is_to_evict(shared, eviction));
            let carry_out = |eviction| carry_out_eviction(client, shared, events, places, eviction, cause.clone());
            join_all(evictions.map(carry_out)).await;
        }
    }
}

/// A binding on its way.
struct Bind<'a> {
    pods: Api<Pod>,
    binding: &'a Binding,
}

/// What a binding's answer says.
enum Answer {
    Bound,
    /// The API server says that it did not bind the pod by this.
    Refused(String),
    /// There is no answer: the pod may be bound, now or later.
    Lost(String),
}

impl Bind<'_> {
    /// Binds the pod as it is in this version.
    async fn carry_out(&self, resource_version: String, shared: &Shared) -> Result<(), String> {
        let mut resource_version = resource_version;
        for _ in 0..TRIES {
            let why = match self.ask(&resource_version, shared).await {
                Answer::Bound => return Ok(()),
                Answer::Lost(why) => return self.find_out(shared, why).await,
                Answer::Refused(why) => why,
            };
            resource_version = match self.pods.get_opt(&self.binding.name).await {
                // Something else of the pod has changed, such as a condition.
                Ok(Some(pod)) if self.is_unbound(&pod) && pod.metadata.resource_version != Some(resource_version) => {
                    check_undecided(&pod)?;
                    pod.metadata.resource_version.unwrap_or_default()
                }
                _ => return Err(why),
            };
        }
        Err("the pod changes all the time".into())
    }

    async fn ask(&self, resource_version: &str, shared: &Shared) -> Answer {
        let Some(left) = shared.fence.left() else {
            return Answer::Refused("this replica is no longer the leader".into());
        };
        match timeout(left, self.bind(resource_version)).await {
            Ok(Ok(_)) => Answer::Bound,
            Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 408 => {
                Answer::Refused(status.message.clone())
            }
            Ok(Err(error)) => Answer::Lost(message(&error)),
            Err(_) => Answer::Lost("the lease ended".into()),
        }
    }

    /// Binds the pod. The annotations are written together with the binding, or not at all.
    async fn bind(&self, resource_version: &str) -> kube::Result<Value> {
        let generation = (GENERATION.to_owned(), self.binding.generation.to_string());
        let decision = self.binding.decision.clone().map(|decision| (DECISION.to_owned(), decision));
        let binding = core::Binding {
            metadata: ObjectMeta {
                name: Some(self.binding.name.clone()),
                uid: Some(self.binding.uid.clone()),
                resource_version: Some(resource_version.to_owned()),
                annotations: Some([generation].into_iter().chain(decision).collect()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(self.binding.node.clone()),
                ..ObjectReference::default()
            },
        };
        self.pods.create_subresource("binding", &self.binding.name, &PostParams::default(), &binding).await
    }

    /// Whether the pod is bound, after an answer that was lost. The binding names the pod's resource version, so a
    /// change of the pod sees to it that a binding that is still on its way comes too late.
    async fn find_out(&self, shared: &Shared, why: String) -> Result<(), String> {
        let message_of_it =
            format!("the API server did not say whether the pod is bound to {}: {why}", self.binding.node);
        let condition = json!({"status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message_of_it},
        ]}, "metadata": {"uid": self.binding.uid}});
        let lost = Instant::now();
        loop {
            sleep(PAUSE).await;
            let Some(left) = shared.fence.left() else {
                return Err("this replica is no longer the leader".into());
            };
            let found = async {
                match self.pods.get_opt(&self.binding.name).await? {
                    Some(pod) if self.is_unbound(&pod) => {
                        let patch = Patch::Strategic(&condition);
                        match self.pods.patch_status(&self.binding.name, &PatchParams::default(), &patch).await {
                            // The pod was unbound just now, and no binding is on its way any more.
                            Err(kube::Error::Api(status))
                                if (400..500).contains(&status.code) && lost.elapsed() >= ON_ITS_WAY_MAX =>
                            {
                                Ok(None)
                            }
                            patched => patched.map(Some),
                        }
                    }
                    other => Ok(other),
                }
            };
            match timeout(left, found).await {
                Ok(Ok(Some(pod))) if self.is_bound_by_this(&pod) => return Ok(()),
                Ok(Ok(_)) => return Err(why),
                Ok(Err(error)) if is_not_found(&error) => return Err(why),
                Ok(Err(error)) => {
                    debug!(pod = self.binding.name, error = message(&error), "cannot find out whether it is bound")
                }
                Err(_) => {}
            }
        }
    }

    fn is_unbound(&self, pod: &Pod) -> bool {
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        pod.metadata.uid.as_deref() == Some(&self.binding.uid) && node_of(pod).is_none() && !is_leaving
    }

    fn is_bound_by_this(&self, pod: &Pod) -> bool {
        let generation = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(GENERATION));
        pod.metadata.uid.as_deref() == Some(&self.binding.uid)
            && node_of(pod) == Some(&self.binding.node)
            && generation == Some(&self.binding.generation.to_string())
    }
}

/// Checks that nobody has written a decision into a pod since the mirror saw it.
///
/// # Errors
/// There is such a decision.
pub(crate) fn check_undecided(pod: &Pod) -> Result<(), String> {
    let is_decided = pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(DECISION));
    if is_decided { Err(format!("the annotation {DECISION} was added before the pod was bound")) } else { Ok(()) }
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).filter(|node| !node.is_empty())
}

/// What became of an eviction.
#[derive(Debug)]
enum Evicted {
    Yes,
    /// The pod is gone, or another pod has its name, or something of it has changed just now.
    Gone,
    /// The API server says why not.
    Refused(String),
    /// It may be evicted or not. The engine tries again later.
    Unknown,
}

/// Evicts a pod with its own grace period.
async fn evict(pods: &Api<Pod>, uid: &str, name: &str, shared: &Shared) -> Evicted {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let delete_options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let params = EvictParams { delete_options: Some(delete_options), ..EvictParams::default() };
    match shared.fence.within(pods.evict(name, &params)).await {
        Some(Ok(_)) => Evicted::Yes,
        Some(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => Evicted::Gone,
        // A pod with more than one budget is refused with 500.
        Some(Err(kube::Error::Api(status))) if (400..=500).contains(&status.code) && status.code != 408 => {
            Evicted::Refused(status.message.clone())
        }
        Some(Err(error)) => {
            warn!(pod = name, error = message(&error), "cannot evict; trying again");
            Evicted::Unknown
        }
        None => Evicted::Unknown,
    }
}

#[cfg(test)]
mod tests;
