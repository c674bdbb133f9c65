//! The agent's messages to the scheduler, and when they are sent.

use std::time::Duration;

use aliquot_proto::agent::v1::node_message::Message;
use aliquot_proto::agent::v1::{
    EndReason, Ended, Generation, Heartbeat, NodeMessage, Outcome, Report, Running, Started, outcome,
};
use tokio::time::Instant;
use tracing::warn;

use super::{Agent, HEARTBEAT_INTERVAL, REPEAT_INTERVAL, REPORT_INTERVAL};
use crate::clock;
use crate::instance::{End, Number, generation};

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
            warn!("the connection to the scheduler does not keep up, and is made anew");
            self.link = None;
        }
    }

    /// Sends everything that the scheduler must know at the beginning of a connection. Earlier messages may be lost:
    /// the last connection may have lost them, or the leader may have ended before it saved them.
    pub(super) fn greet(&mut self) {
        self.report();
        let numbers: Vec<Number> = self.instances.keys().copied().collect();
        for number in numbers {
            self.tell_started(number);
            self.tell_end(number);
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
        let is_due = |told: Option<Instant>| told.is_none_or(|told| told.elapsed() >= REPEAT_INTERVAL);
        let due: Vec<Number> = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.end.is_some() && is_due(instance.told_end))
            .map(|(number, _)| *number)
            .collect();
        for number in due {
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
        let Some(instance) = self.instances.get(&number) else { return };
        if let (Some(started_unix_ms), None) = (instance.started_unix_ms, &instance.end) {
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
