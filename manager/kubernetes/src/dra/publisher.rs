//! Keeps the node's resource slices in line with the node's devices.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::Shortcoming;
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions, WatchEvent, WatchParams};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tracing::{info, warn};

use super::claims::Claims;
use super::names::DRIVER;
use super::pool::{Layout, is_whole, specs};
use super::resource_slices::{Content, Support, content};
use aliquot_api_server::{is_not_found, message};

/// Time between two looks at the resource slices. Changes by other programs are noticed at once, unless the API server
/// tells of none.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which the API server is tried again with what it did not know. Its features can be switched on and off
/// while its version stays the same.
const TRY_AGAIN_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a watch goes on before the next one follows. The client takes 15 s without an event for a failure.
const WATCH_SECONDS: u32 = 10;
/// Time between a failure and the first new try. It doubles with each further failure, up to the interval above.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The changes of the node's resource slices, as the API server tells them.
type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent<ResourceSlice>, kube::Error>> + Send>>;

/// Writes the resource slices of one node.
pub(super) struct Publisher {
    client: Client,
    slices: Api<ResourceSlice>,
    nodes: Api<NodeObject>,
    node_name: String,
    claims: Arc<Claims>,
    /// The content written last, with the versions under which the API server keeps it. The server drops fields that it
    /// does not know, so its answer is not always what was written. So resource versions are compared, and the content
    /// only once after a start: comparing the content always would make this write for ever.
    written: Option<Written>,
    support: Support,
    /// Set while the API server does not support everything.
    lacking: Option<Lacking>,
    /// The resource version up to which changes are known: those after it are watched.
    seen: Option<String>,
}

/// The API server that does not support everything.
struct Lacking {
    version: String,
    since: Instant,
}

struct Written {
    content: Content,
    layout: Layout,
    /// Resource versions by name.
    versions: BTreeMap<String, Option<String>>,
}

/// Whether an event tells of a change by another program, and not of what was written last.
fn is_by_others(written: Option<&Written>, event: &WatchEvent<ResourceSlice>) -> bool {
    let known = |slice: &ResourceSlice| written?.versions.get(slice.metadata.name.as_ref()?);
    match event {
        WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
            known(slice) != Some(&slice.metadata.resource_version)
        }
        WatchEvent::Deleted(slice) => written.is_none() || known(slice).is_some(),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => false,
    }
}

impl Publisher {
    /// The publisher for the node with that name and these claims.
    #[must_use]
    pub(super) fn new(client: Client, node_name: String, claims: Arc<Claims>) -> Publisher {
        Publisher {
            slices: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            client,
            node_name,
            claims,
            written: None,
            support: Support::ALL,
            lacking: None,
            seen: None,
        }
    }

    /// Publishes until `end` is true. The resource slices stay after that: kubelet removes them if the driver stays
    /// away.
    pub(super) async fn run(mut self, mut end: watch::Receiver<bool>) {
        let mut known = self.claims.node().devices();
        let mut retry = RETRY_MIN;
        let mut events = None;
        loop {
            known.mark_unchanged();
            let wait = match self.publish().await {
                Ok(()) => {
                    retry = RETRY_MIN;
                    LOOK_INTERVAL
                }
                Err(error) => {
                    warn!(error = message(&error), retry_s = retry.as_secs(), "cannot publish the node's devices");
                    let wait = retry;
                    retry = (retry * 2).min(LOOK_INTERVAL);
                    wait
                }
            };
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                () = self.others_change(&mut events) => {}
                () = tokio::time::sleep(wait) => {}
                // An error means that the sender is gone, which is the end as well.
                _ = end.wait_for(|end| *end) => return,
            }
        }
    }

    /// Begins to watch how the node's resource slices change after the version that was seen last.
    async fn watch(&self, seen: &str) -> Result<Events, kube::Error> {
        let params = WatchParams::default().fields(&self.selector()).timeout(WATCH_SECONDS);
        Ok(Box::pin(self.slices.watch(&params, seen).await?))
    }

    /// Returns when another program has changed the node's resource slices: a kubelet that starts deletes them, even
    /// after the driver has registered with it. Returns too, after a pause, when the API server no longer knows what
    /// has changed since the last list. Never returns if there can be no watch: then the resource slices are only
    /// looked at from time to time.
    async fn others_change(&mut self, events: &mut Option<Events>) {
        while let Some(seen) = self.seen.clone() {
            if events.is_none() {
                match self.watch(&seen).await {
                    Ok(begun) => *events = Some(begun),
                    Err(error) if is_expired(&error) => break,
                    Err(error) => {
                        warn!(error = message(&error), "cannot watch the node's resource slices");
                        return std::future::pending().await;
                    }
                }
            }
            let Some(stream) = events else { continue };
            match stream.next().await {
                Some(Ok(WatchEvent::Error(_))) => break,
                // The watch has ended, or its connection. The next one goes on from the version that was seen last.
                None | Some(Err(_)) => {
                    *events = None;
                    tokio::time::sleep(RETRY_MIN).await;
                }
                Some(Ok(event)) => {
                    self.seen = version_after(&event).or(self.seen.take());
                    if is_by_others(self.written.as_ref(), &event) {
                        return;
                    }
                }
            }
        }
        *events = None;
        match self.seen.take() {
            Some(_) => tokio::time::sleep(RETRY_MIN).await,
            None => std::future::pending().await,
        }
    }

    /// Makes the API server's resource slices describe the node's devices.
    async fn publish(&mut self) -> Result<(), kube::Error> {
        self.try_again().await?;
        let mut found = self.list().await?;
        loop {
            let wanted = content(&self.claims.view(), self.support);
            let layout = self.layout(&wanted).await?;
            if self.is_written(&wanted, layout, &found) {
                // An earlier process may have written it.
                self.written = Some(Written { content: wanted, layout, versions: versions(&found) });
                return Ok(());
            }
            let written = self.write(&wanted, layout, &found).await?;
            let supported = self.support;
            let kept = supported.kept(&wanted, &written);
            if kept != supported {
                self.lacking = Some(Lacking { version: self.version().await?, since: Instant::now() });
            }
            self.support = kept;
            if supported.taints && !self.support.taints {
                info!("the API server knows no device taints: devices that are not healthy are left out");
            }
            if supported.counters && !self.support.counters {
                info!("the API server knows no partitionable devices: MIG instances are not made for claims");
            }
            if supported.shares && !self.support.shares {
                let shortcoming = whole_devices_only();
                warn!(remedy = shortcoming.remedy, "{}", shortcoming.problem);
                self.claims.node().set_shortcoming(Some(shortcoming));
            }
            if self.support == supported {
                return Ok(());
            }
            found = written;
        }
    }

    /// Assumes again that the API server supports everything, if it is another one than before or enough time has
    /// passed.
    async fn try_again(&mut self) -> Result<(), kube::Error> {
        let Some(Lacking { version, since }) = &self.lacking else { return Ok(()) };
        if since.elapsed() < TRY_AGAIN_INTERVAL && self.version().await? == *version {
            return Ok(());
        }
        (self.support, self.lacking) = (Support::ALL, None);
        // The content may be the same as before, and is to be written all the same.
        self.written = None;
        self.claims.node().set_shortcoming(None);
        Ok(())
    }

    async fn version(&self) -> Result<String, kube::Error> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    /// The place where the API server wants counters.
    async fn layout(&self, wanted: &Content) -> Result<Layout, kube::Error> {
        if wanted.counter_sets.is_empty() {
            return Ok(Layout::Separate);
        }
        Ok(Layout::of(&self.client.apiserver_version().await?))
    }

    /// The driver's resource slices of this node.
    async fn list(&mut self) -> Result<Vec<ResourceSlice>, kube::Error> {
        let params = ListParams::default().fields(&self.selector());
        let list = self.slices.list(&params).await?;
        self.seen = list.metadata.resource_version;
        Ok(list.items)
    }

    /// Selects the driver's resource slices of this node.
    fn selector(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.node_name)
    }

    fn is_written(&self, wanted: &Content, layout: Layout, found: &[ResourceSlice]) -> bool {
        match &self.written {
            Some(written) => {
                written.content == *wanted && written.layout == layout && written.versions == versions(found)
            }
            // If they exist, an earlier process has written them.
            None => is_whole(found, &specs(&self.node_name, wanted, layout, generation(found))),
        }
    }

    /// Writes all resource slices of the pool in a new generation. While they are written, schedulers see that the
    /// pool is not complete, and wait.
    async fn write(
        &mut self,
        wanted: &Content,
        layout: Layout,
        found: &[ResourceSlice],
    ) -> Result<Vec<ResourceSlice>, kube::Error> {
        self.written = None;
        let owner = self.owner().await?;
        let specs = specs(&self.node_name, wanted, layout, generation(found).saturating_add(1));
        let mut written = Vec::new();
        for (at, spec) in specs.into_iter().enumerate() {
            let name = format!("{}-{DRIVER}-{at}", self.node_name);
            let before = found.iter().find(|slice| slice.metadata.name.as_ref() == Some(&name));
            let slice = ResourceSlice {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    resource_version: before.and_then(|slice| slice.metadata.resource_version.clone()),
                    owner_references: Some(vec![owner.clone()]),
                    ..ObjectMeta::default()
                },
                spec,
            };
            written.push(match before {
                Some(_) => self.slices.replace(&name, &PostParams::default(), &slice).await?,
                None => self.slices.create(&PostParams::default(), &slice).await?,
            });
        }
        let kept: BTreeSet<Option<String>> = written.iter().map(|slice| slice.metadata.name.clone()).collect();
        for slice in found.iter().filter(|slice| !kept.contains(&slice.metadata.name)) {
            self.remove(slice).await?;
        }
        info!(devices = wanted.devices.len(), "published the node's devices");
        self.written = Some(Written { content: wanted.clone(), layout, versions: versions(&written) });
        Ok(written)
    }

    async fn remove(&self, slice: &ResourceSlice) -> Result<(), kube::Error> {
        let Some(name) = slice.metadata.name.as_deref() else { return Ok(()) };
        let preconditions = Preconditions { uid: slice.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.slices.delete(name, &params).await {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The node's object, which owns its resource slices.
    async fn owner(&self) -> Result<OwnerReference, kube::Error> {
        let node = self.nodes.get(&self.node_name).await?;
        Ok(OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node_name.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        })
    }
}

/// Whether the API server does not know any more what has changed since a version.
fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

/// The resource version that an event brings.
fn version_after(event: &WatchEvent<ResourceSlice>) -> Option<String> {
    match event {
        WatchEvent::Added(slice) | WatchEvent::Modified(slice) | WatchEvent::Deleted(slice) => {
            slice.metadata.resource_version.clone()
        }
        WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version.clone()),
        WatchEvent::Error(_) => None,
    }
}

/// What follows if the API server knows no consumable capacity.
fn whole_devices_only() -> Shortcoming {
    Shortcoming {
        problem: "the API server knows no consumable capacity: each claim gets a whole device, whatever it asks for"
            .into(),
        remedy:
            "for parts turn on the feature gate DRAConsumableCapacity of Kubernetes, and restart the managers, or wait \
                 for a day; or use the device plugin"
                .into(),
    }
}

fn versions(slices: &[ResourceSlice]) -> BTreeMap<String, Option<String>> {
    let metadata = slices.iter().map(|slice| &slice.metadata);
    metadata.map(|of| (of.name.clone().unwrap_or_default(), of.resource_version.clone())).collect()
}

/// The newest generation in `found`; 0 if there is none. Generations do not start again while there are resource
/// slices.
fn generation(found: &[ResourceSlice]) -> i64 {
    found.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0)
}

impl Support {
    const ALL: Support = Support { taints: true, counters: true, shares: true };

    /// What is left of this after the API server has kept `written` of the content that was wanted.
    fn kept(self, wanted: &Content, written: &[ResourceSlice]) -> Support {
        let keeps = |has: fn(&Device) -> bool| !drops(wanted, written, has);
        Support {
            taints: self.taints && keeps(|device| device.taints.is_some()),
            counters: self.counters && keeps(|device| device.consumes_counters.is_some()),
            shares: self.shares && keeps(|device| device.allow_multiple_allocations.is_some()),
        }
    }
}

/// Whether the API server drops a feature: `has` finds it on a device in `wanted`, but not on the same device in
/// `written`. The server keeps it on devices that had it before it was switched off.
fn drops(wanted: &Content, written: &[ResourceSlice], has: impl Fn(&Device) -> bool) -> bool {
    let written = written.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
    let without: BTreeSet<&str> = written.filter(|device| !has(device)).map(|device| device.name.as_str()).collect();
    wanted.devices.iter().any(|device| has(device) && without.contains(device.name.as_str()))
}

#[cfg(test)]
mod tests;
