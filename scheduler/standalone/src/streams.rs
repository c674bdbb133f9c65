//! Streams between users and running jobs: matches the call of a node with the user's request, and bounds the number of
//! streams.
//!
//! The scheduler may be unable to connect to a node, so the node is asked to call. Data is not buffered here: a frame
//! is taken from one side when the other one has room for it.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aliquot_proto::agent::v1::OpenStream;
use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::stream::v1::{FromJob, FromUser, Open};
use aliquot_scheduler_engine::Generation;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::Status;

use crate::jobs::{ClaimName, JobId};
use crate::sessions::Sessions;
use crate::wire;

/// The most streams of one job at a time: a browser needs a few connections, and a person some terminals.
const OF_JOB_MAX: usize = 64;
/// The most streams of one node at a time. Together with each stream's window this bounds the data that waits here for
/// slow readers.
const OF_NODE_MAX: usize = 128;
/// How long a node's call may take. This is shorter than the time that a standby scheduler waits for the leader.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// A message of a node on a stream.
pub(crate) type FromNode = Pin<Box<dyn Stream<Item = Result<FromJob, Status>> + Send>>;
/// Where frames for the node go. It is closed when the node has ended the stream.
pub(crate) type ToNode = mpsc::Sender<Result<FromUser, Status>>;

/// A node's call for a stream that it was asked for.
pub(crate) struct Answer {
    pub(crate) from_node: FromNode,
    pub(crate) to_node: ToNode,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

/// All streams. All copies share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    awaited: Mutex<BTreeMap<String, Awaited>>,
    taken: Mutex<Taken>,
    /// The number of the next question, by which its answer is recognized.
    next: AtomicU64,
}

#[derive(Debug)]
struct Awaited {
    node: String,
    answer: oneshot::Sender<Answer>,
}

/// The numbers of streams in use.
#[derive(Debug, Default)]
struct Taken {
    of_jobs: BTreeMap<JobId, usize>,
    of_nodes: BTreeMap<String, usize>,
}

/// One stream's place among those allowed. It is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    job: JobId,
    node: String,
}

impl Place {
    /// The node of the stream.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shared.taken.lock();
        leave(&mut taken.of_jobs, &self.job);
        leave(&mut taken.of_nodes, &self.node);
    }
}

fn leave<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// A question to a node. If it is dropped, the answer is refused.
#[derive(Debug)]
pub(crate) struct Question {
    shared: Arc<Shared>,
    id: String,
    node: String,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.shared.awaited.lock().remove(&self.id);
    }
}

impl Question {
    /// Waits until the node has called.
    pub(crate) async fn answer(self) -> Result<Answer, Status> {
        self.answer_within(ANSWER_TIMEOUT).await
    }

    async fn answer_within(mut self, limit: Duration) -> Result<Answer, Status> {
        match tokio::time::timeout(limit, &mut self.answer).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(Status::failed_precondition(format!(
                "node {} has not answered within {} s; see the log of its manager: journalctl -u aliquot-manager",
                self.node,
                limit.as_secs()
            ))),
        }
    }
}

impl Streams {
    /// Takes a place for a stream of this job on this node.
    ///
    /// # Errors
    /// If the job or the node has too many streams.
    pub(crate) fn take_place(&self, job: JobId, node: &str) -> Result<Place, Status> {
        let mut taken = self.0.taken.lock();
        let full = |what: String, most: usize| {
            Status::resource_exhausted(format!(
                "{what} has {most} commands and connections of users open, and there may be no more; end some first"
            ))
        };
        if taken.of_jobs.get(&job).is_some_and(|count| *count >= OF_JOB_MAX) {
            return Err(full(format!("job {job}"), OF_JOB_MAX));
        }
        if taken.of_nodes.get(node).is_some_and(|count| *count >= OF_NODE_MAX) {
            return Err(full(format!("node {node}"), OF_NODE_MAX));
        }
        *taken.of_jobs.entry(job).or_default() += 1;
        *taken.of_nodes.entry(node.to_owned()).or_default() += 1;
        Ok(Place { shared: Arc::clone(&self.0), job, node: node.to_owned() })
    }

    /// Asks a node for a stream to an instance.
    ///
    /// # Errors
    /// If the node is not connected.
    pub(crate) fn ask(
        &self,
        sessions: &Sessions,
        node: &str,
        claim: ClaimName,
        instance: Generation,
        open: Open,
    ) -> Result<Question, Status> {
        let stream_id = self.0.next.fetch_add(1, Ordering::Relaxed).to_string();
        let (answer, awaited) = oneshot::channel();
        let question =
            Question { shared: Arc::clone(&self.0), id: stream_id.clone(), node: node.to_owned(), answer: awaited };
        self.0.awaited.lock().insert(stream_id.clone(), Awaited { node: node.to_owned(), answer });
        let instance = Some(wire::to_generation(instance));
        let open = OpenStream { stream_id, claim: claim.to_string(), instance, open: Some(open) };
        match sessions.send(node, wire::message(0, Message::OpenStream(open))) {
            true => Ok(question),
            false => Err(Status::failed_precondition(format!(
                "the job runs on node {node}, which cannot be reached; try again when it is back"
            ))),
        }
    }

    /// Hands a node's answer to the user that waits for it; `false`: that user is gone.
    pub(crate) fn answered(&self, node: &str, stream_id: &str, answer: Answer) -> bool {
        let mut awaited = self.0.awaited.lock();
        if awaited.get(stream_id).is_none_or(|awaited| awaited.node != node) {
            return false;
        }
        awaited.remove(stream_id).is_some_and(|awaited| awaited.answer.send(answer).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        Answer { from_node: Box::pin(tokio_stream::empty()), to_node: mpsc::channel(1).0 }
    }

    const CLAIM: ClaimName = ClaimName { job: 17, index: 0, rank: 0, attempt: 1 };

    #[tokio::test]
    async fn only_the_node_that_was_asked_answers_and_once() {
        let (sessions, streams) = (Sessions::default(), Streams::default());
        let ask = || streams.ask(&sessions, "a", CLAIM, Generation::default(), Open::default());
        assert_eq!(ask().unwrap_err().code(), tonic::Code::FailedPrecondition);
        let (_, mut messages) = sessions.connect("a");
        let question = ask().unwrap();
        let Some(Message::OpenStream(asked)) = messages.recv().await.and_then(|message| message.message) else {
            panic!("no question");
        };
        assert_eq!(asked.claim, CLAIM.to_string());
        assert!(!streams.answered("b", &asked.stream_id, answer()));
        assert!(streams.answered("a", &asked.stream_id, answer()));
        assert!(question.answer().await.is_ok());
        assert!(!streams.answered("a", &asked.stream_id, answer()));
        // The user that asked is gone.
        let asked = ask().unwrap();
        let id = asked.id.clone();
        drop(asked);
        assert!(!streams.answered("a", &id, answer()));
        assert!(streams.0.awaited.lock().is_empty());
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_not_waited_for() {
        let (sessions, streams) = (Sessions::default(), Streams::default());
        let (_, _messages) = sessions.connect("a");
        let question = streams.ask(&sessions, "a", CLAIM, Generation::default(), Open::default()).unwrap();
        let Err(status) = question.answer_within(Duration::ZERO).await else { panic!("nobody has answered") };
        assert!(status.message().contains("node a has not answered"), "{status}");
        assert!(streams.0.awaited.lock().is_empty());
    }

    #[test]
    fn a_job_and_a_node_have_so_many_streams_and_no_more() {
        let streams = Streams::default();
        let mut places: Vec<Place> = (0..OF_JOB_MAX).map(|_| streams.take_place(1, "a").unwrap()).collect();
        let refused = streams.take_place(1, "b").unwrap_err();
        assert!(refused.message().contains("job 1 has 64"), "{refused}");
        for job in 2.. {
            if places.len() == OF_NODE_MAX {
                break;
            }
            places.push(streams.take_place(job, "a").unwrap());
        }
        assert!(streams.take_place(1000, "a").unwrap_err().message().contains("node a has 128"));
        drop(places.remove(0));
        places.push(streams.take_place(1, "a").unwrap());
        drop(places);
        let taken = streams.0.taken.lock();
        assert!(taken.of_jobs.is_empty() && taken.of_nodes.is_empty(), "{taken:?}");
    }
}
