//! Devices that go bad: whoever makes one ill makes it ill for all processes, while they run.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use crate::Machine;
use crate::lock::{futex_wait, futex_wake};

/// The critical errors that the driver has reported of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CriticalErrors {
    /// How many.
    pub count: u32,
    /// The last one's XID. The driver does not remember those before it.
    pub last_xid: u32,
}

impl Machine {
    /// Has the driver report the critical error `xid` of device `device`, which goes on working. What is reported of an
    /// instance whose GPU is there is no error of the other instances.
    pub fn report_xid(&self, device: usize, xid: u32) {
        let errors = &self.state.devices[device].critical_errors;
        let add = |errors: u64| Some(((errors >> 32) + 1) << 32 | u64::from(xid));
        // It always has a value to store.
        let _ = errors.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.ring_fault_bell();
    }

    /// What was reported of device `device` since the machine was made.
    #[must_use]
    pub fn critical_errors(&self, device: usize) -> CriticalErrors {
        let errors = self.state.devices[device].critical_errors.load(Ordering::Relaxed);
        CriticalErrors { count: (errors >> 32) as u32, last_xid: errors as u32 }
    }

    /// Has device `device` answer nobody any more, as one that has fallen off the bus, or answer again. A GPU takes its
    /// instances along.
    pub fn set_lost(&self, device: usize, is_lost: bool) {
        self.state.devices[device].is_lost.store(u32::from(is_lost), Ordering::Relaxed);
        self.ring_fault_bell();
    }

    /// Whether device `device` answers nobody.
    #[must_use]
    #[inline]
    pub fn is_lost(&self, device: usize) -> bool {
        let is_lost = |device: usize| self.state.devices[device].is_lost.load(Ordering::Relaxed) != 0;
        is_lost(device) || self.config().devices[device].gpu.is_some_and(is_lost)
    }

    /// Has the driver want this done with GPU `device` before anything new is started on it, in NVML's numbers
    /// (`nvmlDeviceGpuRecoveryAction_t`): 0 is nothing, 1 a reset, 2 a restart of the node.
    pub fn set_recovery_action(&self, device: usize, action: u32) {
        self.state.devices[device].recovery_action.store(action, Ordering::Relaxed);
    }

    /// What the driver wants done with GPU `device`.
    #[must_use]
    pub fn recovery_action(&self, device: usize) -> u32 {
        self.state.devices[device].recovery_action.load(Ordering::Relaxed)
    }

    /// Looks whenever a device may have gone bad or well, until `look` finds something or the time has run out.
    pub fn wait_for_fault<T>(&self, timeout: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let began = Instant::now();
        loop {
            let bell = self.state.fault_bell.load(Ordering::Acquire);
            if let Some(found) = look() {
                return Some(found);
            }
            let left = timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero())?;
            futex_wait(&self.state.fault_bell, bell, left);
        }
    }

    fn ring_fault_bell(&self) {
        self.state.fault_bell.fetch_add(1, Ordering::Release);
        futex_wake(&self.state.fault_bell, i32::MAX);
    }
}
