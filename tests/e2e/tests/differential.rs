//! The same random traces with and without the shim: while no limit is reached, the driver's answers are identical.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, iter, thread};

use aliquot_abi::region::gate;
use aliquot_harness::{HostProgram, Region, SimulatedGpu, run};

/// The environment variable for the number of traces, for longer runs.
const TRACES_VARIABLE: &str = "ALIQUOT_DIFFERENTIAL_TRACES";
const TRACES: u64 = 60;
/// The environment variable for the first trace's seed, to continue an earlier run or to repeat one trace.
const FIRST_VARIABLE: &str = "ALIQUOT_DIFFERENTIAL_FIRST";
/// The least number of calls in a trace.
const STEPS: u64 = 500;

/// Traces that run at the same time.
const THREADS: usize = 4;

const TWO_DEVICES: &str = "[[device]]\nnvlink = [1]\n[[device]]\nnvlink = [0]\n";

fn number(variable: &str, otherwise: u64) -> u64 {
    let Some(text) = env::var_os(variable) else { return otherwise };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{variable} is {text:?}, which is no number"))
}

/// Runs the trace of a seed twice, and returns how many of its calls succeeded.
fn successes(program: &HostProgram, seed: u64) -> usize {
    // Each run has a machine of its own, so that nothing is left over from the one before.
    let trace = |in_slice: bool| {
        let gpu = if seed.is_multiple_of(3) { SimulatedGpu::with(TWO_DEVICES) } else { SimulatedGpu::new() };
        let region = Region::unlimited(&gpu);
        let mut command = program.on(&gpu);
        command.args([seed.to_string(), STEPS.to_string()]);
        if in_slice {
            region.preload_into(&mut command);
        }
        if seed.is_multiple_of(2) {
            // As on a shared device: launches are counted and marked.
            let devices = region.limits().devices.iter();
            devices.for_each(|device| device.gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst));
        }
        let outcome = run(&mut command).success();
        let devices = region.ledger().slots.iter().map(|slot| &slot.devices[0]);
        (outcome, devices.map(|device| device.marker_submitted.load(Ordering::Relaxed)).max())
    };
    let ((bare, _), (in_slice, markers)) = (trace(false), trace(true));
    assert_eq!(markers > Some(0), seed.is_multiple_of(2), "seed {seed}: {markers:?} markers");
    let lines = || bare.stdout.lines().zip(in_slice.stdout.lines());
    if let Some((bare, in_slice)) = lines().find(|(bare, in_slice)| bare != in_slice) {
        panic!("seed {seed}:\nbare:     {bare}\nin slice: {in_slice}");
    }
    bare.assert_same(&in_slice);
    bare.stdout.matches("=0").count()
}

#[test]
fn random_traces_get_the_same_answers_with_the_shim_and_without() {
    let program = HostProgram::linked(&SimulatedGpu::new(), "differential");
    let first = number(FIRST_VARIABLE, 1);
    let seeds = first..first + number(TRACES_VARIABLE, TRACES);
    let next = AtomicU64::new(seeds.start);
    // Most of a trace's time is spent by the simulated device, so several run at once.
    let made = thread::scope(|scope| {
        let make = || {
            let numbers = iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            numbers.take_while(|seed| seeds.contains(seed)).map(|seed| successes(&program, seed)).sum::<usize>()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert!(made > 0, "no call did what was asked");
}
