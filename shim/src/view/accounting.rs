//! Accounting: NVML's record of processes that have ended. It does not distinguish containers, so a container sees it
//! switched off.

use super::Sight;
use crate::hooks::types;
use aliquot_abi::nvml::{c_uint, nvmlDevice_t, nvmlReturn_t};

/// `nvmlDeviceGetAccountingMode`.
pub(crate) unsafe fn accounting_mode(
    real: types::nvmlDeviceGetAccountingMode,
    device: nvmlDevice_t,
    mode: *mut c_uint,
) -> nvmlReturn_t {
    const DISABLED: c_uint = 0;
    // SAFETY: the host's call.
    let result = unsafe { real(device, mode) };
    if result.is_ok() && !matches!(Sight::of(device), Sight::Whole) {
        // SAFETY: the call has succeeded, so the pointer is valid.
        unsafe { *mode = DISABLED };
    }
    result
}

/// The answer of NVML while accounting is switched off.
fn switched_off(device: nvmlDevice_t, call: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    if let Sight::Whole = Sight::of(device) { call() } else { nvmlReturn_t::NOT_SUPPORTED }
}

/// `nvmlDeviceGetAccountingBufferSize`, `nvmlDeviceGetAccountingStats_v2`.
pub(crate) unsafe fn accounting<T>(
    real: unsafe extern "C" fn(nvmlDevice_t, *mut T) -> nvmlReturn_t,
    device: nvmlDevice_t,
    answer: *mut T,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    switched_off(device, || unsafe { real(device, answer) })
}

/// `nvmlDeviceGetAccountingPids`, `nvmlDeviceGetAccountingStats`.
pub(crate) unsafe fn accounting_list<C, T>(
    real: unsafe extern "C" fn(nvmlDevice_t, C, *mut T) -> nvmlReturn_t,
    device: nvmlDevice_t,
    which: C,
    answer: *mut T,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    switched_off(device, || unsafe { real(device, which, answer) })
}
