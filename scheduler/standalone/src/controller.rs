//! The one thread that owns the job book and the queues. It changes them, saves the changes, and then tells the engine
//! and the nodes.

mod leaving;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use aliquot_proto::agent::v1 as wire_types;
use aliquot_scheduler_core::{DEFAULT_QUEUE, EventError, QueueSpec};
use aliquot_scheduler_engine::{Acknowledge, Message, NodeName, Observation, Report, Shown};
use aliquot_scheduler_store::{Change, Database, StoreError};
use parking_lot::RwLock;
use tokio::sync::{broadcast, oneshot};
use tracing::warn;

use crate::backend::start_message;
use crate::clock::Clock;
use crate::jobs::{Book, ClaimName, Effects, Ended, Fault, Instance, Job, JobId, StartOrder, Unknown};
use crate::metrics::Counters;
use crate::queues::{self, Queues};
use crate::secrets::Secrets;
use crate::sessions::Sessions;
use crate::wire;

use leaving::{Attempt, Leaving};
use queue::Queue;

/// The kind of the records in which counters are saved.
const NUMBERS: &str = "number";
/// The key of the counter of jobs in the store.
const JOB_NUMBERS: &str = "job";
/// Time between two checks whether a wanted member was lost.
const LOST_LOOK_MS: u64 = 1_000;

/// Why a user's request is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The object does not exist.
    Unknown(String),
    /// The limit would be exceeded.
    TooMany(String),
    /// The request ID belongs to another request.
    Exists(String),
}

impl From<Unknown> for Refusal {
    fn from(Unknown(why): Unknown) -> Self {
        Self::Unknown(why)
    }
}

/// The answer to a user. It is sent when the change is durable.
type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// Why the controller must end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControllerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    NotRestored(String),
}

/// A message to the controller.
#[derive(Debug)]
pub(crate) enum Inbox {
    /// A user submits a job; the controller gives it its number.
    Submit(Box<Job>, Reply<JobId>),
    Cancel {
        id: JobId,
        tasks: Vec<u32>,
        reply: Reply<()>,
    },
    /// The engine has accepted the queue, which must be saved.
    QueueSet(QueueSpec, Reply<()>),
    QueueRemoved(String, Reply<()>),
    /// A user waits until the engine has been told all that came before.
    Settle(Reply<()>),
    /// The engine issues a start.
    Start(StartOrder),
    /// A start that cannot be sent to its node, with the reason.
    NotSent(Box<StartOrder>, String, Fault),
    /// The engine issues a stop.
    Stop {
        node: NodeName,
        message: wire_types::SchedulerMessage,
    },
    /// A node has sent a message.
    Node {
        node: String,
        /// The number of the connection on which the message came.
        connection: u64,
        message: wire_types::NodeMessage,
    },
    /// A node is no longer connected, or has connected anew.
    NodeLost(String),
    /// The engine has been told that the claims of this attempt have ended, when readers saw the view of this version.
    Left(Attempt, u64),
    /// The engine cannot start from the saved records.
    NotRestored(String),
    /// The process is ending.
    Stopped,
}

/// The controller's state, for readers.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) book: Arc<RwLock<Book>>,
    pub(crate) queues: Arc<RwLock<Queues>>,
    /// Tells which jobs have changed.
    pub(crate) touched: broadcast::Sender<JobId>,
}

/// The state of the controller's thread.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) database: Database,
    pub(crate) seen: Seen,
    pub(crate) engine: Sender<Message>,
    pub(crate) own: Sender<Inbox>,
    pub(crate) shown: Shown,
    pub(crate) sessions: Sessions,
    pub(crate) clock: Arc<Clock>,
    pub(crate) leaving: Leaving,
    /// Members that were started, each with the version of the view that readers saw then: later views show the member.
    pub(crate) there: BTreeMap<ClaimName, u64>,
    /// The version of the view in which lost members were last looked for, and when.
    pub(crate) looked: (u64, u64),
    /// The number of the next job.
    pub(crate) next_id: JobId,
    pub(crate) counters: Counters,
    pub(crate) secrets: Arc<Secrets>,
    /// The term in which the engine gives commands.
    pub(crate) term: u64,
    /// The nodes that were found to have heard of a later term.
    pub(crate) ahead: BTreeSet<String>,
}

/// The number for the next job. No number is given twice, even after a backup is restored.
///
/// # Errors
/// If the store cannot be read or written.
pub(crate) fn next_id(database: &Database, book: &Book) -> Result<JobId, StoreError> {
    let saved = database.records(NUMBERS)?.into_iter().find(|(key, _)| key == JOB_NUMBERS);
    let saved = saved.and_then(|(_, value)| value.parse().ok()).unwrap_or(1);
    // After a restore, the store's own counter is far ahead of all numbers in use.
    Ok(database.next_number(JOB_NUMBERS)?.max(saved).max(book.next_id()))
}

/// The steps once all changes of a batch of messages are durable.
#[derive(Default)]
struct Batch {
    effects: Effects,
    messages: Vec<(String, wire_types::SchedulerMessage)>,
    replies: Vec<Box<dyn FnOnce() + Send>>,
}

impl Controller {
    /// Tells the engine all queues and claims, and that these are all.
    pub(crate) fn begin(&mut self) {
        let queues: Vec<Observation> = self.seen.queues.read().for_engine().map(Observation::Queue).collect();
        self.seen.book.write().bound_retries(self.clock.now_ms());
        let (wanted, leaving) = {
            let book = self.seen.book.read();
            (book.wanted(), book.leaving())
        };
        for observation in queues.into_iter().chain(wanted) {
            self.tell(observation);
        }
        let own = self.own.clone();
        let acknowledge: Acknowledge = Box::new(move |done| match done {
            Ok(()) => {}
            Err(error @ EventError::NotRestored(_)) => _ = own.send(Inbox::NotRestored(error.to_string())),
            // The rest of what was told is in the books.
            Err(error) => warn!(%error, "the books do not take all that is saved"),
        });
        _ = self.engine.send(Message { observation: Observation::Synced, acknowledge: Some(acknowledge) });
        self.note_left(leaving);
        self.there = self.seen.book.read().there().into_iter().map(|claim| (claim, 0)).collect();
    }

    /// Runs until no sender is left.
    ///
    /// # Errors
    /// If what must be saved cannot be saved. Nothing that depends on it was sent then.
    pub(crate) fn run(mut self, inbox: &Receiver<Inbox>) -> Result<(), ControllerError> {
        let mut queue = Queue::default();
        loop {
            if queue.is_empty() {
                let first = match self.wait() {
                    None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    Some(wait) => inbox.recv_timeout(wait),
                };
                match first {
                    Ok(message) => queue.add(message),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
            inbox.try_iter().for_each(|message| queue.add(message));
            let mut batch = Batch::default();
            for message in queue.take() {
                match message {
                    Inbox::Stopped => return Ok(()),
                    Inbox::NotRestored(why) => return Err(ControllerError::NotRestored(why)),
                    _ => {}
                }
                self.take(message, &mut batch);
            }
            let now_ms = self.clock.now_ms();
            self.look_at_what_leaves(now_ms, &mut batch);
            self.look_for_lost(now_ms, &mut batch);
            self.seen.book.write().tick(now_ms, &mut batch.effects);
            self.carry_out(batch)?;
        }
    }

    /// How long the controller may wait for a message before it has something else to do.
    fn wait(&self) -> Option<Duration> {
        let now_ms = self.clock.now_ms();
        let retry_ms = self.seen.book.read().next_ms().map(|at_ms| at_ms.saturating_sub(now_ms));
        let lost = (!self.there.is_empty()).then_some(Duration::from_millis(LOST_LOOK_MS));
        retry_ms.map(Duration::from_millis).into_iter().chain(self.leaving.wait(now_ms)).chain(lost).min()
    }

    fn take(&mut self, message: Inbox, batch: &mut Batch) {
        let now_ms = self.clock.now_ms();
        let effects = &mut batch.effects;
        match message {
            Inbox::Submit(mut job, reply) => {
                // The user sends it again because the answer was lost. The first request may be in this very batch,
                // which is saved first.
                if let Some(made) = self.seen.book.read().made_before(&job) {
                    batch.replies.push(Box::new(move || _ = reply.send(made.map_err(Refusal::Exists))));
                    return;
                }
                let id = self.next_id;
                let members = (job.spec.array.len() as u64).saturating_mul(job.spec.gang.into());
                if let Some(why) = self.seen.book.read().too_many(&job.owner(), members) {
                    batch.replies.push(Box::new(move || _ = reply.send(Err(Refusal::TooMany(why)))));
                    return;
                }
                self.next_id = id.saturating_add(1);
                let value = Some(self.next_id.to_string());
                effects.changes.push(Change { kind: NUMBERS, key: JOB_NUMBERS.to_owned(), value });
                job.id = id;
                let done = self.seen.book.write().submit(now_ms, *job, effects);
                self.counters.submitted.inc_by(done.is_ok().into());
                batch.replies.push(Box::new(move || _ = reply.send(done.map(|()| id).map_err(Refusal::from))));
            }
            Inbox::Cancel { id, tasks, reply } => {
                let done = self.seen.book.write().cancel(now_ms, id, &tasks, effects);
                batch.replies.push(Box::new(move || _ = reply.send(done.map_err(Refusal::from))));
            }
            Inbox::QueueSet(spec, reply) => {
                effects.changes.push(queues::change(&spec.name, Some(&spec)));
                self.seen.queues.write().set(spec);
                batch.replies.push(Box::new(move || _ = reply.send(Ok(()))));
            }
            Inbox::QueueRemoved(name, reply) => {
                effects.changes.push(queues::change(&name, None));
                self.seen.queues.write().remove(&name);
                batch.replies.push(Box::new(move || _ = reply.send(Ok(()))));
            }
            Inbox::Settle(reply) => batch.replies.push(Box::new(move || _ = reply.send(Ok(())))),
            Inbox::Start(order) => {
                let version = self.shown.get().map_or(0, |view| view.version());
                self.there.insert(order.claim, version);
                self.seen.book.write().start(now_ms, order, effects);
            }
            Inbox::NotSent(order, why, fault) => self.seen.book.write().not_sent(now_ms, &order, &why, fault, effects),
            Inbox::Stop { node, message } => {
                self.counters.stops.inc();
                batch.messages.push((node.to_string(), message));
            }
            // A node that was removed or has connected anew repeats everything that matters on its next connection.
            Inbox::Node { node, connection, message } if self.sessions.is_current(&node, connection) => {
                self.take_from_node(now_ms, &node, message, batch);
            }
            Inbox::Node { .. } => {}
            Inbox::NodeLost(node) => effects.observations.push(Observation::NodeLost(node.into())),
            Inbox::Left(attempt, version) => self.leaving.add(now_ms, attempt, version),
            Inbox::Stopped | Inbox::NotRestored(_) => {}
        }
    }

    fn take_from_node(&mut self, now_ms: u64, node: &str, message: wire_types::NodeMessage, batch: &mut Batch) {
        use wire_types::node_message::Message as Said;
        let wire_types::NodeMessage { session, sequence, message: Some(said) } = message else { return };
        match said {
            Said::Report(report) => {
                self.look_at_term(node, report.handled.map_or(0, |handled| handled.term));
                let spec = report.spec.clone().unwrap_or_default();
                self.seen.book.write().note_address(node, &spec.address);
                self.sessions.note_report(node, &spec);
                let report = wire::report(node, session, sequence, report);
                batch.effects.observations.push(Observation::Node(Box::new(report)));
            }
            Said::Heartbeat(wire_types::Heartbeat {}) => {
                let heartbeat = aliquot_scheduler_engine::Heartbeat { node: node.into(), session, sequence };
                batch.effects.observations.push(Observation::Heartbeat(heartbeat));
            }
            Said::Outcome(outcome) => self.take_outcome(now_ms, node, session, sequence, outcome, batch),
        }
    }

    /// A node obeys no scheduler of an earlier term than one that it has heard. So it ignores all that comes from a store
    /// which is older than what the node knows.
    fn look_at_term(&mut self, node: &str, heard: u64) {
        if heard > self.term && self.ahead.insert(node.to_owned()) {
            warn!(
                node,
                heard,
                term = self.term,
                "the node ignores this scheduler: it has heard of a later term, so the scheduler's state is older than the \
                 node's; was the state copied back by other means than a file of `aliquot-scheduler backup`? Stop the \
                 scheduler, make such a file of its state, put it in place of scheduler.db and start again: then its terms \
                 go on after a gap"
            );
        }
    }

    fn take_outcome(
        &mut self,
        now_ms: u64,
        node: &str,
        session: u64,
        sequence: u64,
        outcome: wire_types::Outcome,
        batch: &mut Batch,
    ) {
        use wire_types::outcome::Outcome as What;
        let wire_types::Outcome { claim: uid, instance, generation, outcome: Some(what) } = outcome else { return };
        let (instance, generation) = (wire::generation(instance), wire::generation(generation));
        let effects = &mut batch.effects;
        let mut book = self.seen.book.write();
        let name = ClaimName::parse(&uid);
        let of = name.map(|claim| Instance { node, claim, generation: instance });
        let fault = if matches!(what, What::Failed(_)) { Fault::Job } else { Fault::Node };
        let outcome = wire::step_outcome(&what);
        match what {
            What::Started(_) => {
                if let Some(of) = of {
                    let wait_ms = book.started(now_ms, of, effects);
                    let wait_ms = wait_ms.filter(|_| of.claim.attempt == 1 && of.claim.rank == 0);
                    wait_ms.into_iter().for_each(|wait_ms| self.counters.start_wait.observe(wait_ms as f64 / 1000.0));
                }
            }
            What::Refused(why) | What::Failed(why) => {
                // Only an outcome of the start itself says that the instance does not run.
                if let Some(of) = of.filter(|_| instance == generation) {
                    book.not_started(now_ms, of, &why, fault, effects);
                    batch.messages.push((node.to_owned(), wire::acknowledge(of.claim, instance)));
                }
            }
            What::Ended(ended) => {
                if let Some(of) = of {
                    book.ended(now_ms, of, how(&ended), effects);
                    batch.messages.push((node.to_owned(), wire::acknowledge(of.claim, instance)));
                }
            }
        }
        drop(book);
        let (node, claim) = (node.into(), uid.into());
        let report = Report { node, session, sequence, claim, instance, generation, outcome };
        batch.effects.observations.push(Observation::Outcome(report));
    }

    /// Checks at intervals whether attempts that are leaving are gone.
    fn look_at_what_leaves(&mut self, now_ms: u64, batch: &mut Batch) {
        if self.leaving.is_due(now_ms) {
            let view = self.shown.get();
            self.leaving.look(now_ms, view.as_deref(), &mut self.seen.book.write(), &mut batch.effects);
        }
    }

    /// Looks for members that have an instance in the book but none in the engine any more: their nodes were lost. An
    /// end that a node itself reports comes as a message.
    fn look_for_lost(&mut self, now_ms: u64, batch: &mut Batch) {
        let Some(view) = self.shown.get() else { return };
        let (version, at_ms) = self.looked;
        if self.there.is_empty() || view.version() == version || now_ms < at_ms.saturating_add(LOST_LOOK_MS) {
            return;
        }
        self.looked = (view.version(), now_ms);
        let mut book = self.seen.book.write();
        self.there.retain(|claim, version| {
            if !book.is_there(*claim) {
                return false;
            }
            let is_lost = view.version() > *version && !view.may_run(&claim.to_string().into());
            if is_lost {
                book.lost(now_ms, *claim, &mut batch.effects);
            }
            !is_lost
        });
    }

    /// Saves the changes, then tells the engine, then the nodes and the users.
    fn carry_out(&mut self, batch: Batch) -> Result<(), StoreError> {
        let Batch { effects, messages, replies } = batch;
        let Effects { changes, observations, mut starts, leaving, touched } = effects;
        // A node refuses a start that a later one has overtaken, and the book delays the starts of gang members.
        starts.sort_by_key(|order| order.generation);
        if !changes.is_empty() {
            self.database.save(&last_of_each(changes))?;
        }
        for observation in observations {
            self.tell(observation);
        }
        self.note_left(leaving);
        for order in starts {
            self.send_start(&order);
        }
        for (node, message) in messages {
            self.sessions.send(&node, message);
        }
        for reply in replies {
            reply();
        }
        for id in touched {
            // There may be no watcher.
            _ = self.seen.touched.send(id);
        }
        Ok(())
    }

    fn tell(&self, observation: Observation) {
        // If the engine's thread has ended, the process ends too.
        _ = self.engine.send(Message { observation, acknowledge: None });
    }

    /// Waits until the engine has been told that these attempts have ended: from then on its views show when they are
    /// gone. The message that is sent for that changes nothing.
    fn note_left(&self, leaving: Vec<Attempt>) {
        for attempt in leaving {
            let (own, shown) = (self.own.clone(), self.shown.clone());
            let acknowledge = Box::new(move |_| {
                let version = shown.get().map_or(0, |view| view.version());
                _ = own.send(Inbox::Left(attempt, version));
            });
            let claim = ClaimName { job: attempt.0, index: attempt.1, rank: 0, attempt: attempt.2 };
            let observation = Observation::ClaimEnded(claim.to_string().into());
            _ = self.engine.send(Message { observation, acknowledge: Some(acknowledge) });
        }
    }

    /// The secrets of a job for the node that is to start it; or why they cannot be sent, and whether the node or the
    /// job is at fault.
    fn secrets_for(&self, job: &Job, node: &str) -> Result<Vec<wire_types::Secret>, (String, Fault)> {
        // The node may have been replaced by one with an older version since the engine chose it.
        let reported = self.sessions.reported(node).unwrap_or_default();
        if !reported.keeps_secrets {
            let version = reported.version;
            let why = format!(
                "the manager of node {node} (version {version:?}) would start the job without its secrets; update it"
            );
            return Err((why, Fault::Node));
        }
        let queue = if job.spec.queue.is_empty() { DEFAULT_QUEUE } else { &job.spec.queue };
        let queues = self.seen.queues.read().path(queue);
        self.secrets.of_job(job, &queues).map_err(|error| (error.to_string(), Fault::Job))
    }

    fn send_start(&self, order: &StartOrder) {
        let book = self.seen.book.read();
        let ClaimName { job: id, index, .. } = order.claim;
        let Some(entry) = book.entry(id) else { return };
        let Some(mut process) = entry.process(order.claim, book.first_address(id, index)) else { return };
        let job = (!entry.job.spec.secrets.is_empty()).then(|| entry.job.clone());
        drop(book);
        if let Some(job) = job {
            match self.secrets_for(&job, order.node.as_str()) {
                Ok(secrets) => process.secrets = secrets,
                Err((why, fault)) => {
                    // This is handled like a refusal by the node.
                    _ = self.own.send(Inbox::NotSent(Box::new(order.clone()), why, fault));
                    return;
                }
            }
        }
        self.counters.starts.inc();
        self.sessions.send(order.node.as_str(), start_message(order, process, self.clock.now_ms()));
    }
}

fn how(ended: &wire_types::Ended) -> Ended {
    match wire_types::EndReason::try_from(ended.reason) {
        Ok(wire_types::EndReason::Exited) => Ended::Exited { code: ended.exit_code, signal: ended.signal },
        Ok(wire_types::EndReason::TimeLimit) => Ended::TimeLimit,
        Ok(wire_types::EndReason::Lost) => Ended::NodeLost,
        // The meaning of a later version's message is not known, but the instance has ended.
        _ => Ended::Displaced,
    }
}

/// Keeps only the last change of each record.
fn last_of_each(mut changes: Vec<Change>) -> Vec<Change> {
    let mut seen = BTreeSet::new();
    changes.reverse();
    changes.retain(|change| seen.insert((change.kind, change.key.clone())));
    changes.reverse();
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_know_an_end_was_lost() {
        let told = |reason: wire_types::EndReason| {
            let reason = reason.into();
            how(&wire_types::Ended { reason, exit_code: Some(0), ..wire_types::Ended::default() })
        };
        assert_eq!(told(wire_types::EndReason::Exited), Ended::Exited { code: Some(0), signal: 0 });
        assert_eq!(told(wire_types::EndReason::Lost), Ended::NodeLost);
        for stopped in [wire_types::EndReason::Stopped, wire_types::EndReason::Lease] {
            assert_eq!(told(stopped), Ended::Displaced);
        }
    }

    #[test]
    fn of_several_changes_of_a_record_the_last_is_saved() {
        let change =
            |key: &str, value: Option<&str>| Change { kind: "a", key: key.into(), value: value.map(Into::into) };
        let changes = vec![change("x", Some("1")), change("y", Some("1")), change("x", None)];
        let left: Vec<_> = last_of_each(changes).into_iter().map(|change| (change.key, change.value)).collect();
        assert_eq!(left, [("y".to_owned(), Some("1".to_owned())), ("x".to_owned(), None)]);
    }
}
