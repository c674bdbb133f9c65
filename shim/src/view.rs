//! The view that a container has of a device: its slice.
//!
//! The real library answers first. If it refuses, that is the answer and nothing is replaced. Views are computed from
//! the region alone. So all views agree, and a process that has never used CUDA sees the same as others.
//!
//! No hot path leads here: the code is written to be small.

mod accounting;
mod memory;
mod processes;
mod utilisation;

pub(crate) use accounting::{accounting, accounting_list, accounting_mode};
pub(crate) use memory::{attributes, bar1_memory_info, mem_info, memory_info, memory_info_v2, total_mem};
pub(crate) use processes::{compute_processes, compute_processes_v3, no_processes, process_details};
pub(crate) use utilisation::{dynamic_pstates, process_utilization, processes_utilization, samples, utilization_rates};

use crate::hooks::real;
use crate::region::{Region, Unattached};
use aliquot_abi::cuda::c_char;
use aliquot_abi::nvml::{nvmlDevice_t, nvmlReturn_t};
use aliquot_abi::region::{Account, DeviceLimits, Ledger};
use core::sync::atomic::Ordering;

/// The part of an NVML device that the container may see.
enum Sight {
    /// All of it: the shim is passive, or NVML does not tell which device the handle means and will refuse the call as
    /// well.
    Whole,
    /// The slice's part of it.
    Part(Share),
    /// Nothing: the slice has no part of the device.
    Nothing,
}

/// The slice's part of an NVML device. Needs only the region, as the process may never have used CUDA.
struct Share {
    index: usize,
    limits: &'static DeviceLimits,
    account: &'static Account,
    /// Device time that the container used in the last second, in thousandths of the device's time.
    used_permille: u64,
    ledger: &'static Ledger,
}

impl Sight {
    /// The part of `device` that the container may see. The UUID is queried each time; NVML knows it without access to
    /// the device. So a handle is never taken for an old one if it means another device since NVML was started or
    /// loaded again.
    #[cold]
    #[inline(never)]
    fn of(device: nvmlDevice_t) -> Sight {
        let region = match Region::get() {
            Ok(region) => region,
            Err(Unattached::Free) => return Sight::Whole,
            Err(Unattached::Refused) => return Sight::Nothing,
        };
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

/// The UUID of the device that the NVML handle means.
fn uuid_of(device: nvmlDevice_t) -> Option<[u8; 16]> {
    let mut text = [0 as c_char; 96];
    let get = real!(nvmlDeviceGetUUID)?;
    // SAFETY: the buffer has the length that is passed.
    let result = unsafe { get(device, text.as_mut_ptr(), text.len() as u32) };
    if result.is_ok() { parse_uuid(&text) } else { None }
}

/// The 16 bytes of the UUID in `GPU-xxxxxxxx-…` or `MIG-xxxxxxxx-…`.
fn parse_uuid(text: &[c_char]) -> Option<[u8; 16]> {
    let digits = text.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).skip(4);
    let mut digits = digits.filter(|&byte| byte != b'-').map(|byte| (byte as char).to_digit(16));
    let mut uuid = [0_u8; 16];
    for byte in &mut uuid {
        *byte = (digits.next()?? << 4 | digits.next()??) as u8;
    }
    Some(uuid)
}

/// Whether a query for the length of a list, with no room for its elements, was answered: then the function exists, and
/// knows the device.
fn is_answered(result: nvmlReturn_t) -> bool {
    matches!(result, nvmlReturn_t::SUCCESS | nvmlReturn_t::INSUFFICIENT_SIZE)
}

/// A list that is written to the caller's array as far as there is room, and counted in full.
struct Listing<'a, T> {
    count: &'a mut u32,
    array: *mut T,
    room: u32,
}

impl<'a, T> Listing<'a, T> {
    /// A list in `array`, which has room for `*count` elements; `*count` becomes their number.
    ///
    /// # Safety
    /// `array` must be null or valid for `*count` elements.
    unsafe fn begin(count: &'a mut u32, array: *mut T) -> Listing<'a, T> {
        let room = if array.is_null() { 0 } else { *count };
        *count = 0;
        Listing { count, array, room }
    }

    /// The place of the next element; `None` if there is no room for it.
    fn next(&mut self) -> Option<usize> {
        let place = *self.count;
        *self.count += 1;
        (place < self.room).then_some(place as usize)
    }

    fn push(&mut self, item: T) {
        if let Some(place) = self.next() {
            // SAFETY: within the array, as the caller of `begin` vouched.
            unsafe { self.array.wrapping_add(place).write(item) };
        }
    }

    /// The result that NVML returns with such a list.
    fn result(&self) -> nvmlReturn_t {
        if *self.count > self.room { nvmlReturn_t::INSUFFICIENT_SIZE } else { nvmlReturn_t::SUCCESS }
    }
}
