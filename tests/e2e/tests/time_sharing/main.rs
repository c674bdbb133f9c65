//! Device time is shared as requested, measured by the simulated device itself.

mod bystanders;
mod debt;
mod devices;
mod endings;
mod gate;
mod holders;
mod idle;
mod latency;
mod launchers;
mod requests;
mod resize;
mod undisturbed;

use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_harness::{GIB, HostProgram, Process, SimulatedGpu, Slice};
use aliquot_proto::node::v1::Part;
use rustix::process::Signal;

/// Each test that judges shares holds this lock, so that tests do not compete for the processors.
fn alone_on_the_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part with a guaranteed share, and a limit up to which it may use time that others leave.
fn part(core_request_percent: u32, core_limit_percent: u32) -> Part {
    Part { core_request_percent, core_limit_percent, memory_limit_bytes: 8 * GIB, ..Part::default() }
}

/// Starts a program in `slice` with these arguments, and waits until it reports that it is busy.
fn at_work(gpu: &SimulatedGpu, slice: &Slice, program: &str, arguments: &[&str]) -> Process {
    let mut command = HostProgram::linked(gpu, program).on(gpu);
    let mut process = Process::start(slice.preload_into(command.args(arguments)));
    process.wait_for("busy\n");
    process
}

/// Starts a program in `slice` that keeps the device busy with kernels of `kernel_ns` nanoseconds.
fn busy(gpu: &SimulatedGpu, slice: &Slice, kernel_ns: u64) -> Process {
    at_work(gpu, slice, "busy", &[&kernel_ns.to_string(), "0"])
}

/// Starts the program `load` in `slice` with these arguments. It launches nothing before [`go`].
fn ready(gpu: &SimulatedGpu, slice: &Slice, arguments: &[&str]) -> Process {
    let mut command = HostProgram::linked(gpu, "load").on(gpu);
    let mut process = Process::start(slice.preload_into(command.args(arguments)));
    process.wait_for("ready\n");
    process
}

/// Lets a program that is [`ready`] begin.
fn go(process: &Process) {
    process.signal(Signal::USR1);
}
