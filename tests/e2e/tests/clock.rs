//! Time that is another one for the program than for the machine changes nothing about its limits.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use aliquot_abi::region::gate;
use aliquot_fake_machine::now_ns;
use aliquot_harness::{GIB, HostProgram, Process, Region, SimulatedGpu, tool};

const SECOND_NS: u64 = 1_000_000_000;
/// What a program may use of the device while its manager is silent.
const LIMIT_PERCENT: u32 = 10;
/// Between what a program uses that is held to its limit and what one uses that has the device to itself.
const BETWEEN_PERCENT: f64 = 50.0;

/// A region whose gate stands open for those who have heard of the manager lately.
fn region(gpu: &SimulatedGpu, heartbeat_ns: u64) -> Region {
    let region = Region::new(gpu, GIB);
    let limits = region.limits();
    limits.devices[0].core_limit_percent.store(LIMIT_PERCENT, Ordering::Relaxed);
    limits.devices[0].gate.store(gate::OPEN, Ordering::Relaxed);
    limits.heartbeat_ns.store(heartbeat_ns, Ordering::Relaxed);
    region
}

/// Percent of the device's time that `command`, which is always busy, gets.
fn share_percent(gpu: &SimulatedGpu, command: &mut Command) -> f64 {
    // The simulated devices of tests that run at once are simulated by the same processors.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut process = Process::start(command);
    process.wait_for("busy");
    let used_ns = || gpu.machine().device_use(0).busy_ns;
    // It may begin with a burst.
    thread::sleep(Duration::from_millis(500));
    let (before_ns, start_ns) = (used_ns(), now_ns());
    thread::sleep(Duration::from_secs(3));
    let share = (used_ns() - before_ns) as f64 * 100.0 / (now_ns() - start_ns) as f64;
    assert!(!process.has_ended(), "{}", process.errors());
    share
}

fn busy(gpu: &SimulatedGpu) -> Command {
    let mut command = HostProgram::linked(gpu, "busy").on(gpu);
    command.args(["500000", "0"]);
    command
}

/// `busy` where the monotonic clock is `seconds` ahead of the machine's.
fn busy_elsewhere(gpu: &SimulatedGpu, seconds: i64) -> Command {
    let mut command = Command::new(tool("unshare", "util-linux"));
    command.args(["--time", "--fork", &format!("--monotonic={seconds}")]);
    let busy = busy(gpu);
    command.arg(busy.get_program()).args(busy.get_args());
    gpu.show_to(&mut command);
    command
}

/// Whether the kernel has time namespaces (`CONFIG_TIME_NS`, Linux 5.6); without them no container can have another clock.
fn has_time_namespaces() -> bool {
    let has_them = Path::new("/proc/self/ns/time").exists();
    if !has_them {
        eprintln!("skipped: this kernel has no time namespaces, so no program's clock can differ from the machine's");
    }
    has_them
}

#[test]
fn a_program_for_which_time_stands_still_is_paced() {
    let gpu = SimulatedGpu::new();
    let stopped = HostProgram::library("stopped_clock");
    let region = region(&gpu, 1);
    let mut command = busy(&gpu);
    command.env("LD_PRELOAD", stopped.path());
    let share = share_percent(&gpu, region.preload_into(&mut command));
    assert!((1.0..BETWEEN_PERCENT).contains(&share), "{share:.2} % of the device with a limit of {LIMIT_PERCENT} %");
}

#[test]
fn a_container_whose_clock_is_ahead_hears_its_manager() {
    if !has_time_namespaces() {
        return;
    }
    let gpu = SimulatedGpu::new();
    let region = region(&gpu, now_ns() + 60 * SECOND_NS);
    let share = share_percent(&gpu, region.preload_into(&mut busy_elsewhere(&gpu, 100_000)));
    assert!(share > BETWEEN_PERCENT, "{share:.2} % of the device while the manager is there and the gate open");
}

#[test]
fn a_container_whose_clock_is_behind_notices_that_its_manager_is_gone() {
    if !has_time_namespaces() {
        return;
    }
    let gpu = SimulatedGpu::new();
    // The kernel lets no clock be before the start of the machine.
    let behind_ns = now_ns() / 2;
    let region = region(&gpu, now_ns() - behind_ns / 2);
    let behind_seconds = (behind_ns / SECOND_NS) as i64;
    let share = share_percent(&gpu, region.preload_into(&mut busy_elsewhere(&gpu, -behind_seconds)));
    assert!((1.0..BETWEEN_PERCENT).contains(&share), "{share:.2} % of the device with a limit of {LIMIT_PERCENT} %");
}
