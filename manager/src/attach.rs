//! Who is in which slice: one thread that listens on the attach sockets of all slices and holds a pidfd of every
//! process.
//!
//! A process that takes a slot in its ledger says so once on the slice's attach socket. From then on this thread holds
//! a pidfd of it, and gives back what it held at the moment in which it ends, however it ends. What the thread takes
//! for true comes from the kernel (the sender's pid, its namespace, its start time); a message that does not agree with
//! that is dropped and counted.
//!
//! Not every process is heard: a message is lost when the manager is not there or its socket's queue is full, and a
//! process can be killed between taking the slot and saying so. So the ledgers are swept, at the start and every few
//! seconds: for an owner that is not known, either the process is found in `/proc` and taken in, or the slot is given
//! back.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;

use crate::descriptors::Descriptors;
use crate::events::Events;
use crate::live::LiveSlice;
use crate::slices::Owner;
use crate::time_sharing::TimeSharing;

mod event_loop;
mod members;
mod socket;

use event_loop::EventLoop;

/// What the thread has met.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Processes that were taken in.
    pub attached: AtomicU64,
    /// Processes of which what they held was given back.
    pub reclaimed: AtomicU64,
    /// Messages that were not what they should be.
    pub dropped: AtomicU64,
    /// Times that a slice's socket was left alone for a while because too much came from it.
    pub floods: AtomicU64,
}

/// What the thread is told.
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

/// The thread.
pub(crate) struct Attach {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Attach {
    /// Starts the thread. It wakes `time_sharing` when processes come, wait or end, calls `memory_changed` when a process
    /// says that its contexts have, and `owner_gone` with the name of a slice whose owner has ended.
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

    /// Listens for the processes of a slice, and takes in those that are in its ledger already. With an owner: until it
    /// ends. Returns when that is done.
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

    /// Leaves a slice alone from now on. Returns when that is done.
    pub(crate) fn remove(&self, live: &LiveSlice) {
        let (done, outcome) = mpsc::channel();
        self.tell(Command::Remove { number: live.number, done });
        // The thread is gone, and with it all that was to be removed.
        let _ = outcome.recv();
    }

    /// What the thread has met so far.
    #[must_use]
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.tell(Command::Stop);
            // A panic in it has ended the process.
            let _ = thread.join();
        }
    }

    fn tell(&self, command: Command) {
        self.shared.commands.lock().push_back(command);
        // It fails only if the count is at its maximum, and then the thread is awake.
        let _ = self.shared.wake.write(1);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
