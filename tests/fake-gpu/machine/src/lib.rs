//! The simulated machine: what all processes that use the simulated GPU share.
//!
//! A *machine* is a state file that every process maps, and a lock file beside it. Each process that uses CUDA holds
//! one
//! *record* in the state (a [`Member`]), and with it a POSIX record lock on one byte of the lock file. The kernel gives
//! that lock back when the process ends, however it ends, and tells anyone who asks the owner's process id in the
//! asker's own namespace: so the lock is at once the proof of life and the source of host process ids.
//!
//! Nothing that a process holds can outlive it: memory in use is the sum over the records of live processes, never a
//! counter that someone would have to correct; the locks in the state name their owner and are taken over when it is
//! dead.
//!
//! # Device time
//!
//! One process at a time runs on a device. Processes with pending work take turns of one timeslice, first come first
//! served, and a change of process costs a context switch. Times are instants of `CLOCK_MONOTONIC` on the device's
//! *timeline*: a turn begins where the one before ended, even if the thread that carries it out is scheduled late, so that
//! shares of device time are exact on a noisy machine. See [`Member::take_turn`].
//!
//! # How long a kernel takes
//!
//! [`kernel_duration_ns`]: a kernel whose name begins with `spin_ns` takes as many nanoseconds as its first parameter, a
//! `u64`, says. Any other kernel takes 2 µs and 10 µs more for each wave of blocks, where a wave is as many blocks as fit on
//! the device at once: on each SM `min(32, 2048 / threads per block)`, at least one. Copies take their bytes at 25 GB/s
//! between host and device and at 1 TB/s within a device ([`copy_duration_ns`]).

mod bell;
mod clock;
mod config;
mod duration;
mod error;
mod faults;
mod history;
mod layout;
mod liveness;
mod lock;
mod machine;
mod mapping;
mod member;
mod partition;
mod turns;

pub use bell::Bell;
pub use clock::{now_ns, sleep_until_ns};
pub use config::{CONFIG_VARIABLE, Config, DeviceConfig, Mode, ProcAddress};
pub use duration::{CopyPath, copy_duration_ns, is_spin_kernel, kernel_duration_ns};
pub use error::MachineError;
pub use faults::CriticalErrors;
pub use layout::{DEVICES_MAX, PROCESSES_MAX};
pub use machine::{DeviceUse, Machine, ProcessUse};
pub use member::Member;
pub use partition::{InstanceError, MigProfile, Partition};
pub use turns::Turn;
