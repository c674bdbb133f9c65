//! What a container sees of a device: its slice.
//!
//! The library that is asked answers first: what it refuses is refused the same, and then nothing is replaced. What a
//! view shows comes from the region alone, so that all views agree, and a process that has never used CUDA sees the
//! same as others.
//!
//! Nothing here is on anybody's fast path: it is written to be small.

mod accounting;
mod memory;
mod processes;
mod utilisation;

pub(crate) use accounting::{accounting, accounting_list, accounting_mode};
pub(crate) use memory::{attributes, bar1_memory_info, mem_info, memory_info, memory_info_v2, total_mem};
pub(crate) use processes::{compute_processes, no_processes, process_details};
pub(crate) use utilisation::{dynamic_pstates, process_utilization, processes_utilization, samples, utilization_rates};

use crate::hooks::real;
use crate::region::{Region, Unattached};
use aliquot_abi::cuda::c_char;
use aliquot_abi::nvml::{nvmlDevice_t, nvmlReturn_t};
use aliquot_abi::region::{Account, DeviceLimits, FLAG_DISABLED, Ledger};
use core::sync::atomic::Ordering;

/// What the container may see of an NVML device.
enum Sight {
    /// All of it: the shim is passive, or NVML does not say which device the handle means and will refuse the call,
    /// too.
    Whole,
    /// Its part.
    Part(Share),
    /// Nothing: the slice has no part of it.
    Nothing,
}

/// The slice's part of an NVML device. The process may never have used CUDA: the region is enough.
struct Share {
    index: usize,
    limits: &'static DeviceLimits,
    account: &'static Account,
    /// Device time that the container used in the last second, in thousandths of the device's.
    used_permille: u64,
    ledger: &'static Ledger,
}

impl Sight {
    /// What is seen of `device`. The handle is asked for its UUID each time, which NVML knows without asking the
    /// device: so a handle that means another device after NVML was started again, or loaded again, is never taken for
    /// the old one.
    #[cold]
    #[inline(never)]
    fn of(device: nvmlDevice_t) -> Sight {
        let region = match Region::get() {
            Ok(region) => region,
            Err(Unattached::Free) => return Sight::Whole,
            Err(Unattached::Refused) => return Sight::Nothing,
        };
        if region.limits.flags.load(Ordering::Relaxed) & FLAG_DISABLED != 0 {
            return Sight::Whole;
        }
        let Some(uuid) = uuid_of(device) else { return Sight::Whole };
        Share::of(uuid, region).map_or(Sight::Nothing, Sight::Part)
    }
}

impl Share {
    fn of(uuid: [u8; 16], region: Region) -> Option<Share> {
        let count = region.limits.device_count.load(Ordering::Relaxed) as usize;
        let index = region.limits.devices.iter().take(count).position(|device| device.uuid == uuid)?;
        Some(Share {
            index,
            limits: region.limits.devices.get(index)?,
            account: region.ledger.devices.get(index)?,
            used_permille: region.limits.counters.get(index)?.used_permille.load(Ordering::Relaxed),
            ledger: region.ledger,
        })
    }
}

/// The UUID of the device that an NVML handle means.
fn uuid_of(device: nvmlDevice_t) -> Option<[u8; 16]> {
    let mut text = [0 as c_char; 96];
    let get = real!(nvmlDeviceGetUUID)?;
    // SAFETY: the buffer is as long as is said.
    let result = unsafe { get(device, text.as_mut_ptr(), text.len() as u32) };
    if result.is_ok() { parse_uuid(&text) } else { None }
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

/// Whether a question for the length of a list, with no room for it, was answered: the function is there, and the
/// device is one that it knows.
fn is_answered(result: nvmlReturn_t) -> bool {
    matches!(result, nvmlReturn_t::SUCCESS | nvmlReturn_t::INSUFFICIENT_SIZE)
}

/// A list that is written to the caller's array as far as that has room, and counted in full.
struct Listing<'a, T> {
    count: &'a mut u32,
    array: *mut T,
    room: u32,
}

impl<'a, T> Listing<'a, T> {
    /// A list in `array`, which has room for `*count` elements; `*count` becomes their number.
    ///
    /// # Safety
    /// `array` must be null or valid for so many elements.
    unsafe fn begin(count: &'a mut u32, array: *mut T) -> Listing<'a, T> {
        let room = if array.is_null() { 0 } else { *count };
        *count = 0;
        Listing { count, array, room }
    }

    fn push(&mut self, item: T) {
        if *self.count < self.room {
            // SAFETY: within the array, by the word of whoever began the list.
            unsafe { self.array.wrapping_add(*self.count as usize).write(item) };
        }
        *self.count += 1;
    }

    /// What NVML answers with the list.
    fn result(&self) -> nvmlReturn_t {
        if *self.count > self.room { nvmlReturn_t::INSUFFICIENT_SIZE } else { nvmlReturn_t::SUCCESS }
    }
}
