//! Host memory that the driver has allocated or registered. Its device address is its host address.

use core::ffi::{c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdeviceptr, CUresult};

use crate::Done;
use crate::arena::round_up;
use crate::caller::{not_null, put};
use crate::capture;
use crate::context::current;
use crate::pinning;
use crate::process::process;

const PAGE_BYTES: u64 = 4096;
/// Portable, mapped, write-combined.
const ALLOC_FLAGS: c_uint = 0x7;
const DEVICE_MAPPED: c_uint = 0x2;
/// Portable, mapped, I/O memory, read-only.
const REGISTER_FLAGS: c_uint = 0xf;

/// A range of host memory.
#[derive(Clone, Copy)]
pub(crate) struct HostRange {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Whether the caller allocated the memory and registered it.
    registered: bool,
    flags: c_uint,
    pub(crate) life: u32,
}

static RANGES: Mutex<BTreeMap<u64, HostRange>> = Mutex::new(BTreeMap::new());

fn ranges() -> MutexGuard<'static, BTreeMap<u64, HostRange>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The range around an address.
pub(crate) fn range_around(address: u64) -> Option<HostRange> {
    let ranges = ranges();
    let (_, range) = ranges.range(..=address).next_back()?;
    (address - range.start < range.bytes).then_some(*range)
}

/// Frees the ranges of a context at its end.
pub(crate) fn release_context(life: u32) {
    ranges().retain(|_, range| {
        if range.life == life && !range.registered {
            unmap(range);
        }
        range.life != life
    });
}

fn unmap(range: &HostRange) {
    // SAFETY: the range was mapped by `allocate` with this size, and is no longer in the list.
    unsafe { libc::munmap(range.start as *mut c_void, round_up(range.bytes, PAGE_BYTES) as usize) };
}

fn allocate(target: *mut *mut c_void, bytes: usize, flags: c_uint) -> Done {
    let context = current()?;
    not_null(target)?;
    capture::check_unsafe_call()?;
    if bytes == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: a fresh anonymous mapping.
    let address = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let start = address as u64;
    let range =
        HostRange { start, bytes: bytes as u64, registered: false, flags: flags | DEVICE_MAPPED, life: context.life() };
    ranges().insert(start, range);
    put(target, address)
}

pub(crate) fn cuMemAllocHost_v2(target: *mut *mut c_void, bytes: usize) -> Done {
    allocate(target, bytes, 0)
}

pub(crate) fn cuMemHostAlloc(target: *mut *mut c_void, bytes: usize, flags: c_uint) -> Done {
    allocate(target, bytes, flags)
}

pub(crate) fn cuMemFreeHost(pointer: *mut c_void) -> Done {
    process()?;
    capture::check_unsafe_call()?;
    if pointer.is_null() {
        return Ok(());
    }
    let known = |range: Option<&HostRange>| range.is_some_and(|range| !range.registered);
    if !known(ranges().get(&(pointer as u64))) {
        return Err(CUresult::INVALID_VALUE);
    }
    crate::queue::wait_for_all();
    let range = ranges().remove(&(pointer as u64)).ok_or(CUresult::INVALID_VALUE)?;
    unmap(&range);
    Ok(())
}

pub(crate) fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint) -> Done {
    let context = current()?;
    not_null(pointer)?;
    capture::check_unsafe_call()?;
    let (start, length) = (pointer as u64, bytes as u64);
    if bytes == 0 || flags & !REGISTER_FLAGS != 0 || !is_mapped(start, length) || !pinning::is_possible(start, length) {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut ranges = ranges();
    let overlaps = |range: &HostRange| range.start < start + length && start < range.start + range.bytes;
    if ranges.range(..start + length).next_back().is_some_and(|(_, range)| overlaps(range)) {
        return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let flags = flags | DEVICE_MAPPED;
    ranges.insert(start, HostRange { start, bytes: length, registered: true, flags, life: context.life() });
    Ok(())
}

/// Whether every page of the range is mapped in this process.
fn is_mapped(start: u64, bytes: u64) -> bool {
    let first = start & !(PAGE_BYTES - 1);
    let Some(end) = start.checked_add(bytes) else { return false };
    let pages = (round_up(end, PAGE_BYTES) - first) / PAGE_BYTES;
    let mut resident = vec![0_u8; pages as usize];
    // SAFETY: `mincore` only reads page tables; it writes one byte per page into `resident`, which has that many bytes.
    unsafe { libc::mincore(first as *mut c_void, (pages * PAGE_BYTES) as usize, resident.as_mut_ptr()) == 0 }
}

pub(crate) fn cuMemHostUnregister(pointer: *mut c_void) -> Done {
    process()?;
    not_null(pointer)?;
    capture::check_unsafe_call()?;
    // As when host memory is freed, because queued work may still use it.
    crate::queue::wait_for_all();
    let mut ranges = ranges();
    match ranges.get(&(pointer as u64)) {
        Some(range) if range.registered => {
            ranges.remove(&(pointer as u64));
            Ok(())
        }
        _ => Err(CUresult::HOST_MEMORY_NOT_REGISTERED),
    }
}

pub(crate) fn cuMemHostGetDevicePointer_v2(target: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint) -> Done {
    current()?;
    not_null(target)?;
    let known = range_around(pointer as u64).filter(|_| flags == 0);
    known.ok_or(CUresult::INVALID_VALUE)?;
    put(target, pointer as u64)
}

pub(crate) fn cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void) -> Done {
    current()?;
    let range = range_around(pointer as u64).filter(|range| !range.registered).ok_or(CUresult::INVALID_VALUE)?;
    put(flags, range.flags)
}
