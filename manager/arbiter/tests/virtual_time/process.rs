//! A process that behaves as the shim makes it: it stops at a closed gate, bounds its work in flight, and marks its
//! progress.

use std::collections::VecDeque;

use aliquot_arbiter::ContainerId;

use crate::random::Random;

/// Work in flight at which a launch may still add more.
const INFLIGHT_MAX_NS: u64 = 2_000_000;
/// Maximum work for one marker; the number of launches between two markers adapts to this.
pub(crate) const MARKED_MAX_NS: u64 = 250_000;
/// Processor time of a launch.
const LAUNCH_NS: u64 = 5_000;
/// Depth of the driver's queue, the only bound on the work in flight of a process that runs free.
const QUEUE_MAX: usize = 64;

/// How a process uses the device.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Lengths of its kernels; each launch picks one at random.
    pub(crate) kernels_ns: Vec<u64>,
    /// After this many launches it waits until they are done.
    pub(crate) burst: u64,
    /// After each burst it pauses for this long.
    pub(crate) pause_ns: u64,
    /// Its pauses last for any time up to twice that instead.
    pub(crate) varies: bool,
}

impl Program {
    /// Launches endlessly and never waits.
    pub(crate) fn endless(kernels_ns: &[u64]) -> Self {
        Self { kernels_ns: kernels_ns.to_vec(), burst: u64::MAX, pause_ns: 0, varies: false }
    }

    /// Waits for four kernels of 50 µs, then works on its host for up to twice `pause_ns`.
    pub(crate) fn bound_by_host(pause_ns: u64) -> Self {
        Self { kernels_ns: vec![50_000], burst: 4, pause_ns, varies: true }
    }

    /// Waits for each kernel, then pauses for `pause_ns`.
    pub(crate) fn synchronous(kernel_ns: u64, pause_ns: u64) -> Self {
        Self { kernels_ns: vec![kernel_ns], burst: 1, pause_ns, varies: false }
    }
}

pub(crate) struct Kernel {
    pub(crate) left_ns: u64,
    /// Number of the marker behind it, if there is one.
    marker: Option<u64>,
    /// For a kernel that runs only together with the peers' kernels of the same number: that number.
    pub(crate) collective: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The process launches at this time.
    Running(u64),
    /// The process waits at the gate.
    AtGate,
    /// The gate was opened, and it wakes up at this time.
    Waking(u64),
    /// The process has the maximum work in flight.
    Full,
    /// The process waits until all its work is done.
    Synchronizing,
    /// Its thread is busy with another device.
    Elsewhere,
}

pub(crate) struct Process {
    pub(crate) device: usize,
    pub(crate) container: ContainerId,
    pub(crate) program: Program,
    /// The processes on other devices with which some of its kernels run together.
    pub(crate) peers: Vec<usize>,
    /// One kernel in this many runs together with the peers'.
    pub(crate) meets_every: u64,
    /// The process no longer wakes up when its gate is opened.
    pub(crate) deaf: bool,
    /// For one thread that launches on several devices in turn: the process of its previous launch.
    pub(crate) after: Option<usize>,
    pub(crate) queue: VecDeque<Kernel>,
    state: State,
    gate_seen: Option<u32>,
    unmarked_ns: u64,
    burst_done: u64,
    pub(crate) launches: u64,
    submitted: u64,
    done: u64,
    busy_since_ns: u64,
    /// Number of finished kernels.
    pub(crate) kernels_done: u64,
}

/// The state of a container's gate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Gate {
    pub(crate) open: bool,
    pub(crate) free: bool,
    pub(crate) count: u32,
}

impl Process {
    pub(crate) fn new(device: usize, container: ContainerId, program: Program, now_ns: u64) -> Self {
        Self {
            device,
            container,
            program,
            peers: Vec::new(),
            meets_every: 1,
            deaf: false,
            after: None,
            queue: VecDeque::new(),
            state: State::Running(now_ns),
            gate_seen: None,
            unmarked_ns: 0,
            burst_done: 0,
            launches: 0,
            submitted: 0,
            done: 0,
            busy_since_ns: 0,
            kernels_done: 0,
        }
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, State::AtGate | State::Waking(_))
    }

    pub(crate) fn marked_in_flight(&self) -> bool {
        self.done < self.submitted
    }

    pub(crate) fn markers(&self) -> u64 {
        self.submitted
    }

    pub(crate) fn busy_since_ns(&self) -> u64 {
        self.busy_since_ns
    }

    /// When it next acts by itself.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        match self.state {
            State::Running(at_ns) | State::Waking(at_ns) => Some(at_ns),
            _ => None,
        }
    }

    pub(crate) fn wake(&mut self, now_ns: u64, random: &mut Random) {
        if self.state == State::AtGate && !self.deaf {
            self.state = State::Waking(now_ns + random.between(20_000, 80_000));
        }
    }

    /// Notes that its thread is busy with another device.
    pub(crate) fn leave(&mut self) {
        self.state = State::Elsewhere;
    }

    /// Notes that its thread is done with another device.
    pub(crate) fn come_back(&mut self, now_ns: u64) {
        if self.state == State::Elsewhere {
            self.state = State::Running(now_ns + LAUNCH_NS);
        }
    }

    /// Runs it at this time. Returns whether it begins to wait at the gate.
    pub(crate) fn run(&mut self, now_ns: u64, gate: Gate, random: &mut Random) -> bool {
        if !gate.open {
            self.mark(now_ns);
            let began = self.state != State::AtGate;
            self.state = State::AtGate;
            return began;
        }
        let full = if gate.free {
            self.queue.len() >= QUEUE_MAX
        } else {
            self.queue.iter().map(|kernel| kernel.left_ns).sum::<u64>() >= INFLIGHT_MAX_NS
        };
        if full {
            self.mark(now_ns);
            self.state = State::Full;
            return false;
        }
        self.launches += 1;
        let left_ns = *random.pick(&self.program.kernels_ns);
        let collective =
            (!self.peers.is_empty() && self.launches.is_multiple_of(self.meets_every)).then_some(self.launches);
        self.queue.push_back(Kernel { left_ns, marker: None, collective });
        self.unmarked_ns += left_ns;
        if !gate.free && (self.gate_seen != Some(gate.count) || self.unmarked_ns >= MARKED_MAX_NS) {
            self.gate_seen = Some(gate.count);
            self.mark(now_ns);
        }
        self.burst_done += 1;
        self.state = if self.burst_done >= self.program.burst {
            self.mark(now_ns);
            State::Synchronizing
        } else {
            State::Running(now_ns + LAUNCH_NS)
        };
        false
    }

    /// Puts a marker behind the newest kernel, unless it has one.
    pub(crate) fn mark(&mut self, now_ns: u64) {
        let Some(kernel) = self.queue.back_mut().filter(|kernel| kernel.marker.is_none()) else { return };
        if self.done == self.submitted {
            self.busy_since_ns = now_ns;
        }
        self.submitted += 1;
        self.unmarked_ns = 0;
        kernel.marker = Some(self.submitted);
    }

    /// Notes that the kernel at the head of the queue is done.
    pub(crate) fn complete(&mut self, now_ns: u64, random: &mut Random) {
        let Some(kernel) = self.queue.pop_front() else { return };
        self.kernels_done += 1;
        self.done = kernel.marker.unwrap_or(self.done);
        match self.state {
            State::Full => self.state = State::Running(now_ns),
            State::Synchronizing if self.queue.is_empty() => {
                self.burst_done = 0;
                let pause_ns = match self.program.varies {
                    true => random.between(0, 2 * self.program.pause_ns),
                    false => self.program.pause_ns,
                };
                self.state = State::Running(now_ns + pause_ns.max(LAUNCH_NS));
            }
            _ => {}
        }
    }
}
