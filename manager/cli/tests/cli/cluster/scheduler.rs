//! A scheduler that gives the answers of a test, on a Unix socket.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use aliquot_proto::scheduler::v1::scheduler_server::{Scheduler, SchedulerServer};
use aliquot_proto::scheduler::v1::{
    AddUserRequest, AddUserResponse, BackUpRequest, BackUpResponse, CancelJobRequest, CreateJoinTokenRequest,
    CreateJoinTokenResponse, ExplainRequest, ExplainResponse, GetJobRequest, Job, JobSpec, JobState, ListJobsRequest,
    ListJobsResponse, ListNodesRequest, ListNodesResponse, ListQueuesRequest, ListQueuesResponse, ListSecretsRequest,
    ListSecretsResponse, ListUsersRequest, ListUsersResponse, LogChunk, Member, Node, Queue, ReadLogRequest,
    RemoveNodeRequest, RemoveNodeResponse, RemoveQueueRequest, RemoveQueueResponse, RemoveSecretRequest,
    RemoveSecretResponse, RemoveUserRequest, RemoveUserResponse, Secret, SetSecretRequest, SnapshotPart,
    SubmitJobRequest, TakeSnapshotRequest, Task, User, WatchJobRequest,
};
use aliquot_proto::stream::v1::{FromJob, FromUser, from_job};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::support::aliquot;

/// The state of the scheduler.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scene {
    pub(crate) job: Job,
    /// Older jobs, listed after the newest one.
    pub(crate) older: Vec<Job>,
    pub(crate) log: Vec<u8>,
    /// Number of the log's first bytes that the node has removed.
    pub(crate) log_gone: usize,
    /// The node breaks off the log after what it has of it.
    pub(crate) breaks_log: bool,
    pub(crate) queues: Vec<Queue>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) users: Vec<User>,
    /// The secrets; `None` stands for a scheduler that does not know secrets.
    pub(crate) secrets: Option<Vec<Secret>>,
    pub(crate) explanation: ExplainResponse,
    /// The frames of a stream; `None` means that streams are refused.
    pub(crate) stream: Option<Vec<from_job::Frame>>,
    /// It takes jobs and users, and its answers are lost.
    pub(crate) loses_answers: bool,
}

/// A request that the scheduler has got.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asked {
    Submit(Box<SubmitJobRequest>),
    Watch,
    Log(ReadLogRequest),
    Open(FromUser),
    List(ListJobsRequest),
    Cancel(CancelJobRequest),
    SetQueue(Queue),
    RemoveQueue(String),
    RemoveNode(String),
    Token(CreateJoinTokenRequest),
    AddUser(AddUserRequest),
    RemoveUser(String),
    /// The name, the queue and the value of the secret.
    SetSecret(String, String, Vec<u8>),
    RemoveSecret(RemoveSecretRequest),
}

#[derive(Clone)]
struct Player {
    scene: watch::Sender<Scene>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

pub(crate) struct Played {
    dir: TempDir,
    player: Player,
    running: Option<Runtime>,
}

/// The job 17 with one task in `state`, on a node unless it is pending.
pub(crate) fn job(state: JobState) -> Job {
    let node = if state == JobState::Pending { String::new() } else { "gpu-1".to_owned() };
    let member = Member { state: state.into(), node, ..Member::default() };
    let task = Task { state: state.into(), attempt: 1, members: vec![member], ..Task::default() };
    let spec = JobSpec { name: "train".to_owned(), queue: "team-a".to_owned(), ..JobSpec::default() };
    Job { id: 17, spec: Some(spec), user: "ada".to_owned(), state: state.into(), tasks: vec![task], ..Job::default() }
}

/// The job 17 after its command has ended like this.
pub(crate) fn ended(state: JobState, exit_code: Option<i32>, signal: u32) -> Job {
    let mut job = job(state);
    job.tasks[0].members[0].exit_code = exit_code;
    job.tasks[0].members[0].signal = signal;
    job
}

impl Played {
    pub(crate) fn new(scene: Scene) -> Played {
        let player = Player { scene: watch::Sender::new(scene), asked: Arc::default() };
        let mut played = Played { dir: tempfile::tempdir().unwrap(), player, running: None };
        played.start();
        played
    }

    pub(crate) fn with_job(job: Job) -> Played {
        Played::new(Scene { job, ..Scene::default() })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("scheduler.sock")
    }

    /// Serves again, on the same socket.
    pub(crate) fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _ = std::fs::remove_file(self.socket());
        let listener = runtime.block_on(async { UnixListener::bind(self.socket()).unwrap() });
        let server = Server::builder().add_service(SchedulerServer::new(self.player.clone()));
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        self.running = Some(runtime);
    }

    /// Ends like a scheduler that is killed: all connections break.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.running.take() {
            runtime.shutdown_background();
        }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Scene)) {
        self.player.scene.send_modify(change);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.player.asked.lock().unwrap().clone()
    }

    /// Waits until there were `count` requests for which `is_meant` is true.
    pub(crate) fn wait_for(&self, count: usize, is_meant: impl Fn(&Asked) -> bool) {
        while self.asked().iter().filter(|asked| is_meant(asked)).count() < count {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// `aliquot` with `args`, for this scheduler.
    pub(crate) fn aliquot(&self, args: &[&str]) -> Command {
        let mut command = aliquot(args.iter().copied());
        command.env("ALIQUOT_SCHEDULER", self.socket());
        command
    }
}

impl Player {
    fn note(&self, asked: Asked) {
        self.asked.lock().unwrap().push(asked);
    }

    fn job(&self, id: u64) -> Result<Response<Job>, Status> {
        let job = self.scene.borrow().job.clone();
        match job.id == id {
            true => Ok(Response::new(job)),
            false => Err(Status::not_found(format!("there is no job {id}; see: aliquot jobs"))),
        }
    }
}

fn has_ended(scene: &Scene) -> bool {
    matches!(scene.job.state(), JobState::Succeeded | JobState::Failed | JobState::Cancelled)
}

#[tonic::async_trait]
impl Scheduler for Player {
    async fn submit_job(&self, request: Request<SubmitJobRequest>) -> Result<Response<Job>, Status> {
        self.note(Asked::Submit(Box::new(request.into_inner())));
        let loses_answers = self.scene.borrow().loses_answers;
        match loses_answers {
            true => std::future::pending().await,
            false => self.job(17),
        }
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        let request = request.into_inner();
        let mut jobs: Vec<Job> = {
            let scene = self.scene.borrow();
            let jobs = std::iter::once(&scene.job).chain(&scene.older);
            jobs.filter(|job| request.before == 0 || job.id < request.before).cloned().collect()
        };
        self.note(Asked::List(request));
        // A real scheduler puts more than one job into an answer, but not always all.
        let truncated = jobs.len() > 1;
        jobs.truncate(1);
        Ok(Response::new(ListJobsResponse { jobs, truncated }))
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<Job>, Status> {
        self.job(request.into_inner().id)
    }

    type WatchJobStream = ReceiverStream<Result<Job, Status>>;

    async fn watch_job(&self, request: Request<WatchJobRequest>) -> Result<Response<Self::WatchJobStream>, Status> {
        self.job(request.into_inner().id)?;
        self.note(Asked::Watch);
        let (sender, receiver) = mpsc::channel(1);
        let mut scene = self.scene.subscribe();
        tokio::spawn(async move {
            loop {
                let now = scene.borrow_and_update().clone();
                if sender.send(Ok(now.job.clone())).await.is_err() || has_ended(&now) || scene.changed().await.is_err()
                {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn cancel_job(&self, request: Request<CancelJobRequest>) -> Result<Response<Job>, Status> {
        let request = request.into_inner();
        self.note(Asked::Cancel(request.clone()));
        self.job(request.id)
    }

    type ReadLogStream = ReceiverStream<Result<LogChunk, Status>>;

    async fn read_log(&self, request: Request<ReadLogRequest>) -> Result<Response<Self::ReadLogStream>, Status> {
        let request = request.into_inner();
        self.job(request.id)?;
        self.note(Asked::Log(request));
        let (sender, receiver) = mpsc::channel(1);
        let mut scene = self.scene.subscribe();
        tokio::spawn(async move {
            let mut sent = usize::try_from(request.offset).unwrap().max(scene.borrow().log_gone);
            if request.last_lines > 0 {
                let log = scene.borrow().log.clone();
                let ends = log.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
                sent = ends.rev().nth(request.last_lines as usize).unwrap_or(0);
            }
            loop {
                let now = scene.borrow_and_update().clone();
                let data = now.log.get(sent..).unwrap_or_default().to_vec();
                let chunk = LogChunk { offset: sent as u64, data };
                sent += chunk.data.len();
                if !chunk.data.is_empty() && sender.send(Ok(chunk)).await.is_err() {
                    return;
                }
                if now.breaks_log {
                    let _ = sender.send(Err(Status::internal("the node has reset the stream"))).await;
                    return;
                }
                if !request.follow || has_ended(&now) || scene.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type OpenStreamStream = ReceiverStream<Result<FromJob, Status>>;

    async fn open_stream(
        &self,
        request: Request<Streaming<FromUser>>,
    ) -> Result<Response<Self::OpenStreamStream>, Status> {
        let mut frames = request.into_inner();
        let first = frames.message().await?;
        let answers = self.scene.borrow().stream.clone();
        self.note(Asked::Open(first.unwrap_or_default()));
        let answers = answers.ok_or_else(|| Status::permission_denied("job 17 is of user ada"))?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            for frame in answers {
                // An error means that the caller is gone.
                let _ = sender.send(Ok(FromJob { frame: Some(frame) })).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        self.job(request.into_inner().id)?;
        Ok(Response::new(self.scene.borrow().explanation.clone()))
    }

    async fn list_queues(&self, _: Request<ListQueuesRequest>) -> Result<Response<ListQueuesResponse>, Status> {
        Ok(Response::new(ListQueuesResponse { queues: self.scene.borrow().queues.clone() }))
    }

    async fn set_queue(&self, request: Request<Queue>) -> Result<Response<Queue>, Status> {
        let queue = request.into_inner();
        self.note(Asked::SetQueue(queue.clone()));
        Ok(Response::new(queue))
    }

    async fn remove_queue(
        &self,
        request: Request<RemoveQueueRequest>,
    ) -> Result<Response<RemoveQueueResponse>, Status> {
        self.note(Asked::RemoveQueue(request.into_inner().name));
        Ok(Response::new(RemoveQueueResponse {}))
    }

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<ListNodesResponse>, Status> {
        Ok(Response::new(ListNodesResponse { nodes: self.scene.borrow().nodes.clone() }))
    }

    async fn remove_node(&self, request: Request<RemoveNodeRequest>) -> Result<Response<RemoveNodeResponse>, Status> {
        self.note(Asked::RemoveNode(request.into_inner().name));
        Ok(Response::new(RemoveNodeResponse {}))
    }

    async fn create_join_token(
        &self,
        request: Request<CreateJoinTokenRequest>,
    ) -> Result<Response<CreateJoinTokenResponse>, Status> {
        self.note(Asked::Token(request.into_inner()));
        Ok(Response::new(CreateJoinTokenResponse {
            token: "alq1.x".to_owned(),
            command: "aliquot-manager --join alq1.x\u{1b}[2J".to_owned(),
            expires_unix_ms: 3_600_000,
        }))
    }

    async fn add_user(&self, request: Request<AddUserRequest>) -> Result<Response<AddUserResponse>, Status> {
        let request = request.into_inner();
        self.note(Asked::AddUser(request.clone()));
        if self.scene.borrow().loses_answers {
            std::future::pending::<()>().await;
        }
        let is_known = |user: &User| Some(&user.name) == request.user.as_ref().map(|user| &user.name);
        if !request.replace && self.scene.borrow().users.iter().any(is_known) {
            return Err(Status::already_exists("there is a user of this name already"));
        }
        Ok(Response::new(AddUserResponse {
            user: request.user,
            certificate: "-----BEGIN CERTIFICATE-----\nada\n-----END CERTIFICATE-----\n".to_owned(),
            authority: "-----BEGIN CERTIFICATE-----\nauthority\n-----END CERTIFICATE-----\n".to_owned(),
            addresses: vec!["head:7460".to_owned()],
        }))
    }

    async fn list_users(&self, _: Request<ListUsersRequest>) -> Result<Response<ListUsersResponse>, Status> {
        Ok(Response::new(ListUsersResponse { users: self.scene.borrow().users.clone() }))
    }

    async fn remove_user(&self, request: Request<RemoveUserRequest>) -> Result<Response<RemoveUserResponse>, Status> {
        self.note(Asked::RemoveUser(request.into_inner().name));
        Ok(Response::new(RemoveUserResponse {}))
    }

    async fn set_secret(&self, request: Request<SetSecretRequest>) -> Result<Response<Secret>, Status> {
        let SetSecretRequest { name, queue, value } = request.into_inner();
        self.note(Asked::SetSecret(name.clone(), queue.clone(), value));
        Ok(Response::new(Secret { name, queue, ..Secret::default() }))
    }

    async fn list_secrets(&self, _: Request<ListSecretsRequest>) -> Result<Response<ListSecretsResponse>, Status> {
        let secrets = self.scene.borrow().secrets.clone();
        // A scheduler of an older version does not know the call.
        let secrets = secrets.ok_or_else(|| Status::unimplemented(""))?;
        Ok(Response::new(ListSecretsResponse { secrets }))
    }

    async fn remove_secret(
        &self,
        request: Request<RemoveSecretRequest>,
    ) -> Result<Response<RemoveSecretResponse>, Status> {
        self.note(Asked::RemoveSecret(request.into_inner()));
        Ok(Response::new(RemoveSecretResponse {}))
    }

    async fn back_up(&self, _: Request<BackUpRequest>) -> Result<Response<BackUpResponse>, Status> {
        Err(Status::unimplemented("no command of `aliquot` asks for it"))
    }

    type TakeSnapshotStream = ReceiverStream<Result<SnapshotPart, Status>>;

    async fn take_snapshot(
        &self,
        _: Request<TakeSnapshotRequest>,
    ) -> Result<Response<Self::TakeSnapshotStream>, Status> {
        Err(Status::unimplemented("no command of `aliquot` asks for it"))
    }
}
