//! The agent's messages to the scheduler, and when they are sent.

use std::time::Duration;

use aliquot_proto::agent::v1::node_message::Message;
use aliquot_proto::agent::v1::{
    EndReason, Ended, Generation, Heartbeat, NodeMessage, Outcome, Report, Running, Started, outcome,
};
use tokio::time::Instant;
use tracing::warn;

use super::instances::Instance;
use super::{Agent, HEARTBEAT_INTERVAL, REPEAT_INTERVAL, REPORT_INTERVAL};
use crate::clock;
use crate::instance::{End, Number, generation};

/// The most instances that are told of in one turn of the agent. Turns are a quarter of a second apart or less.
const TOLD_AT_ONCE: usize = 256;

impl Agent {
    /// Sends a message if there is a connection. A connection that does not keep up is given up.
    fn send(&mut self, message: Message) {
        let Some(link) = &self.link else { return };
        self.sequence += 1;
        if matches!(message, Message::Report(_) | Message::Heartbeat(_)) {
            // The lease counts from now, which is not later than the moment when the message leaves.
            self.sent_ms.insert(self.sequence, clock::boot_ms());
        }
        let message = NodeMessage { session: self.promises.session(), sequence: self.sequence, message: Some(message) };
        if link.messages.try_send(message).is_err() {
            warn!("the connection to the scheduler is too slow, and is closed and opened again");
            self.link = None;
        }
    }

    /// Sends everything that the scheduler must know at the beginning of a connection. Earlier messages may be lost:
    /// the last connection may have lost them, or the leader may have ended before it saved them.
    pub(super) fn greet(&mut self) {
        self.report();
        // The connection takes a limited number of messages at once, and there may be more instances: each turn of the agent
        // tells of some.
        for instance in self.instances.values_mut() {
            (instance.has_told_start, instance.told_end) = (false, None);
        }
    }

    /// Reports the node and all its instances.
    pub(super) fn report(&mut self) {
        let Some(spec) = self.spec.clone() else { return };
        let running = self.instances.iter().map(|(number, instance)| Running {
            claim: instance.start.claim.clone(),
            instance: Some(generation(*number)),
            amounts: instance.start.amounts.clone(),
        });
        let report =
            Report { spec: Some(spec), handled: Some(generation(self.promises.handled())), running: running.collect() };
        self.send(Message::Report(report));
        (self.last_report, self.last_heartbeat) = (Instant::now(), Instant::now());
    }

    /// Sends the messages that are due because time has passed.
    pub(super) fn tell_what_is_due(&mut self) {
        if self.link.is_none() {
            return;
        }
        if self.last_report.elapsed() >= REPORT_INTERVAL {
            self.report();
        }
        let interval = match self.lease.length_ms {
            0 => HEARTBEAT_INTERVAL,
            length_ms => Duration::from_millis(length_ms / 10).min(HEARTBEAT_INTERVAL),
        };
        if self.last_heartbeat.elapsed() >= interval {
            self.last_heartbeat = Instant::now();
            self.send(Message::Heartbeat(Heartbeat {}));
        }
        let is_due = |instance: &Instance| match instance.end {
            Some(_) => instance.told_end.is_none_or(|told| told.elapsed() >= REPEAT_INTERVAL),
            None => instance.started_unix_ms.is_some() && !instance.has_told_start,
        };
        let due = self.instances.iter().filter(|(_, instance)| is_due(instance));
        let due: Vec<Number> = due.map(|(number, _)| *number).take(TOLD_AT_ONCE).collect();
        for number in due {
            self.tell_started(number);
            self.tell_end(number);
        }
    }

    /// Reports the outcome of a command, or of an instance.
    pub(super) fn tell(&mut self, claim: String, instance: Number, of: Option<Generation>, outcome: outcome::Outcome) {
        let instance = generation(instance);
        let (generation, outcome) = (Some(of.unwrap_or(instance)), Some(outcome));
        self.send(Message::Outcome(Outcome { claim, instance: Some(instance), generation, outcome }));
    }

    /// Reports that an instance runs, if it does.
    pub(super) fn tell_started(&mut self, number: Number) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        if let (Some(started_unix_ms), None) = (instance.started_unix_ms, &instance.end) {
            instance.has_told_start = true;
            let claim = instance.start.claim.clone();
            self.tell(claim, number, None, outcome::Outcome::Started(Started { started_unix_ms }));
        }
    }

    /// Reports how an instance has ended, if it has.
    pub(super) fn tell_end(&mut self, number: Number) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        let Some(end) = instance.end.clone() else { return };
        instance.told_end = Some(Instant::now());
        let (claim, of) = (instance.start.claim.clone(), instance.stopped_by);
        match end.failure {
            Some(why) if end.is_nodes_fault => self.tell(claim, number, None, outcome::Outcome::Refused(why)),
            Some(why) => self.tell(claim, number, None, outcome::Outcome::Failed(why)),
            None => self.tell(claim, number, of, ended(&end)),
        }
    }
}

/// Converts an end to the scheduler's type.
pub(super) fn ended(end: &End) -> outcome::Outcome {
    outcome::Outcome::Ended(Ended {
        exit_code: end.exit_code,
        signal: end.signal,
        reason: EndReason::from(end.reason).into(),
        started_unix_ms: end.started_unix_ms,
        ended_unix_ms: end.ended_unix_ms,
    })
}

#[cfg(test)]
mod tests {
    use aliquot_proto::agent::v1::{NodeSpec, Start};
    use tokio::sync::mpsc;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::instance::InstanceDir;
    use crate::link::{Link, MESSAGES_MAX};
    use crate::settings::Settings;

    #[tokio::test]
    async fn a_new_connection_hears_of_however_many_instances() {
        const COUNT: usize = 2 * MESSAGES_MAX;
        let dir = tempfile::tempdir().unwrap();
        let settings: Settings = toml::from_str("scheduler = '127.0.0.1:1'").unwrap();
        let (state, runtime) = (dir.path().join("state"), dir.path().join("run"));
        let config = settings.completed(&state, &runtime, &dir.path().join("socket"), "node").unwrap();
        let mut agent = Agent::open(config).unwrap();
        agent.spec = Some(NodeSpec::default());
        for number in (1..).take(COUNT).map(|number| (1, number)) {
            let mut instance = Instance::new(Start::default(), InstanceDir::below(dir.path(), number), None);
            instance.started_unix_ms = Some(1);
            agent.instances.insert(number, instance);
        }
        let (messages, mut sent) = mpsc::channel(MESSAGES_MAX);
        let bulk = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        agent.link = Some(Link { messages, bulk, local_address: None });
        agent.greet();
        let mut told = 0;
        while told < COUNT {
            agent.tell_what_is_due();
            let before = told;
            while let Ok(message) = sent.try_recv() {
                told += usize::from(matches!(message.message, Some(Message::Outcome(_))));
            }
            assert!(told > before && agent.link.is_some(), "{told} of {COUNT}");
        }
        assert_eq!(told, COUNT);
    }
}
