//! A cluster for tests: an API server, nodes without kubelets, and schedulers.
//!
//! The API server is the project's own, unless `ALIQUOT_TEST_KUBECONFIG` names a real one: see [`crate::objects`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aliquot_api_server::questions::QUESTIONS_PORT;
use aliquot_api_server::{INVENTORY, Inventory, InventoryDevice};
use aliquot_dialects::{NodeFacts, Spoken};
use aliquot_kubernetes_scheduler::{
    Config, ExtenderListener, Listeners, QuestionsListener, ServeError, TlsFiles, serve,
};
use aliquot_scheduler_core::Settings;
use aliquot_scheduler_core::placement::{ExpectedWaste, Mix, Weights};
use aliquot_scheduler_engine::{Decisions, Snapshots};
use aliquot_test_api_server::{ApiServer, CORE_EVENTS, LEASES, NODES, PODS, STORAGE_CLASSES, VOLUME_CLAIMS};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::objects::Objects;

/// What is waited for comes long before this, or never.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

pub(crate) struct Cluster {
    pub(crate) objects: Objects,
    directory: TempDir,
    schedulers: u32,
}

/// A replica of the scheduler, in this process. One that could not renew its lease in time is started anew, as kubelet
/// does.
pub(crate) struct Scheduler {
    stop: watch::Sender<bool>,
    kill: Option<oneshot::Sender<()>>,
    ended: mpsc::Receiver<Result<(), ServeError>>,
    thread: Option<JoinHandle<()>>,
    metrics_address: SocketAddr,
    pub(crate) questions_address: SocketAddr,
    pub(crate) extender_address: SocketAddr,
    pub(crate) webhook_address: SocketAddr,
    pub(crate) reports_address: SocketAddr,
}

/// What a replica has beside what all of them have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    /// Its extender speaks TLS with these files.
    pub(crate) tls: Option<TlsFiles>,
    /// It has a webhook. The rights of all others are without it.
    pub(crate) webhook: bool,
    /// It takes reports of managers. The rights of all others are without that.
    pub(crate) reports: bool,
    /// A label of nodes that is a level of the topology above the nodes themselves.
    pub(crate) level: Option<&'static str>,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        Cluster::with(Objects::start)
    }

    /// A cluster whose API server can be told to make faults.
    pub(crate) fn with_faults() -> Cluster {
        Cluster::with(Objects::with_faults)
    }

    fn with(start: impl FnOnce(&Path) -> Objects) -> Cluster {
        let directory = TempDir::new().unwrap();
        let objects = start(&directory.path().join("kubeconfig"));
        Cluster { objects, directory, schedulers: 0 }
    }

    /// The API server that can be told to make faults.
    pub(crate) fn server(&self) -> &ApiServer {
        self.objects.server()
    }

    /// A cluster with a node of one GPU, and a scheduler.
    pub(crate) fn with_one_gpu() -> (Cluster, Scheduler) {
        Cluster::start().and_one_gpu()
    }

    pub(crate) fn with_one_gpu_and_faults() -> (Cluster, Scheduler) {
        Cluster::with_faults().and_one_gpu()
    }

    fn and_one_gpu(mut self) -> (Cluster, Scheduler) {
        self.node("n", 1);
        let scheduler = self.scheduler();
        (self, scheduler)
    }

    /// The name of the replica that was started as this one, as a pod has it. Where a lease outlives a test, it is nobody
    /// else's.
    pub(crate) fn identity(&self, number: u32) -> String {
        format!("replica-{number}_{}", self.directory.path().display())
    }

    /// The name of the replica that was started last.
    pub(crate) fn last_identity(&self) -> String {
        self.identity(self.schedulers)
    }

    /// The name of the replica that holds the lease.
    pub(crate) fn holder(&self) -> Option<String> {
        let lease = self.objects.list(&LEASES).into_iter().find(|of| of["metadata"]["name"] == "aliquot-scheduler")?;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    /// The file by which clients find the API server.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Makes the pod of the replica that was started as this one, so that its ports can be forwarded.
    pub(crate) fn make_pod_of(&self, number: u32, replica: &Scheduler) {
        let name = format!("replica-{number}");
        let spec = json!({"containers": [{"name": "scheduler", "image": "none"}]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.objects.create(&PODS, "aliquot-system", pod);
        self.server().forward("aliquot-system", &name, QUESTIONS_PORT, replica.questions_address);
    }

    pub(crate) fn scheduler(&mut self) -> Scheduler {
        self.scheduler_with(Extras::default())
    }

    pub(crate) fn scheduler_with(&mut self, extras: Extras) -> Scheduler {
        self.schedulers += 1;
        let listeners = [(); 5].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = listeners.each_ref().map(|of| of.local_addr().unwrap());
        let [metrics_address, questions_address, extender_address, webhook_address, reports_address] = addresses;
        let protocol = if extras.tls.is_some() { "https" } else { "http" };
        let of_all = config(self.kubeconfig(), self.identity(self.schedulers));
        let levels = extras.level.map(str::to_owned).into_iter().chain(of_all.topology.iter().cloned());
        let extender_url = Some(format!("{protocol}://{extender_address}"));
        let config = Config { topology: levels.collect(), extender_url, ..of_all };
        let ((stop, stopped), (kill, killed)) = (watch::channel(false), oneshot::channel());
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = Runtime::new().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve_until_stopped(config, listeners, extras, stopped, end) => {}
                    _ = killed => {}
                }
            });
            // A replica that is killed finishes nothing, and sends nothing once `kill` has returned.
            runtime.shutdown_timeout(LIMIT);
        });
        let (kill, thread) = (Some(kill), Some(thread));
        Scheduler {
            stop,
            kill,
            ended,
            thread,
            metrics_address,
            questions_address,
            extender_address,
            webhook_address,
            reports_address,
        }
    }

    pub(crate) fn node(&self, name: &str, devices: usize) {
        let device = |number: usize| InventoryDevice {
            uuid: format!("GPU-{name}-{number}"),
            model: "NVIDIA H100".into(),
            memory_bytes: 80 << 30,
            ..InventoryDevice::default()
        };
        let devices = (0..devices).map(device).collect();
        let inventory = Inventory::new(devices, &Spoken::new([]).unwrap(), &NodeFacts::default());
        let annotations = json!({INVENTORY: serde_json::to_string(&inventory).unwrap()});
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": annotations},
        });
        self.ready_node(name, node);
    }

    /// Creates a node that pods can be bound to.
    pub(crate) fn ready_node(&self, name: &str, node: Value) {
        self.objects.create(&NODES, "", node);
        let status = json!({"status": {
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "100"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        self.objects.merge_status(&NODES, "", name, &status);
        // A real API server says of each new node that it is not ready.
        self.objects.merge(&NODES, "", name, &json!({"spec": {"taints": null}}));
    }

    /// A pod that asks for so many percent of a GPU. `more` is merged into it.
    pub(crate) fn pod(&self, name: &str, percent: u32, more: Value) {
        let limits = json!({"aliquot.dev/gpu-core": percent.to_string()});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "aliquot",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
            },
        });
        json_patch::merge(&mut pod, &more);
        self.objects.create(&PODS, "default", pod);
    }

    /// A claim for which a volume is made once a node is chosen.
    pub(crate) fn claim_for_node(&self, name: &str) {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"},
            "provisioner": "example.com/local", "volumeBindingMode": "WaitForFirstConsumer",
        });
        self.objects.create(&STORAGE_CLASSES, "", class);
        let requests = json!({"requests": {"storage": "1Gi"}});
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": requests, "storageClassName": "local"});
        let (api, kind) = ("v1", "PersistentVolumeClaim");
        let claim = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.objects.create(&VOLUME_CLAIMS, "default", claim);
    }

    pub(crate) fn get(&self, name: &str) -> Value {
        self.objects.get(&PODS, "default", name)
    }

    /// Makes each binding of a pod that is still on its way come too late: a binding names the pod's version.
    pub(crate) fn outdate_bindings_of(&self, name: &str) {
        self.objects.merge(&PODS, "default", name, &json!({"metadata": {"annotations": {"example.com/touched": ""}}}));
    }

    /// The nodes of bound pods.
    pub(crate) fn bound(&self) -> BTreeMap<String, String> {
        let pods = self.objects.list(&PODS);
        let node = |pod: &Value| {
            let name = pod["metadata"]["name"].as_str()?.to_owned();
            Some((name, pod["spec"]["nodeName"].as_str()?.to_owned()))
        };
        pods.iter().filter_map(node).collect()
    }

    /// The reason and the message of a pod's condition that it is not scheduled.
    pub(crate) fn why_waiting(&self, name: &str) -> Option<(String, String)> {
        let pod = self.get(name);
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        let condition = conditions.into_iter().find(|of| of["type"] == "PodScheduled" && of["status"] == "False")?;
        Some((condition["reason"].as_str()?.to_owned(), condition["message"].as_str()?.to_owned()))
    }

    /// Waits until a pod says for this reason that it waits, in a message that begins so. Returns the message.
    #[track_caller]
    pub(crate) fn wait_until_it_waits(&self, name: &str, reason: &str, beginning: &str) -> String {
        let said = RefCell::new(String::new());
        self.wait_until(&format!("{name} says {reason}: {beginning}"), |cluster| {
            let why = cluster.why_waiting(name).filter(|(of, text)| of == reason && text.starts_with(beginning));
            why.map(|(_, text)| said.replace(text)).is_some()
        });
        said.into_inner()
    }

    pub(crate) fn events_about(&self, name: &str) -> Vec<String> {
        let events = self.objects.list(&CORE_EVENTS);
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == name);
        about.map(|event| format!("{}: {}", event["reason"], event["message"])).collect()
    }

    /// Waits until something is so.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Cluster) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            let pods = self.objects.list(&PODS);
            assert!(began.elapsed() < LIMIT, "{what}: {:?} {}", self.bound(), json!(pods));
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn wait_until_bound(&self, names: &[&str]) {
        self.wait_until("not bound as expected", |cluster| cluster.bound().keys().eq(names.iter()));
    }
}

impl Scheduler {
    /// Stops the replica as kubelet does.
    pub(crate) fn stop(mut self) {
        self.stop.send_replace(true);
        while self.end().is_err() {}
    }

    /// Ends the replica in the middle of whatever it does.
    pub(crate) fn kill(mut self) {
        _ = self.kill.take().unwrap().send(());
        self.thread.take().unwrap().join().unwrap();
    }

    /// What the replica answers to a GET: the status, and the text. A replica that ends while it is asked breaks the
    /// connection; the one that is started in its place is asked then.
    pub(crate) fn ask(&self, path: &str) -> (u16, String) {
        let began = Instant::now();
        loop {
            match self.try_ask(path) {
                Ok(answer) => return answer,
                Err(error) => assert!(began.elapsed() < LIMIT, "{path}: {error}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn try_ask(&self, path: &str) -> io::Result<(u16, String)> {
        let mut connection = TcpStream::connect(self.metrics_address)?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: replica\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes())?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if length.parse() != Ok(body.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
    }

    /// A number among the replica's metrics; `None`: it is not there.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.ask("/metrics");
        let lines = text.lines().filter_map(|line| line.strip_prefix("aliquot_scheduler_"));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .find(|(of, _)| *of == name)
            .map(|(_, value)| value.parse().unwrap())
    }

    /// Waits until the replica's metrics are so. `false`: it was started anew, and its counters with it.
    #[track_caller]
    pub(crate) fn counts(&self, metrics: &[(&str, f64)]) -> bool {
        let began = Instant::now();
        while self.ended.try_recv().is_err() {
            let Some(other) = metrics.iter().find(|(name, value)| self.metric(name) != Some(*value)) else {
                return true;
            };
            assert!(began.elapsed() < LIMIT, "not {other:?}: {}", self.ask("/metrics").1);
            thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Waits until the replica ends by itself.
    pub(crate) fn end(&mut self) -> Result<(), ServeError> {
        self.ended.recv_timeout(LIMIT).expect("the replica ends")
    }
}

impl Drop for Scheduler {
    /// The next test on the same API server is to find no leader.
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // It has panicked, and said so.
            _ = thread.join();
        }
    }
}

/// How all replicas run.
pub(crate) fn config(kubeconfig: PathBuf, identity: String) -> Config {
    Config {
        kubeconfig: Some(kubeconfig),
        name: "aliquot".into(),
        namespace: "aliquot-system".into(),
        identity,
        topology: vec!["kubernetes.io/hostname".into()],
        extender_url: None,
        stands_in_for: vec!["kai-scheduler".into()],
    }
}

/// The policy and the settings that the program has by default.
pub(crate) fn decisions() -> Decisions {
    let policy = Box::new(ExpectedWaste::new(&Mix::of([]), Weights::default()));
    Decisions { policy, settings: Settings::default(), usage_half_life_ms: 3_600_000 }
}

/// Serves, and says each time how it has ended.
async fn serve_until_stopped(
    config: Config,
    listeners: [TcpListener; 5],
    extras: Extras,
    stopped: watch::Receiver<bool>,
    end: mpsc::Sender<Result<(), ServeError>>,
) {
    loop {
        let ((stop, stops), mut stopped) = (oneshot::channel(), stopped.clone());
        tokio::spawn(async move {
            _ = stopped.wait_for(|stopped| *stopped).await;
            _ = stop.send(());
        });
        let [metrics, questions, extender, webhook, reports] =
            listeners.each_ref().map(|listener| Some(listener.try_clone().unwrap()));
        // The program writes a file in its place.
        let snapshots = Snapshots::new(|view| Ok(json!({"claims": view.cluster().claims().count()}).to_string()));
        let questions = questions.map(|listener| QuestionsListener { listener, snapshots });
        let extender = extender.map(|listener| ExtenderListener { listener, tls: extras.tls.clone() });
        let (webhook, reports) = (webhook.filter(|_| extras.webhook), reports.filter(|_| extras.reports));
        let listeners = Listeners { metrics, questions, extender, webhook, reports };
        let done = serve(config.clone(), listeners, decisions(), stops).await;
        let is_done = done.is_ok();
        _ = end.send(done);
        if is_done {
            return;
        }
    }
}
