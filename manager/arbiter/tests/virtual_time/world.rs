//! Devices, processes and the loop that drives arbiters, in virtual time and from a seed.
//!
//! A device runs all processes with work at the same time, each at its part of the speed, which approximates time
//! slicing. Polls are late and gates are seen late by random amounts, as with real threads.

use std::collections::BTreeMap;

use aliquot_arbiter::{Arbiter, ContainerId, GangState, GateCommand, Observation, Share, Siblings, Usage};

use crate::process::{Gate, Process, Program};
use crate::random::Random;

/// Maximum lateness of a poll.
const LATENESS_MAX_NS: u64 = 200_000;
/// Interval at which used time is recorded.
pub(crate) const SAMPLE_NS: u64 = 10_000_000;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;

/// A container as seen from outside the arbiter.
#[derive(Default)]
pub(crate) struct Record {
    gate: Gate,
    /// Its state on this device, for its other devices.
    gang_state: GangState,
    pub(crate) share: Option<Share>,
    /// Device time that its processes really got, in nanoseconds.
    pub(crate) used_ns: u64,
    /// The part of it in which it ran free, which is not charged.
    pub(crate) used_free_ns: u64,
    /// Charges of former arbiters.
    charged_before_ns: u64,
    /// `used_ns` at each multiple of [`SAMPLE_NS`].
    pub(crate) samples: Vec<u64>,
    /// The greatest use beyond its limit, over all intervals that begin and end at polls.
    pub(crate) excess_ns: i64,
    /// In hundredths of a nanosecond: use beyond the limit since the beginning, and the least value so far.
    balance: i64,
    least_balance: i64,
    balance_used_ns: u64,
    /// Longest wait before the manager was last restarted.
    longest_wait_ns: u64,
}

struct Device {
    arbiter: Arbiter,
    records: BTreeMap<ContainerId, Record>,
    poll_ns: Option<u64>,
    polled_ns: u64,
    used_ns: u64,
    polls: u64,
    /// The most gates that were open at a time.
    most_open: usize,
}

pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    devices: Vec<Device>,
    pub(crate) processes: Vec<Option<Process>>,
    sampled_ns: u64,
}

impl World {
    pub(crate) fn new(seed: u64, devices: usize) -> Self {
        let device = |_| Device {
            arbiter: Arbiter::new(0),
            records: BTreeMap::new(),
            poll_ns: Some(0),
            polled_ns: 0,
            used_ns: 0,
            polls: 0,
            most_open: 0,
        };
        Self {
            now_ns: 0,
            random: Random::new(seed),
            devices: (0..devices).map(device).collect(),
            processes: Vec::new(),
            sampled_ns: 0,
        }
    }

    /// The same world, whose arbiters grant no longer leases than this while others wait.
    pub(crate) fn with_leases_of_at_most(mut self, lease_max_ns: u64) -> Self {
        for device in &mut self.devices {
            device.arbiter = Arbiter::new(0).with_leases_of_at_most(lease_max_ns);
        }
        self
    }

    pub(crate) fn add_container(&mut self, device: usize, container: ContainerId, share: Share) {
        let device = &mut self.devices[device];
        device.arbiter.add(container, share);
        device.records.entry(container).or_default().share = Some(share);
        device.poll_ns = Some(self.now_ns);
    }

    pub(crate) fn resize(&mut self, device: usize, container: ContainerId, share: Share) {
        let device = &mut self.devices[device];
        assert!(device.arbiter.resize(container, share));
        device.records.get_mut(&container).unwrap().share = Some(share);
        device.poll_ns = Some(self.now_ns);
    }

    /// Starts a process, and returns its number.
    pub(crate) fn start(&mut self, device: usize, container: ContainerId, program: Program) -> usize {
        self.processes.push(Some(Process::new(device, container, program, self.now_ns)));
        self.attached(device, container);
        self.processes.len() - 1
    }

    /// Starts a process on each of the devices. Every `meets_every`th kernel runs only together with its peers. Returns
    /// the processes' numbers.
    pub(crate) fn start_gang(
        &mut self,
        container: ContainerId,
        devices: &[usize],
        program: &Program,
        meets_every: u64,
    ) -> Vec<usize> {
        let numbers: Vec<usize> =
            devices.iter().map(|&device| self.start(device, container, program.clone())).collect();
        for &own in &numbers {
            let peers = numbers.iter().copied().filter(|&peer| peer != own).collect();
            let process = self.processes[own].as_mut().unwrap();
            (process.peers, process.meets_every) = (peers, meets_every);
        }
        numbers
    }

    /// Starts a gang whose kernels all run only together with their peers. One thread makes all launches, one device
    /// after the other.
    pub(crate) fn start_gang_of_one_thread(
        &mut self,
        container: ContainerId,
        devices: &[usize],
        program: &Program,
    ) -> Vec<usize> {
        let numbers = self.start_gang(container, devices, program, 1);
        for (place, &own) in numbers.iter().enumerate() {
            let before = (place + numbers.len() - 1) % numbers.len();
            self.processes[own].as_mut().unwrap().after = Some(numbers[before]);
        }
        numbers
    }

    /// Whether the thread that launches for process `number` is busy with another device.
    fn is_elsewhere(&self, number: usize) -> bool {
        let launches = |number: usize| self.processes[number].as_ref().map_or(u64::MAX, |process| process.launches);
        let Some(before) = self.processes[number].as_ref().and_then(|process| process.after) else { return false };
        // The thread visits its devices in the order of their processes' numbers.
        launches(before) < launches(number) + u64::from(before < number)
    }

    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(process) = self.processes[number].take() {
            self.attached(process.device, process.container);
        }
    }

    fn attached(&mut self, device: usize, container: ContainerId) {
        let count = self.processes_of(device, container).count() as u32;
        let device = &mut self.devices[device];
        assert!(device.arbiter.set_processes(container, count));
        device.poll_ns = Some(self.now_ns);
    }

    fn processes_of(&self, device: usize, container: ContainerId) -> impl Iterator<Item = &Process> {
        self.processes
            .iter()
            .flatten()
            .filter(move |process| process.device == device && process.container == container)
    }

    /// Restarts the manager: the arbiter is new, and the gates stay as they are.
    pub(crate) fn restart_manager(&mut self, device: usize) {
        let now_ns = self.now_ns;
        let mut arbiter = Arbiter::new(now_ns);
        for (&container, record) in &mut self.devices[device].records {
            arbiter.add(container, record.share.unwrap());
        }
        let old = std::mem::replace(&mut self.devices[device].arbiter, arbiter);
        let containers: Vec<ContainerId> = self.devices[device].records.keys().copied().collect();
        for container in containers {
            let usage = old.usage(container).unwrap();
            let record = self.devices[device].records.get_mut(&container).unwrap();
            record.charged_before_ns += usage.charged_ns;
            record.longest_wait_ns = record.longest_wait_ns.max(wait_ns(&usage, now_ns));
            self.attached(device, container);
        }
    }

    pub(crate) fn record(&self, device: usize, container: ContainerId) -> &Record {
        &self.devices[device].records[&container]
    }

    pub(crate) fn usage(&self, device: usize, container: ContainerId) -> Usage {
        self.devices[device].arbiter.usage(container).unwrap()
    }

    pub(crate) fn charged_ns(&self, device: usize, container: ContainerId) -> u64 {
        self.record(device, container).charged_before_ns + self.usage(device, container).charged_ns
    }

    pub(crate) fn longest_wait_ns(&self, device: usize, container: ContainerId) -> u64 {
        let usage = self.usage(device, container);
        self.record(device, container).longest_wait_ns.max(wait_ns(&usage, self.now_ns))
    }

    /// The part of the time so far in which the device was busy, in hundredths of a percent.
    pub(crate) fn busy_bp(&self, device: usize) -> u64 {
        self.devices[device].used_ns * 10_000 / self.now_ns
    }

    pub(crate) fn polls(&self, device: usize) -> u64 {
        self.devices[device].polls
    }

    /// The most gates of the device that were open at a time.
    pub(crate) fn most_open(&self, device: usize) -> usize {
        self.devices[device].most_open
    }

    /// Runs the world in virtual time until `end_ns`.
    pub(crate) fn run_until(&mut self, end_ns: u64) {
        while self.now_ns < end_ns {
            let rates = self.rates();
            let next_ns = self.next_event_ns(&rates).min(self.sampled_ns).min(end_ns);
            self.advance(next_ns.max(self.now_ns), &rates);
            if self.now_ns == self.sampled_ns {
                for record in self.devices.iter_mut().flat_map(|device| device.records.values_mut()) {
                    record.samples.push(record.used_ns);
                }
                self.sampled_ns += SAMPLE_NS;
            }
            for device in 0..self.devices.len() {
                if self.devices[device].poll_ns.is_some_and(|poll_ns| poll_ns <= self.now_ns) {
                    self.poll(device);
                }
            }
            self.run_processes();
        }
    }

    /// For each process: the number of processes that share its device, and the divisor of its kernel's speed (0: it
    /// stands still).
    fn rates(&self) -> Vec<(u64, u64)> {
        let mut busy = vec![0; self.devices.len()];
        for process in self.processes.iter().flatten().filter(|process| !process.queue.is_empty()) {
            busy[process.device] += 1;
        }
        let head = |process: &Process| process.queue.front().and_then(|kernel| kernel.collective);
        let rate = |process: &Process| {
            let among = busy[process.device];
            if process.queue.is_empty() {
                return (0, 0);
            }
            if head(process).is_none() {
                return (among, among);
            }
            let peers = || process.peers.iter().map(|&peer| self.processes[peer].as_ref());
            if peers().any(|peer| peer.is_none_or(|peer| head(peer) != head(process))) {
                return (among, 0);
            }
            (among, peers().flatten().map(|peer| busy[peer.device]).max().unwrap_or(0).max(among))
        };
        self.processes.iter().map(|process| process.as_ref().map_or((0, 0), rate)).collect()
    }

    fn next_event_ns(&self, rates: &[(u64, u64)]) -> u64 {
        let polls = self.devices.iter().filter_map(|device| device.poll_ns);
        let processes = self.processes.iter().flatten().filter_map(Process::next_ns);
        let kernels = self.processes.iter().zip(rates).filter_map(|(process, &(_, pace))| {
            let kernel = process.as_ref()?.queue.front().filter(|_| pace > 0)?;
            Some(self.now_ns + kernel.left_ns * pace)
        });
        polls.chain(processes).chain(kernels).min().unwrap_or(u64::MAX)
    }

    /// Lets the devices work until `to_ns`.
    fn advance(&mut self, to_ns: u64, rates: &[(u64, u64)]) {
        let elapsed_ns = to_ns - self.now_ns;
        self.now_ns = to_ns;
        let mut worked = vec![false; self.devices.len()];
        for (process, &(among, pace)) in self.processes.iter_mut().zip(rates) {
            let Some(process) = process.as_mut().filter(|_| among > 0) else { continue };
            let device = &mut self.devices[process.device];
            worked[process.device] = true;
            let record = device.records.get_mut(&process.container).unwrap();
            record.used_ns += elapsed_ns / among;
            if record.gate.free {
                record.used_free_ns += elapsed_ns / among;
            }
            let Some(kernel) = process.queue.front_mut().filter(|_| pace > 0) else { continue };
            kernel.left_ns = kernel.left_ns.saturating_sub(elapsed_ns / pace);
            if kernel.left_ns == 0 {
                process.complete(to_ns, &mut self.random);
            }
        }
        for (device, _) in self.devices.iter_mut().zip(worked).filter(|(_, worked)| *worked) {
            device.used_ns += elapsed_ns;
        }
    }

    fn run_processes(&mut self) {
        let now_ns = self.now_ns;
        for number in 0..self.processes.len() {
            if self.processes[number].as_ref().and_then(Process::next_ns).is_none_or(|at_ns| at_ns > now_ns) {
                continue;
            }
            let is_elsewhere = self.is_elsewhere(number);
            let process = self.processes[number].as_mut().unwrap();
            if is_elsewhere {
                process.leave();
                continue;
            }
            let device = &mut self.devices[process.device];
            let gate = device.records[&process.container].gate;
            let launches = process.launches;
            if process.run(now_ns, gate, &mut self.random) {
                let heard_ns = now_ns + self.random.between(20_000, 150_000);
                device.poll_by(heard_ns);
                // A thread that begins to wait leaves no work without a marker on any of its devices.
                let others = if process.after.is_some() { process.peers.clone() } else { Vec::new() };
                for peer in others {
                    self.processes[peer].as_mut().into_iter().for_each(|peer| peer.mark(now_ns));
                }
            }
            if self.processes[number].as_ref().is_some_and(|process| process.launches > launches) {
                self.processes.iter_mut().flatten().filter(|process| process.after == Some(number)).for_each(
                    |process| {
                        process.come_back(now_ns);
                    },
                );
            }
        }
    }

    /// The container's other devices.
    fn siblings_of(&self, device: usize, container: ContainerId) -> Vec<usize> {
        (0..self.devices.len())
            .filter(|&other| other != device && self.devices[other].records.contains_key(&container))
            .collect()
    }

    fn poll(&mut self, number: usize) {
        let now_ns = self.now_ns;
        let mut observed: Vec<Observation> = Vec::new();
        for &container in self.devices[number].records.keys() {
            let processes = || self.processes_of(number, container);
            let siblings = self.siblings_of(number, container);
            let states = siblings.iter().map(|&other| self.devices[other].records[&container].gang_state);
            observed.push(Observation {
                container,
                waiting: processes().any(Process::waits),
                in_flight: processes().filter(|process| process.marked_in_flight()).count() as u32,
                markers: processes().map(Process::markers).sum(),
                busy_since_ns: processes()
                    .filter(|process| process.marked_in_flight())
                    .map(Process::busy_since_ns)
                    .min()
                    .or_else(|| processes().map(Process::busy_since_ns).max())
                    .unwrap_or(0),
                siblings: (!siblings.is_empty()).then(|| Siblings::of(states)),
            });
        }
        let device = &mut self.devices[number];
        device.polls += 1;
        device.watch_limits(now_ns);
        let outcome = device.arbiter.poll(now_ns, &observed);
        let late_ns = self.random.between(0, LATENESS_MAX_NS);
        device.poll_ns = outcome.next_poll_ns.map(|next_ns| {
            assert!(next_ns > now_ns, "a poll that is due at once: {next_ns} at {now_ns}");
            next_ns + late_ns
        });
        for command in outcome.commands {
            let open = Gate { open: true, ..Gate::default() };
            let (container, gate) = match command {
                GateCommand::Open { container } => (container, open),
                GateCommand::OpenFree { container } => (container, Gate { free: true, ..open }),
                GateCommand::Close { container } => (container, Gate::default()),
                GateCommand::Tick { container } => {
                    assert!(device.records[&container].gate.open, "a tick of a closed gate");
                    (container, device.records[&container].gate)
                }
            };
            let before = &mut device.records.get_mut(&container).unwrap().gate;
            *before = Gate { count: before.count + 1, ..gate };
            for process in self.processes.iter_mut().flatten() {
                if gate.open && process.device == number && process.container == container {
                    process.wake(now_ns, &mut self.random);
                }
            }
        }
        let open = device.records.values().filter(|record| record.gate.open).count();
        device.most_open = device.most_open.max(open);
        for seen in observed {
            self.tell_siblings(number, seen.container);
        }
    }

    /// Publishes the container's state on this device to the arbiters of its other devices.
    fn tell_siblings(&mut self, number: usize, container: ContainerId) {
        let device = &mut self.devices[number];
        let gang_state = device.arbiter.gang_state(container);
        let before = std::mem::replace(&mut device.records.get_mut(&container).unwrap().gang_state, gang_state);
        if gang_state.is_news_after(before) {
            for other in self.siblings_of(number, container) {
                let heard_ns = self.now_ns + self.random.between(20_000, 150_000);
                self.devices[other].poll_by(heard_ns);
            }
        }
    }
}

impl Device {
    fn poll_by(&mut self, by_ns: u64) {
        self.poll_ns = Some(self.poll_ns.map_or(by_ns, |poll_ns| poll_ns.min(by_ns)));
    }

    /// Records how far containers exceed their limits.
    fn watch_limits(&mut self, now_ns: u64) {
        let elapsed_ns = (now_ns - self.polled_ns) as i64;
        self.polled_ns = now_ns;
        for record in self.records.values_mut() {
            let used_ns = (record.used_ns - record.balance_used_ns) as i64;
            record.balance_used_ns = record.used_ns;
            let limit = i64::from(record.share.unwrap().limit_percent);
            // All use of the interval may come at once, at any time within it.
            record.excess_ns = record.excess_ns.max((record.balance + used_ns * 100 - record.least_balance) / 100);
            record.balance += used_ns * 100 - elapsed_ns * limit;
            record.least_balance = record.least_balance.min(record.balance);
        }
    }
}

fn wait_ns(usage: &Usage, now_ns: u64) -> u64 {
    usage.longest_wait_ns.max(usage.waiting_since_ns.map_or(0, |since_ns| now_ns - since_ns))
}
