//! How much memory there is, and how much is free.
//!
//! Used bytes are those of the ledger and the overhead that the manager has found, as in the process lists and the
//! manager's own reports. A stream-ordered pool's figures (`cuMemPoolGetAttribute`) belong to the program itself and
//! need no view: a pool's reserve is charged, so it is within the slice already.

use super::{Share, Sight};
use crate::hooks::types;
use crate::memory::{Payer, Size};
use crate::process::Part;
use aliquot_abi::cuda::{CUdevice, CUresult, NullStream};
use aliquot_abi::ledger;
use aliquot_abi::nvml::{
    nvmlBAR1Memory_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t,
};
use aliquot_abi::region::{Account, DeviceLimits};
use core::sync::atomic::Ordering;

/// A device's memory, as the slice limits it.
struct Memory {
    limit_bytes: u64,
    used_bytes: u64,
}

impl Memory {
    /// For a device of which the slice has no part: its real size, and no free bytes.
    const NOTHING: Memory = Memory { limit_bytes: u64::MAX, used_bytes: u64::MAX };

    fn of(limits: &DeviceLimits, account: &Account) -> Memory {
        let overhead = limits.memory_overhead_bytes.load(Ordering::Relaxed);
        Memory {
            limit_bytes: limits.memory_limit_bytes.load(Ordering::Relaxed),
            used_bytes: ledger::used_bytes(account).saturating_add(overhead),
        }
    }

    /// The memory that the CUDA driver is to show; `None`: the real one.
    fn of_payer(payer: &Payer) -> Option<Memory> {
        match payer {
            Payer::Nobody | Payer::Host(_) => None,
            Payer::Part(part) => Memory::of_part(part),
            Payer::Stranger => Some(Memory::NOTHING),
        }
    }

    fn of_part(part: &Part) -> Option<Memory> {
        Some(Memory::of(part.limits, part.process.ledger().account(part.index)?))
    }

    /// The memory that NVML is to show; `None`: the real one.
    #[cold]
    #[inline(never)]
    fn of_device(device: nvmlDevice_t) -> Option<Memory> {
        match Sight::of(device) {
            Sight::Whole => None,
            Sight::Part(Share { limits, account, .. }) => Some(Memory::of(limits, account)),
            Sight::Nothing => Some(Memory::NOTHING),
        }
    }

    /// The total to show for a device with `total` bytes.
    fn total(&self, total: u64) -> u64 {
        self.limit_bytes.min(total)
    }

    /// The free bytes to show if the device has `free`: never more than there really are.
    fn free(&self, free: u64) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes).min(free)
    }

    /// The used bytes to show for a device with `total` bytes.
    fn used(&self, total: u64) -> u64 {
        self.used_bytes.min(self.total(total))
    }
}

/// A size that can be written back to the caller.
pub(crate) trait SizeOut: Size {
    fn from_bytes(bytes: u64) -> Self;
}

impl SizeOut for u32 {
    fn from_bytes(bytes: u64) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

impl SizeOut for usize {
    fn from_bytes(bytes: u64) -> usize {
        bytes as usize
    }
}

/// Replaces `*value` by the result of `change`, if the pointer is not null.
///
/// # Safety
/// `value` must be null, or a successful driver call must have written to it.
unsafe fn update<S: SizeOut>(value: *mut S, change: impl FnOnce(u64) -> u64) {
    // SAFETY: vouched for by the caller.
    if let Some(value) = unsafe { value.as_mut() } {
        *value = S::from_bytes(change(value.bytes()));
    }
}

/// `cuMemGetInfo`.
#[inline]
pub(crate) unsafe fn mem_info<S: SizeOut>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut S, *mut S) -> CUresult,
    free: *mut S,
    total: *mut S,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(free, total) };
    if !result.is_ok() {
        return result;
    }
    if let Some(memory) = Memory::of_payer(&Payer::of_thread()) {
        // SAFETY: the call has succeeded.
        unsafe {
            update(free, |free| memory.free(free));
            update(total, |total| memory.total(total));
        }
    }
    result
}

/// `cuDeviceTotalMem`.
pub(crate) unsafe fn total_mem<S: SizeOut>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut S, CUdevice) -> CUresult,
    bytes: *mut S,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(bytes, device) };
    if !result.is_ok() {
        return result;
    }
    if let Some(memory) = Memory::of_payer(&Payer::of(device)) {
        // SAFETY: the call has succeeded.
        unsafe { update(bytes, |total| memory.total(total)) };
    }
    result
}

/// `nvmlDeviceGetMemoryInfo`, and another function with the same structure.
pub(crate) unsafe fn memory_info(
    real: types::nvmlDeviceGetMemoryInfo,
    device: nvmlDevice_t,
    info: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, info) };
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid.
    if let (Some(info), Some(memory)) = (unsafe { info.as_mut() }, Memory::of_device(device)) {
        info.used = memory.used(info.total);
        info.free = memory.free(info.free);
        info.total = memory.total(info.total);
    }
    result
}

/// `nvmlDeviceGetMemoryInfo_v2`.
pub(crate) unsafe fn memory_info_v2(
    real: types::nvmlDeviceGetMemoryInfo_v2,
    device: nvmlDevice_t,
    info: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, info) };
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid, and NVML has checked the version of the structure.
    if let (Some(info), Some(memory)) = (unsafe { info.as_mut() }, Memory::of_device(device)) {
        info.used = memory.used(info.total);
        info.free = memory.free(info.free);
        info.total = memory.total(info.total);
        // Memory that the driver keeps for itself does not belong to the slice.
        info.reserved = 0;
    }
    result
}

/// `nvmlDeviceGetBAR1MemoryInfo`: the window through which the host reaches the device's memory, so it is shown no
/// larger than that memory. The driver does not tell how much of it each process has mapped. So nothing is shown as
/// used, neither by others nor by the container.
pub(crate) unsafe fn bar1_memory_info(
    real: types::nvmlDeviceGetBAR1MemoryInfo,
    device: nvmlDevice_t,
    info: *mut nvmlBAR1Memory_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, info) };
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid.
    if let (Some(info), Some(memory)) = (unsafe { info.as_mut() }, Memory::of_device(device)) {
        info.total = memory.total(info.total);
        info.free = info.total;
        info.used = 0;
    }
    result
}

/// `nvmlDeviceGetAttributes`, for MIG devices.
pub(crate) unsafe fn attributes(
    real: types::nvmlDeviceGetAttributes_v2,
    device: nvmlDevice_t,
    attributes: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, attributes) };
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid.
    if let (Some(attributes), Some(memory)) = (unsafe { attributes.as_mut() }, Memory::of_device(device)) {
        attributes.memory_size_mib = attributes.memory_size_mib.min(memory.limit_bytes >> 20);
    }
    result
}
