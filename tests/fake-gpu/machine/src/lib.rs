//! The simulated machine: the state that all processes on the simulated GPU share.
//!
//! A *machine* is a state file that every process maps, and a lock file beside it. Each process that uses CUDA holds
//! one *record* in the state (a [`Member`]), and with it a POSIX record lock on one byte of the lock file. The kernel
//! releases that lock when the process ends, however it ends. It also tells any process the lock owner's process id in
//! the asking process's own namespace. So the lock both proves that the owner is alive and gives its host process id.
//!
//! A process's resources cannot outlive it. Memory in use is the sum over the records of live processes, not a counter
//! that would need correction. The locks in the state name their owner, and are taken over when the owner is dead.
//!
//! # Device time
//!
//! One process at a time runs on a device. Processes with pending work take time slices, first come first
//! served, and a change of process costs a context switch. Times are instants of `CLOCK_MONOTONIC` on the device's
//! *timeline*: a time slice begins where the previous one ended, even if the thread that performs it is scheduled late. So
//! shares of device time are exact on a busy machine. See [`Member::take_time_slice`].
//!
//! # How long a kernel takes
//!
//! A kernel whose name begins with `spin_ns` takes the number of nanoseconds in its first parameter, a `u64`. Any other
//! kernel takes 2 µs + 10 µs × waves ([`kernel_duration_ns`]), where waves = ⌈blocks / (SMs × b)⌉ and b = min(32,
//! 2048 / threads per block), at least 1. Copies run at 25 GB/s between host and device and at 1 TB/s within a device
//! ([`copy_duration_ns`]).

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
mod time_slices;

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
pub use time_slices::TimeSlice;
