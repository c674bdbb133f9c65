//! Thousands of short random runs of a device, with random containers, kernels, starts, deaths, resizes and restarts of
//! the manager.

use aliquot_arbiter::{ContainerId, Share, timing};

use crate::process::{MARKED_MAX_NS, Program};
use crate::world::{MS, SECOND, World};

const RUNS: u64 = 5_000;
const RUN_NS: u64 = 120 * MS;
const US: u64 = 1_000;

/// Possible kernel lengths. None exceeds the first overrun bound, so work is never beside other work for longer than it
/// takes by itself.
const LENGTHS_NS: [u64; 6] = [100 * US, 300 * US, MS, 3 * MS, 10 * MS, 30 * MS];
const LONGEST_NS: u64 = 30 * MS;
const PROCESSES_MAX: u64 = 2;

struct Life {
    world: World,
    containers: u64,
    request_left: u32,
    /// The requests that the containers began with.
    granted: [u32; 4],
    least_request: [u32; 4],
    greatest_limit: [u32; 4],
    disturbed: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed, 1);
        let containers = world.random.between(1, 4);
        let mut life = Self {
            world,
            containers,
            request_left: 100,
            granted: [0; 4],
            least_request: [0; 4],
            greatest_limit: [0; 4],
            disturbed: 0,
        };
        for number in 0..containers {
            let share = life.share(number);
            life.world.add_container(0, ContainerId(number), share);
            for _ in 0..life.world.random.between(0, PROCESSES_MAX) {
                life.start(ContainerId(number));
            }
        }
        life
    }

    /// A share whose request fits beside the others'.
    fn share(&mut self, number: u64) -> Share {
        let others = self.containers.min(4) as u32 - number as u32;
        let request_percent = self.world.random.between(10, u64::from(self.request_left / others)) as u32;
        self.request_left -= request_percent;
        let limit_percent = match self.world.random.between(0, 2) {
            0 => request_percent,
            1 => self.world.random.between(request_percent.into(), 100) as u32,
            _ => 100,
        };
        self.granted[number as usize] = request_percent;
        self.least_request[number as usize] = request_percent;
        self.greatest_limit[number as usize] = limit_percent;
        Share { request_percent, limit_percent, priority: *self.world.random.pick(&[-1, 0, 0, 0, 1]) }
    }

    fn start(&mut self, container: ContainerId) {
        let random = &mut self.world.random;
        let kernels_ns = (0..random.between(1, 3)).map(|_| *random.pick(&LENGTHS_NS)).collect();
        let burst = *random.pick(&[1, 3, 20, u64::MAX, u64::MAX]);
        let pause_ns = random.between(10 * US, 20 * MS);
        self.world.start(0, container, Program { kernels_ns, burst, pause_ns, varies: false });
    }

    fn disturb(&mut self) {
        let container = ContainerId(self.world.random.between(0, self.containers - 1));
        let own: Vec<usize> = (0..self.world.processes.len())
            .filter(|&number| {
                self.world.processes[number].as_ref().is_some_and(|process| process.container == container)
            })
            .collect();
        match self.world.random.between(0, 9) {
            0..=2 if (own.len() as u64) < PROCESSES_MAX => self.start(container),
            3..=5 if !own.is_empty() => {
                let dead = *self.world.random.pick(&own);
                self.world.kill(dead);
            }
            6..=7 => {
                let before = self.world.record(0, container).share.unwrap();
                let granted = self.granted[container.0 as usize];
                let request_percent = self.world.random.between(u64::from(granted / 2), granted.into()) as u32;
                let limit_percent = self.world.random.between(request_percent.into(), 100) as u32;
                let greatest = &mut self.greatest_limit[container.0 as usize];
                *greatest = limit_percent.max(*greatest);
                let least = &mut self.least_request[container.0 as usize];
                *least = request_percent.min(*least);
                self.world.resize(0, container, Share { request_percent, limit_percent, ..before });
            }
            8 if !own.is_empty() => {
                // As if a debugger had stopped it: it never wakes up again.
                let deaf = *self.world.random.pick(&own);
                self.world.processes[deaf].as_mut().unwrap().deaf = true;
            }
            9 => {
                self.disturbed += 1;
                self.world.restart_manager(0);
            }
            _ => {}
        }
    }

    fn check(&self, seed: u64) {
        for number in 0..self.containers {
            let container = ContainerId(number);
            let record = self.world.record(0, container);
            let share = record.share.unwrap();
            // What one lease can take beyond its plan: the work in flight of each process, and a poll or two.
            let lease_ns = PROCESSES_MAX * (LONGEST_NS + 2 * MS) + 2 * MS;
            let limit = u64::from(self.greatest_limit[number as usize]);

            let bound_ns = timing::BURST_NS.max(lease_ns / 2)
                + timing::HELD_OFF_MAX_NS.min(self.world.now_ns) * limit / 100
                + lease_ns
                + self.disturbed * (timing::BUDGET_OPEN_NS + lease_ns);
            assert!(
                record.excess_ns <= bound_ns as i64,
                "seed {seed}: {share:?} was exceeded by {} ns, the bound is {bound_ns} ns",
                record.excess_ns
            );

            // The leases of all others, then its own debt, paid off at its lowest rate.
            let rate = u64::from(self.least_request[number as usize]);
            let bound_ns = self.containers * (lease_ns + timing::QUANTUM_MAX_NS) + 2 * lease_ns * 100 / rate;
            let wait_ns = self.world.longest_wait_ns(0, container);
            assert!(wait_ns <= bound_ns, "seed {seed}: {share:?} waited for {wait_ns} ns, the bound is {bound_ns} ns");
        }
    }
}

#[test]
fn no_container_starves_or_exceeds_its_limit() {
    for seed in 0..RUNS {
        let mut life = Life::new(seed);
        while life.world.now_ns < RUN_NS {
            let until_ns = life.world.now_ns + life.world.random.between(MS, 60 * MS);
            life.world.run_until(until_ns);
            life.disturb();
        }
        life.check(seed);
    }
}

#[test]
fn no_container_exceeds_its_limit_in_the_long_run() {
    for seed in 0..15 {
        let mut life = Life::new(seed);
        life.world.run_until(4 * SECOND);
        for number in 0..life.containers {
            let record = life.world.record(0, ContainerId(number));
            let used = record.used_ns * 10_000 / life.world.now_ns;
            let limit = u64::from(record.share.unwrap().limit_percent) * 100;
            // Half a lease of two processes with the longest kernels is 0.8 % of four seconds.
            assert!(used <= limit + 180, "seed {seed}: {used} bp used of {limit}");
        }
    }
}

#[test]
fn the_charge_approximates_the_use() {
    for seed in 0..200 {
        let mut life = Life::new(seed);
        life.world.run_until(500 * MS);
        let mut total_ns = 0;
        for number in 0..life.containers {
            let container = ContainerId(number);
            let record = life.world.record(0, container);
            let (charged_ns, used_ns) = (life.world.charged_ns(0, container), record.used_ns - record.used_free_ns);
            total_ns += charged_ns;
            // The end of work is known to half a poll interval, and work after a burst's last marker is not seen.
            let unmarked_ns = life.world.usage(0, container).leases * MARKED_MAX_NS;
            let error_ns = used_ns / 8 + unmarked_ns + 4 * MS;
            assert!(charged_ns + error_ns >= used_ns, "seed {seed}: {charged_ns} charged for {used_ns}");
            // Pauses of a holder that are shorter than this count as used.
            let own = || life.world.processes.iter().flatten().filter(|process| process.container == container);
            if own().all(|process| process.program.pause_ns >= 2 * timing::TICK_NS) {
                assert!(charged_ns <= used_ns + error_ns, "seed {seed}: {charged_ns} charged for {used_ns}");
            }
        }
        assert!(total_ns <= life.world.now_ns, "seed {seed}: {total_ns} charged at {}", life.world.now_ns);
    }
}
