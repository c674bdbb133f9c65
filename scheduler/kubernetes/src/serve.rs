//! Starts all parts of the scheduler, and ends them.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aliquot_api_server::{Client, ConnectError, Events, connect};
use aliquot_scheduler_engine::{
    Acknowledge, Backend, Batch, ClaimKey, ClaimRecord, ClaimUid, Command, Decisions, Engine, Memory, Message,
    Observation, Saved, Settings, Shown, Snapshots, Store, StoreError,
};
use aliquot_telemetry::Telemetry;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::extender::{self, Waiters};
use crate::lease::{Fence, Keeper};
use crate::mirror::{Choice, Mirror, Waiting, Write};
use crate::telemetry::{Leading, Status};
use crate::tls::TlsFiles;
use crate::watches::Watches;
use crate::webhook::Webhook;
use crate::{
    claim_report, elastic, group_report, left_over, questions, queue_status, readiness, remembered, report, reports,
    suspension, writer,
};

/// The pause before what could not be done is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// The pause before searches for devices go on that take long.
const BETWEEN_SEARCHES: Duration = Duration::from_millis(500);

/// The time within which each binding is answered. The longest wait is that for devices and volumes.
pub(crate) const START_DEADLINE_MS: u64 = 2 * readiness::LONGEST.as_millis() as u64;

/// How the scheduler runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file that names the API server; `None`: the API server of the cluster in which this is a pod.
    pub kubeconfig: Option<PathBuf>,
    /// Pods with this `schedulerName` are scheduled.
    pub name: String,
    /// Schedulers that are gone: where namespaces say that pods with devices are for this one, the webhook gives it the
    /// pods that name one of these, too.
    pub stands_in_for: Vec<String>,
    /// The namespace of the Lease, of the Secrets with certificates, and of the nodes' managers.
    pub namespace: String,
    /// Names this replica: no other one has this name at the same time.
    pub identity: String,
    /// Labels of nodes that say where they stand, the outermost first: a gang may have to stay within one.
    pub topology: Vec<String>,
    /// Where kube-scheduler reaches the extender of this replica: a URL without a path. A replica that stands by sends
    /// it there when this one leads; `None`: it does not.
    pub extender_url: Option<String>,
}

/// Where the scheduler answers; `None`: nowhere.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For Prometheus and probes: `/metrics`, `/healthz` and `/readyz`.
    pub metrics: Option<TcpListener>,
    /// For [questions](aliquot_api_server::questions).
    pub questions: Option<QuestionsListener>,
    /// For kube-scheduler, which keeps its pods and asks about devices.
    pub extender: Option<ExtenderListener>,
    /// For the API server, which has objects reviewed when they are made.
    pub webhook: Option<TcpListener>,
    /// For the nodes' managers, which report what slices use.
    pub reports: Option<TcpListener>,
}

/// Where questions are answered.
#[derive(Debug)]
pub struct QuestionsListener {
    /// Any client that reaches it may ask, so it is on a loopback address.
    pub listener: TcpListener,
    /// Writes what is known as a file with which decisions can be repeated.
    pub snapshots: Snapshots,
}

/// Where kube-scheduler's extender answers.
#[derive(Debug)]
pub struct ExtenderListener {
    /// Where kube-scheduler connects.
    pub listener: TcpListener,
    /// `None`: there is no encryption, and any client that reaches it may bind pods.
    pub tls: Option<TlsFiles>,
}

/// Why a scheduler has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The API server is not known.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another replica leads, or may.
    #[error("this replica is no longer the leader: {0}; it restarts, and stands by")]
    LeaseLost(String),
    /// The engine cannot go on.
    #[error(transparent)]
    Engine(#[from] StoreError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A socket that was given cannot be used.
    #[error("cannot serve: {0}")]
    Listen(#[source] std::io::Error),
    /// The extender has no certificate that can be used.
    #[error("the extender cannot be served: {0}")]
    Certificate(String),
}

/// What all parts of a leader share.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) fence: Fence,
    pub(crate) status: Arc<Status>,
    /// What the nodes' managers report.
    pub(crate) reports: reports::Known,
    pub(crate) meter: reports::Meter,
    topology: Vec<String>,
    mirror: Mutex<Mirror>,
    /// The engine; `None`: it does not run yet, and what is new is told when it begins.
    engine: Mutex<Option<std_mpsc::Sender<Message>>>,
    /// The requests of another scheduler that wait until their pods are bound.
    waiters: Waiters,
    this: std::sync::Weak<Shared>,
}

impl Shared {
    pub(crate) fn new(config: &Config, fence: Fence, status: Arc<Status>, term: u64) -> Arc<Shared> {
        let (name, topology) = (config.name.clone(), config.topology.clone());
        let (mirror, engine) = (Mutex::new(Mirror::new(&name, term, &topology)), Mutex::new(None));
        let (waiters, reports, meter) = Default::default();
        Arc::new_cyclic(|this| {
            let this = this.clone();
            Shared { name, fence, status, reports, meter, topology, mirror, engine, waiters, this }
        })
    }

    /// Tells the engine what it knows already, to hear that it answers.
    pub(crate) fn ask_engine(&self, acknowledge: Acknowledge) {
        if let Some(engine) = self.engine.lock().as_ref() {
            let observation = Observation::Topology(self.topology.clone());
            _ = engine.send(Message { observation, acknowledge: Some(acknowledge) });
        }
    }

    /// How long ago a pod was created.
    pub(crate) fn age_of(&self, uid: &str) -> Option<Duration> {
        let created = UNIX_EPOCH + Duration::from_millis(self.read(|mirror| mirror.created_ms(uid))?);
        SystemTime::now().duration_since(created).ok()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Mirror) -> T) -> T {
        look(&self.mirror.lock())
    }

    /// Changes the mirror, and tells the engine what follows. The lock is held meanwhile, so the engine hears of the
    /// changes in their order.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Mirror) -> T) -> T {
        let mut mirror = self.mirror.lock();
        let done = change(&mut mirror);
        if let Some(engine) = self.engine.lock().as_ref() {
            for observation in mirror.reconcile() {
                self.tell(engine, observation);
            }
        }
        for (uid, outcome) in mirror.take_answers() {
            self.waiters.tell(&uid, &outcome);
        }
        done
    }

    /// The pods that may have begun or ceased to wait since this was asked last, with what `of` finds of those that wait.
    pub(crate) fn take_to_report<T>(&self, of: impl Fn(Waiting<'_>) -> T) -> Vec<(String, Option<T>)> {
        let mut mirror = self.mirror.lock();
        let uids = mirror.take_to_report();
        let with_found = |uid: String| {
            let found = mirror.waiting(&uid).map(&of);
            (uid, found)
        };
        uids.into_iter().map(with_found).collect()
    }

    /// Another scheduler has chosen a node for a pod, and asks that the pod be bound there. If the answer is not known
    /// at once, the receiver gets it.
    pub(crate) fn choose(
        &self,
        uid: &str,
        full_name: &str,
        node: &str,
    ) -> (Choice, oneshot::Receiver<Result<(), String>>) {
        let told = self.waiters.wait(uid);
        (self.change(|mirror| mirror.choose(uid, full_name, node)), told)
    }

    /// Tells the engine an observation. The engine may have ended; then the whole process ends, too.
    fn tell(&self, engine: &std_mpsc::Sender<Message>, observation: Observation) {
        let acknowledge = self.acknowledge(&observation);
        _ = engine.send(Message { observation, acknowledge });
    }

    /// What is done with the engine's answer to an observation: what administrators define can be impossible, for
    /// example.
    fn acknowledge(&self, observation: &Observation) -> Option<Acknowledge> {
        match observation {
            Observation::Topology(_) => Some(Box::new(|done| {
                if let Err(error) = done {
                    warn!(%error, "the levels of the topology are not used");
                }
            })),
            Observation::Queue(queue) => {
                let (queue, this) = (queue.name.clone(), self.this.clone());
                Some(Box::new(move |done| {
                    let refused = done.err().map(|error| error.to_string());
                    if let Some(error) = &refused {
                        warn!(queue, error, "the queue is not as it is defined");
                    }
                    if let Some(shared) = this.upgrade() {
                        shared.mirror.lock().queue_taken(&queue, refused);
                    }
                }))
            }
            Observation::ClaimOnNode(uid, ..) => {
                let (uid, this) = (uid.clone(), self.this.clone());
                Some(Box::new(move |done| {
                    if let (Err(error), Some(shared)) = (done, this.upgrade()) {
                        shared.change(|mirror| mirror.choice_refused(uid.as_str(), error.to_string()));
                    }
                }))
            }
            Observation::QueueRemoved(queue) => {
                let (queue, this) = (queue.clone(), self.this.clone());
                Some(Box::new(move |done| {
                    if let (Err(error), Some(shared)) = (done, this.upgrade())
                        && shared.mirror.lock().queue_stayed(&queue)
                    {
                        warn!(queue, %error, "the queue stays for now, without its quota");
                    }
                }))
            }
            _ => None,
        }
    }

    /// Begins to tell the engine what changes, after all that is known.
    pub(crate) fn begin(&self, engine: std_mpsc::Sender<Message>) {
        let mut mirror = self.mirror.lock();
        for observation in mirror.reconcile() {
            self.tell(&engine, observation);
        }
        self.tell(&engine, Observation::Synced);
        *self.engine.lock() = Some(engine);
    }
}

/// Carries the engine's commands to the API server.
struct ApiServer {
    shared: Arc<Shared>,
    writes: mpsc::UnboundedSender<Write>,
}

impl Backend for ApiServer {
    fn carry_out(&mut self, command: Command) {
        self.carry_out_all(vec![command]);
    }

    /// No write goes out before the mirror knows all of them: the members of a gang wait for each other's devices.
    fn carry_out_all(&mut self, commands: Vec<Command>) {
        let writes = self.shared.change(|mirror| {
            let writes = commands.into_iter().filter_map(|command| mirror.command(command)).collect();
            mirror.with_suspensions(writes, suspension::now_ms())
        });
        for write in writes {
            // The writer ends only with the process.
            _ = self.writes.send(write);
        }
    }
}

/// A store that saves only what the API server does not know, and that not at once. Nothing goes out after the lease is
/// over.
struct Fenced {
    fence: Fence,
    learned: watch::Sender<Memory>,
}

impl Store for Fenced {
    fn load(&mut self) -> Result<Saved, StoreError> {
        Ok(Saved::default())
    }

    fn save(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.fence.left().ok_or_else(|| StoreError("the lease is over".into()))?;
        if let Some(memory) = &batch.memory {
            self.learned.send_replace(memory.clone());
        }
        Ok(())
    }
}

/// Waits until this replica leads, and schedules until `stop` says so, or until it leads no more.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    config: Config,
    listeners: Listeners,
    decisions: Decisions,
    stop: oneshot::Receiver<()>,
) -> Result<(), ServeError> {
    let client = connect(config.kubeconfig.as_deref()).await?;
    let status = Arc::new(Status::default());
    // The servers end with this function.
    let mut servers = JoinSet::new();
    if let Some(listener) = listeners.metrics {
        let telemetry: Arc<dyn Telemetry> = status.clone();
        servers.spawn(aliquot_telemetry::serve(for_tokio(listener)?, telemetry));
    }
    if let Some(QuestionsListener { listener, snapshots }) = listeners.questions {
        let fills_in = listeners.webhook.is_some();
        servers.spawn(questions::serve(for_tokio(listener)?, Arc::clone(&status), fills_in, snapshots));
    }
    if let Some(ExtenderListener { listener, tls }) = listeners.extender {
        servers.spawn(extender::serve(for_tokio(listener)?, tls, Arc::clone(&status))?);
    }
    if let Some(listener) = listeners.webhook {
        let webhook = Webhook::new(client.clone(), &config, Arc::clone(&status));
        servers.spawn(webhook.serve(for_tokio(listener)?));
    }
    if let Some(listener) = listeners.reports {
        let (namespace, status) = (config.namespace.clone(), Arc::clone(&status));
        servers.spawn(reports::serve(for_tokio(listener)?, client.clone(), namespace, status));
    }
    let mut lease = Keeper::start(config.clone(), Arc::clone(&status))?;
    let mut stop = std::pin::pin!(stop);
    let won = tokio::select! {
        won = lease.won() => Some(won?),
        _ = &mut stop => None,
    };
    let Some((term, fence)) = won else {
        lease.give_back().await;
        return Ok(());
    };
    let shared = Shared::new(&config, fence.clone(), Arc::clone(&status), term);
    let led = tokio::select! {
        why = lease.lost() => Err(ServeError::LeaseLost(why)),
        ended = lead(client, &config, decisions, term, &shared) => ended,
        _ = &mut stop => Ok(()),
    };
    // Nothing of this process is written any more when the next leader begins.
    fence.end();
    *shared.engine.lock() = None;
    status.leads(None);
    lease.give_back().await;
    led
}

async fn lead(
    client: Client,
    config: &Config,
    decisions: Decisions,
    term: u64,
    shared: &Arc<Shared>,
) -> Result<(), ServeError> {
    let mut watches = Watches::start(&client, shared);
    watches.complete().await;
    let memory = remembered::read(client.clone(), &config.namespace).await;
    let saved = shared.read(|mirror| Saved {
        term,
        claims: mirror.added_ms().map(|(uid, added_ms)| added(uid, added_ms)).collect(),
        memory,
        ..Saved::default()
    });
    // Nodes hold no leases: kubelet and the API server say what runs.
    let settings = Settings { lease: None, start_deadline_ms: START_DEADLINE_MS, ..Settings::default() };
    let engine = Engine::new(decisions, settings, saved);
    let (writes, to_write) = mpsc::unbounded_channel();
    let (to_engine, inbox) = std_mpsc::channel();
    let (learned, to_remember) = watch::channel(Memory::default());
    let (shown, clock) = (Shown::default(), Clock::new());
    let leading = Leading::new(shared, &shown, term);
    shared.status.leads(Some(leading.clone()));
    let (ended, has_ended) = oneshot::channel();
    shared.begin(to_engine);
    let engine = {
        let mut backend = ApiServer { shared: Arc::clone(shared), writes };
        let mut store = Fenced { fence: shared.fence.clone(), learned };
        let shown = shown.clone();
        move || {
            let run =
                aliquot_scheduler_engine::run(engine, &mut store, &mut backend, &shown, &inbox, || clock.now_ms());
            _ = ended.send(run);
        }
    };
    thread::Builder::new().name("engine".into()).spawn(engine).map_err(ServeError::Thread)?;
    info!(scheduler = config.name, term, "the scheduler schedules");
    let events = Events::new(client.clone(), "aliquot-scheduler", config.identity.clone());
    tokio::select! {
        run = has_ended => match run {
            Ok(run) => run.map_err(ServeError::from),
            Err(_) => Ok(()),
        },
        () = writer::run(client.clone(), Arc::clone(shared), events.clone(), to_write) => Ok(()),
        () = remembered::run(client.clone(), &config.namespace, Arc::clone(shared), to_remember) => Ok(()),
        () = left_over::run(client.clone(), Arc::clone(shared)) => Ok(()),
        () = report::run(client.clone(), Arc::clone(shared), shown.clone(), events.clone()) => Ok(()),
        () = group_report::run(client.clone(), Arc::clone(shared), events.clone()) => Ok(()),
        () = claim_report::run(Arc::clone(shared), events.clone()) => Ok(()),
        () = elastic::run(client.clone(), Arc::clone(shared), events.clone()) => Ok(()),
        () = suspension::run(client.clone(), Arc::clone(shared), events) => Ok(()),
        () = queue_status::run(client, Arc::clone(shared), shown.clone()) => Ok(()),
        () = look_again(shared) => Ok(()),
        () = search_on(shared) => Ok(()),
        () = reports::notice_silence(shared) => Ok(()),
        () = reports::count(shared, shown.clone()) => Ok(()),
        () = leading.watch_engine(&shared.status) => Ok(()),
    }
}

fn for_tokio(listener: TcpListener) -> Result<tokio::net::TcpListener, ServeError> {
    listener.set_nonblocking(true).map_err(ServeError::Listen)?;
    tokio::net::TcpListener::from_std(listener).map_err(ServeError::Listen)
}

/// Tries again what no watch would cause to be tried again.
async fn look_again(shared: &Shared) {
    loop {
        tokio::time::sleep(RETRY).await;
        shared.change(|_| ());
    }
}

/// Goes on with searches for devices that take long.
async fn search_on(shared: &Shared) {
    loop {
        tokio::time::sleep(BETWEEN_SEARCHES).await;
        if shared.read(Mirror::has_searches) {
            shared.change(Mirror::go_on_searching);
        }
    }
}

fn added(uid: &str, added_ms: u64) -> (ClaimKey, ClaimRecord) {
    let key = ClaimKey { uid: ClaimUid::from(uid), stray: None };
    (key, ClaimRecord { added_ms, ..ClaimRecord::default() })
}

/// Milliseconds since 1970. It was set once: later changes of the machine's clock do not change it.
struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    fn new() -> Clock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        Clock { started: Instant::now(), started_ms: u64::try_from(since).unwrap_or(u64::MAX) }
    }

    fn now_ms(&self) -> u64 {
        self.started_ms.saturating_add(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
