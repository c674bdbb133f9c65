//! The attach thread's event loop: the events that it waits for, and the order in which it handles them.
//!
//! Ends of processes come first: freed memory must not wait behind a flood of connections. Only a bounded number of
//! connections is accepted from one socket at a time, and a socket from which too many come is ignored for a while.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aliquot_abi::region::{AttachMessage, SLOTS_MAX};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tracing::warn;

use crate::attach::members::{Members, Outcome};
use crate::attach::socket::{self, Received};
use crate::attach::{Command, Shared, count};
use crate::descriptors::Descriptors;
use crate::events::{Event, Events, Kind};
use crate::live::LiveSlice;
use crate::procfs;
use crate::time_sharing::TimeSharing;

/// Time between two sweeps of all ledgers.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two sweeps, and its factor on the duration of the last one. Where thousands of processes start
/// and end, a sweep for each one whose message was lost would take all of the thread's time.
const SWEEP_PAUSE_MIN: Duration = Duration::from_millis(50);
const SWEEP_PAUSE_FACTOR: u32 = 4;
/// Time between two attempts to settle accounts in doubt.
const SETTLE_INTERVAL: Duration = Duration::from_millis(5);
/// Connections accepted from one socket before the next socket has its turn.
const ACCEPTS_AT_A_TIME: usize = 64;
/// Maximum connections of one slice that have not sent anything yet. A well-behaved process sends at once.
const SILENT_MAX: usize = 32;
/// Connections from one slice within [`FLOOD_WINDOW`] that are still normal: the owner of every slot attaches and
/// rings. A late ring costs nothing while the device is in use, because its arbiter reads the ledgers anyway.
const FLOOD_CONNECTIONS: usize = 2 * SLOTS_MAX;
/// The window in which connections are counted. A flooding socket is ignored for the rest of it.
const FLOOD_WINDOW: Duration = Duration::from_millis(100);

/// The object behind a descriptor in the epoll set. Its key is never reused.
#[derive(Clone, Copy, Debug)]
enum Source {
    Wake,
    Listener { slice: u64 },
    Connection { slice: u64 },
    Process { slice: u64, pid: u32 },
    Owner { slice: u64 },
}

struct Slice {
    members: Members,
    listener: OwnedFd,
    listener_key: u64,
    owner: Option<OwnedFd>,
    silent: VecDeque<(u64, OwnedFd)>,
    process_keys: BTreeMap<u32, u64>,
    window: Instant,
    connections_in_window: usize,
    muted: bool,
}

pub(super) struct EventLoop {
    shared: Arc<Shared>,
    descriptors: Descriptors,
    time_sharing: Arc<TimeSharing>,
    events: Arc<Events>,
    memory_changed: Box<dyn Fn() + Send>,
    owner_gone: Box<dyn Fn(&str) + Send>,
    epoll: Epoll,
    sources: BTreeMap<u64, Source>,
    next_key: u64,
    slices: BTreeMap<u64, Slice>,
    next_sweep: Instant,
    /// No sweep begins before this moment.
    sweep_pause_until: Instant,
    stop: bool,
}

impl EventLoop {
    pub(super) fn new(
        shared: Arc<Shared>,
        descriptors: Descriptors,
        time_sharing: Arc<TimeSharing>,
        events: Arc<Events>,
        memory_changed: Box<dyn Fn() + Send>,
        owner_gone: Box<dyn Fn(&str) + Send>,
    ) -> io::Result<EventLoop> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&shared.wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(EventLoop {
            shared,
            descriptors,
            time_sharing,
            events,
            memory_changed,
            owner_gone,
            epoll,
            sources: BTreeMap::from([(0, Source::Wake)]),
            next_key: 1,
            slices: BTreeMap::new(),
            next_sweep: Instant::now() + SWEEP_INTERVAL,
            sweep_pause_until: Instant::now(),
            stop: false,
        })
    }

    pub(super) fn run(&mut self) {
        let mut events = [EpollEvent::empty(); 256];
        while !self.stop {
            // Interrupted by a signal: check the time and wait again.
            let ready = self.epoll.wait(&mut events, self.timeout()).unwrap_or(0);
            let mut sources: Vec<(u64, Source)> = events[..ready]
                .iter()
                .filter_map(|event| Some((event.data(), *self.sources.get(&event.data())?)))
                .collect();
            sources.sort_by_key(|(_, source)| !matches!(source, Source::Process { .. }));
            for (key, source) in sources {
                match source {
                    Source::Process { slice, pid } => self.process_ended(slice, pid),
                    Source::Wake => self.obey(),
                    Source::Owner { slice } => self.owner_ended(slice, key),
                    Source::Connection { slice } => self.connection_ready(slice, key),
                    Source::Listener { slice } => self.accept(slice),
                }
            }
            self.see_to_what_is_due();
        }
    }

    /// Time until something is due without an event; no timeout on an idle node.
    fn timeout(&self) -> EpollTimeout {
        let now = Instant::now();
        let settle = self.slices.values().any(|slice| slice.members.is_in_doubt()).then_some(now + SETTLE_INTERVAL);
        let sweep = (!self.slices.is_empty()).then_some(self.next_sweep);
        let unmute = self.slices.values().filter(|slice| slice.muted).map(|slice| slice.window + FLOOD_WINDOW);
        let Some(due) = settle.into_iter().chain(sweep).chain(unmute).min() else { return EpollTimeout::NONE };
        // Rounded up, so that the work is due when the wait ends.
        let wait = due.saturating_duration_since(now).as_millis() + 1;
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::NONE)
    }

    fn see_to_what_is_due(&mut self) {
        let now = Instant::now();
        if now >= self.next_sweep {
            let numbers: Vec<u64> = self.slices.keys().copied().collect();
            self.sweep(&numbers);
            self.next_sweep = now + SWEEP_INTERVAL;
        }
        for slice in self.slices.values_mut() {
            slice.members.settle();
            // Once for all processes that came or ended since the last call.
            if slice.members.publish() {
                self.time_sharing.wake(slice.members.live());
            }
            if slice.muted && now >= slice.window + FLOOD_WINDOW {
                slice.muted = false;
                let event = EpollEvent::new(EpollFlags::EPOLLIN, slice.listener_key);
                if let Err(error) = self.epoll.modify(&slice.listener, &mut event.clone()) {
                    warn!(slice = slice.members.live().name, %error, "cannot listen for processes");
                }
            }
        }
    }

    fn obey(&mut self) {
        // Only drains the counter: the commands are in the queue.
        let _ = self.shared.wake.read();
        loop {
            // A statement of its own, so that the queue is unlocked while the command is carried out.
            let command = self.shared.commands.lock().pop_front();
            match command {
                Some(Command::Add { live, listener, owner, done }) => {
                    // The caller may have given up waiting.
                    let _ = done.send(self.add(live, listener, owner));
                }
                Some(Command::Remove { number, done }) => {
                    self.remove(number);
                    let _ = done.send(());
                }
                Some(Command::Stop) => self.stop = true,
                None => return,
            }
        }
    }

    fn watch(&mut self, fd: &OwnedFd, source: Source) -> io::Result<u64> {
        let key = self.next_key;
        self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, key))?;
        self.next_key += 1;
        self.sources.insert(key, source);
        Ok(key)
    }

    /// Closing a descriptor removes it from the epoll set; its key must not be found any more either.
    fn forget(&mut self, key: u64) {
        self.sources.remove(&key);
    }

    fn add(&mut self, live: Arc<LiveSlice>, listener: OwnedFd, owner: Option<OwnedFd>) -> io::Result<()> {
        let number = live.number;
        let listener_key = self.watch(&listener, Source::Listener { slice: number })?;
        if let Some(owner) = &owner
            && let Err(error) = self.watch(owner, Source::Owner { slice: number })
        {
            self.forget(listener_key);
            return Err(error);
        }
        let slice = Slice {
            members: Members::new(live, self.descriptors),
            listener,
            listener_key,
            owner,
            silent: VecDeque::new(),
            process_keys: BTreeMap::new(),
            window: Instant::now(),
            connections_in_window: 0,
            muted: false,
        };
        self.slices.insert(number, slice);
        self.sweep(&[number]);
        if let Some(slice) = self.slices.get_mut(&number) {
            slice.members.publish();
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) {
        if self.slices.remove(&number).is_some() {
            self.sources.retain(|_, source| match source {
                Source::Wake => true,
                Source::Listener { slice }
                | Source::Connection { slice }
                | Source::Process { slice, .. }
                | Source::Owner { slice } => *slice != number,
            });
        }
    }

    fn process_ended(&mut self, number: u64, pid: u32) {
        let Some(slice) = self.slices.get_mut(&number) else { return };
        // After exec a process has a new pidfd under the same pid. Both are readable when it ends.
        let pidfd = slice.members.get(pid).and_then(|member| member.pidfd.as_ref());
        if pidfd.is_none_or(|pidfd| !socket::has_ended(pidfd)) {
            return;
        }
        if slice.members.ended(pid) {
            count(&self.shared.counters.reclaimed);
            let name = &slice.members.live().name;
            self.events.record(Event::of(Kind::ProcessEnded, "has ended").of_slice(name).of_process(pid));
            (self.memory_changed)();
        }
        if let Some(key) = slice.process_keys.remove(&pid) {
            self.forget(key);
        }
    }

    fn owner_ended(&mut self, number: u64, key: u64) {
        self.forget(key);
        if let Some(slice) = self.slices.get_mut(&number) {
            // Closed here; otherwise its end would be reported again and again until the slice is gone.
            slice.owner = None;
            (self.owner_gone)(&slice.members.live().name);
        }
    }

    fn accept(&mut self, number: u64) {
        for _ in 0..ACCEPTS_AT_A_TIME {
            let Some(slice) = self.slices.get_mut(&number) else { return };
            let now = Instant::now();
            if now >= slice.window + FLOOD_WINDOW {
                (slice.window, slice.connections_in_window) = (now, 0);
            }
            if slice.connections_in_window >= FLOOD_CONNECTIONS {
                slice.muted = true;
                let _ =
                    self.epoll.modify(&slice.listener, &mut EpollEvent::new(EpollFlags::empty(), slice.listener_key));
                count(&self.shared.counters.floods);
                return;
            }
            let connection = match socket::accept(&slice.listener) {
                Ok(connection) => connection,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // For example, no descriptors are left. Without muting, the event would be reported again at once.
                    slice.muted = true;
                    let _ = self
                        .epoll
                        .modify(&slice.listener, &mut EpollEvent::new(EpollFlags::empty(), slice.listener_key));
                    warn!(slice = slice.members.live().name, %error, "cannot accept a process");
                    return;
                }
            };
            slice.connections_in_window += 1;
            self.hear(number, connection);
        }
    }

    /// Handles the first message of a new connection, or keeps the connection until one comes.
    fn hear(&mut self, number: u64, connection: OwnedFd) {
        match socket::receive(&connection) {
            Received::Message(message) => self.message(number, &connection, &message),
            Received::Garbage => count(&self.shared.counters.dropped),
            // A connection that has sent nothing yet must not take the last descriptors.
            Received::NotYet if !self.descriptors.can_keep(&connection) => count(&self.shared.counters.dropped),
            Received::NotYet => {
                let Ok(key) = self.watch(&connection, Source::Connection { slice: number }) else { return };
                let Some(slice) = self.slices.get_mut(&number) else { return };
                slice.silent.push_back((key, connection));
                if slice.silent.len() > SILENT_MAX
                    && let Some((key, _)) = slice.silent.pop_front()
                {
                    self.forget(key);
                    count(&self.shared.counters.dropped);
                }
            }
        }
    }

    fn connection_ready(&mut self, number: u64, key: u64) {
        let Some(slice) = self.slices.get_mut(&number) else { return };
        let Some(at) = slice.silent.iter().position(|(of, _)| *of == key) else { return };
        let Some((_, connection)) = slice.silent.remove(at) else { return };
        self.forget(key);
        match socket::receive(&connection) {
            Received::Message(message) => self.message(number, &connection, &message),
            Received::Garbage | Received::NotYet => count(&self.shared.counters.dropped),
        }
    }

    fn message(&mut self, number: u64, connection: &OwnedFd, message: &AttachMessage) {
        let Some(slice) = self.slices.get_mut(&number) else { return };
        let outcome = socket::peer(connection).map_or(Outcome::Gone, |peer| slice.members.attach(peer, message));
        if message.kind == AttachMessage::LOOK && outcome != Outcome::Refused {
            (self.memory_changed)();
        }
        match outcome {
            // A process that rings without being known was missed when it attached.
            Outcome::Attached(pid) => self.attached(number, pid),
            Outcome::Known if message.kind == AttachMessage::RING => {
                self.time_sharing.wake_device(slice.members.live(), message.device as usize);
            }
            Outcome::Known => {}
            Outcome::Refused => count(&self.shared.counters.dropped),
            // No pidfd will report its end, so a sweep must give back what it held.
            Outcome::Gone => self.next_sweep = self.next_sweep.min(self.sweep_pause_until),
        }
    }

    /// A process was attached.
    fn attached(&mut self, number: u64, pid: u32) {
        count(&self.shared.counters.attached);
        let members = self.slices.get(&number).map(|slice| &slice.members);
        if let Some((members, member)) = members.and_then(|members| Some((members, members.get(pid)?))) {
            let attached =
                Event::of_command(Kind::ProcessAttached, member.command().clone()).of_slice(&members.live().name);
            self.events.record(attached.of_process(pid));
        }
        self.watch_process(number, pid);
    }

    /// Watches for the end of a process. If that is not possible, the sweeps check whether it still runs.
    fn watch_process(&mut self, number: u64, pid: u32) {
        let key = self.next_key;
        let Some(slice) = self.slices.get_mut(&number) else { return };
        let Some(pidfd) = slice.members.get(pid).and_then(|member| member.pidfd.as_ref()) else { return };
        if let Err(error) = self.epoll.add(pidfd, EpollEvent::new(EpollFlags::EPOLLIN, key)) {
            warn!(slice = slice.members.live().name, pid, %error, "cannot watch a process: its end is seen some seconds late");
            slice.members.unwatch(pid);
            return;
        }
        self.next_key += 1;
        self.sources.insert(key, Source::Process { slice: number, pid });
        if let Some(former) = slice.process_keys.insert(pid, key) {
            self.sources.remove(&former);
        }
    }

    fn sweep(&mut self, numbers: &[u64]) {
        let begun = Instant::now();
        let mut unknown = Vec::new();
        for number in numbers {
            let Some(slice) = self.slices.get_mut(number) else { continue };
            slice.members.settle_anew();
            let strangers = slice.members.strangers();
            if !strangers.is_empty() || slice.members.has_unwatched() {
                unknown.push((*number, strangers));
            }
        }
        if unknown.is_empty() {
            return;
        }
        // The processes are listed after the strangers, never before: see `Members::sweep`.
        let processes = match procfs::all() {
            Ok(processes) => processes,
            Err(error) => {
                warn!(%error, "cannot look for processes that were not heard; the next sweep does");
                return;
            }
        };
        for (number, strangers) in unknown {
            let Some(slice) = self.slices.get_mut(&number) else { continue };
            let swept = slice.members.sweep(strangers, &processes);
            self.shared.counters.reclaimed.fetch_add(swept.given_back, Ordering::Relaxed);
            if swept.given_back > 0 {
                (self.memory_changed)();
            }
            for pid in swept.found {
                self.attached(number, pid);
            }
            for pid in swept.watched {
                self.watch_process(number, pid);
            }
        }
        let now = Instant::now();
        self.sweep_pause_until = now + SWEEP_PAUSE_MIN.max((now - begun) * SWEEP_PAUSE_FACTOR);
    }
}
