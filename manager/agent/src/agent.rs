//! The agent: one task that holds all knowledge of this node's jobs, and that receives every event.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aliquot_node::begin_aside;
use aliquot_proto::agent::v1::NodeSpec;
use aliquot_proto::node::v1::Node;
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{error, info, warn};

use crate::container;
use crate::files;
use crate::instance::{InstanceDir, Number, number};
use crate::lease::{Lease, LeaseFile};
use crate::link::{self, Link, LinkEvent};
use crate::logs::Logs;
use crate::manager::{Manager, slice_name};
use crate::report::{self, Machine};
use crate::secrets;
use crate::settings::Config;
use crate::users::{self, LookUp};

mod commands;
mod instances;
mod messages;
mod promises;
mod start;

use instances::Instance;
use promises::Promises;
use start::Prepared;

/// Time between two checks whether a supervisor was killed, or the lease has lapsed. Supervisors report all other
/// changes.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two looks at the devices.
const DEVICES_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which everything is reported even though nothing has changed.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which an end that was not acknowledged is reported again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two heartbeats before the first lease, while the lease's length is not known.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
const LOG_SWEEP_INTERVAL: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The reason why the agent does not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot take part in the cluster: {what}: {source}")]
pub struct StartError {
    what: String,
    source: io::Error,
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    move |source| StartError { what, source }
}

/// An agent at work. It ends when this is dropped; jobs run on.
pub struct Running {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts the agent of a node manager that serves its socket already.
    ///
    /// # Errors
    /// Its files cannot be read or written.
    pub fn start(config: Config) -> Result<Running, StartError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed("no runtime"))?;
        let (end, ended) = oneshot::channel();
        let agent = {
            let _inside = runtime.enter();
            Agent::open(config)?
        };
        let work = move || {
            runtime.block_on(agent.run(ended));
            // A call to the manager may be under way. Its outcome no longer matters.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("cluster".into()).spawn(work).map_err(failed("no thread"))?;
        Ok(Running { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread would have ended the whole process.
            let _ = thread.join();
        }
    }
}

/// News that the agent's own tasks send it.
enum News {
    /// The node manager's devices, and the names of the jobs' slices when the manager was asked.
    Node(Box<Node>, BTreeSet<String>),
    /// The slice of an instance was made, or could not be made.
    Prepared(Number, Result<Prepared, String>),
    /// The slice of an instance that has ended is gone.
    Released(Number),
    /// Podman can be used for jobs with an image.
    RunsImages,
    /// Old logs were removed.
    Swept,
}

/// The agent's task, with all that it knows.
struct Agent {
    config: Arc<Config>,
    machine: Machine,
    manager: Manager,
    look_up: LookUp,
    logs: Logs,
    /// The logs that jobs still write to.
    written_logs: watch::Sender<BTreeSet<String>>,
    /// Old logs are being removed, and must be looked for again afterwards.
    is_sweeping: bool,
    is_sweep_due: bool,
    promises: Promises,
    lease_file: LeaseFile,
    lease: Lease,
    /// The session is over, and its instances are being stopped.
    is_ending: bool,
    instances: BTreeMap<Number, Instance>,
    link: Option<Link>,
    /// The number of the last message of this session.
    sequence: u64,
    /// When each message that a lease can begin with was sent, by its number.
    sent_ms: BTreeMap<u64, u64>,
    node: Option<Node>,
    spec: Option<NodeSpec>,
    local_address: Option<String>,
    runs_images: bool,
    last_report: Instant,
    last_heartbeat: Instant,
    news: mpsc::UnboundedSender<News>,
    inbox: Option<mpsc::UnboundedReceiver<News>>,
    wake: UnixDatagram,
}

impl Agent {
    /// Continues from the files of the agent before it.
    fn open(config: Config) -> Result<Agent, StartError> {
        let (state, runtime) = (config.state_dir.clone(), config.runtime_dir.clone());
        for dir in [&state, &runtime, &state.join("instances"), &state.join("logs")] {
            files::create_private_dir(dir).map_err(failed(format!("cannot make {}", dir.display())))?;
        }
        container::write_groups(&runtime).map_err(failed("cannot write the file of groups for containers"))?;
        let secrets_dir = &config.secrets_dir;
        files::create_passage(secrets_dir).map_err(failed(format!("cannot make {}", secrets_dir.display())))?;
        let promises = Promises::open(&state.join("promises.json")).map_err(failed("cannot keep its promises"))?;
        let lease_file = LeaseFile::create(&runtime.join("lease")).map_err(failed("cannot keep the lease"))?;
        let socket = runtime.join("agent.sock");
        // A killed agent may have left its socket behind.
        let _ = fs::remove_file(&socket);
        let wake = UnixDatagram::bind(&socket).map_err(failed(format!("cannot listen on {}", socket.display())))?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).map_err(failed("cannot close its socket"))?;
        let instances = instances::found(&state.join("instances")).map_err(failed("cannot read the instances"))?;
        let has_instance = |dir: &Path| instances.keys().any(|number| secrets::dir_of(secrets_dir, *number) == dir);
        secrets::remove_others(secrets_dir, has_instance)
            .map_err(failed("cannot remove secrets of jobs that are gone"))?;
        let (news, inbox) = mpsc::unbounded_channel();
        let agent = Agent {
            machine: Machine::this(),
            manager: Manager::new(&config.manager_socket),
            look_up: Arc::new(users::look_up),
            logs: Logs::new(state.join("logs")),
            written_logs: watch::Sender::new(BTreeSet::new()),
            is_sweeping: false,
            is_sweep_due: false,
            promises,
            lease: lease_file.read().unwrap_or_default(),
            lease_file,
            is_ending: false,
            instances,
            link: None,
            sequence: 0,
            sent_ms: BTreeMap::new(),
            node: None,
            spec: None,
            local_address: None,
            runs_images: false,
            last_report: Instant::now(),
            last_heartbeat: Instant::now(),
            news,
            inbox: Some(inbox),
            wake,
            config: Arc::new(config),
        };
        let running = agent.instances.len();
        info!(node = agent.config.node_name, session = agent.promises.session(), running, "takes part in a cluster");
        Ok(agent)
    }

    fn instances_dir(&self) -> PathBuf {
        self.config.state_dir.join("instances")
    }

    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let Some(mut inbox) = self.inbox.take() else { return };
        self.look_for_podman();
        let (link_events, mut link) = mpsc::channel(64);
        let mut link_events = Some(link_events);
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        let mut devices = tokio::time::interval(DEVICES_INTERVAL);
        let mut sweeps = tokio::time::interval(LOG_SWEEP_INTERVAL);
        for interval in [&mut looks, &mut devices, &mut sweeps] {
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut byte = [0; 16];
        loop {
            tokio::select! {
                _ = &mut ended => return,
                Some(event) = link.recv() => self.link_event(event),
                Some(news) = inbox.recv() => self.take(news),
                _ = self.wake.recv(&mut byte) => {}
                _ = looks.tick() => {}
                _ = devices.tick() => self.ask_manager(),
                _ = sweeps.tick() => self.sweep_logs(),
            }
            self.look();
            self.tell_what_is_due();
            // The scheduler must know the devices before it believes a report, so there is no connection before that.
            if self.spec.is_some()
                && let Some(events) = link_events.take()
            {
                tokio::spawn(link::keep_up(Arc::clone(&self.config), events));
            }
        }
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up(link) => {
                self.local_address.clone_from(&link.local_address);
                self.link = Some(link);
                self.refresh_spec(&BTreeSet::new());
                self.greet();
            }
            LinkEvent::Message(message) => self.obey(*message),
            LinkEvent::Down => self.link = None,
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Node(node, own_slices) => {
                self.node = Some(*node);
                if self.refresh_spec(&own_slices) {
                    self.report();
                }
            }
            News::Prepared(number, prepared) => self.prepared(number, prepared),
            News::Released(number) => self.released(number),
            News::Swept => {
                self.is_sweeping = false;
                if std::mem::take(&mut self.is_sweep_due) {
                    self.sweep_logs();
                }
            }
            News::RunsImages => {
                self.runs_images = true;
                if self.refresh_spec(&BTreeSet::new()) {
                    self.report();
                }
            }
        }
    }

    /// The slices of the instances that are not forgotten yet.
    fn own_slices(&self) -> BTreeSet<String> {
        self.instances.keys().copied().map(slice_name).collect()
    }

    /// Computes the description of this node for the scheduler. Returns whether it has changed. `own_slices` belonged
    /// to jobs when the manager was asked; some of their instances may have been forgotten since.
    fn refresh_spec(&mut self, own_slices: &BTreeSet<String>) -> bool {
        let Some(node) = &self.node else { return false };
        let own = self.own_slices();
        let is_own = |slice: &str| own.contains(slice) || own_slices.contains(slice);
        let spec =
            report::spec(&self.config, self.machine, node, self.local_address.as_deref(), self.runs_images, is_own);
        let has_changed = self.spec.as_ref() != Some(&spec);
        self.spec = Some(spec);
        has_changed
    }

    /// Asks the node manager for devices.
    fn ask_manager(&self) {
        let (mut manager, news, own) = (self.manager.clone(), self.news.clone(), self.own_slices());
        tokio::spawn(async move {
            match manager.node().await {
                // An error means that the agent has ended.
                Ok(node) => _ = news.send(News::Node(Box::new(node), own)),
                Err(status) => warn!(%status, "the node manager does not say which devices there are"),
            }
        });
    }

    fn look_for_podman(&self) {
        if self.config.settings.podman.is_empty() {
            return;
        }
        let (config, news) = (Arc::clone(&self.config), self.news.clone());
        tokio::spawn(async move {
            match container::check(&config.settings).await {
                // An error means that the agent has ended.
                Ok(()) => _ = news.send(News::RunsImages),
                Err(why) => warn!(why, "this node runs no jobs with an image"),
            }
        });
    }

    /// Removes logs that are too old, or too many.
    fn sweep_logs(&mut self) {
        if self.is_sweeping {
            self.is_sweep_due = true;
            return;
        }
        let (logs, settings) = (self.logs.clone(), &self.config.settings);
        let (age, bytes_max) = (DAY * settings.log_days, settings.logs_bytes_max);
        let (written, news) = (self.written_logs.subscribe(), self.news.clone());
        let swept = begin_aside(move || {
            // A job may start to write to its log again meanwhile.
            let is_written = |log: &str| written.borrow().contains(log);
            logs.remove_older_than(age, is_written);
            logs.shrink_to(bytes_max, is_written);
            // An error means that the agent has ended.
            let _ = news.send(News::Swept);
        });
        self.is_sweeping = swept.is_ok();
        if let Err(error) = swept {
            warn!(%error, "cannot remove old logs now");
        }
    }

    /// Begins a new session. No instance of the last one runs any more.
    fn begin_session(&mut self) {
        if let Err(error) = self.promises.next_session() {
            error!(%error, "cannot begin a new session");
            return;
        }
        self.lease = Lease::default();
        if let Err(error) = self.lease_file.write(self.lease) {
            error!(%error, "cannot record that the node has no lease");
        }
        self.is_ending = false;
        self.sequence = 0;
        self.sent_ms.clear();
        info!(session = self.promises.session(), "nothing runs any more; a new session begins");
        self.greet();
    }

    fn instance_dir(&self, number: Number) -> InstanceDir {
        InstanceDir::below(&self.instances_dir(), number)
    }
}

/// The number of the instance that a command names.
fn named(instance: Option<&aliquot_proto::agent::v1::Generation>) -> Option<Number> {
    instance.map(number)
}
