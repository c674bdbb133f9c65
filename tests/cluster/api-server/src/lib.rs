//! A small API server: it lists, watches, creates, updates, patches, applies and deletes objects over HTTP, and refuses
//! the same requests as the real one. Admission webhooks do not review patches and deletions. It does not check rights,
//! but notes every call.

mod admission;
mod fault;
mod features;
mod fields;
mod form;
mod forward;
mod http;
mod informer;
mod objects;
mod operations;
mod ownership;
mod quantity;
mod request;
mod resource;
mod scheduling;
mod selector;
mod status;
mod tokens;
mod validation;
mod watch;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub use admission::conditions;
pub use fault::Fault;
pub use informer::Informer;
pub use quantity::Quantity;
pub use resource::{
    BUDGETS, CLAIM_TEMPLATES, CLAIMS, CONFIG_MAPS, CORE_EVENTS, CSI_NODES, DEPLOYMENTS, DEVICE_CLASSES,
    DEVICE_TAINT_RULES, ELASTIC_GPU_CLAIMS, ELASTIC_GPU_CLASSES, ELASTIC_GPUS, EVENTS, JOB_SETS, JOBS, KAI_QUEUES,
    LEASES, LIMIT_RANGES, MUTATING_WEBHOOKS, NAMESPACES, NODES, POD_GROUPS, PODS, PRIORITY_CLASSES, QUEUES,
    RESOURCE_QUOTAS, RESOURCES, Resource, SCHEDULING_POLICIES, SECRETS, SLICES, STORAGE_CLASSES, TOKEN_REVIEWS,
    TRAIN_JOBS, VALIDATING_WEBHOOKS, VOLUME_ATTACHMENTS, VOLUME_CLAIMS, VOLUMES,
};
pub use status::Failure;

use objects::Objects;
use operations::{Patch, Target};
use selector::Selector;

/// The field manager for writes of the server's own user, the test.
const OWN_MANAGER: &str = "test";

/// A running API server. Its objects are gone when this is dropped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

/// The state that all connections share.
struct Shared {
    objects: Objects,
    /// Whether every request over HTTP fails.
    out: AtomicBool,
    faults: fault::Faults,
    /// Group and plural of the resources that are not served.
    absent: Mutex<BTreeSet<(&'static str, &'static str)>>,
    /// Whether claims can have whole devices only.
    whole_devices: AtomicBool,
    forwards: forward::Forwards,
    services: forward::Forwards,
    tokens: tokens::Tokens,
    /// The number of outages. Each outage ends all watches.
    outages: tokio::sync::watch::Sender<u64>,
    calls: Mutex<BTreeSet<Call>>,
}

/// A call over HTTP, in the terms in which rights are written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The plural name of the resource, with its subresource: `resourceclaims/status`.
    pub resource: String,
    /// The user agent of the client.
    pub client: String,
    /// Whether the client takes the metadata of objects only.
    pub metadata_only: bool,
}

impl ApiServer {
    /// Starts a server on a free port of this machine.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn start(runtime: &Handle) -> ApiServer {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            objects: Objects::new(),
            out: AtomicBool::new(false),
            faults: fault::Faults::default(),
            absent: Mutex::default(),
            whole_devices: AtomicBool::new(false),
            forwards: forward::Forwards::default(),
            services: forward::Forwards::default(),
            tokens: tokens::Tokens::default(),
            outages: tokio::sync::watch::Sender::new(0),
            calls: Mutex::default(),
        });
        let accepting = runtime.spawn(http::accept(listener, Arc::clone(&shared)));
        ApiServer { shared, address, accepting }
    }

    /// Writes a kubeconfig for clients of this server.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write_kubeconfig(&self, file: &Path) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
        });
        fs::write(file, config.to_string()).expect("a file for the kubeconfig");
    }

    /// Access to the objects without HTTP. It works during an outage too.
    #[must_use]
    pub fn store(&self) -> Store {
        Store { shared: Arc::clone(&self.shared) }
    }

    /// Begins or ends an outage: every request over HTTP fails, and watches end.
    pub fn set_out(&self, out: bool) {
        self.shared.out.store(out, Ordering::SeqCst);
        self.shared.outages.send_modify(|count| *count += 1);
    }

    /// From now on `fault` chooses the fault of each request over HTTP, from its method and its path.
    pub fn set_fault(&self, fault: impl Fn(&str, &str) -> Fault + Send + Sync + 'static) {
        self.shared.faults.set(fault);
    }

    /// From now on these resources alone are not served over HTTP. Their objects stay, and their watches end.
    pub fn set_absent(&self, resources: &[&'static Resource]) {
        let absent = resources.iter().map(|resource| (resource.group, resource.plural)).collect();
        *self.shared.absent.lock().unwrap_or_else(PoisonError::into_inner) = absent;
        self.end_watches();
    }

    /// From now on the feature gate `DRAConsumableCapacity` is off, as by default before Kubernetes 1.36, or on: what it
    /// adds to resource slices is dropped when they are written over HTTP.
    pub fn set_whole_devices(&self, whole: bool) {
        self.shared.whole_devices.store(whole, Ordering::SeqCst);
    }

    /// From now on this port of a pod leads to the address `to`. A port of a pod that does not exist cannot be
    /// forwarded.
    pub fn forward(&self, namespace: &str, pod: &str, port: u16, to: SocketAddr) {
        self.shared.forwards.set(namespace, pod, port, to);
    }

    /// From now on this port of a service leads to the address `to`. Webhooks are called through services.
    pub fn serve_at(&self, namespace: &str, service: &str, port: u16, to: SocketAddr) {
        self.shared.services.set(namespace, service, port, to);
    }

    /// From now on this token is valid: for a user and an audience, bound to a pod on this node.
    pub fn know_token(&self, token: &str, audience: &str, user: &str, node: &str) {
        self.shared.tokens.set(token, audience, user, node);
    }

    /// Ends all watches. Clients that continue from their version find nothing changed.
    pub fn end_watches(&self) {
        self.shared.outages.send_modify(|count| *count += 1);
    }

    /// Forgets the history and ends all watches: clients must list again.
    pub fn compact(&self) {
        self.shared.objects.compact();
        self.end_watches();
    }

    /// All calls over HTTP until now.
    #[must_use]
    pub fn calls(&self) -> BTreeSet<Call> {
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shared {
    fn serves(&self, resource: &Resource) -> bool {
        let absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        !absent.contains(&(resource.group, resource.plural))
    }

    /// The object that a client has written, as this server understands it.
    fn read(&self, resource: &Resource, written: Value) -> Value {
        match self.whole_devices.load(Ordering::SeqCst) {
            true => features::without_consumable_capacity(resource, written),
            false => written,
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set_out(true);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("out", &self.out).finish_non_exhaustive()
    }
}

/// The objects of an [`ApiServer`], for code in its process. Writes are checked as over HTTP, but no webhook is called.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

impl Store {
    /// An object by its type.
    ///
    /// # Errors
    /// If the object does not exist.
    pub fn get<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Result<T, Failure> {
        operations::get(&self.shared.objects, target(resource, namespace, name, false)).map(typed)
    }

    /// All objects of a resource, by namespace and name.
    #[must_use]
    pub fn list<T: DeserializeOwned>(&self, resource: &'static Resource) -> Vec<T> {
        let (_, objects) = operations::list(&self.shared.objects, resource, None, &Selector::default());
        objects.into_iter().map(typed).collect()
    }

    /// The number of objects of a resource.
    #[must_use]
    pub fn count(&self, resource: &'static Resource) -> usize {
        self.shared.objects.lock().list(resource, None).count()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// If the object is not valid, or exists already.
    pub fn create(&self, resource: &'static Resource, namespace: &str, object: Value) -> Result<Value, Failure> {
        operations::create(&self.shared.objects, target(resource, namespace, "", false), object)
    }

    /// Replaces an object, or its status only.
    ///
    /// # Errors
    /// If the object is not valid, or has been changed since it was read.
    ///
    /// # Panics
    /// If `object` has no name.
    pub fn update<T: Serialize>(
        &self,
        resource: &'static Resource,
        object: &T,
        status: bool,
    ) -> Result<Value, Failure> {
        let object = serde_json::to_value(object).expect("objects are written as JSON");
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().expect("an object has a name");
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        operations::update(&self.shared.objects, target(resource, namespace, name, status), &object)
    }

    /// Applies a JSON merge patch to an object or to its status.
    ///
    /// # Errors
    /// If the object does not exist, or would not be valid.
    pub fn merge(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
        status: bool,
        patch: &Value,
    ) -> Result<Value, Failure> {
        operations::patch(&self.shared.objects, target(resource, namespace, name, status), Patch::Merge(patch))
    }

    /// Deletes an object; with `now` at once, even if its node's kubelet still has to do something.
    ///
    /// # Errors
    /// If the object does not exist.
    pub fn delete(&self, resource: &'static Resource, namespace: &str, name: &str, now: bool) -> Result<(), Failure> {
        let options = if now { json!({"gracePeriodSeconds": 0}) } else { json!({}) };
        operations::delete(&self.shared.objects, target(resource, namespace, name, false), &options).map(drop)
    }

    /// A receiver that is told of each change of any object.
    #[must_use]
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.objects.subscribe()
    }
}

fn target<'a>(resource: &'static Resource, namespace: &'a str, name: &'a str, status: bool) -> Target<'a> {
    Target { resource, namespace, name, status, manager: OWN_MANAGER }
}

fn typed<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("what is stored has passed its resource's schema")
}

/// The present time as objects have it: to the second.
fn now() -> String {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let seconds = since_epoch.as_secs().cast_signed();
    Timestamp::from_second(seconds).expect("a date").to_string()
}

/// A new random UUID, as text.
///
/// # Panics
/// If the kernel gives no random bytes.
#[must_use]
pub fn random_uuid() -> String {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("the kernel gives UUIDs");
    uuid.trim_end().to_owned()
}
