//! Faults of devices. A fault takes effect for all processes while they run.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;

use crate::Machine;
use crate::lock::{futex_wait, futex_wake};

/// The critical errors that the driver has reported for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CriticalErrors {
    /// Number of errors so far.
    pub count: u32,
    /// XID of the last error. The driver does not keep earlier ones.
    pub last_xid: u32,
}

impl Machine {
    /// Makes the driver report the critical error `xid` for device `device`, which keeps working. An error of a MIG
    /// instance does not affect the GPU's other instances.
    pub fn report_xid(&self, device: usize, xid: u32) {
        let errors = &self.state.devices[device].critical_errors;
        let add = |errors: u64| Some(((errors >> 32) + 1) << 32 | u64::from(xid));
        // Cannot fail: `add` always returns a value.
        let _ = errors.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.ring_fault_bell();
    }

    /// The errors reported for device `device` since the machine was made.
    #[must_use]
    pub fn critical_errors(&self, device: usize) -> CriticalErrors {
        let errors = self.state.devices[device].critical_errors.load(Ordering::Relaxed);
        CriticalErrors { count: (errors >> 32) as u32, last_xid: errors as u32 }
    }

    /// Makes device `device` stop answering, like a device that has fallen off the bus, or answer again. For a GPU this
    /// includes its instances.
    pub fn set_lost(&self, device: usize, is_lost: bool) {
        self.state.devices[device].is_lost.store(u32::from(is_lost), Ordering::Relaxed);
        self.ring_fault_bell();
    }

    /// Whether device `device` has stopped answering.
    #[must_use]
    #[inline]
    pub fn is_lost(&self, device: usize) -> bool {
        let is_lost = |device: usize| self.state.devices[device].is_lost.load(Ordering::Relaxed) != 0;
        is_lost(device) || self.config().devices[device].gpu.is_some_and(is_lost)
    }

    /// Makes the driver answer no question about the MIG mode and the instances of GPU `device`, or answer again. Other
    /// questions are answered.
    pub fn set_mig_silent(&self, device: usize, is_silent: bool) {
        self.state.devices[device].mig_is_silent.store(u32::from(is_silent), Ordering::Relaxed);
    }

    /// Whether the driver answers no question about the MIG mode and the instances of GPU `device`.
    #[must_use]
    pub fn is_mig_silent(&self, device: usize) -> bool {
        self.state.devices[device].mig_is_silent.load(Ordering::Relaxed) != 0
    }

    /// Sets the action that the driver requests for GPU `device` before new work is started on it. The number is NVML's
    /// (`nvmlDeviceGpuRecoveryAction_t`): 0 for none, 1 for a reset, 2 for a restart of the node.
    pub fn set_recovery_action(&self, device: usize, action: u32) {
        self.state.devices[device].recovery_action.store(action, Ordering::Relaxed);
    }

    /// The action that the driver requests for GPU `device`.
    #[must_use]
    pub fn recovery_action(&self, device: usize) -> u32 {
        self.state.devices[device].recovery_action.load(Ordering::Relaxed)
    }

    /// Calls `look` at once and after each change of a fault, until it returns a value or the timeout is over.
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
