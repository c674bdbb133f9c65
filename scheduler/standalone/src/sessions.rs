//! The nodes that are connected now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{LogChunk, NodeSpec, ReadLog, SchedulerMessage};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Status;

use crate::wire;

/// The most messages that may wait for a node. A node that does not take them is disconnected, and told everything
/// again when it comes back.
const WAITING_MAX: usize = 4096;
/// The most parts of a log that may wait for a reader.
const CHUNKS_MAX: usize = 16;

/// A part of a log for a reader, or the error that ends the log.
pub(crate) type Chunk = Result<LogChunk, Status>;

/// The nodes that are connected now. All copies share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    nodes: Mutex<BTreeMap<String, Node>>,
    reads: Mutex<BTreeMap<String, (String, mpsc::Sender<Chunk>)>>,
    /// The number for the next connection or log.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Node {
    /// The number of the connection, and where its messages go; `None`: the node is not connected.
    connection: Option<(u64, mpsc::Sender<SchedulerMessage>)>,
    /// The node's last report.
    reported: NodeSpec,
}

impl Sessions {
    /// Notes that a node is connected. Its older connection, if any, ends; what was sent on it may be lost.
    /// Answers the connection's number, and the messages for the node.
    pub(crate) fn connect(&self, node: &str) -> (u64, mpsc::Receiver<SchedulerMessage>) {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, messages) = mpsc::channel(WAITING_MAX);
        self.0.nodes.lock().entry(node.to_owned()).or_default().connection = Some((number, sender));
        self.end_reads(node);
        (number, messages)
    }

    /// Notes that a connection has ended. Answers whether the node has no newer one.
    pub(crate) fn disconnect(&self, node: &str, number: u64) -> bool {
        let mut nodes = self.0.nodes.lock();
        let Some(known) = nodes.get_mut(node) else { return false };
        if known.connection.as_ref().is_none_or(|(connection, _)| *connection != number) {
            return false;
        }
        known.connection = None;
        drop(nodes);
        self.end_reads(node);
        true
    }

    /// Ends the connection of a node that was removed from the cluster.
    pub(crate) fn forget(&self, node: &str) {
        self.0.nodes.lock().remove(node);
        self.end_reads(node);
    }

    pub(crate) fn note_report(&self, node: &str, spec: &NodeSpec) {
        if let Some(known) = self.0.nodes.lock().get_mut(node) {
            known.reported = spec.clone();
        }
    }

    /// The node's last report since this process started.
    pub(crate) fn reported(&self, node: &str) -> Option<NodeSpec> {
        self.0.nodes.lock().get(node).map(|known| known.reported.clone())
    }

    /// Whether a connection of a node has neither ended nor been replaced.
    pub(crate) fn is_current(&self, node: &str, connection: u64) -> bool {
        let nodes = self.0.nodes.lock();
        nodes.get(node).and_then(|known| known.connection.as_ref()).is_some_and(|(number, _)| *number == connection)
    }

    pub(crate) fn is_connected(&self, node: &str) -> bool {
        self.0.nodes.lock().get(node).is_some_and(|known| known.connection.is_some())
    }

    /// Sends a message to a node. It is lost, and the answer is `false`, if the node is not connected.
    pub(crate) fn send(&self, node: &str, message: SchedulerMessage) -> bool {
        let mut nodes = self.0.nodes.lock();
        let Some(known) = nodes.get_mut(node) else { return false };
        let Some((_, sender)) = &known.connection else { return false };
        let is_sent = sender.try_send(message).is_ok();
        if !is_sent {
            known.connection = None;
            drop(nodes);
            self.end_reads(node);
        }
        is_sent
    }

    /// Ends the reading of logs that this node was asked for and has not begun to send.
    fn end_reads(&self, node: &str) {
        self.0.reads.lock().retain(|_, (of, _)| of != node);
    }

    /// Asks a node for a log, and answers where its parts arrive.
    ///
    /// # Errors
    /// If the node cannot be reached.
    pub(crate) fn read_log(&self, node: &str, question: ReadLog) -> Result<mpsc::Receiver<Chunk>, Status> {
        let read_id = self.0.next.fetch_add(1, Ordering::Relaxed).to_string();
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        self.0.reads.lock().insert(read_id.clone(), (node.to_owned(), sender));
        let question = ReadLog { read_id: read_id.clone(), ..question };
        if !self.send(node, wire::message(0, Message::ReadLog(question))) {
            self.0.reads.lock().remove(&read_id);
            return Err(Status::failed_precondition(format!(
                "the log is on node {node}, which cannot be reached; try again when it is back"
            )));
        }
        Ok(receiver)
    }

    /// The reader of the log that a node sends under this ID; `None`: the reader is gone.
    pub(crate) fn reader(&self, node: &str, read_id: &str) -> Option<mpsc::Sender<Chunk>> {
        let mut reads = self.0.reads.lock();
        reads.get(read_id).filter(|(of, _)| of == node)?;
        reads.remove(read_id).map(|(_, sender)| sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping() -> SchedulerMessage {
        SchedulerMessage::default()
    }

    #[test]
    fn a_newer_connection_takes_the_place_of_an_older_one() {
        let sessions = Sessions::default();
        let (first, mut old) = sessions.connect("a");
        let (second, mut new) = sessions.connect("a");
        assert!(!sessions.is_current("a", first) && sessions.is_current("a", second));
        assert!(sessions.send("a", ping()));
        assert!(old.blocking_recv().is_none());
        assert!(new.blocking_recv().is_some());
        assert!(!sessions.disconnect("a", first), "the end of the old one says nothing about the node");
        assert!(sessions.is_connected("a"));
        assert!(sessions.disconnect("a", second));
        assert!(!sessions.send("a", ping()));
    }

    #[test]
    fn a_node_that_takes_nothing_in_is_cut_off() {
        let sessions = Sessions::default();
        let (_, _messages) = sessions.connect("a");
        assert_eq!((0..WAITING_MAX + 1).filter(|_| sessions.send("a", ping())).count(), WAITING_MAX);
        assert!(!sessions.is_connected("a"));
    }

    #[test]
    fn only_the_node_that_was_asked_can_answer() {
        let sessions = Sessions::default();
        let (number, mut messages) = sessions.connect("a");
        let mut chunks = sessions.read_log("a", ReadLog::default()).unwrap();
        let Some(Message::ReadLog(question)) = messages.blocking_recv().and_then(|message| message.message) else {
            panic!("no question");
        };
        assert!(sessions.reader("b", &question.read_id).is_none());
        let reader = sessions.reader("a", &question.read_id).expect("it was asked");
        reader.blocking_send(Ok(LogChunk::default())).unwrap();
        assert!(chunks.blocking_recv().is_some());
        assert!(sessions.reader("a", &question.read_id).is_none(), "it answers once");
        let mut lost = sessions.read_log("a", ReadLog::default()).unwrap();
        sessions.disconnect("a", number);
        assert!(lost.blocking_recv().is_none(), "whoever waits hears that the node is gone");
    }
}
