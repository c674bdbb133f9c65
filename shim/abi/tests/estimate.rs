//! How much work the shim lets be in flight, by its estimate of how long launches take, with a simulated device that
//! runs one launch after the other.
//!
//! The shim itself takes the driver's place in its process, so only its purely arithmetic parts can be tested here.

#![cfg(not(loom))]
#![allow(dead_code, reason = "the shim uses what is not used here")]

#[path = "../../src/markers/estimate.rs"]
mod estimate;
#[path = "../../src/markers/launches.rs"]
mod launches;

use std::collections::VecDeque;

use estimate::Estimates;
use launches::Launches;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const ROOM_NS: u64 = 4 * MS;
/// A waiting launch looks again after this time at the latest.
const SLEEP_NS_MAX: u64 = 200 * US;

/// A launch with a marker behind it.
struct Launch {
    is_graph: bool,
    end_ns: u64,
}

/// A program that launches without a pause, and looks for finished work before each launch, as the shim does.
struct Program {
    estimates: Estimates,
    now_ns: u64,
    in_flight: VecDeque<Launch>,
    /// When the device will have finished all launches.
    end_ns: u64,
    done_ns: u64,
    looked_ns: u64,
    undone_ns: u64,
    busy_ns: u64,
}

impl Program {
    fn new() -> Program {
        Program {
            // SAFETY: estimates are atomics of integers: all bytes zero are valid ones.
            estimates: unsafe { std::mem::zeroed() },
            now_ns: MS,
            in_flight: VecDeque::new(),
            end_ns: MS,
            done_ns: MS,
            looked_ns: MS,
            undone_ns: MS,
            busy_ns: 0,
        }
    }

    fn launches(&self) -> Launches {
        self.in_flight.iter().fold(Launches::new(0, 0), |sum, launch| sum + Launches::one(launch.is_graph))
    }

    fn look(&mut self) {
        let done = self.in_flight.iter().take_while(|launch| launch.end_ns <= self.now_ns).count();
        if done > 0 {
            let seen = self.in_flight.drain(..done);
            let launches = seen.fold(Launches::new(0, 0), |sum, launch| sum + Launches::one(launch.is_graph));
            let (least_ns, most_ns) = (self.looked_ns.saturating_sub(self.done_ns), self.now_ns - self.undone_ns);
            self.estimates.learn(launches, least_ns, most_ns);
            self.done_ns = self.now_ns;
            self.undone_ns = self.looked_ns;
        }
        if !self.in_flight.is_empty() {
            self.looked_ns = self.now_ns;
        }
    }

    /// Launches work of length `length_ns` when there is room. Returns how much work, in nanoseconds, was in flight
    /// then.
    fn launch(&mut self, is_graph: bool, length_ns: u64) -> u64 {
        loop {
            self.look();
            if self.in_flight.is_empty() {
                (self.done_ns, self.undone_ns) = (self.now_ns, self.now_ns);
                self.looked_ns = self.now_ns;
                break;
            }
            let wait_ns = self.estimates.wait_for_room_ns(self.launches(), self.now_ns - self.done_ns, ROOM_NS);
            if wait_ns == 0 {
                break;
            }
            self.now_ns += wait_ns.clamp(20 * US, SLEEP_NS_MAX);
        }
        let before_ns = self.end_ns.saturating_sub(self.now_ns);
        self.end_ns = self.end_ns.max(self.now_ns) + length_ns;
        self.busy_ns += length_ns;
        self.in_flight.push_back(Launch { is_graph, end_ns: self.end_ns });
        // The time that the call takes.
        self.now_ns += 5 * US;
        before_ns
    }
}

/// Pseudo-random numbers, the same in each run.
fn random(seed: u64) -> impl Iterator<Item = u64> {
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(seed), next).skip(1).map(|state| state >> 33)
}

#[test]
fn work_of_one_length_stays_within_the_bound_and_keeps_the_device_busy() {
    for length_ns in [50 * US, 300 * US, MS, 20 * MS, 60 * MS] {
        let mut program = Program::new();
        let most_ns = (0..2_000).map(|_| program.launch(false, length_ns)).skip(20).max().unwrap();
        assert!(most_ns <= ROOM_NS + length_ns / 2 + SLEEP_NS_MAX, "{length_ns}: {most_ns}");
        let lasted_ns = program.end_ns - MS;
        assert!(program.busy_ns * 100 >= lasted_ns * 98, "{length_ns}: busy {} of {lasted_ns}", program.busy_ns);
    }
}

#[test]
fn rare_long_kernels_among_short_ones_stay_near_the_bound() {
    const LONG_NS: u64 = 60 * MS;
    for rarity in [8, 30, 100] {
        let mut program = Program::new();
        let lengths = random(rarity).map(|number| if number.is_multiple_of(rarity) { LONG_NS } else { 50 * US });
        let mut before_ns: Vec<u64> = lengths.take(5_000).map(|length_ns| program.launch(false, length_ns)).collect();
        before_ns.sort_unstable();
        let (most_ns, often_ns) = (before_ns[before_ns.len() - 1], before_ns[before_ns.len() * 95 / 100]);
        let busy_percent = program.busy_ns * 100 / (program.end_ns - MS);
        let found =
            format!("one of {rarity}: {often_ns} ns, {most_ns} ns at most, the device busy for {busy_percent} %");
        // One long kernel may have just begun. It is not known which of the others in flight are long; several at once
        // are rare.
        assert!(often_ns <= ROOM_NS + LONG_NS && most_ns <= ROOM_NS + 5 * LONG_NS, "{found}");
        assert!(busy_percent >= 95, "{found}");
    }
}

/// The time of a marker is known only to within the time between two looks.
#[test]
fn late_looks_do_not_have_short_graphs_marked_often() {
    const GRAPH_NS: u64 = 30 * US;
    let estimates = Program::new().estimates;
    let (mut marked, mut markers, mut graphs) = (1, 0, 0);
    for late_ns in random(1).map(|number| number % (150 * US)).take(1_000) {
        let took_ns = marked * GRAPH_NS + late_ns;
        estimates.learn(Launches::new(0, marked as u32), took_ns, took_ns);
        (markers, graphs) = (markers + 1, graphs + marked);
        marked = estimates.graphs_in(MS);
    }
    assert!(graphs >= 24 * markers, "{graphs} graphs for {markers} markers");
    // A graph of another length may be the next one, too.
    estimates.learn(Launches::new(0, 1), 5 * MS, 5 * MS);
    assert_eq!(estimates.graphs_in(MS), 1);
}

#[test]
fn graphs_do_not_distort_the_estimate_of_kernels() {
    let mut program = Program::new();
    for _ in 0..100 {
        let _ = program.launch(false, 50 * US);
    }
    let before_ns = program.estimates.kernel_ns();
    for _ in 0..50 {
        program.launch(true, 30 * MS);
        program.launch(false, 50 * US);
    }
    let after_ns = program.estimates.kernel_ns();
    assert!(after_ns <= 2 * before_ns, "{before_ns} ns, and {after_ns} ns among graphs");
    for _ in 0..100 {
        let _ = program.launch(false, 50 * US);
    }
    let most_ns = program.launch(false, 50 * US);
    assert!(most_ns >= ROOM_NS / 4, "hardly anything is in flight: {most_ns} ns");
}
