//! The state of each instance of this node.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use aliquot_proto::agent::v1::{Generation, Start};
use nix::sys::signal::Signal;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::start::Supervised;
use super::{Agent, News};
use crate::clock;
use crate::container;
use crate::instance::{End, InstanceDir, Number, Reason, Seen, number};
use crate::manager::slice_name;
use crate::secrets;
use crate::streams;

/// An instance, until the scheduler has acknowledged its end.
pub(super) struct Instance {
    pub(super) start: Start,
    pub(super) dir: InstanceDir,
    /// The supervisor, if this agent has started it.
    supervised: Option<Supervised>,
    pub(super) started_unix_ms: Option<u64>,
    /// How the instance has ended; set once its slice is gone too.
    pub(super) end: Option<End>,
    /// How the instance has ended, while its slice is being removed.
    ending: Option<End>,
    /// The last command to stop it.
    pub(super) stopped_by: Option<Generation>,
    /// Whether the scheduler was told on this connection that the instance runs.
    pub(super) has_told_start: bool,
    pub(super) told_end: Option<Instant>,
}

impl Instance {
    pub(super) fn new(start: Start, dir: InstanceDir, supervised: Option<Supervised>) -> Instance {
        Instance {
            start,
            dir,
            supervised,
            started_unix_ms: None,
            end: None,
            ending: None,
            stopped_by: None,
            has_told_start: false,
            told_end: None,
        }
    }

    /// Whether the instance has a part of a device.
    pub(super) fn has_slice(&self) -> bool {
        self.start.amounts.as_ref().is_some_and(|amounts| !amounts.devices.is_empty())
    }

    /// How to reach the instance while its command runs.
    pub(super) fn running(&self) -> Option<streams::Instance> {
        let runs = self.started_unix_ms.is_some() && self.end.is_none() && self.ending.is_none();
        let uid = self.start.process.as_ref()?.uid;
        runs.then(|| streams::Instance { dir: self.dir.path().to_owned(), uid })
    }

    /// The name of the instance's container, if it may have one.
    fn container(&self, number: Number) -> Option<container::Name> {
        self.start.process.as_ref()?.image.as_ref()?;
        Some(container::Name { slice: slice_name(number), supervisor: self.dir.supervisor()?.pid })
    }

    fn log(&self) -> Option<&str> {
        self.start.process.as_ref().map(|process| process.log.as_str())
    }

    /// Sends a signal to the supervisor, also if an earlier agent has started it.
    fn signal(&self, signal: Signal) {
        if let Some(supervisor) = self.dir.supervisor() {
            supervisor.signal(signal);
        }
    }
}

/// The instances that earlier agents have left.
pub(super) fn found(dir: &Path) -> io::Result<BTreeMap<Number, Instance>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let dir = InstanceDir::at(&entry?.path());
        let command = dir.command();
        match command.as_ref().and_then(|start| start.generation.as_ref()).map(number) {
            Some(number) => _ = found.insert(number, Instance::new(command.unwrap_or_default(), dir, None)),
            // The directory was being made or removed, so nothing was started.
            None => dir.remove(),
        }
    }
    Ok(found)
}

impl Agent {
    /// Looks at everything that can change without a report.
    pub(super) fn look(&mut self) {
        let numbers: Vec<Number> = self.instances.keys().copied().collect();
        for number in numbers {
            self.look_at(number);
        }
        let now_ms = clock::boot_ms();
        let has_lapsed = self.lease != crate::lease::Lease::default() && !self.lease.is_held(now_ms);
        if has_lapsed {
            self.is_ending = true;
            for instance in self.instances.values().filter(|instance| instance.end.is_none()) {
                // The supervisor should have killed its job before. The rest of both is killed now.
                instance.signal(Signal::SIGKILL);
            }
        }
        if self.is_ending && self.instances.values().all(|instance| instance.end.is_some()) {
            self.begin_session();
        }
    }

    fn look_at(&mut self, number: Number) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        if instance.end.is_some() || instance.ending.is_some() {
            return;
        }
        if let Some(supervised) = &mut instance.supervised {
            supervised.reap();
        }
        let Seen { is_alive, started_unix_ms, end } = instance.dir.look();
        let has_started = instance.started_unix_ms.is_none() && started_unix_ms.is_some();
        instance.started_unix_ms = started_unix_ms;
        match end {
            Some(end) => self.ends(number, end),
            None if !is_alive => self.lost(number),
            None if has_started => {
                let claim = self.instances.get(&number).map(|instance| instance.start.claim.clone());
                info!(claim, "a job runs");
                self.tell_started(number);
            }
            None => {}
        }
    }

    /// Handles a supervisor that has ended without a report.
    fn lost(&mut self, number: Number) {
        let Some(instance) = self.instances.get(&number) else { return };
        let is_held = self.lease.is_held(clock::boot_ms());
        let otherwise = if is_held || self.lease.end_ms == 0 { Reason::Lost } else { Reason::Lease };
        let reason = instance.dir.stop().unwrap_or(otherwise);
        let end = End { started_unix_ms: instance.started_unix_ms.unwrap_or(0), ..End::unknown(reason) };
        self.note_end(number, end);
    }

    /// Notes an end that no supervisor has noted.
    pub(super) fn note_end(&mut self, number: Number, end: End) {
        let Some(instance) = self.instances.get(&number) else { return };
        match instance.dir.note_end(&end) {
            Ok(()) => self.ends(number, end),
            // The next look tries again.
            Err(error) => error!(%error, claim = instance.start.claim, "cannot note how a job has ended"),
        }
    }

    /// Handles the end of an instance. The scheduler is told once the slice is gone, because only then is there room
    /// for another.
    fn ends(&mut self, number: Number, end: End) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        info!(claim = instance.start.claim, reason = ?end.reason, code = ?end.exit_code, failure = ?end.failure, "a job has ended");
        instance.ending = Some(end);
        // The supervisor has removed the secrets, unless it was killed.
        if let Err(error) = secrets::remove(&secrets::dir_of(&self.config.secrets_dir, number)) {
            warn!(%error, claim = instance.start.claim, "cannot remove the secrets of a job that has ended");
        }
        if let Some(supervised) = instance.supervised.take() {
            supervised.wait_in_background();
        }
        let container = instance.container(number);
        let has_slice = instance.has_slice();
        if !has_slice && container.is_none() {
            self.released(number);
            return;
        }
        let (mut manager, news) = (self.manager.clone(), self.news.clone());
        let settings = self.config.settings.clone();
        tokio::spawn(async move {
            if let Some(container) = container {
                container.remove(&settings).await;
            }
            if has_slice && let Err(status) = manager.remove(slice_name(number)).await {
                warn!(%status, "cannot remove the slice of a job that has ended; the manager does when it sees it");
            }
            // An error means that the agent has ended.
            let _ = news.send(News::Released(number));
        });
    }

    /// Handles an instance of which nothing is left but its end.
    pub(super) fn released(&mut self, number: Number) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        instance.end = instance.ending.take();
        self.note_written_logs();
        self.tell_end(number);
    }

    /// Asks an instance to end.
    pub(super) fn stop_instance(&mut self, number: Number, reason: Reason) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        if instance.end.is_some() || instance.ending.is_some() {
            return;
        }
        if let Err(error) = instance.dir.note_stop(reason) {
            warn!(%error, claim = instance.start.claim, "cannot note why a job is stopped");
        }
        // A supervisor that still waits for its spec takes the end of its input for a stop.
        if !instance.supervised.as_mut().is_some_and(Supervised::give_up) {
            instance.signal(Signal::SIGTERM);
        }
    }

    /// The supervisor of an instance, if this agent has started it.
    pub(super) fn supervised(&mut self, number: Number) -> Option<&mut Supervised> {
        self.instances.get_mut(&number)?.supervised.as_mut()
    }

    /// Tells followers of logs which logs may still grow.
    pub(super) fn note_written_logs(&self) {
        let written = self.instances.values().filter(|instance| instance.end.is_none());
        self.written_logs.send_replace(written.filter_map(|instance| instance.log().map(str::to_owned)).collect());
    }
}
