//! The simulated machine, as one process uses it.

use core::sync::atomic::{AtomicU32, Ordering};
use std::path::PathBuf;

use crate::clock::now_ns;
use crate::layout::{PROCESSES_MAX, Record, State};
use crate::liveness::{Identity, LifeLocks};
use crate::lock::Owner;
use crate::{Config, MachineError, Member};

/// An open machine. A process can read its state, and can [join](Machine::join) it to use its devices.
pub struct Machine {
    config: Config,
    pub(crate) state: &'static State,
    pub(crate) locks: LifeLocks,
    identity: Identity,
    /// The token of this process's record; 0 before it has one.
    pub(crate) own_token: AtomicU32,
}

/// One process's use of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessUse {
    /// The process's id in the calling process's namespace; 0 if it is not visible there.
    pub pid: u32,
    /// Bytes of device memory that NVML lists for the process.
    pub memory_bytes: u64,
    /// Device time used since the process started.
    pub busy_ns: u64,
    /// Contexts on the device.
    pub contexts: u32,
    /// Percent of the last second in which the process had the device.
    pub utilization_percent: u32,
}

/// The use of one device by all processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceUse {
    /// The processes with a context, memory or device time on the device.
    pub processes: Vec<ProcessUse>,
    /// Bytes of device memory in use.
    pub memory_bytes: u64,
    /// The most bytes of device memory that were ever in use.
    pub memory_peak_bytes: u64,
    /// Device time used since the machine was made, also by processes that have ended.
    pub busy_ns: u64,
    /// Percent of the last second in which any process had the device.
    pub utilization_percent: u32,
}

/// A token of 31 bits: the record's index in the lower 10, the owner's generation in the upper 21.
pub(crate) fn token(index: usize, generation: u32) -> u32 {
    const { assert!(PROCESSES_MAX <= 1024) };
    (generation & 0x1f_ffff) << 10 | index as u32
}

impl Machine {
    /// Opens the machine that `config` describes. Creates its state if there is none.
    ///
    /// # Errors
    /// If the state or lock file cannot be used, or belongs to a machine with other devices.
    pub fn open(config: Config) -> Result<Machine, MachineError> {
        let mut lock_path = config.state.clone().into_os_string();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let locks = LifeLocks::open(&lock_path).map_err(|source| MachineError::State { path: lock_path, source })?;
        let state = crate::mapping::map_state(&config, &locks)?;
        Ok(Machine { config, state, locks, identity: Identity::own(), own_token: AtomicU32::new(0) })
    }

    /// The configuration of this machine.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether device `device` is a GPU in MIG mode.
    #[must_use]
    pub fn is_in_mig_mode(&self, device: usize) -> bool {
        let is_off = &self.state.devices[device].mig_is_off;
        self.config.devices[device].has_mig_mode && is_off.load(Ordering::Relaxed) == 0
    }

    /// Switches the MIG mode of device `device` as an administrator does. The device must support MIG mode. Instances
    /// that were made are removed; instances of the configuration disappear or come back. Processes that have
    /// initialised CUDA keep seeing the same devices.
    pub fn set_mig_mode(&self, device: usize, is_on: bool) {
        self.forget_instances(device);
        self.state.devices[device].mig_is_off.store(u32::from(!is_on), Ordering::Relaxed);
    }

    /// Whether device `device` exists now. Not so for an instance of a GPU that is not in MIG mode, or an instance that
    /// has not been made.
    #[must_use]
    pub fn is_present(&self, device: usize) -> bool {
        let config = &self.config.devices[device];
        let is_made = config.partition.is_none() || self.has_compute_instance(device);
        is_made && config.gpu.is_none_or(|gpu| self.is_in_mig_mode(gpu))
    }

    /// Takes a record for this process, which keeps it until it ends.
    ///
    /// # Errors
    /// If every record is taken, or the lock file refuses locks.
    pub fn join(&'static self) -> Result<Member, MachineError> {
        let failed = |source| MachineError::State { path: self.config.state.clone(), source };
        let _registry = self.locks.registry().map_err(failed)?;
        for (index, record) in self.state.records.iter().enumerate() {
            let free = record.generation.load(Ordering::Acquire) == 0
                || (!self.is_record_alive(index) && self.is_torn_down(record));
            if !free {
                continue;
            }
            // First, so that what a dead owner held is at no time taken for the new one's: this process can be stopped
            // anywhere.
            record.generation.store(0, Ordering::SeqCst);
            record.clear();
            if !self.locks.take(index).map_err(failed)? {
                continue;
            }
            let generation = record.uses.fetch_add(1, Ordering::Relaxed) % 0x1f_ffff + 1;
            record.pid.store(self.identity.pid, Ordering::Relaxed);
            record.pid_namespace.store(self.identity.pid_namespace, Ordering::Relaxed);
            record.start_ticks.store(self.identity.start_ticks, Ordering::Relaxed);
            self.state.record_high_water.fetch_max(index as u32 + 1, Ordering::Relaxed);
            record.generation.store(generation, Ordering::Release);
            self.own_token.store(token(index, generation), Ordering::Relaxed);
            return Ok(Member::new(self, index));
        }
        Err(MachineError::Full)
    }

    /// The present use of device `device`.
    #[must_use]
    pub fn device_use(&self, device: usize) -> DeviceUse {
        if self.config.teardown_ns > 0 {
            self.reap();
        }
        let now = now_ns();
        let mut processes = Vec::new();
        let mut memory_bytes = 0;
        for (index, record) in self.records() {
            let generation = record.generation.load(Ordering::SeqCst);
            let share = &record.devices[device];
            let held_bytes = share.memory_bytes.load(Ordering::Relaxed);
            let process = ProcessUse {
                pid: 0,
                memory_bytes: held_bytes.saturating_sub(share.unlisted_bytes.load(Ordering::Relaxed)),
                busy_ns: share.busy_ns.load(Ordering::Relaxed),
                contexts: share.contexts.load(Ordering::Relaxed),
                utilization_percent: share.history.percent(&share.busy_ns, now),
            };
            if held_bytes == 0 && process.busy_ns == 0 && process.contexts == 0 {
                continue;
            }
            let pid = self.pid_of(index).or_else(|| self.pid_of_dead(record));
            // Meanwhile another process may have got the record.
            let is_same = generation != 0 && record.generation.load(Ordering::SeqCst) == generation;
            if let Some(pid) = pid.filter(|_| is_same) {
                memory_bytes += held_bytes;
                processes.push(ProcessUse { pid, ..process });
            }
        }
        let shared = &self.state.devices[device];
        DeviceUse {
            processes,
            memory_bytes,
            memory_peak_bytes: shared.memory_peak_bytes.load(Ordering::Relaxed),
            busy_ns: shared.busy_ns.load(Ordering::Relaxed),
            utilization_percent: shared.history.percent(&shared.busy_ns, now),
        }
    }

    /// The records with an owner, which may be dead.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, &'static Record)> + use<> {
        let high_water = self.state.record_high_water.load(Ordering::Relaxed) as usize;
        let records = self.state.records.iter().take(high_water).enumerate();
        records.filter(|(_, record)| record.generation.load(Ordering::Acquire) != 0)
    }

    /// The id of the live process that owns record `index`.
    pub(crate) fn pid_of(&self, index: usize) -> Option<u32> {
        if let Some(pid) = self.locks.holder(index) {
            return Some(pid);
        }
        // The kernel does not report a process's locks to itself.
        self.is_own(&self.state.records[index]).then_some(self.identity.pid)
    }

    pub(crate) fn is_record_alive(&self, index: usize) -> bool {
        self.pid_of(index).is_some()
    }

    /// Whether the record belongs to this process, also if another library in it has joined.
    fn is_own(&self, record: &Record) -> bool {
        record.generation.load(Ordering::Acquire) != 0
            && Identity {
                pid: record.pid.load(Ordering::Relaxed),
                pid_namespace: record.pid_namespace.load(Ordering::Relaxed),
                start_ticks: record.start_ticks.load(Ordering::Relaxed),
            } == self.identity
            && std::process::id() == self.identity.pid
    }

    /// Whether the driver has freed the memory of a record's dead owner. The teardown time starts with the first call.
    fn is_torn_down(&self, record: &Record) -> bool {
        let now = now_ns();
        let holds_memory = || record.devices.iter().any(|share| share.memory_bytes.load(Ordering::Relaxed) > 0);
        if self.config.teardown_ns == 0 || !holds_memory() {
            return true;
        }
        let noticed = record.died_at_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let died_at_ns = noticed.map_or_else(|before| before, |_| now);
        // A dead process waits for no time slice.
        record.devices.iter().for_each(|share| share.ticket.store(0, Ordering::Relaxed));
        now >= died_at_ns.saturating_add(self.config.teardown_ns)
    }

    /// The former process id of a dead process whose memory is still in use; 0 if it was in another pid namespace.
    fn pid_of_dead(&self, record: &Record) -> Option<u32> {
        let is_seen = record.pid_namespace.load(Ordering::Relaxed) == self.identity.pid_namespace;
        let is_dead = record.died_at_ns.load(Ordering::Relaxed) != 0;
        is_dead.then(|| if is_seen { record.pid.load(Ordering::Relaxed) } else { 0 })
    }

    /// Frees the records of dead processes, and with them their memory and time slices.
    pub(crate) fn reap(&self) {
        for (index, record) in self.records() {
            let generation = record.generation.load(Ordering::Acquire);
            if generation == 0 || self.is_record_alive(index) || !self.is_torn_down(record) {
                continue;
            }
            let Ok(_registry) = self.locks.registry() else { return };
            // The record may have got a new owner since the first check.
            if record.generation.load(Ordering::Acquire) == generation && !self.is_record_alive(index) {
                record.clear();
                record.generation.store(0, Ordering::Release);
            }
        }
    }
}

impl Owner for Machine {
    fn token(&self) -> u32 {
        self.own_token.load(Ordering::Relaxed)
    }

    fn is_alive(&self, owner: u32) -> bool {
        let (index, generation) = ((owner & 0x3ff) as usize, owner >> 10);
        self.state.records[index].generation.load(Ordering::Acquire) == generation && self.is_record_alive(index)
    }
}

impl Record {
    fn clear(&self) {
        self.died_at_ns.store(0, Ordering::Relaxed);
        for share in &self.devices {
            share.ticket.store(0, Ordering::Relaxed);
            share.memory_bytes.store(0, Ordering::Relaxed);
            share.unlisted_bytes.store(0, Ordering::Relaxed);
            share.busy_ns.store(0, Ordering::Relaxed);
            share.contexts.store(0, Ordering::Relaxed);
            share.history.clear();
        }
    }
}
