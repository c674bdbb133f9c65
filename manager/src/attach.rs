//! Tracks the processes in each slice. One thread listens on the attach sockets of all slices and holds a pidfd of
//! every attached process.
//!
//! A process that takes a slot in its ledger reports this once on the slice's attach socket. From then on this thread
//! holds a pidfd of the process. As soon as the process ends, however it ends, the thread gives back the memory and the
//! slot that the process held. The thread trusts only facts from the kernel (the sender's pid, its namespace, its start
//! time). A message that contradicts them is dropped and counted.
//!
//! Some processes are missed: a message is lost when the manager is down or its socket's queue is full, and a process
//! can be killed between taking the slot and reporting it. So the thread sweeps the ledgers at the start and every few
//! seconds. For each slot owner that is not known, it either finds the process in `/proc` and takes it in, or gives the
//! slot back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::descriptors::Descriptors;
use crate::events::Events;
use crate::live::LiveSlice;
use crate::slices::Owner;
use crate::time_sharing::TimeSharing;

mod event_loop;
mod members;
mod socket;

use event_loop::EventLoop;

/// Counters of the attach thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Processes that were attached.
    pub attached: AtomicU64,
    /// Ended processes whose memory and slot were given back.
    pub reclaimed: AtomicU64,
    /// Messages that were malformed, or contradicted the kernel or the ledger.
    pub dropped: AtomicU64,
    /// Times that a slice's socket was ignored for a while because too many connections came from it.
    pub floods: AtomicU64,
}

/// A command to the attach thread.
enum Command {
    Add { live: Arc<LiveSlice>, listener: OwnedFd, owner: Option<OwnedFd>, done: mpsc::Sender<io::Result<()>> },
    Remove { number: u64, done: mpsc::Sender<()> },
    Stop,
}

struct Shared {
    commands: Mutex<VecDeque<Command>>,
    wake: EventFd,
    counters: Counters,
}

/// Handle of the attach thread.
pub(crate) struct Attach {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Attach {
    /// Starts the thread. It wakes `time_sharing` when processes attach, wait or end. It calls `memory_changed` when a
    /// process reports that its contexts have changed, and `owner_gone` with the name of a slice whose owner has ended.
    ///
    /// # Errors
    /// The kernel gives no thread or file descriptor.
    pub(crate) fn start(
        descriptors: Descriptors,
        time_sharing: Arc<TimeSharing>,
        events: Arc<Events>,
        memory_changed: impl Fn() + Send + 'static,
        owner_gone: impl Fn(&str) + Send + 'static,
    ) -> io::Result<Attach> {
        let shared = Arc::new(Shared {
            commands: Mutex::default(),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            counters: Counters::default(),
        });
        let mut event_loop = EventLoop::new(
            Arc::clone(&shared),
            descriptors,
            time_sharing,
            events,
            Box::new(memory_changed),
            Box::new(owner_gone),
        )?;
        let thread = thread::Builder::new().name("attach".into()).spawn(move || event_loop.run())?;
        Ok(Attach { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Starts to listen for the processes of a slice, and takes in those that are already in its ledger. If there is an
    /// owner, watches for its end. Returns when that is done.
    ///
    /// # Errors
    /// The socket cannot be made, or the owner cannot be watched.
    pub(crate) fn add(&self, live: &Arc<LiveSlice>, owner: Option<Owner>) -> io::Result<()> {
        let listener = socket::listen(live.region.dir())?;
        let owner = owner.map(socket::watch_owner).transpose()?;
        let (done, outcome) = mpsc::channel();
        self.tell(Command::Add { live: Arc::clone(live), listener, owner, done });
        outcome.recv().unwrap_or_else(|_| Err(io::Error::other("the attach thread has ended")))
    }

    /// Stops watching a slice. Returns when that is done.
    pub(crate) fn remove(&self, live: &LiveSlice) {
        let (done, outcome) = mpsc::channel();
        self.tell(Command::Remove { number: live.number, done });
        // On an error the thread has ended, and nothing is watched any more.
        let _ = outcome.recv();
    }

    /// The thread's counters so far.
    #[must_use]
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Ends the thread, and waits for its end.
    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.tell(Command::Stop);
            // A panic in the thread would have ended the whole process.
            let _ = thread.join();
        }
    }

    fn tell(&self, command: Command) {
        self.shared.commands.lock().push_back(command);
        // The write fails only if the counter is at its maximum; then the thread is awake already.
        let _ = self.shared.wake.write(1);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
