//! Carries out writes to the API server, and finds out what became of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, is_not_found, message};
use aliquot_dialects::DECISION;
use aliquot_scheduler_engine::Generation;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::mirror::{BindOutcome, EvictOutcome, Write};
use crate::pod::GENERATION;
use crate::serve::Shared;
use crate::volumes;

/// Writes under way at the same time, at most.
const AT_ONCE: usize = 64;
/// Times that a binding is tried if the pod changes meanwhile.
const TRIES: usize = 5;
/// Between two tries to find out what became of a write.
const PAUSE: Duration = Duration::from_secs(1);

/// Carries out what comes, one write of each pod at a time, until nothing can come any more.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, mut writes: mpsc::UnboundedReceiver<Write>) {
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
            tokio::spawn(async move {
                let uid = write.uid().to_owned();
                carry_out(&client, &shared, &places, write).await;
                _ = done.send(uid);
            });
        }
    }
}

async fn carry_out(client: &Client, shared: &Shared, places: &Semaphore, write: Write) {
    match write {
        Write::Bind { uid, namespace, name, resource_version, node, generation, decision, volume_claims } => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
            let made = volumes::make(&claims, &volume_claims, &node, shared).await;
            let _place = places.acquire().await;
            let binding = Bind { pods, uid, name, resource_version, node, generation, decision };
            let outcome = match made {
                Ok(()) => binding.carry_out(shared).await,
                Err(why) => BindOutcome::Failed(why),
            };
            info!(pod = %format_args!("{namespace}/{}", binding.name), node = binding.node, ?outcome, "bind");
            let Bind { uid, decision, .. } = binding;
            shared.change(|mirror| mirror.bound(&uid, generation, decision.as_deref(), outcome));
        }
        Write::Evict { uid, namespace, name, instance, generation } => {
            if !shared.read(|mirror| mirror.is_to_evict(&uid, instance)) {
                return;
            }
            let _place = places.acquire().await;
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let Some(outcome) = evict(&pods, &uid, &name, shared).await else { return };
            info!(pod = %format_args!("{namespace}/{name}"), ?outcome, "evict");
            shared.change(|mirror| mirror.evicted(&uid, instance, generation, outcome));
        }
    }
}

struct Bind {
    pods: Api<Pod>,
    uid: String,
    name: String,
    resource_version: String,
    node: String,
    generation: Generation,
    decision: Option<String>,
}

/// What a binding's answer says.
enum Answer {
    Bound,
    /// The API server says that it did not bind the pod by this.
    Refused(String),
    /// There is no answer: the pod may be bound, now or later.
    Lost(String),
}

impl Bind {
    async fn carry_out(&self, shared: &Shared) -> BindOutcome {
        let mut resource_version = self.resource_version.clone();
        for _ in 0..TRIES {
            let why = match self.ask(&resource_version, shared).await {
                Answer::Bound => return BindOutcome::Bound,
                Answer::Lost(why) => return self.find_out(shared, why).await,
                Answer::Refused(why) => why,
            };
            resource_version = match self.pods.get_opt(&self.name).await {
                // Something else of the pod has changed, such as a condition.
                Ok(Some(pod)) if self.is_unbound(&pod) && pod.metadata.resource_version != Some(resource_version) => {
                    pod.metadata.resource_version.unwrap_or_default()
                }
                _ => return BindOutcome::Failed(why),
            };
        }
        BindOutcome::Failed("the pod changes all the time".into())
    }

    async fn ask(&self, resource_version: &str, shared: &Shared) -> Answer {
        let Some(left) = shared.fence.left() else { return Answer::Refused("this replica leads no more".into()) };
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
        let generation = (GENERATION.to_owned(), self.generation.to_string());
        let decision = self.decision.clone().map(|decision| (DECISION.to_owned(), decision));
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                uid: Some(self.uid.clone()),
                resource_version: Some(resource_version.to_owned()),
                annotations: Some([generation].into_iter().chain(decision).collect()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(self.node.clone()),
                ..ObjectReference::default()
            },
        };
        self.pods.create_subresource("binding", &self.name, &PostParams::default(), &binding).await
    }

    /// Whether the pod is bound, after an answer that was lost. The binding names the pod's resource version, so a
    /// change of the pod sees to it that a binding that is still on its way comes too late.
    async fn find_out(&self, shared: &Shared, why: String) -> BindOutcome {
        let message_of_it = format!("the API server did not say whether the pod is bound to {}: {why}", self.node);
        let condition = json!({"status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message_of_it},
        ]}, "metadata": {"uid": self.uid}});
        loop {
            sleep(PAUSE).await;
            let Some(left) = shared.fence.left() else {
                return BindOutcome::Failed("this replica leads no more".into());
            };
            let found = async {
                match self.pods.get_opt(&self.name).await? {
                    Some(pod) if self.is_unbound(&pod) => {
                        let patch = Patch::Strategic(&condition);
                        self.pods.patch_status(&self.name, &PatchParams::default(), &patch).await.map(Some)
                    }
                    other => Ok(other),
                }
            };
            match timeout(left, found).await {
                Ok(Ok(Some(pod))) if self.is_bound_by_this(&pod) => return BindOutcome::Bound,
                Ok(Ok(_)) => return BindOutcome::Failed(why),
                Ok(Err(error)) if is_not_found(&error) => return BindOutcome::Failed(why),
                Ok(Err(error)) => {
                    debug!(pod = self.name, error = message(&error), "cannot find out whether it is bound")
                }
                Err(_) => {}
            }
        }
    }

    fn is_unbound(&self, pod: &Pod) -> bool {
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        pod.metadata.uid.as_deref() == Some(&self.uid) && node_of(pod).is_none() && !is_leaving
    }

    fn is_bound_by_this(&self, pod: &Pod) -> bool {
        let generation = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(GENERATION));
        pod.metadata.uid.as_deref() == Some(&self.uid)
            && node_of(pod) == Some(&self.node)
            && generation == Some(&self.generation.to_string())
    }
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).filter(|node| !node.is_empty())
}

/// Evicts a pod with its own grace period; `None`: it is not known what became of it, and the engine tries again.
async fn evict(pods: &Api<Pod>, uid: &str, name: &str, shared: &Shared) -> Option<EvictOutcome> {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let delete_options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let params = EvictParams { delete_options: Some(delete_options), ..EvictParams::default() };
    match timeout(shared.fence.left()?, pods.evict(name, &params)).await.ok()? {
        Ok(_) => Some(EvictOutcome::Leaving),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Some(EvictOutcome::Leaving),
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
            Some(EvictOutcome::Refused(status.message.clone()))
        }
        Err(error) => {
            warn!(pod = name, error = message(&error), "cannot evict; trying again");
            None
        }
    }
}
