//! The nodes that can be reached now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{LogChunk, NodeSpec, ReadLog, SchedulerMessage};
use aliquot_scheduler_engine::Generation;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Status;

use crate::wire;

/// Messages that may wait for a node. One that does not take them in is cut off, and told anew when it comes back.
const WAITING_MAX: usize = 4096;
/// Parts of a log that may wait for a reader.
const CHUNKS_MAX: usize = 16;

/// What comes of a log for a reader.
pub(crate) type Chunk = Result<LogChunk, Status>;

/// The nodes that can be reached now. Copies are of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    nodes: Mutex<BTreeMap<String, Node>>,
    reads: Mutex<BTreeMap<String, (String, mpsc::Sender<Chunk>)>>,
    /// Numbers connections and reads.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Node {
    connection: Option<Connection>,
    /// What it has reported last.
    reported: NodeSpec,
    /// The last command about each claim that the node has not said it has handled. A connection that ends may lose it.
    unheard: BTreeMap<String, (Generation, SchedulerMessage)>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    sender: mpsc::Sender<SchedulerMessage>,
    /// Whether the node has said on it what it has handled. Before that it gets no commands: it refuses those that a
    /// greater generation has overtaken, so what it has not heard must come first.
    has_reported: bool,
}

impl Sessions {
    /// Notes that a node is connected. An older connection of it ends.
    pub(crate) fn connect(&self, node: &str) -> (u64, mpsc::Receiver<SchedulerMessage>) {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut nodes = self.0.nodes.lock();
        let known = nodes.entry(node.to_owned()).or_default();
        // What the node has not heard comes at once, however much it is.
        let (sender, receiver) = mpsc::channel(WAITING_MAX + known.unheard.len());
        known.connection = Some(Connection { number, sender, has_reported: false });
        drop(nodes);
        self.end_reads(node);
        (number, receiver)
    }

    /// Notes that a connection has ended. Whether the node has no newer one.
    pub(crate) fn disconnect(&self, node: &str, number: u64) -> bool {
        let mut nodes = self.0.nodes.lock();
        let Some(known) = nodes.get_mut(node) else { return false };
        if known.connection.as_ref().is_none_or(|connection| connection.number != number) {
            return false;
        }
        known.connection = None;
        drop(nodes);
        self.end_reads(node);
        true
    }

    /// Ends the connection of a node that is not one of the cluster any more.
    pub(crate) fn forget(&self, node: &str) {
        self.0.nodes.lock().remove(node);
        self.end_reads(node);
    }

    /// Notes what a node is, its session, and the greatest generation that it has handled. The first report on a connection
    /// brings it the commands that it has not heard. Those of another session mean nothing to it any more.
    pub(crate) fn note_report(&self, node: &str, spec: &NodeSpec, session: u64, handled: Generation) {
        let mut nodes = self.0.nodes.lock();
        let Some(known) = nodes.get_mut(node) else { return };
        known.reported = spec.clone();
        known.unheard.retain(|_, (generation, message)| *generation > handled && message.session == session);
        let Some(connection) = known.connection.as_mut().filter(|connection| !connection.has_reported) else { return };
        connection.has_reported = true;
        let mut unheard: Vec<_> = known.unheard.values().cloned().collect();
        unheard.sort_by_key(|(generation, _)| *generation);
        if unheard.into_iter().any(|(_, message)| connection.sender.try_send(message).is_err()) {
            known.connection = None;
            drop(nodes);
            self.end_reads(node);
        }
    }

    /// Notes that a node has said what became of a command.
    pub(crate) fn note_outcome(&self, node: &str, claim: &str, command: Generation) {
        if let Some(known) = self.0.nodes.lock().get_mut(node)
            && known.unheard.get(claim).is_some_and(|(generation, _)| *generation <= command)
        {
            known.unheard.remove(claim);
        }
    }

    /// What a node has reported last, since this process started.
    pub(crate) fn reported(&self, node: &str) -> Option<NodeSpec> {
        self.0.nodes.lock().get(node).map(|known| known.reported.clone())
    }

    pub(crate) fn is_connected(&self, node: &str) -> bool {
        self.0.nodes.lock().get(node).is_some_and(|known| known.connection.is_some())
    }

    /// Sends a message to a node; whether it can be reached. If it cannot, or if the connection loses the message, a
    /// command comes with the next connection, and anything else is lost.
    pub(crate) fn send(&self, node: &str, message: SchedulerMessage) -> bool {
        let mut nodes = self.0.nodes.lock();
        let Some(known) = nodes.get_mut(node) else { return false };
        let command = command(&message);
        if let Some((claim, generation)) = command {
            known.unheard.insert(claim.to_owned(), (generation, message.clone()));
        }
        let is_command = command.is_some();
        let Some(connection) = &known.connection else { return false };
        if is_command && !connection.has_reported {
            return true;
        }
        let is_sent = connection.sender.try_send(message).is_ok();
        if !is_sent {
            known.connection = None;
            drop(nodes);
            self.end_reads(node);
        }
        is_sent
    }

    /// Ends the reading of logs that a node was asked for and has not begun to send.
    fn end_reads(&self, node: &str) {
        self.0.reads.lock().retain(|_, (of, _)| of != node);
    }

    /// Asks a node for a log.
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

    /// Who reads the log that a node sends as the answer to this question; `None`: nobody any more.
    pub(crate) fn reader(&self, node: &str, read_id: &str) -> Option<mpsc::Sender<Chunk>> {
        let mut reads = self.0.reads.lock();
        reads.get(read_id).filter(|(of, _)| of == node)?;
        reads.remove(read_id).map(|(_, sender)| sender)
    }
}

/// The claim and the generation of a command.
fn command(message: &SchedulerMessage) -> Option<(&str, Generation)> {
    let (claim, generation) = match message.message.as_ref()? {
        Message::Start(start) => (&start.claim, start.generation),
        Message::Stop(stop) => (&stop.claim, stop.generation),
        _ => return None,
    };
    Some((claim, wire::generation(generation)))
}

#[cfg(test)]
mod tests {
    use aliquot_proto::agent::v1::{Start, Stop};

    use super::*;

    const SESSION: u64 = 7;

    fn ping() -> SchedulerMessage {
        SchedulerMessage::default()
    }

    #[test]
    fn a_newer_connection_takes_the_place_of_an_older_one() {
        let sessions = Sessions::default();
        let (first, mut old) = sessions.connect("a");
        let (second, mut new) = sessions.connect("a");
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
        let (_, _receiver) = sessions.connect("a");
        assert_eq!((0..WAITING_MAX + 1).filter(|_| sessions.send("a", ping())).count(), WAITING_MAX);
        assert!(!sessions.is_connected("a"));
    }

    fn start(claim: &str, number: u64) -> SchedulerMessage {
        let generation = Some(wire::to_generation(generation(number)));
        wire::message(SESSION, Message::Start(Start { claim: claim.to_owned(), generation, ..Start::default() }))
    }

    fn stop(claim: &str, number: u64) -> SchedulerMessage {
        let generation = Some(wire::to_generation(generation(number)));
        wire::message(SESSION, Message::Stop(Stop { claim: claim.to_owned(), generation, ..Stop::default() }))
    }

    fn generation(number: u64) -> Generation {
        Generation { term: 1, number }
    }

    fn waiting(messages: &mut mpsc::Receiver<SchedulerMessage>) -> Vec<SchedulerMessage> {
        std::iter::from_fn(|| messages.try_recv().ok()).collect()
    }

    #[test]
    fn commands_that_a_connection_loses_come_with_the_next() {
        let sessions = Sessions::default();
        let (_, mut first) = sessions.connect("a");
        sessions.note_report("a", &NodeSpec::default(), SESSION, generation(0));
        for message in [start("1-0", 1), start("2-0", 2), start("3-0", 3), stop("2-0", 4), ping()] {
            assert!(sessions.send("a", message));
        }
        assert_eq!(waiting(&mut first).len(), 5);
        sessions.note_outcome("a", "3-0", generation(3));

        let (_, mut second) = sessions.connect("a");
        assert!(sessions.send("a", start("4-0", 5)) && sessions.send("a", ping()));
        assert_eq!(waiting(&mut second), [ping()], "commands wait until the node says what it has handled");
        sessions.note_report("a", &NodeSpec::default(), SESSION, generation(1));
        assert_eq!(waiting(&mut second), [stop("2-0", 4), start("4-0", 5)]);
        sessions.note_report("a", &NodeSpec::default(), SESSION, generation(1));
        assert_eq!(waiting(&mut second), [], "a connection loses nothing while it lasts");
    }

    #[test]
    fn commands_for_a_node_that_is_away_wait_for_it() {
        let sessions = Sessions::default();
        let (number, _) = sessions.connect("a");
        assert!(sessions.disconnect("a", number));
        assert!(!sessions.send("a", stop("1-0", 1)));
        let (_, mut messages) = sessions.connect("a");
        sessions.note_report("a", &NodeSpec::default(), SESSION, generation(0));
        assert_eq!(waiting(&mut messages), [stop("1-0", 1)]);
        let (_, mut messages) = sessions.connect("a");
        sessions.note_report("a", &NodeSpec::default(), SESSION + 1, generation(0));
        assert_eq!(waiting(&mut messages), [], "it was for a session that is over");
    }

    #[test]
    fn a_node_that_was_away_hears_however_much_there_is() {
        let sessions = Sessions::default();
        let (number, _) = sessions.connect("a");
        sessions.disconnect("a", number);
        for number in 0..=WAITING_MAX as u64 {
            sessions.send("a", stop(&format!("{number}-0"), number + 1));
        }
        let (_, mut messages) = sessions.connect("a");
        sessions.note_report("a", &NodeSpec::default(), SESSION, generation(0));
        assert!(sessions.is_connected("a"));
        assert_eq!(waiting(&mut messages).len(), WAITING_MAX + 1);
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
