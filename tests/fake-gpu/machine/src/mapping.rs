//! Prepares the state file and maps it until the process ends.

use core::sync::atomic::Ordering;
use std::io;
use std::os::fd::AsRawFd;

use crate::layout::{MAGIC, PROCESSES_MAX, State, VERSION};
use crate::liveness::{LifeLocks, WholeFileLock, open_for_all};
use crate::{Config, MachineError};

/// Maps the state of the machine that `config` describes. Creates it if there is none.
///
/// The state of a machine with other devices is replaced if no process uses it.
pub(crate) fn map_state(config: &Config, locks: &LifeLocks) -> Result<&'static State, MachineError> {
    let failed = |source| MachineError::State { path: config.state.clone(), source };
    let file = open_for_all(&config.state).map_err(failed)?;
    let _lock = WholeFileLock::take(&file).map_err(failed)?;
    let size = size_of::<State>();
    if file.metadata().map_err(failed)?.len() != size as u64 {
        if in_use(locks) {
            return Err(MachineError::OtherMachine { path: config.state.clone() });
        }
        file.set_len(0).and_then(|()| file.set_len(size as u64)).map_err(failed)?;
    }
    // SAFETY: a new shared mapping of an open file, of the file's size, at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: the mapping is page-aligned, as large as a `State`, never unmapped; every bit pattern is a valid `State`,
    // and all of its fields are atomics.
    let state = unsafe { &*address.cast::<State>() };
    let ready = state.magic.load(Ordering::Acquire) == MAGIC
        && state.version.load(Ordering::Relaxed) == VERSION
        && state.devices_digest.load(Ordering::Relaxed) == config.devices_digest();
    if !ready {
        if in_use(locks) {
            return Err(MachineError::OtherMachine { path: config.state.clone() });
        }
        // Truncation gives every mapping of the file zeroed pages.
        file.set_len(0).and_then(|()| file.set_len(size as u64)).map_err(failed)?;
        state.version.store(VERSION, Ordering::Relaxed);
        state.devices_digest.store(config.devices_digest(), Ordering::Relaxed);
        state.magic.store(MAGIC, Ordering::Release);
    }
    Ok(state)
}

fn in_use(locks: &LifeLocks) -> bool {
    (0..PROCESSES_MAX).any(|index| locks.holder(index).is_some())
}
