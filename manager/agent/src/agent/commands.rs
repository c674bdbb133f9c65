//! Carries out the scheduler's commands.

use aliquot_proto::agent::v1::scheduler_message::Message;
use aliquot_proto::agent::v1::{Acknowledge, OpenStream, ReadLog, Renew, SchedulerMessage, Start, Stop, outcome};
use tracing::{error, info, warn};

use super::instances::Instance;
use super::messages::ended;
use super::{Agent, named, start};
use crate::clock;
use crate::instance::{End, Number, Reason, without_secrets};
use crate::lease::Lease;
use crate::{send_log, streams};

impl Agent {
    /// Carries out one message of the scheduler.
    pub(super) fn obey(&mut self, message: SchedulerMessage) {
        let is_for_this_session = message.session == self.promises.session();
        match message.message {
            Some(Message::Start(start)) => self.start(start, is_for_this_session),
            Some(Message::Stop(stop)) => self.stop(&stop, is_for_this_session),
            Some(Message::Renew(renew)) if is_for_this_session => self.renew(renew),
            Some(Message::EndSession(end)) if is_for_this_session && self.promises.hear(end.term) => self.end_session(),
            Some(Message::Report(ask)) if self.promises.hear(ask.term) => self.report(),
            Some(Message::ReadLog(read)) => self.read_log(read),
            Some(Message::Acknowledge(acknowledge)) => self.acknowledged(&acknowledge),
            Some(Message::OpenStream(open)) => self.open_stream(open),
            // The message is for another session, comes from a scheduler that no longer leads, or is of a newer kind.
            _ => {}
        }
    }

    fn renew(&mut self, renew: Renew) {
        if self.is_ending || !self.promises.hear(renew.term) {
            return;
        }
        let Some(sent_ms) = self.sent_ms.get(&renew.sequence).copied() else { return };
        self.sent_ms = self.sent_ms.split_off(&renew.sequence);
        let lease = Lease { end_ms: sent_ms.saturating_add(renew.lease_ms), length_ms: renew.lease_ms };
        if lease.end_ms <= self.lease.end_ms {
            return;
        }
        match self.lease_file.write(lease) {
            Ok(()) => self.lease = lease,
            Err(error) => error!(%error, "cannot write the lease, so jobs end with the one before"),
        }
    }

    /// Stops all instances. A new session begins when all have ended.
    pub(super) fn end_session(&mut self) {
        if self.is_ending {
            return;
        }
        info!("the session is over: all that runs is stopped");
        self.is_ending = true;
        let numbers: Vec<Number> = self.instances.keys().copied().collect();
        for number in numbers {
            self.stop_instance(number, Reason::Lease);
        }
    }

    fn start(&mut self, start: Start, is_for_this_session: bool) {
        let Some(number) = named(start.generation.as_ref()) else { return };
        if self.instances.contains_key(&number) {
            // The scheduler repeats the command, so the answer was lost.
            self.tell_started(number);
            self.tell_end(number);
            return;
        }
        if !is_for_this_session {
            return;
        }
        if let Err(why) = self.try_start(&start, number) {
            warn!(claim = start.claim, why, "a job is not started");
            self.tell(start.claim, number, None, outcome::Outcome::Refused(why));
        }
    }

    /// Starts an instance. The error says why it is not started.
    fn try_start(&mut self, start: &Start, number: Number) -> Result<(), String> {
        if !self.promises.hear(number.0.max(start.term)) {
            return Err("the scheduler that sends it does not lead any more".into());
        }
        if number <= self.promises.handled() {
            return Err("the node has handled a later command already".into());
        }
        self.promises.handle(number).map_err(|error| format!("the node cannot write its state: {error}"))?;
        if self.is_ending || !self.lease.is_held(clock::boot_ms()) {
            return Err("the node holds no lease".into());
        }
        let process = start.process.as_ref().ok_or("the command does not say what to run")?;
        let is_for_image = process.image.is_some() && process.command.is_empty();
        if !is_for_image && process.command.first().is_none_or(String::is_empty) {
            return Err("the command does not say what to run".into());
        }
        let log_dir = self.logs.dir(&process.log).ok_or_else(|| format!("{:?} cannot name a log", process.log))?;
        let dir = self.instance_dir(number);
        dir.create(start).map_err(|error| format!("the node cannot write its state: {error}"))?;
        let surroundings = start::Surroundings { config: self.config.clone(), look_up: self.look_up.clone(), log_dir };
        let started = start::Supervised::start(&dir).map_err(|error| {
            dir.remove();
            format!("cannot start a supervisor: {error}")
        })?;
        start::prepare(start, number, started.pid(), surroundings, self.manager.clone(), self.news.clone());
        let instance = Instance::new(without_secrets(start), dir, Some(started));
        self.instances.insert(number, instance);
        self.note_written_logs();
        // There is a new log, so an old one may have to go.
        self.sweep_logs();
        Ok(())
    }

    fn stop(&mut self, stop: &Stop, is_for_this_session: bool) {
        let Some(number) = named(stop.instance.as_ref()) else { return };
        let mut is_handled = false;
        if let (true, Some(of)) = (is_for_this_session, named(stop.generation.as_ref())) {
            match self.promises.handle(of) {
                Ok(()) => is_handled = true,
                Err(error) => error!(%error, "cannot note that a stop was handled"),
            }
        }
        if let Some(instance) = self.instances.get_mut(&number) {
            instance.stopped_by = stop.generation;
            self.stop_instance(number, Reason::Stopped);
            self.tell_end(number);
        } else if is_handled {
            // The instance will never start here, because a later command was handled.
            self.tell(stop.claim.clone(), number, stop.generation, ended(&End::unknown(Reason::Stopped)));
        }
    }

    fn acknowledged(&mut self, acknowledge: &Acknowledge) {
        let Some(number) = named(acknowledge.instance.as_ref()) else { return };
        let has_ended = |instance: &Instance| instance.end.is_some() && instance.start.claim == acknowledge.claim;
        if self.instances.get(&number).is_some_and(has_ended)
            && let Some(instance) = self.instances.remove(&number)
        {
            instance.dir.remove();
        }
    }

    fn read_log(&self, read: ReadLog) {
        let (Some(link), Some(dir)) = (&self.link, self.logs.dir(&read.log)) else { return };
        tokio::spawn(send_log::send(link.bulk.clone(), read, dir, self.written_logs.subscribe()));
    }

    fn open_stream(&self, open: OpenStream) {
        let Some(link) = &self.link else { return };
        let number = named(open.instance.as_ref());
        let instance = number.and_then(|number| self.instances.get(&number));
        let running = instance.filter(|instance| instance.start.claim == open.claim).and_then(Instance::running);
        let running = running.ok_or_else(|| "it does not run on its node any more, or not yet".to_owned());
        tokio::spawn(streams::answer(link.bulk.clone(), open, running));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;

    use aliquot_proto::agent::v1::{Generation, Process};

    use super::*;
    use crate::settings::Settings;

    const INSTANCE: Number = (1, 1);

    #[tokio::test]
    async fn a_slow_name_service_does_not_delay_the_lease() {
        let dir = tempfile::tempdir().unwrap();
        let settings: Settings = toml::from_str("scheduler = '127.0.0.1:1'").unwrap();
        let (state, runtime) = (dir.path().join("state"), dir.path().join("run"));
        let config = settings.completed(&state, &runtime, &dir.path().join("socket"), "node").unwrap();
        let mut agent = Agent::open(config).unwrap();
        let (asks, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let (answer, answers) = mpsc::channel();
        let (answers, agents_thread) = (Mutex::new(answers), thread::current().id());
        agent.look_up = Arc::new(move |_, name, _| {
            asks.send((name.to_owned(), thread::current().id())).unwrap();
            let waits_alone = thread::current().id() != agents_thread;
            Err(if waits_alone { answers.lock().unwrap().recv().unwrap() } else { "the lease waits, too".into() })
        });
        let say = |agent: &mut Agent, message| {
            let session = agent.promises.session();
            agent.obey(SchedulerMessage { session, message: Some(message) });
        };
        agent.lease = Lease { end_ms: clock::boot_ms() + 60_000, length_ms: 60_000 };
        let process =
            Process { command: vec!["true".into()], log: "1.0.0".into(), user: "ada".into(), ..Process::default() };
        let generation = Some(Generation { term: INSTANCE.0, number: INSTANCE.1 });
        say(&mut agent, Message::Start(Start { generation, process: Some(process), ..Start::default() }));
        let (name, thread) = asked.recv().await.unwrap();
        assert_eq!(name, "ada");
        assert_ne!(thread, agents_thread, "the agent itself waits for the name service");

        let before = agent.lease;
        agent.sent_ms.insert(1, clock::boot_ms());
        say(&mut agent, Message::Renew(Renew { sequence: 1, lease_ms: 120_000, term: INSTANCE.0 }));
        assert!(agent.lease.end_ms > before.end_ms);

        answer.send("there is no user ada".to_owned()).unwrap();
        let end = loop {
            let news = agent.inbox.as_mut().unwrap().recv().await.unwrap();
            agent.take(news);
            if let Some(end) = agent.instances.get(&INSTANCE).and_then(|instance| instance.end.clone()) {
                break end;
            }
        };
        assert_eq!((end.failure.as_deref(), end.is_nodes_fault), (Some("there is no user ada"), true));
    }
}
