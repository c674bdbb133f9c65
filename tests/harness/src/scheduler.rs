//! A scheduler in its own process, and a blocking client of its API.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aliquot_proto::scheduler::v1::scheduler_client::SchedulerClient;
use aliquot_proto::scheduler::v1::{
    CancelJobRequest, CreateJoinTokenRequest, ExplainRequest, ExplainResponse, GetJobRequest, Job, JobSpec,
    ListJobsRequest, ListJobsResponse, ListNodesRequest, ListQueuesRequest, Node, Queue, ReadLogRequest, Secret,
    SetSecretRequest, SubmitJobRequest,
};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::container::{GLOBAL_OPTIONS, RUN_OPTIONS};
use crate::loopback::own_address;
use crate::process::{self, Process};
use crate::{SimulatedGpu, artifacts, wait};

/// A running `aliquot-scheduler serve` with directories and an address of its own. Dropping this kills it.
pub struct Scheduler {
    dir: TempDir,
    listen: String,
    settings: String,
    process: Option<Process>,
}

impl Scheduler {
    /// Starts a scheduler with the configuration keys `settings`, and waits until it answers.
    #[must_use]
    pub fn start(settings: &str) -> Scheduler {
        let listen = format!("{}:7460", own_address());
        let dir = TempDir::with_prefix("aliquot-scheduler-").expect("a temporary directory");
        let mut scheduler = Scheduler { dir, listen, settings: settings.to_owned(), process: None };
        scheduler.restart();
        scheduler
    }

    /// Starts the scheduler again, after [`Scheduler::kill`] or [`Scheduler::stop`], and waits until it answers.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "the scheduler runs already");
        let file = self.dir.path().join("scheduler.toml");
        let paths = format!(
            "listen = {:?}\nsocket = {:?}\nstate_dir = {:?}\n{}",
            self.listen,
            self.socket(),
            self.state_dir(),
            self.settings,
        );
        std::fs::write(&file, paths).expect("the scheduler's configuration");
        let mut command = Command::new(artifacts::scheduler());
        let mut process = Process::start(command.arg("serve").arg("--config").arg(file));
        wait::until_true("the scheduler answers", || {
            assert!(!process.has_ended(), "the scheduler has ended:\n{}{}", process.output(), process.errors());
            Jobs::connect(&self.socket()).is_some_and(|mut jobs| jobs.nodes().is_ok())
        });
        self.process = Some(process);
    }

    /// Kills the scheduler with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.process.take().expect("the scheduler runs").kill();
    }

    /// Asks the scheduler to stop, and waits until it has.
    pub fn stop(&mut self) {
        let process = self.process.take().expect("the scheduler runs");
        process.signal(Signal::TERM);
        let _ = process.wait().success();
    }

    /// Freezes the scheduler's process until [`Scheduler::resume`].
    pub fn freeze(&self) {
        process::freeze(self.process.as_ref().expect("the scheduler runs").id());
    }

    /// Lets a frozen scheduler continue.
    pub fn resume(&self) {
        process::resume(self.process.as_ref().expect("the scheduler runs").id());
    }

    /// Waits until the scheduler has ended by itself, and answers its output.
    #[track_caller]
    pub fn ended(&mut self) -> String {
        let outcome = self.process.take().expect("the scheduler runs").wait();
        outcome.stdout + &outcome.stderr
    }

    /// The socket for users.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("scheduler.sock")
    }

    /// The directory with its state and the audit log.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The address on which nodes reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.listen
    }

    /// A connection to the scheduler.
    #[must_use]
    pub fn client(&self) -> Jobs {
        Jobs::connect(&self.socket()).expect("the scheduler listens")
    }

    /// The id of the scheduler's process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.as_ref().expect("the scheduler runs").id()
    }

    /// The scheduler's output since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.as_ref().map(|process| process.output() + &process.errors()).unwrap_or_default()
    }

    /// The keys of a manager's configuration with which a node of this name joins.
    #[must_use]
    pub fn joins(&self, node: &str) -> String {
        format!("cdi_dir = 'off'\n{}", self.membership(node, &[]))
    }

    /// The same for a cluster of several schedulers: this one leads, and others may lead later.
    #[must_use]
    pub fn joins_with(&self, node: &str, others: &[&Scheduler]) -> String {
        format!("cdi_dir = 'off'\n{}", self.membership(node, others))
    }

    /// The same for a node that runs images with podman and has the devices of `gpu`. `keys` are further keys of the
    /// configuration table `cluster`.
    #[must_use]
    pub fn joins_with_images(&self, node: &str, gpu: &SimulatedGpu, keys: &str) -> String {
        let podman: Vec<&str> = std::iter::once("podman").chain(GLOBAL_OPTIONS).collect();
        let (published, cluster) = (gpu.for_containers(""), self.membership(node, &[]));
        format!(
            "cdi_dir = '/var/run/cdi'\n{published}{cluster}podman = {podman:?}\npodman_run = {RUN_OPTIONS:?}\n{keys}\n"
        )
    }

    /// The table `cluster` of a manager's configuration with which a node of this name joins.
    fn membership(&self, node: &str, others: &[&Scheduler]) -> String {
        let token = self.client().token();
        let others = others.iter().map(|other| other.address());
        let schedulers: Vec<&str> = std::iter::once(self.address()).chain(others).collect();
        format!(
            "[cluster]\nscheduler = {:?}\ntoken = {token:?}\nnode_name = {node:?}\nallow_root = true\n",
            schedulers.join(",")
        )
    }
}

/// A connection to a scheduler. Each call blocks until the scheduler has answered.
pub struct Jobs {
    runtime: Runtime,
    api: SchedulerClient<Channel>,
}

impl Jobs {
    /// Connects to the scheduler at `socket`; `None` if none listens there.
    #[must_use]
    pub fn connect(socket: &Path) -> Option<Jobs> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let socket = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").timeout(Duration::from_secs(30));
        let channel = runtime.block_on(endpoint.connect_with_connector(connector)).ok()?;
        Some(Jobs { runtime, api: SchedulerClient::new(channel) })
    }

    /// `SubmitJob`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn submit(&mut self, spec: JobSpec) -> Result<Job, Status> {
        self.submit_as("", spec)
    }

    /// The same with this request ID.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn submit_as(&mut self, request_id: &str, spec: JobSpec) -> Result<Job, Status> {
        let request = SubmitJobRequest { spec: Some(spec), request_id: request_id.to_owned() };
        Ok(self.runtime.block_on(self.api.submit_job(request))?.into_inner())
    }

    /// `GetJob`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn job(&mut self, id: u64) -> Result<Job, Status> {
        Ok(self.runtime.block_on(self.api.get_job(GetJobRequest { id }))?.into_inner())
    }

    /// One answer to `ListJobs`; it may be incomplete.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn list(&mut self, request: ListJobsRequest) -> Result<ListJobsResponse, Status> {
        Ok(self.runtime.block_on(self.api.list_jobs(request))?.into_inner())
    }

    /// `CancelJob`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn cancel(&mut self, id: u64) -> Result<Job, Status> {
        let request = CancelJobRequest { id, tasks: Vec::new() };
        Ok(self.runtime.block_on(self.api.cancel_job(request))?.into_inner())
    }

    /// `ReadLog`, to its end: the output of a member of the job's task.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn log(&mut self, id: u64, rank: u32) -> Result<String, Status> {
        let request = ReadLogRequest { id, rank, task: None, ..ReadLogRequest::default() };
        self.runtime.block_on(async {
            let mut chunks = self.api.read_log(request).await?.into_inner();
            let mut text = Vec::new();
            while let Some(chunk) = chunks.message().await? {
                text.extend(chunk.data);
            }
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
    }

    /// `Explain`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn explain(&mut self, id: u64) -> Result<ExplainResponse, Status> {
        let request = ExplainRequest { id, task: None };
        Ok(self.runtime.block_on(self.api.explain(request))?.into_inner())
    }

    /// `ListNodes`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn nodes(&mut self) -> Result<Vec<Node>, Status> {
        Ok(self.runtime.block_on(self.api.list_nodes(ListNodesRequest {}))?.into_inner().nodes)
    }

    /// `ListQueues`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn queues(&mut self) -> Result<Vec<Queue>, Status> {
        Ok(self.runtime.block_on(self.api.list_queues(ListQueuesRequest {}))?.into_inner().queues)
    }

    /// `SetQueue`.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn set_queue(&mut self, queue: Queue) -> Result<Queue, Status> {
        Ok(self.runtime.block_on(self.api.set_queue(queue))?.into_inner())
    }

    /// Sets a secret of the caller.
    ///
    /// # Errors
    /// The scheduler's answer.
    pub fn set_secret(&mut self, name: &str, value: &[u8]) -> Result<Secret, Status> {
        let request = SetSecretRequest { name: name.to_owned(), value: value.to_vec(), ..SetSecretRequest::default() };
        Ok(self.runtime.block_on(self.api.set_secret(request))?.into_inner())
    }

    /// A join token for one node.
    pub fn token(&mut self) -> String {
        self.token_for(1)
    }

    /// A join token for this number of nodes.
    ///
    /// # Panics
    /// If the scheduler does not make one.
    pub fn token_for(&mut self, uses: u32) -> String {
        let request = CreateJoinTokenRequest { uses, ..CreateJoinTokenRequest::default() };
        let made = self.runtime.block_on(self.api.create_join_token(request));
        made.unwrap_or_else(|status| panic!("no join token: {}", status.message())).into_inner().token
    }
}
