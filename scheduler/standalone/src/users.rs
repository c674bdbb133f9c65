//! The API for users, `aliquot/scheduler/v1/scheduler.proto`.

mod about;
mod list;
mod secrets;
mod streams;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use aliquot_proto::agent::v1::ReadLog;
use aliquot_proto::scheduler::v1 as wire;
use aliquot_proto::scheduler::v1::scheduler_server::Scheduler;
use aliquot_proto::stream::v1::{FromJob, FromUser};
use aliquot_scheduler_core::{DEFAULT_QUEUE, EventError};
use aliquot_scheduler_engine::{Message, Observation, Shown, Snapshots, View};
use aliquot_scheduler_store::{Database, StoreError};
use tokio::sync::{Mutex, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::access::{Action, Caller, Identity, LocalUser};
use crate::clock::Clock;
use crate::controller::{Inbox, Refusal, Seen};
use crate::gate::About;
use crate::jobs::{ClaimName, End, Entry, Job, JobId, JobSpec, Task, TaskState};
use crate::membership::{Invitation, Inviter, Membership, TOKEN_VALID_MS};
use crate::present;
use crate::queues;
use crate::registrar::Registrar;
use crate::secrets::{Holder, Secrets};
use crate::sessions::Sessions;
use crate::streams::Streams;

/// The most bytes of a request ID.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// The most bytes of a snapshot in one message.
const SNAPSHOT_PART_BYTES: usize = 1 << 20;

type StreamOf<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The server's side of the API for users.
#[derive(Clone, Debug)]
pub(crate) struct UserService {
    pub(crate) seen: Seen,
    pub(crate) shown: Shown,
    pub(crate) sessions: Sessions,
    pub(crate) streams: Streams,
    pub(crate) controller: Sender<Inbox>,
    pub(crate) engine: Sender<Message>,
    pub(crate) database: Database,
    pub(crate) membership: Arc<Membership>,
    /// Makes join tokens; `None`: the certificates come from elsewhere.
    pub(crate) inviter: Option<Inviter>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) registrar: Arc<Registrar>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) snapshots: Snapshots,
    /// Held while a change of queues is told to the engine and then saved, so that the store has all changes in the engine's
    /// order. Otherwise the store could have a queue without its parent.
    pub(crate) queue_changes: Arc<Mutex<()>>,
}

/// The caller, as the gate has identified it.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("the caller is not known"))
}

/// Refuses a call if the caller may not make it.
fn check<T>(request: &Request<T>, action: &Action<'_>) -> Result<(), Status> {
    caller(request)?.may(action).map_err(Status::permission_denied)
}

/// Notes the object of a call for the audit log.
fn note<T>(request: &Request<T>, object: impl FnOnce() -> String) {
    if let Some(about) = request.extensions().get::<About>() {
        about.is(object());
    }
}

impl UserService {
    fn view(&self) -> Result<Arc<View>, Status> {
        self.shown.get().ok_or_else(|| Status::unavailable("the scheduler is starting; try again in a moment"))
    }

    /// The number of the local user as whom the caller's jobs run, and its name.
    async fn local_user(&self, caller: &Caller) -> Result<(u32, String), Status> {
        let users = &self.registrar.callers.users;
        match (&caller.identity, &caller.grant.runs_as) {
            (Identity::Local(uid), _) => Ok((*uid, users.known_name_of(*uid).await)),
            (_, Some(user)) => {
                let uid = users.number_for_jobs(user).await.map_err(Status::failed_precondition)?;
                let name = match user {
                    LocalUser::Name(name) => name.clone(),
                    LocalUser::Number(_) => users.known_name_of(uid).await,
                };
                Ok((uid, name))
            }
            (_, None) => Err(Status::permission_denied("the user has no local user under whom jobs could run")),
        }
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Inbox) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let ends = || Status::unavailable("the scheduler is ending; try again when it is back");
        self.controller.send(question(reply)).map_err(|_| ends())?;
        answer.await.map_err(|_| ends())?.map_err(|refusal| match refusal {
            Refusal::Unknown(why) => Status::not_found(why),
            Refusal::TooMany(why) => Status::resource_exhausted(why),
            Refusal::Exists(why) => Status::already_exists(why),
        })
    }

    /// Tells the engine, and waits for its answer.
    async fn tell(&self, observation: Observation) -> Result<(), Status> {
        let (reply, answer) = oneshot::channel::<Result<(), EventError>>();
        let ends = || Status::unavailable("the scheduler is ending; try again when it is back");
        let acknowledge: aliquot_scheduler_engine::Acknowledge = Box::new(move |done| _ = reply.send(done));
        self.engine.send(Message { observation, acknowledge: Some(acknowledge) }).map_err(|_| ends())?;
        answer.await.map_err(|_| ends())?.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    /// A copy of a job, so that the book is not locked while the job is used.
    fn entry(&self, id: JobId) -> Result<Entry, Status> {
        self.seen.book.read().entry(id).cloned().ok_or_else(|| no_such_job(id))
    }

    fn job(&self, id: JobId, caller: &Caller) -> Result<wire::Job, Status> {
        let view = self.shown.get();
        let entry = self.entry(id)?;
        Ok(present::job(&entry, view.as_deref(), !caller.may_inspect(entry.job.owned())))
    }

    /// Refuses a job if its queue can never take it.
    fn check_queue(&self, queue: &str) -> Result<(), Status> {
        let name = if queue.is_empty() { DEFAULT_QUEUE } else { queue };
        let queues = self.seen.queues.read();
        if !queues.has(name) {
            let names: Vec<&str> = queues.specs().map(|spec| spec.name.as_str()).collect();
            return Err(Status::not_found(format!("there is no queue {name:?}; there are: {}", names.join(", "))));
        }
        match queues.below(name).as_slice() {
            [] => Ok(()),
            below => Err(Status::invalid_argument(format!(
                "queue {name:?} has queues below it, and jobs wait in those: {}",
                below.join(", ")
            ))),
        }
    }
}

fn check_request_id(id: &str) -> Result<(), Status> {
    if id.len() <= REQUEST_ID_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "{id:?} cannot be the ID of a request: it has {REQUEST_ID_BYTES_MAX} letters, digits and '-' at most"
    )))
}

fn no_such_job(id: JobId) -> Status {
    Status::not_found(format!("there is no job {id}; see: aliquot jobs --all"))
}

/// The task that a caller asks about.
fn task_of(entry: &Entry, index: Option<u32>) -> Result<&Task, Status> {
    let id = entry.job.id;
    match index {
        Some(index) => {
            entry.tasks.get(&index).ok_or_else(|| Status::not_found(format!("job {id} has no task {index}")))
        }
        None if entry.tasks.len() > 1 => Err(Status::invalid_argument(format!(
            "job {id} has {} tasks; say which one, for example {id}.{}",
            entry.tasks.len(),
            entry.tasks.keys().next().copied().unwrap_or(0)
        ))),
        None => entry.tasks.values().next().ok_or_else(|| Status::internal(format!("job {id} has no tasks"))),
    }
}

#[tonic::async_trait]
impl Scheduler for UserService {
    async fn submit_job(&self, request: Request<wire::SubmitJobRequest>) -> Result<Response<wire::Job>, Status> {
        let caller = caller(&request)?;
        let queue = request.get_ref().spec.as_ref().map(|spec| spec.queue.clone()).filter(|queue| !queue.is_empty());
        let queue = queue.unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
        note(&request, || format!("queue {queue}"));
        let queues = self.seen.queues.read().path(&queue);
        check(&request, &Action::Submit { queues: &queues })?;
        let (uid, local_user) = self.local_user(&caller).await?;
        let about = request.extensions().get::<About>().cloned();
        let wire::SubmitJobRequest { spec, request_id } = request.into_inner();
        let spec = JobSpec::read(spec.unwrap_or_default()).map_err(Status::invalid_argument)?;
        check_request_id(&request_id)?;
        let (user, is_remote) = (caller.name.clone(), matches!(caller.identity, Identity::Remote(_)));
        let job = Job { id: 0, spec, uid, local_user, user, is_remote, submitted_ms: self.clock.now_ms(), request_id };
        // The queue may have been removed since the job was accepted.
        if self.seen.book.read().made_before(&job).is_none() {
            self.check_queue(&job.spec.queue)?;
            // Checks that the secrets exist and fit their variables.
            self.secrets.of_job(&job, &queues)?;
        }
        let id = self.ask(|reply| Inbox::Submit(Box::new(job), reply)).await?;
        about.into_iter().for_each(|about| about.is(format!("job {id} in queue {queue}")));
        Ok(Response::new(self.job(id, &caller)?))
    }

    async fn list_jobs(
        &self,
        request: Request<wire::ListJobsRequest>,
    ) -> Result<Response<wire::ListJobsResponse>, Status> {
        let service = self.clone();
        // Listing goes through many tasks, so it runs on a thread for blocking work.
        let listed = tokio::task::spawn_blocking(move || list::list(&service, request)).await;
        listed.map_err(|error| Status::internal(error.to_string()))?.map(Response::new)
    }

    async fn get_job(&self, request: Request<wire::GetJobRequest>) -> Result<Response<wire::Job>, Status> {
        let caller = caller(&request)?;
        check(&request, &Action::Look)?;
        Ok(Response::new(self.job(request.into_inner().id, &caller)?))
    }

    type WatchJobStream = StreamOf<wire::Job>;

    async fn watch_job(
        &self,
        request: Request<wire::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        watch::watch(self, &request).map(Response::new)
    }

    async fn cancel_job(&self, request: Request<wire::CancelJobRequest>) -> Result<Response<wire::Job>, Status> {
        let caller = caller(&request)?;
        note(&request, || about::tasks(request.get_ref()));
        let wire::CancelJobRequest { id, tasks } = request.into_inner();
        {
            let book = self.seen.book.read();
            let entry = book.entry(id).ok_or_else(|| no_such_job(id))?;
            let action = Action::Control { job: entry.job.owned(), verb: "cancel" };
            caller.may(&action).map_err(Status::permission_denied)?;
        }
        self.ask(|reply| Inbox::Cancel { id, tasks, reply }).await?;
        Ok(Response::new(self.job(id, &caller)?))
    }

    type ReadLogStream = StreamOf<wire::LogChunk>;

    async fn read_log(&self, request: Request<wire::ReadLogRequest>) -> Result<Response<Self::ReadLogStream>, Status> {
        let caller = caller(&request)?;
        note(&request, || format!("job {}", request.get_ref().id));
        let wire::ReadLogRequest { id, task, rank, follow, last_lines, offset } = request.into_inner();
        let (node, log) = {
            let book = self.seen.book.read();
            let entry = book.entry(id).ok_or_else(|| no_such_job(id))?;
            let action = Action::Inspect { job: entry.job.owned(), verb: "read" };
            caller.may(&action).map_err(Status::permission_denied)?;
            let task = task_of(entry, task)?;
            let member = task.members.get(rank as usize).ok_or_else(|| {
                Status::not_found(format!("job {id} has {} members; there is no rank {rank}", task.members.len()))
            })?;
            let place =
                member.place.as_ref().ok_or_else(|| Status::failed_precondition(without_log(id, task.state)))?;
            let claim = ClaimName { job: id, index: task.index, rank, attempt: task.attempt };
            (place.node.clone(), claim.log())
        };
        let question = ReadLog { log, follow, last_lines, offset, ..ReadLog::default() };
        let chunks = self.sessions.read_log(&node, question)?;
        let chunks = ReceiverStream::new(chunks)
            .map(|chunk| chunk.map(|chunk| wire::LogChunk { data: chunk.data, offset: chunk.offset }));
        Ok(Response::new(Box::pin(chunks)))
    }

    type OpenStreamStream = StreamOf<FromJob>;

    async fn open_stream(
        &self,
        request: Request<Streaming<FromUser>>,
    ) -> Result<Response<Self::OpenStreamStream>, Status> {
        Ok(Response::new(streams::open(self, request).await?))
    }

    async fn explain(&self, request: Request<wire::ExplainRequest>) -> Result<Response<wire::ExplainResponse>, Status> {
        let caller = caller(&request)?;
        note(&request, || format!("job {}", request.get_ref().id));
        let wire::ExplainRequest { id, task } = request.into_inner();
        let view = self.view()?;
        let (entry, index) = {
            let book = self.seen.book.read();
            let entry = book.entry(id).ok_or_else(|| no_such_job(id))?;
            let action = Action::Inspect { job: entry.job.owned(), verb: "ask about" };
            caller.may(&action).map_err(Status::permission_denied)?;
            let index = task_of(entry, task)?.index;
            (entry.only(index), index)
        };
        let now_ms = self.clock.now_ms();
        // This tries changes in a copy of the books, which may take a while.
        let explained = tokio::task::spawn_blocking(move || {
            entry.tasks.get(&index).map(|task| present::explanation(&entry, task, &view, now_ms))
        });
        let explained = explained.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(explained.ok_or_else(|| no_such_job(id))?))
    }

    async fn list_queues(
        &self,
        request: Request<wire::ListQueuesRequest>,
    ) -> Result<Response<wire::ListQueuesResponse>, Status> {
        check(&request, &Action::Look)?;
        let view = self.view()?;
        let queues = tokio::task::spawn_blocking(move || present::queues(&view)).await;
        let queues = queues.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(wire::ListQueuesResponse { queues }))
    }

    async fn set_queue(&self, request: Request<wire::Queue>) -> Result<Response<wire::Queue>, Status> {
        note(&request, || about::queue(request.get_ref()));
        check(&request, &Action::Administer)?;
        let _one_after_the_other = self.queue_changes.lock().await;
        let (spec, told) = {
            let queues = self.seen.queues.read();
            let spec = queues.read(request.into_inner()).map_err(Status::invalid_argument)?;
            let told = queues.told(&spec.name, Some(&spec));
            (spec, told)
        };
        // The engine checks whether the queue is possible; then it is saved.
        for observation in told {
            self.tell(observation).await?;
        }
        let shown = queues::shown(&spec);
        self.ask(|reply| Inbox::QueueSet(spec, reply)).await?;
        Ok(Response::new(shown))
    }

    async fn remove_queue(
        &self,
        request: Request<wire::RemoveQueueRequest>,
    ) -> Result<Response<wire::RemoveQueueResponse>, Status> {
        note(&request, || format!("queue {}", request.get_ref().name));
        check(&request, &Action::Administer)?;
        let name = request.into_inner().name;
        let _one_after_the_other = self.queue_changes.lock().await;
        if !self.seen.queues.read().has(&name) {
            return Err(Status::not_found(format!("there is no queue {name:?}")));
        }
        if self.seen.book.read().is_in_use(&name) {
            let why =
                format!("jobs are in queue {name:?}; cancel them or wait for their end: aliquot jobs --queue {name}");
            return Err(Status::failed_precondition(why));
        }
        let told = self.seen.queues.read().told(&name, None);
        for observation in told {
            self.tell(observation).await?;
        }
        self.ask(|reply| Inbox::QueueRemoved(name.clone(), reply)).await?;
        // A later queue with this name is a different one.
        tokio::task::block_in_place(|| self.secrets.remove_all(&Holder::Queue(name))).map_err(unavailable)?;
        Ok(Response::new(wire::RemoveQueueResponse {}))
    }

    async fn list_nodes(
        &self,
        request: Request<wire::ListNodesRequest>,
    ) -> Result<Response<wire::ListNodesResponse>, Status> {
        check(&request, &Action::Look)?;
        let nodes = present::nodes(&*self.view()?, &self.sessions);
        Ok(Response::new(wire::ListNodesResponse { nodes }))
    }

    async fn remove_node(
        &self,
        request: Request<wire::RemoveNodeRequest>,
    ) -> Result<Response<wire::RemoveNodeResponse>, Status> {
        note(&request, || format!("node {}", request.get_ref().name));
        check(&request, &Action::Administer)?;
        let name = request.into_inner().name;
        let is_member = tokio::task::block_in_place(|| self.membership.remove(&name)).map_err(unavailable)?;
        let is_known = self.view()?.cluster().node_named(&name).is_some();
        if !is_member && !is_known {
            return Err(Status::not_found(format!("there is no node {name:?}; see: aliquot nodes")));
        }
        self.sessions.forget(&name);
        // What the controller took from the node before is told first. A report told later would make the node known again.
        self.ask(Inbox::Settle).await?;
        self.tell(Observation::NodeGone(name.into())).await?;
        Ok(Response::new(wire::RemoveNodeResponse {}))
    }

    async fn back_up(&self, request: Request<wire::BackUpRequest>) -> Result<Response<wire::BackUpResponse>, Status> {
        note(&request, || request.get_ref().path.clone());
        check(&request, &Action::Administer)?;
        let path = PathBuf::from(request.into_inner().path);
        if !path.is_absolute() {
            return Err(Status::invalid_argument(format!("{} is not an absolute path", path.display())));
        }
        let database = self.database.clone();
        let done = tokio::task::spawn_blocking(move || database.back_up(&path)).await;
        done.map_err(|error| Status::internal(error.to_string()))?.map_err(unavailable)?;
        Ok(Response::new(wire::BackUpResponse {}))
    }

    type TakeSnapshotStream = StreamOf<wire::SnapshotPart>;

    async fn take_snapshot(
        &self,
        request: Request<wire::TakeSnapshotRequest>,
    ) -> Result<Response<Self::TakeSnapshotStream>, Status> {
        check(&request, &Action::Administer)?;
        let (view, snapshots) = (self.view()?, self.snapshots.clone());
        let text = tokio::task::spawn_blocking(move || snapshots.text_of(&view)).await;
        let text = text.map_err(|error| Status::internal(error.to_string()))?.map_err(Status::internal)?;
        let parts: Vec<_> = text
            .as_bytes()
            .chunks(SNAPSHOT_PART_BYTES)
            .map(|part| Ok(wire::SnapshotPart { data: part.to_vec() }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }

    async fn create_join_token(
        &self,
        request: Request<wire::CreateJoinTokenRequest>,
    ) -> Result<Response<wire::CreateJoinTokenResponse>, Status> {
        note(&request, || format!("{} nodes", request.get_ref().uses.max(1)));
        check(&request, &Action::Administer)?;
        let wire::CreateJoinTokenRequest { valid_ms, uses, replace } = request.into_inner();
        let valid_ms = if valid_ms == 0 { TOKEN_VALID_MS } else { valid_ms };
        let Some(inviter) = &self.inviter else {
            return Err(Status::failed_precondition(
                "this scheduler signs no certificates: its own come from elsewhere, and so must those of the nodes",
            ));
        };
        let now_ms = self.clock.now_ms();
        let made = tokio::task::block_in_place(|| inviter.invite(now_ms, valid_ms, uses.max(1), replace));
        let Invitation { token, command, expires_ms: expires_unix_ms } = made.map_err(unavailable)?;
        Ok(Response::new(wire::CreateJoinTokenResponse { token, command, expires_unix_ms }))
    }

    async fn add_user(
        &self,
        request: Request<wire::AddUserRequest>,
    ) -> Result<Response<wire::AddUserResponse>, Status> {
        note(&request, || about::user(request.get_ref()));
        check(&request, &Action::Administer)?;
        // This waits for the disk, rarely and shortly.
        tokio::task::block_in_place(|| self.registrar.add(request.into_inner())).map(Response::new)
    }

    async fn list_users(
        &self,
        request: Request<wire::ListUsersRequest>,
    ) -> Result<Response<wire::ListUsersResponse>, Status> {
        check(&request, &Action::SeeUsers)?;
        Ok(Response::new(wire::ListUsersResponse { users: self.registrar.list() }))
    }

    async fn remove_user(
        &self,
        request: Request<wire::RemoveUserRequest>,
    ) -> Result<Response<wire::RemoveUserResponse>, Status> {
        note(&request, || format!("user {}", request.get_ref().name));
        check(&request, &Action::Administer)?;
        let name = request.into_inner().name;
        tokio::task::block_in_place(|| {
            self.registrar.remove(&name)?;
            // A user that is added under this name later may be another person.
            self.secrets.remove_all(&Holder::Remote(name)).map_err(unavailable)
        })?;
        Ok(Response::new(wire::RemoveUserResponse {}))
    }

    async fn set_secret(&self, request: Request<wire::SetSecretRequest>) -> Result<Response<wire::Secret>, Status> {
        secrets::set(self, request).map(Response::new)
    }

    async fn list_secrets(
        &self,
        request: Request<wire::ListSecretsRequest>,
    ) -> Result<Response<wire::ListSecretsResponse>, Status> {
        secrets::list(self, &request).await.map(Response::new)
    }

    async fn remove_secret(
        &self,
        request: Request<wire::RemoveSecretRequest>,
    ) -> Result<Response<wire::RemoveSecretResponse>, Status> {
        secrets::remove(self, request).map(Response::new)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn unavailable(error: StoreError) -> Status {
    Status::unavailable(error.to_string())
}

/// Why a member that was never given a place has no log.
fn without_log(id: JobId, task: TaskState) -> String {
    match task {
        TaskState::Ended(End::Cancelled) => format!("job {id} was cancelled before it started"),
        TaskState::Ended(_) => format!("job {id} has ended before it started; see: aliquot explain {id}"),
        _ => format!("job {id} has not started yet; see: aliquot explain {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_starts_is_not_said_to_start_later() {
        assert_eq!(without_log(7, TaskState::Ended(End::Cancelled)), "job 7 was cancelled before it started");
        assert!(without_log(7, TaskState::Ended(End::Failed)).contains("has ended before it started"));
        assert!(without_log(7, TaskState::Active).contains("has not started yet"));
    }
}
