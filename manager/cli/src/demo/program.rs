//! A worker of the demonstration, seen from outside: a process in a slice of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::protocol::{Event, Filled, Order, Progress};
use crate::error::{Failure, Result, exit};
use crate::run::{OwnSlice, Supervisor, command_in};

/// Time limit for a worker's answer. Long, because the driver may compile the kernel first, and time in a slice may be
/// short.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks whether the demonstration is asked to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// A worker. When this is dropped, it is killed, and then its slice is removed.
pub(super) struct Program<'stage> {
    child: Child,
    orders: ChildStdin,
    events: Receiver<Event>,
    supervisor: &'stage Supervisor,
    /// The newest report of the worker.
    pub(super) progress: Progress,
    /// The worker's slice. Declared after `child`, because the process must end first.
    pub(super) slice: OwnSlice<'stage>,
}

impl<'stage> Program<'stage> {
    /// Starts a worker in `slice` and waits until it is ready.
    pub(super) fn start(
        slice: OwnSlice<'stage>,
        kernel_ns: u64,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        supervisor: &'stage Supervisor,
    ) -> Result<(Program<'stage>, u64)> {
        let exe = std::env::current_exe()
            .map_err(|error| Failure::new(format!("cannot find the path of this program: {error}")))?;
        let args = ["demo-worker".to_owned(), "--kernel-ns".to_owned(), kernel_ns.to_string()];
        let mut command = command_in(&slice.slice, &slice.node, exe.as_os_str(), args, environment)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = supervisor.spawn(command)?;
        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("a worker was started without pipes"));
        };
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let event = line
                    .map_err(|error| error.to_string())
                    .and_then(|line| serde_json::from_str(&line).map_err(|error| format!("it says {line:?}: {error}")));
                let event = event.unwrap_or_else(|message| Event::Failed { message });
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let progress = Progress { at_ns: 0, kernels: 0 };
        let mut program = Program { child, orders, events, supervisor, progress, slice };
        let total_bytes = program.wait_for(|event| match event {
            Event::Ready { total_bytes } => Some(total_bytes),
            _ => None,
        })?;
        Ok((program, total_bytes))
    }

    /// Makes the worker keep the device busy.
    pub(super) fn launch(&mut self) -> Result<()> {
        self.order(Order::Launch)
    }

    /// Makes the worker request memory in one piece. Returns the driver's refusal, or `None` if it was given.
    pub(super) fn take(&mut self, bytes: u64) -> Result<Option<String>> {
        self.order(Order::Take { bytes })?;
        self.wait_for(|event| match event {
            Event::Taken { refusal, .. } => Some(refusal),
            _ => None,
        })
    }

    /// Makes the worker take all memory that it is given.
    pub(super) fn fill(&mut self) -> Result<Filled> {
        self.order(Order::Fill)?;
        self.wait_for(|event| match event {
            Event::Filled(filled) => Some(filled),
            _ => None,
        })
    }

    /// Waits for the first report of `at_ns` or later.
    pub(super) fn progress_at(&mut self, at_ns: u64) -> Result<Progress> {
        if self.progress.at_ns >= at_ns {
            return Ok(self.progress);
        }
        self.wait_for(|event| match event {
            Event::Progress(progress) if progress.at_ns >= at_ns => Some(progress),
            _ => None,
        })
    }

    fn order(&mut self, order: Order) -> Result<()> {
        let line = format!("{}\n", serde_json::to_string(&order).map_err(|error| self.failed(&error.to_string()))?);
        match self.orders.write_all(line.as_bytes()) {
            Ok(()) => Ok(()),
            // The worker has ended; its last event says why.
            Err(_) => self.wait_for(|_| None),
        }
    }

    /// Waits for the event that `wanted` accepts, and records progress meanwhile.
    fn wait_for<T>(&mut self, wanted: impl Fn(Event) -> Option<T>) -> Result<T> {
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            self.end_if_asked_for()?;
            match self.events.recv_timeout(LOOK_INTERVAL) {
                Ok(Event::Failed { message }) => return Err(self.failed(&message)),
                Ok(event) => {
                    if let Event::Progress(progress) = event {
                        // While kernels complete the worker is alive, so waiting is justified.
                        deadline = Instant::now() + ANSWER_TIMEOUT;
                        self.progress = progress;
                    }
                    if let Some(found) = wanted(event) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = ANSWER_TIMEOUT.as_secs();
                    return Err(
                        self.failed(&format!("it has done nothing for {seconds} s; is the node manager alive?"))
                    );
                }
                Err(RecvTimeoutError::Disconnected) => {
                    // A terminal sends its signals to this process and to the worker.
                    self.end_if_asked_for()?;
                    let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                    return Err(self.failed(&format!("it ended early: {status}")));
                }
            }
        }
    }

    fn end_if_asked_for(&self) -> Result<()> {
        match self.supervisor.end_asked_for()? {
            Some(signal) => Err(Failure::new(format!("ended by {signal}")).exit(exit::of_signal(signal as u8))),
            None => Ok(()),
        }
    }

    fn failed(&self, message: &str) -> Failure {
        Failure::new(format!("the worker in slice {} failed: {message}", self.slice.slice.name))
            .hint("see the output of the worker above, and run: aliquot doctor")
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
