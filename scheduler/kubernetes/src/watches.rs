//! Watches the objects of the API server that the mirror shows.

mod device_claims;
mod elastic_gpus;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, is_not_found, message};
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::gang::{Address, GangFacts, GangKind};
use crate::mirror::{Mirror, QueueSaid};
use crate::node::NodeFacts;
use crate::pod::PodFacts;
use crate::queue::Queue;
use crate::scheduling_policy::SchedulingPolicy;
use crate::serve::Shared;

pub(crate) use device_claims::start_device_claims;
use elastic_gpus::{ElasticGpuClaims, ElasticGpuClasses, ElasticGpus};

/// The API server ends a quiet watch after so many seconds, and the watch goes on from there. It is less than the
/// client waits for an answer.
pub(crate) const WATCH_SECONDS: u32 = 10;

/// Time between two looks at which kinds of groups of pods the cluster has: their CRDs may come at any time.
const LOOK: Duration = Duration::from_secs(60);

/// How the objects of a sort get into the mirror.
trait Sight: Send + 'static {
    type Object: Clone + DeserializeOwned + Debug + Send + 'static;
    /// The name of the sort, for messages.
    fn name(&self) -> String;
    /// The name by which the mirror knows an object; `None`: it has none.
    fn key(&self, object: &Self::Object) -> Option<String>;
    fn show(&self, object: Self::Object, own_name: &str, mirror: &mut Mirror);
    fn gone(&self, key: &str, mirror: &mut Mirror);
    /// All that the mirror shows of this sort.
    fn shown(&self, mirror: &Mirror) -> BTreeSet<String>;
    /// The mirror shows all objects of this sort by now.
    fn complete(&self, _: &mut Mirror) {}
}

struct Pods;

impl Sight for Pods {
    type Object = Pod;

    fn name(&self) -> String {
        "pods".into()
    }

    fn key(&self, pod: &Pod) -> Option<String> {
        pod.uid()
    }

    fn show(&self, pod: Pod, own_name: &str, mirror: &mut Mirror) {
        if let Some(facts) = PodFacts::of(pod, own_name) {
            mirror.pod(facts);
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.pod_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.pod_uids()
    }
}

struct Nodes;

impl Sight for Nodes {
    type Object = Node;

    fn name(&self) -> String {
        "nodes".into()
    }

    fn key(&self, node: &Node) -> Option<String> {
        node.metadata.name.clone()
    }

    fn show(&self, node: Node, _: &str, mirror: &mut Mirror) {
        if let Some(facts) = NodeFacts::of(node) {
            mirror.node(facts);
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.node_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.node_names()
    }
}

struct Namespaces;

impl Sight for Namespaces {
    type Object = Namespace;

    fn name(&self) -> String {
        "namespaces".into()
    }

    fn key(&self, namespace: &Namespace) -> Option<String> {
        namespace.metadata.name.clone()
    }

    fn show(&self, namespace: Namespace, _: &str, mirror: &mut Mirror) {
        mirror.namespace(&namespace.name_any(), Some(namespace.labels().clone()));
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.namespace(key, None);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.namespace_names()
    }
}

struct Queues;

impl Sight for Queues {
    type Object = Queue;

    fn name(&self) -> String {
        "queues".into()
    }

    fn key(&self, queue: &Queue) -> Option<String> {
        queue.metadata.name.clone()
    }

    fn show(&self, queue: Queue, _: &str, mirror: &mut Mirror) {
        let said = QueueSaid { generation: queue.metadata.generation.unwrap_or(0), status: queue.status.clone() };
        mirror.queue(&queue.name_any(), &queue.spec);
        mirror.queue_says(&queue.name_any(), said);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.queue_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.queue_names()
    }
}

struct SchedulingPolicies;

impl Sight for SchedulingPolicies {
    type Object = SchedulingPolicy;

    fn name(&self) -> String {
        "schedulingpolicies".into()
    }

    fn key(&self, policy: &SchedulingPolicy) -> Option<String> {
        policy.metadata.name.clone()
    }

    fn show(&self, policy: SchedulingPolicy, _: &str, mirror: &mut Mirror) {
        mirror.scheduling_policy(&policy.name_any(), policy.spec.facts());
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.scheduling_policy_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.scheduling_policy_names()
    }
}

struct Volumes;

impl Sight for Volumes {
    type Object = PersistentVolume;

    fn name(&self) -> String {
        "persistentvolumes".into()
    }

    fn key(&self, volume: &PersistentVolume) -> Option<String> {
        volume.metadata.name.clone()
    }

    fn show(&self, volume: PersistentVolume, _: &str, mirror: &mut Mirror) {
        mirror.volume(volume);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.volume_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_names()
    }
}

struct VolumeClaims;

impl Sight for VolumeClaims {
    type Object = PersistentVolumeClaim;

    fn name(&self) -> String {
        "persistentvolumeclaims".into()
    }

    fn key(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        Some(in_namespace(&claim.namespace()?, &claim.name_any()))
    }

    fn show(&self, claim: PersistentVolumeClaim, _: &str, mirror: &mut Mirror) {
        mirror.volume_claim(claim);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.volume_claim_gone(namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_claim_names().map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }
}

struct StorageClasses;

impl Sight for StorageClasses {
    type Object = StorageClass;

    fn name(&self) -> String {
        "storageclasses".into()
    }

    fn key(&self, class: &StorageClass) -> Option<String> {
        class.metadata.name.clone()
    }

    fn show(&self, class: StorageClass, _: &str, mirror: &mut Mirror) {
        mirror.storage_class(class);
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        mirror.storage_class_gone(key);
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.storage_class_names()
    }
}

impl Sight for GangKind {
    type Object = DynamicObject;

    fn name(&self) -> String {
        let Address { group, plural, .. } = self.api();
        format!("{plural}.{group}")
    }

    fn key(&self, object: &DynamicObject) -> Option<String> {
        Some(in_namespace(&object.namespace()?, &object.name_any()))
    }

    fn show(&self, object: DynamicObject, _: &str, mirror: &mut Mirror) {
        if let Some(namespace) = object.namespace() {
            mirror.gang(*self, &namespace, &object.name_any(), GangFacts::of(*self, &object.data));
        }
    }

    fn gone(&self, key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.gang_gone(*self, namespace, name);
        }
    }

    fn shown(&self, mirror: &Mirror) -> BTreeSet<String> {
        mirror.gang_names(*self).map(|(namespace, name)| in_namespace(namespace, name)).collect()
    }

    fn complete(&self, mirror: &mut Mirror) {
        mirror.gangs_served(*self);
    }
}

fn in_namespace(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Watches the sorts that every cluster has. Each receiver says whether all objects of a sort have been shown once.
pub(crate) fn start(client: &Client, shared: &Arc<Shared>) -> Vec<watch::Receiver<bool>> {
    vec![
        follow(Nodes, Api::all(client.clone()), shared),
        follow(Namespaces, Api::all(client.clone()), shared),
        follow(Queues, Api::all(client.clone()), shared),
        follow(SchedulingPolicies, Api::all(client.clone()), shared),
        follow(ElasticGpuClasses, Api::all(client.clone()), shared),
        follow(ElasticGpuClaims, Api::all(client.clone()), shared),
        follow(ElasticGpus, Api::all(client.clone()), shared),
        follow(Volumes, Api::all(client.clone()), shared),
        follow(VolumeClaims, Api::all(client.clone()), shared),
        follow(StorageClasses, Api::all(client.clone()), shared),
        follow(Pods, Api::all(client.clone()), shared),
    ]
}

/// Watches the objects that say which pods start together: those that this cluster has.
pub(crate) struct Gangs {
    client: Client,
    shared: Arc<Shared>,
    followed: BTreeSet<GangKind>,
}

impl Gangs {
    pub(crate) fn new(client: Client, shared: Arc<Shared>) -> Gangs {
        Gangs { client, shared, followed: BTreeSet::new() }
    }

    /// Watches the kinds that the cluster has and that are not watched yet.
    ///
    /// # Errors
    /// The API server does not say what it has.
    pub(crate) async fn look(&mut self) -> Result<Vec<watch::Receiver<bool>>, kube::Error> {
        let mut served: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut complete = Vec::new();
        for kind in GangKind::ALL {
            if self.followed.contains(&kind) {
                continue;
            }
            let Address { group, versions, kind: word, plural } = kind.api();
            for version in versions {
                let group_version = format!("{group}/{version}");
                if !served.contains_key(&group_version) {
                    let plurals = self.plurals(&group_version).await?;
                    served.insert(group_version.clone(), plurals);
                }
                if served.get(&group_version).is_some_and(|plurals| plurals.contains(plural)) {
                    let resource =
                        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, word), plural);
                    complete.push(follow(kind, Api::all_with(self.client.clone(), &resource), &self.shared));
                    self.followed.insert(kind);
                    break;
                }
            }
        }
        Ok(complete)
    }

    async fn plurals(&self, group_version: &str) -> Result<BTreeSet<String>, kube::Error> {
        match self.client.list_api_group_resources(group_version).await {
            Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
            Err(error) if is_not_found(&error) => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    /// Watches the kinds that are defined later. Never ends.
    pub(crate) async fn go_on_looking(mut self) {
        loop {
            sleep(LOOK).await;
            if let Err(error) = self.look().await {
                debug!(error = message(&error), "cannot see which groups of pods the cluster has");
            }
        }
    }
}

fn follow<S: Sight>(sight: S, objects: Api<S::Object>, shared: &Arc<Shared>) -> watch::Receiver<bool>
where
    S::Object: Resource,
{
    let (complete, is_complete) = watch::channel(false);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let events = watcher(objects, watcher::Config::default().timeout(WATCH_SECONDS)).default_backoff();
        pin_mut!(events);
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.extend(sight.key(&object));
                    shared.change(|mirror| sight.show(object, &shared.name, mirror));
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    shared.change(|mirror| {
                        for key in sight.shown(mirror).difference(&listed) {
                            sight.gone(key, mirror);
                        }
                        sight.complete(mirror);
                    });
                    complete.send_replace(true);
                }
                Ok(Event::Apply(object)) => shared.change(|mirror| sight.show(object, &shared.name, mirror)),
                Ok(Event::Delete(object)) => {
                    if let Some(key) = sight.key(&object) {
                        shared.change(|mirror| sight.gone(&key, mirror));
                    }
                }
                Err(error) => {
                    warn!(resource = sight.name(), error = said(&error), "cannot watch; trying again");
                }
            }
        }
    });
    is_complete
}

/// Why something cannot be watched, and what to do.
pub(crate) fn said(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => {
            let hint = if is_not_found(error) { "; apply the scheduler's manifests, which define it" } else { "" };
            format!("{}{hint}", message(error))
        }
        other => other.to_string(),
    }
}
