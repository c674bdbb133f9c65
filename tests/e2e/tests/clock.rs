//! Limits hold in a program whose clock differs from the machine's.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use aliquot_abi::region::gate;
use aliquot_fake_machine::now_ns;
use aliquot_harness::debian::{self, Packages};
use aliquot_harness::{GIB, HostProgram, Process, Region, Shares, SimulatedGpu, run, tool, wait};

const SECOND_NS: u64 = 1_000_000_000;
/// The share of the device that a program may use while its manager is silent.
const LIMIT_PERCENT: u32 = 10;

/// A region whose gate is open for processes to which the heartbeat is recent.
fn region(gpu: &SimulatedGpu, heartbeat_ns: u64) -> Region {
    let region = Region::new(gpu, GIB);
    let limits = region.limits();
    limits.devices[0].core_limit_percent.store(LIMIT_PERCENT, Ordering::Relaxed);
    limits.devices[0].gate.store(gate::OPEN, Ordering::Relaxed);
    limits.heartbeat_ns.store(heartbeat_ns, Ordering::Relaxed);
    region
}

/// Runs `command`, which is always busy, and fails the test unless it uses `percent` of the device's time.
#[track_caller]
fn assert_uses(gpu: &SimulatedGpu, command: &mut Command, percent: RangeInclusive<u32>) {
    // Tests that run at once would share the processors that simulate their devices.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut process = Process::start(command);
    process.wait_for("busy");
    // The program may be a child of the command.
    let used = || gpu.machine().device_use(0).processes;
    let pids = wait::until("it uses the device", || Some([used().first()?.pid]));
    Shares::of(gpu).between(percent, &pids).assert_kept();
    assert!(!process.has_ended(), "{}", process.errors());
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

/// Whether the kernel has time namespaces (`CONFIG_TIME_NS`, Linux 5.6); without them no container can have another
/// clock.
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
    assert_uses(&gpu, region.preload_into(&mut command), 4..=LIMIT_PERCENT);
}

#[test]
fn a_container_whose_clock_is_ahead_hears_its_manager() {
    if !has_time_namespaces() {
        return;
    }
    let gpu = SimulatedGpu::new();
    // The heartbeat lies in the future, by less than the container's clock is ahead and by more than this test takes.
    let region = region(&gpu, now_ns() + 10_000 * SECOND_NS);
    assert_uses(&gpu, region.preload_into(&mut busy_elsewhere(&gpu, 100_000)), 90..=100);
}

#[test]
fn a_container_whose_clock_is_behind_notices_that_its_manager_is_gone() {
    if !has_time_namespaces() {
        return;
    }
    let gpu = SimulatedGpu::new();
    // The kernel allows no clock before the machine's boot.
    let behind_ns = now_ns() / 2;
    let region = region(&gpu, now_ns() - behind_ns / 2);
    let behind_seconds = (behind_ns / SECOND_NS) as i64;
    assert_uses(&gpu, region.preload_into(&mut busy_elsewhere(&gpu, -behind_seconds)), 4..=LIMIT_PERCENT);
}

/// With libfaketime as Debian packages it: the clock is years off, too fast, or too slow.
#[test]
fn a_program_under_libfaketime_comes_to_its_end() {
    let unpacked =
        debian::unpacked(&Packages { suite: &debian::own_suite(), components: "main", names: &["libfaketime"] });
    let libraries = unpacked.join("usr/lib/x86_64-linux-gnu/faketime");
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "busy_briefly");
    for library in ["libfaketime.so.1", "libfaketimeMT.so.1"] {
        for time in ["+0", "2001-02-03 04:05:06", "+10y x100", "-10y x0.01"] {
            // A region whose manager is gone, and one whose manager seems alive.
            for heartbeat_ns in [1, now_ns() + 10_000 * SECOND_NS] {
                let region = region(&gpu, heartbeat_ns);
                let shim = region.shim().display().to_string();
                let faketime = libraries.join(library).display().to_string();
                for order in [[&shim, &faketime], [&faketime, &shim]] {
                    let mut command = program.on(&gpu);
                    command.env("LD_PRELOAD", format!("{}:{}", order[0], order[1])).env("FAKETIME", time);
                    let _ = run(&mut command).success();
                }
            }
        }
    }
}
