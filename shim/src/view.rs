//! What a container sees of a device: its slice.

use crate::hooks::{real, types};
use crate::memory::{Payer, Size};
use crate::process::Part;
use crate::region::Region;
use aliquot_abi::cuda::{CUdevice, CUresult, NullStream, c_char};
use aliquot_abi::ledger;
use aliquot_abi::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};
use aliquot_abi::region::{Account, DeviceLimits, FLAG_DISABLED};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A device's memory as the slice has it.
struct Memory {
    limit_bytes: u64,
    used_bytes: u64,
}

impl Memory {
    fn of(limits: &DeviceLimits, account: &Account) -> Memory {
        let overhead = limits.memory_overhead_bytes.load(Ordering::Relaxed);
        Memory {
            limit_bytes: limits.memory_limit_bytes.load(Ordering::Relaxed),
            used_bytes: ledger::used_bytes(account).saturating_add(overhead),
        }
    }

    fn of_part(part: &Part) -> Option<Memory> {
        if part.process.is_disabled() {
            return None;
        }
        Some(Memory::of(part.limits, part.books()?.0))
    }

    /// The total to show where the device says `total`.
    fn total(&self, total: u64) -> u64 {
        self.limit_bytes.min(total)
    }

    /// The free bytes to show where the device says `free`: never more than there really are.
    fn free(&self, free: u64) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes).min(free)
    }
}

/// A size that can be written back.
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

/// Replaces `*value`, if it is there.
///
/// # Safety
/// `value` must be null or what a successful driver call has written to.
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
    if let Payer::Part(part) = Payer::current()
        && let Some(memory) = Memory::of_part(&part)
    {
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
    if let Payer::Part(part) = Payer::of(device)
        && let Some(memory) = Memory::of_part(&part)
    {
        // SAFETY: the call has succeeded.
        unsafe { update(bytes, |total| memory.total(total)) };
    }
    result
}

/// `nvmlDeviceGetMemoryInfo`.
pub(crate) unsafe fn memory_info(
    real: types::nvmlDeviceGetMemoryInfo,
    device: nvmlDevice_t,
    info: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call; a success says that the pointer was valid.
    let (result, info) = unsafe { (real(device, info), info.as_mut()) };
    if let (true, Some(info), Some(memory)) = (result.is_ok(), info, nvml_memory(device)) {
        info.free = memory.free(info.free);
        info.total = memory.total(info.total);
        info.used = info.total.saturating_sub(info.free);
    }
    result
}

/// `nvmlDeviceGetMemoryInfo_v2`.
pub(crate) unsafe fn memory_info_v2(
    real: types::nvmlDeviceGetMemoryInfo_v2,
    device: nvmlDevice_t,
    info: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call; a success says that the pointer was valid.
    let (result, info) = unsafe { (real(device, info), info.as_mut()) };
    if let (true, Some(info), Some(memory)) = (result.is_ok(), info, nvml_memory(device)) {
        info.free = memory.free(info.free);
        info.total = memory.total(info.total);
        // What the driver keeps for itself is not the slice's.
        info.reserved = 0;
        info.used = info.total.saturating_sub(info.free);
    }
    result
}

/// The memory of the slice's part of an NVML device. The process may never have used CUDA: the region is enough.
fn nvml_memory(device: nvmlDevice_t) -> Option<Memory> {
    let region = Region::get()?;
    if region.limits.flags.load(Ordering::Relaxed) & FLAG_DISABLED != 0 {
        return None;
    }
    let index = part_of(device, region)?;
    Some(Memory::of(region.limits.devices.get(index)?, region.ledger.devices.get(index)?))
}

/// NVML handles whose part is known: a handle stays the same device's for as long as NVML is loaded.
static KNOWN: [(AtomicUsize, AtomicU64); 32] = [const { (AtomicUsize::new(0), AtomicU64::new(0)) }; 32];

/// The index of the part that `device` is.
fn part_of(device: nvmlDevice_t, region: Region) -> Option<usize> {
    let handle = device.0.addr();
    for (known, part) in &KNOWN {
        if known.load(Ordering::Acquire) == handle {
            return (part.load(Ordering::Relaxed) as usize).checked_sub(1);
        }
    }
    let mut text = [0 as c_char; 96];
    let get = real!(nvmlDeviceGetUUID)?;
    // SAFETY: the buffer is as long as is said.
    if !unsafe { get(device, text.as_mut_ptr(), text.len() as u32) }.is_ok() {
        return None;
    }
    let uuid = parse_uuid(&text)?;
    let count = region.limits.device_count.load(Ordering::Relaxed) as usize;
    let index = region.limits.devices.iter().take(count).position(|device| device.uuid == uuid);
    // A thread that comes second finds the place taken and uses the next; a full table only costs time.
    for (known, part) in &KNOWN {
        if known.load(Ordering::Relaxed) == 0 {
            part.store(index.map_or(0, |index| index as u64 + 1), Ordering::Relaxed);
            if known.compare_exchange(0, handle, Ordering::Release, Ordering::Relaxed).is_ok() {
                break;
            }
        }
    }
    index
}

/// The sixteen bytes of `GPU-xxxxxxxx-…` or `MIG-xxxxxxxx-…`.
fn parse_uuid(text: &[c_char]) -> Option<[u8; 16]> {
    let digits = text.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).skip(4);
    let mut digits = digits.filter(|&byte| byte != b'-').map(|byte| (byte as char).to_digit(16));
    let mut uuid = [0_u8; 16];
    for byte in &mut uuid {
        *byte = (digits.next()?? << 4 | digits.next()??) as u8;
    }
    Some(uuid)
}
