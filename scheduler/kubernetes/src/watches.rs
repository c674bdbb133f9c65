//! Watches what the mirror shows.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_api_server::{Client, is_not_found, message};
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::warn;

use crate::mirror::Mirror;
use crate::node::NodeFacts;
use crate::pod::{self, PodFacts};
use crate::queue::Queue;
use crate::serve::Shared;

/// The API server ends a quiet watch after so many seconds, and it goes on from there: less than the client waits for
/// an answer.
const WATCH_SECONDS: u32 = 10;

/// A sort of object that the mirror shows.
trait Watched: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static {
    /// The name by which the mirror knows it; `None`: it has none.
    fn key(&self) -> Option<String>;
    fn show(self, own_name: &str, mirror: &mut Mirror);
    fn gone(key: &str, mirror: &mut Mirror);
    /// All that the mirror shows of this sort.
    fn shown(mirror: &Mirror) -> BTreeSet<String>;
}

impl Watched for Pod {
    fn key(&self) -> Option<String> {
        self.uid()
    }

    fn show(self, own_name: &str, mirror: &mut Mirror) {
        if let Some(facts) = PodFacts::of(self, own_name) {
            mirror.pod(facts);
        }
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        mirror.pod_gone(key);
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.pod_uids()
    }
}

impl Watched for Node {
    fn key(&self) -> Option<String> {
        self.metadata.name.clone()
    }

    fn show(self, _: &str, mirror: &mut Mirror) {
        if let Some(facts) = NodeFacts::of(self) {
            mirror.node(facts);
        }
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        mirror.node_gone(key);
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.node_names()
    }
}

impl Watched for Namespace {
    fn key(&self) -> Option<String> {
        self.metadata.name.clone()
    }

    fn show(self, _: &str, mirror: &mut Mirror) {
        let queue = self.labels().get(pod::QUEUE).cloned();
        mirror.namespace(&self.name_any(), queue);
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        mirror.namespace(key, None);
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.namespace_names()
    }
}

impl Watched for Queue {
    fn key(&self) -> Option<String> {
        self.metadata.name.clone()
    }

    fn show(self, _: &str, mirror: &mut Mirror) {
        mirror.queue(&self.name_any(), &self.spec);
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        mirror.queue_gone(key);
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.queue_names()
    }
}

impl Watched for PersistentVolume {
    fn key(&self) -> Option<String> {
        self.metadata.name.clone()
    }

    fn show(self, _: &str, mirror: &mut Mirror) {
        mirror.volume(self);
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        mirror.volume_gone(key);
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_names()
    }
}

impl Watched for PersistentVolumeClaim {
    fn key(&self) -> Option<String> {
        Some(format!("{}/{}", self.namespace()?, self.name_any()))
    }

    fn show(self, _: &str, mirror: &mut Mirror) {
        mirror.volume_claim(self);
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        if let Some((namespace, name)) = key.split_once('/') {
            mirror.volume_claim_gone(namespace, name);
        }
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.volume_claim_names().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }
}

impl Watched for StorageClass {
    fn key(&self) -> Option<String> {
        self.metadata.name.clone()
    }

    fn show(self, _: &str, mirror: &mut Mirror) {
        mirror.storage_class(self);
    }

    fn gone(key: &str, mirror: &mut Mirror) {
        mirror.storage_class_gone(key);
    }

    fn shown(mirror: &Mirror) -> BTreeSet<String> {
        mirror.storage_class_names()
    }
}

/// Watches all that the mirror shows. Each receiver says whether a sort was told once as a whole.
pub(crate) fn start(client: &Client, shared: &Arc<Shared>) -> Vec<watch::Receiver<bool>> {
    vec![
        follow::<Node>(client, shared),
        follow::<Namespace>(client, shared),
        follow::<Queue>(client, shared),
        follow::<PersistentVolume>(client, shared),
        follow::<PersistentVolumeClaim>(client, shared),
        follow::<StorageClass>(client, shared),
        follow::<Pod>(client, shared),
    ]
}

fn follow<K: Watched>(client: &Client, shared: &Arc<Shared>) -> watch::Receiver<bool> {
    let (complete, is_complete) = watch::channel(false);
    let (objects, shared) = (Api::<K>::all(client.clone()), Arc::clone(shared));
    tokio::spawn(async move {
        let events = watcher(objects, watcher::Config::default().timeout(WATCH_SECONDS)).default_backoff();
        pin_mut!(events);
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.extend(object.key());
                    shared.change(|mirror| object.show(&shared.name, mirror));
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    shared.change(|mirror| {
                        for key in K::shown(mirror).difference(&listed) {
                            K::gone(key, mirror);
                        }
                    });
                    complete.send_replace(true);
                }
                Ok(Event::Apply(object)) => shared.change(|mirror| object.show(&shared.name, mirror)),
                Ok(Event::Delete(object)) => {
                    if let Some(key) = object.key() {
                        shared.change(|mirror| K::gone(&key, mirror));
                    }
                }
                Err(error) => {
                    let kind = K::kind(&()).into_owned();
                    warn!(kind, error = said(&error), "cannot watch; trying again");
                }
            }
        }
    });
    is_complete
}

fn said(error: &watcher::Error) -> String {
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
