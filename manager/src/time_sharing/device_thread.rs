//! The thread that shares one device's time.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use aliquot_abi::region::{WAIT_LENGTHS, gate};
use aliquot_arbiter::{Arbiter, ContainerId, GateCommand, Observation, Share, Usage, WAIT_BOUNDS_NS};
use rustix::process::setpriority_process;
use rustix::thread::{gettid, set_current_timer_slack};
use tracing::debug;

use crate::clock::monotonic_ns;
use crate::inventory::DeviceUuid;
use crate::live::LiveSlice;
use crate::region::view::{self, SlotState};

mod inherited;

use inherited::Inherited;

/// The thread's nice value, which puts it before all ordinary programs.
const NICE: i32 = -20;

/// Minimum time between two polls.
const POLL_INTERVAL_NS_MIN: u64 = 50_000;

// The region has one counter for each wait length that the arbiter distinguishes.
const _: () = assert!(WAIT_LENGTHS == WAIT_BOUNDS_NS.len() + 1);

/// A command to the thread.
pub(super) enum Command {
    Add { live: Arc<LiveSlice>, part: usize, share: Share },
    ChargeAll(bool),
    Resize { number: u64, share: Share, done: Sender<()> },
    Remove { number: u64, done: Sender<()> },
    Stop,
}

/// Handle of the thread.
pub(super) struct DeviceThread {
    commands: Sender<Command>,
    thread: JoinHandle<()>,
    /// What the thread was last told by [`Self::charge_all`].
    charges_all: bool,
}

impl DeviceThread {
    /// Starts the thread of a device.
    pub(super) fn start(device: &DeviceUuid, lease_max_ns: u64) -> io::Result<DeviceThread> {
        let (commands, inbox) = mpsc::channel();
        let device = device.clone();
        let arbiter = move |now_ns| Arbiter::new(now_ns).with_leases_of_at_most(lease_max_ns);
        let thread = thread::Builder::new()
            .name("time-sharing".into())
            .spawn(move || run(&device, arbiter(monotonic_ns()), &inbox))?;
        Ok(DeviceThread { commands, thread, charges_all: false })
    }

    /// Tells the thread whether the driver does not say how busy the device is, so that all use must be charged.
    pub(super) fn charge_all(&mut self, charges_all: bool) {
        if self.charges_all != charges_all {
            self.charges_all = charges_all;
            self.tell(Command::ChargeAll(charges_all));
        }
    }

    pub(super) fn tell(&self, command: Command) {
        // The receiver lives as long as the thread, which ends only on the last command.
        let _ = self.commands.send(command);
        self.wake();
    }

    pub(super) fn tell_and_wait(&self, command: impl FnOnce(Sender<()>) -> Command) {
        let (done, outcome) = mpsc::channel();
        self.tell(command(done));
        let _ = outcome.recv();
    }

    pub(super) fn wake(&self) {
        self.thread.thread().unpark();
    }

    pub(super) fn waker(&self) -> Thread {
        self.thread.thread().clone()
    }

    pub(super) fn stop(self) {
        self.tell(Command::Stop);
        // A panic in the thread would have ended the whole process.
        let _ = self.thread.join();
    }
}

/// A slice's part of this device.
struct Member {
    live: Arc<LiveSlice>,
    part: usize,
    processes: u32,
    /// The part of the arbiter's account that is in the slice's counters already.
    published: Usage,
    /// Work in flight from before this manager.
    inherited: Inherited,
}

impl Member {
    fn new(live: Arc<LiveSlice>, part: usize) -> Member {
        let ledger = live.region.ledger();
        let in_flight = view::slots(ledger).filter_map(|(index, state)| {
            // A slot that is being taken has no work, and its page may not be allocated yet.
            let SlotState::Attached(..) = state else { return None };
            let work = view::work(ledger, index, part)?;
            (!work.drained).then_some((index, work.marker_submitted))
        });
        let inherited = Inherited::new(monotonic_ns(), in_flight);
        Member { live, part, processes: 0, published: Usage::default(), inherited }
    }

    /// The state of this device in the slice's ledger. The container can forge it; the policy allows for that.
    fn observe(&mut self, container: ContainerId, now_ns: u64) -> Observation {
        let siblings = self.live.gang_states.siblings(self.part);
        let mut seen = Observation { container, waiting: false, in_flight: 0, markers: 0, busy_since_ns: 0, siblings };
        let ledger = self.live.region.ledger();
        for index in self.live.slots() {
            let Some(work) = view::work(ledger, index, self.part) else { continue };
            seen.waiting |= work.waiting;
            seen.markers = seen.markers.wrapping_add(work.marker_submitted);
            let is_abandoned = self.inherited.is_abandoned(index, work.marker_submitted, now_ns);
            if !work.drained && !is_abandoned {
                seen.busy_since_ns = match seen.in_flight {
                    0 => work.busy_since_ns,
                    _ => seen.busy_since_ns.min(work.busy_since_ns),
                };
                seen.in_flight += 1;
            } else if seen.in_flight == 0 {
                // If work ended since the last look, its start is the newest one that is seen.
                seen.busy_since_ns = seen.busy_since_ns.max(work.busy_since_ns);
            }
        }
        seen
    }

    fn set_gate(&self, flags: u32) {
        self.live.set_free(self.part, flags & gate::OPEN != 0 && flags & gate::FREE != 0);
        self.live.region.set_gate(self.part, flags);
    }

    /// If the gate is closed, whether the processes that wait at it know that they are watched; `None` if it is open.
    fn closed_gate(&self) -> Option<Watch> {
        let word = self.live.region.device_limits(self.part).gate.load(Ordering::Relaxed);
        match (word & gate::OPEN != 0, word & gate::WATCHED != 0) {
            (true, _) => None,
            (false, true) => Some(Watch::On),
            (false, false) => Some(Watch::Off),
        }
    }

    /// Adds the growth of the arbiter's account to the slice's counters, which are older than this arbiter.
    fn publish(&mut self, usage: Usage) {
        if usage == self.published {
            return;
        }
        let (counters, waits) = (self.live.counters(self.part), self.live.waits(self.part));
        let published = &self.published;
        // Stored first, so that no reader sees a wait that is longer than the longest.
        waits.longest_ns.fetch_max(usage.longest_wait_ns, Ordering::Relaxed);
        let lengths = waits.by_length.iter().zip(usage.waits).zip(published.waits);
        let sums = [
            (&counters.charged_ns, usage.charged_ns, published.charged_ns),
            (&counters.overruns, usage.overruns, published.overruns),
            (&counters.overrun_ns, usage.overrun_ns, published.overrun_ns),
            (&counters.leases, usage.leases, published.leases),
            (&waits.waited_ns, usage.waited_ns, published.waited_ns),
        ];
        for (counter, now, before) in sums.into_iter().chain(lengths.map(|((count, now), before)| (count, now, before)))
        {
            if now != before {
                counter.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
            }
        }
        self.published = usage;
    }
}

/// What a process that waits at a closed gate must do to be noticed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Nothing: this thread looks at the processes without being woken.
    On,
    /// The process must ring.
    Off,
}

fn run(device: &DeviceUuid, mut arbiter: Arbiter, inbox: &Receiver<Command>) {
    // Sleeps here take a fraction of a millisecond, so the kernel's default slack would matter.
    if let Err(error) = set_current_timer_slack(Some(NonZeroU64::MIN)) {
        debug!(%device, %error, "timers are less exact");
    }
    // This thread does little, and while it is late no container uses the device. Only a privileged manager may set
    // this.
    if let Err(error) = setpriority_process(Some(gettid()), NICE) {
        debug!(%device, %error, "time sharing runs at the usual priority");
    }
    let mut members: BTreeMap<ContainerId, Member> = BTreeMap::new();
    loop {
        while let Ok(command) = inbox.try_recv() {
            match command {
                Command::Add { live, part, share } => {
                    let container = ContainerId(live.number);
                    arbiter.add(container, share);
                    live.gang_states.join(part, thread::current());
                    members.insert(container, Member::new(live, part));
                }
                Command::ChargeAll(charges_all) => arbiter.set_charges_all(charges_all),
                Command::Resize { number, share, done } => {
                    arbiter.resize(ContainerId(number), share);
                    // The caller may have given up waiting.
                    let _ = done.send(());
                }
                Command::Remove { number, done } => {
                    arbiter.remove(ContainerId(number));
                    if let Some(member) = members.remove(&ContainerId(number)) {
                        member.live.gang_states.leave(member.part);
                    }
                    // The caller may have given up waiting.
                    let _ = done.send(());
                }
                Command::Stop => return,
            }
        }
        let next_poll_ns = poll(&mut arbiter, &mut members);
        let polled_ns = monotonic_ns();
        // A wake-up that came in the meantime is not lost: parking then returns at once.
        match next_poll_ns {
            None => {
                if set_watch(&members, Watch::Off) {
                    // A process that came to a gate before the change has not rung. One more poll sees it.
                    continue;
                }
                thread::park();
            }
            Some(due_ns) => {
                set_watch(&members, Watch::On);
                match due_ns.saturating_sub(polled_ns) {
                    0 => {}
                    wait_ns => thread::park_timeout(Duration::from_nanos(wait_ns)),
                }
            }
        }
        // However often a container rings, this thread never uses up a processor.
        let rest_ns = (polled_ns + POLL_INTERVAL_NS_MIN).saturating_sub(monotonic_ns());
        if rest_ns > 0 {
            thread::sleep(Duration::from_nanos(rest_ns));
        }
    }
}

/// Observes, lets the policy decide, and carries out the commands. Returns when to poll again; `None`: when woken.
fn poll(arbiter: &mut Arbiter, members: &mut BTreeMap<ContainerId, Member>) -> Option<u64> {
    for (&container, member) in members.iter_mut() {
        let processes = u32::try_from(member.live.processes().len()).unwrap_or(u32::MAX);
        if processes != member.processes {
            member.processes = processes;
            arbiter.set_processes(container, processes);
        }
    }
    let now_ns = monotonic_ns();
    let present = members.iter_mut().filter(|(_, member)| member.processes > 0);
    let observed: Vec<Observation> = present.map(|(&container, member)| member.observe(container, now_ns)).collect();
    let outcome = arbiter.poll(now_ns, &observed);
    for command in outcome.commands {
        match command {
            GateCommand::Open { container } => act(members, container, |member| member.set_gate(gate::OPEN)),
            GateCommand::OpenFree { container } => {
                act(members, container, |member| member.set_gate(gate::OPEN | gate::FREE))
            }
            // The gate is marked as watched, because further polls follow to see the work drain.
            GateCommand::Close { container } => act(members, container, |member| member.set_gate(gate::WATCHED)),
            GateCommand::Tick { container } => {
                act(members, container, |member| member.live.region.tick_gate(member.part))
            }
        }
    }
    for (&container, member) in members.iter_mut() {
        if let Some(usage) = arbiter.usage(container) {
            member.publish(usage);
        }
        member.live.gang_states.publish(member.part, arbiter.gang_state(container));
    }
    outcome.next_poll_ns
}

/// Tells processes at closed gates whether they must ring. Returns whether this changed any gate.
fn set_watch(members: &BTreeMap<ContainerId, Member>, watch: Watch) -> bool {
    let mut changed = false;
    for member in members.values().filter(|member| member.closed_gate().is_some_and(|found| found != watch)) {
        member.set_gate(if watch == Watch::On { gate::WATCHED } else { 0 });
        changed = true;
    }
    changed
}

fn act(members: &BTreeMap<ContainerId, Member>, container: ContainerId, action: impl FnOnce(&Member)) {
    if let Some(member) = members.get(&container) {
        action(member);
    }
}
