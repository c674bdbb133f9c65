//! Physical memory that is created, mapped and released by itself (`cuMemCreate` and its relatives).
//!
//! Such memory lives until its last handle is released *and* its last mapping is gone, and is charged for as long. Each piece
//! has a record that counts both; the handle and the mappings lead to it. A handle that was not made by `cuMemCreate` in this
//! process is an import: free to the importer, and unknown here.

use crate::allocations::{Charge, Mapping};
use crate::arena::Arena;
use crate::hooks::{real, types};
use crate::memory::Payer;
use crate::radix::Radix;
use aliquot_abi::cuda::{CU_MEM_LOCATION_TYPE_DEVICE, CUdeviceptr, CUmemAllocationProp, CUresult, NullStream, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// From handles to the index of their record plus one.
static HANDLES: Radix<0, 12, 4> = Radix::new();

/// A piece of physical memory.
struct Record {
    /// Part and bytes that are given back at the end; in a free record the index of the next free one plus one.
    charge: AtomicU64,
    /// Handles in the upper half, mappings in the lower.
    holders: AtomicU64,
}

const HANDLE: u64 = 1 << 32;
const MAPPING: u64 = 1;

const RECORDS_PER_CHUNK: usize = 1 << 16;
const CHUNKS: usize = 1 << 10;

/// All records, in chunks that are made when they are needed.
struct Records {
    chunks: [AtomicPtr<Record>; CHUNKS],
    /// Index of the first record that was never used.
    fresh: AtomicU32,
    /// Index of the first free record plus one in the lower half; the upper half changes with each change of the list.
    free: AtomicU64,
    arena: Arena,
}

static RECORDS: Records = Records {
    chunks: [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS],
    fresh: AtomicU32::new(0),
    free: AtomicU64::new(0),
    arena: Arena::new(),
};

impl Records {
    fn get(&self, index: u32) -> Option<&Record> {
        let index = index as usize;
        let chunk = self.chunks.get(index / RECORDS_PER_CHUNK)?;
        let mut records = chunk.load(Ordering::Acquire);
        if records.is_null() {
            let made: *mut Record = self.arena.take(RECORDS_PER_CHUNK * size_of::<Record>()).cast();
            if made.is_null() {
                return None;
            }
            records = match chunk.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made,
                Err(first) => first,
            };
        }
        // SAFETY: a chunk has so many records and lives for ever.
        Some(unsafe { &*records.add(index % RECORDS_PER_CHUNK) })
    }

    /// A record for memory that was charged `charge`, with one handle.
    fn make(&self, charge: Charge) -> Option<u32> {
        let index = match self.take_free() {
            Some(index) => index,
            None => {
                let index = self.fresh.fetch_add(1, Ordering::Relaxed);
                if index as usize >= CHUNKS * RECORDS_PER_CHUNK {
                    return None;
                }
                index
            }
        };
        let record = self.get(index)?;
        record.charge.store((charge.account as u64) << 56 | charge.bytes & ((1 << 56) - 1), Ordering::Relaxed);
        record.holders.store(HANDLE, Ordering::Release);
        Some(index)
    }

    fn take_free(&self) -> Option<u32> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = self.get(index)?.charge.load(Ordering::Relaxed) as u32;
            match self.free.compare_exchange_weak(head, changed(head, next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    fn put_free(&self, index: u32, record: &Record) {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            record.charge.store(u64::from(head as u32), Ordering::Relaxed);
            match self.free.compare_exchange_weak(head, changed(head, index + 1), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// One more handle or mapping.
    fn hold(&self, index: u32, kind: u64) {
        if let Some(record) = self.get(index) {
            record.holders.fetch_add(kind, Ordering::Relaxed);
        }
    }

    /// One handle or mapping less. Returns how many handles are left. Gives the memory back with the last holder.
    fn drop(&self, index: u32, kind: u64) -> u64 {
        let Some(record) = self.get(index) else { return 0 };
        let left = record.holders.fetch_sub(kind, Ordering::AcqRel).wrapping_sub(kind);
        if left == 0 {
            let word = record.charge.load(Ordering::Relaxed);
            self.put_free(index, record);
            Charge { account: (word >> 56) as usize, bytes: word & ((1 << 56) - 1) }.refund();
        }
        left / HANDLE
    }
}

/// The list's head with `index_plus_one` first, and told apart from every earlier head.
fn changed(head: u64, index_plus_one: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(index_plus_one)
}

/// The record that `handle` leads to.
fn record_of(handle: u64) -> Option<u32> {
    (HANDLES.existing(handle)?.load(Ordering::Acquire) as u32).checked_sub(1)
}

/// Lets `handle` lead to record `index`. `false` if it cannot.
fn set_record(handle: u64, index: u32) -> bool {
    let Some(entry) = HANDLES.entry(handle) else { return false };
    entry.store(u64::from(index) + 1, Ordering::Release);
    true
}

/// `cuMemCreate`: charged to the device that the properties name; the calling thread needs no context.
pub(crate) unsafe fn vmm_create(
    _: NullStream,
    real: types::cuMemCreate,
    handle: *mut u64,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call, here and below.
    let call = || unsafe { real(handle, bytes, properties, flags) };
    // SAFETY: a pointer that is not null is the host's structure.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let payer = match location {
        Some(location) if location.kind == CU_MEM_LOCATION_TYPE_DEVICE => Payer::of(location.id),
        // Host memory, or an argument that the driver refuses.
        _ => Payer::Nobody,
    };
    let part = match payer {
        Payer::Nobody => return call(),
        Payer::Stranger => return CUresult::OUT_OF_MEMORY,
        Payer::Part(part) => part,
    };
    let Some(charge) = part.charge(bytes as u64) else { return CUresult::OUT_OF_MEMORY };
    let result = call();
    if !result.is_ok() {
        charge.refund();
        return result;
    }
    match RECORDS.make(charge) {
        // SAFETY: the call has written the handle.
        Some(index) if set_record(unsafe { *handle }, index) => {}
        Some(index) => drop(RECORDS.drop(index, HANDLE)),
        None => charge.refund(),
    }
    result
}

/// `cuMemRelease`: one handle less.
pub(crate) unsafe fn vmm_release(_: NullStream, real: types::cuMemRelease, handle: u64) -> CUresult {
    let index = record_of(handle);
    // The driver may give the same number to the next piece as soon as this one has no handle: with the last handle the
    // number is taken out before.
    let entry = HANDLES.existing(handle);
    let is_last = index
        .and_then(|index| RECORDS.get(index))
        .is_some_and(|record| record.holders.load(Ordering::Relaxed) / HANDLE == 1);
    if let (true, Some(entry)) = (is_last, entry) {
        entry.store(0, Ordering::Relaxed);
    }
    // SAFETY: the host's call.
    let result = unsafe { real(handle) };
    if let Some(index) = index {
        if result.is_ok() {
            RECORDS.drop(index, HANDLE);
        } else if is_last {
            let _ = set_record(handle, index);
        }
    }
    result
}

/// `cuMemRetainAllocationHandle`: one handle more, for memory that is mapped at an address.
pub(crate) unsafe fn vmm_retain(
    _: NullStream,
    real: types::cuMemRetainAllocationHandle,
    handle: *mut u64,
    address: *mut c_void,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(handle, address) };
    if !result.is_ok() {
        return result;
    }
    if let Some(mapping) = mapping_around(address.addr() as u64) {
        // SAFETY: the call has written the handle.
        if set_record(unsafe { *handle }, mapping.record) {
            RECORDS.hold(mapping.record, HANDLE);
        }
    }
    result
}

/// The mapping that holds `address`.
fn mapping_around(address: u64) -> Option<Mapping> {
    Mapping::at(address).or_else(|| {
        let (mut base, mut bytes) = (0, 0);
        let get_range = real!(cuMemGetAddressRange_v2)?;
        // SAFETY: the pointers are valid.
        let found = unsafe { get_range(&raw mut base, &raw mut bytes, address) };
        if found.is_ok() { Mapping::at(base) } else { None }
    })
}

/// `cuMemMap`: one mapping more.
pub(crate) unsafe fn vmm_map(
    _: NullStream,
    real: types::cuMemMap,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes, offset, handle, flags) };
    if result.is_ok()
        && let (Some(record), Ok(units)) = (record_of(handle), u32::try_from(bytes as u64 / Mapping::UNIT_BYTES))
    {
        // Counted before it can be found.
        RECORDS.hold(record, MAPPING);
        if !(Mapping { record, units }).remember(address) {
            RECORDS.drop(record, MAPPING);
        }
    }
    result
}

/// `cuMemUnmap`: the mappings in the range are gone.
pub(crate) unsafe fn vmm_unmap(_: NullStream, real: types::cuMemUnmap, address: CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes) };
    if result.is_ok() {
        let end = address.saturating_add(bytes as u64);
        let mut place = address;
        while place < end {
            let units = match Mapping::forget(place) {
                Some(mapping) => {
                    RECORDS.drop(mapping.record, MAPPING);
                    u64::from(mapping.units.max(1))
                }
                // A mapping that is not known here: of an import, say.
                None => 1,
            };
            place = place.saturating_add(units * Mapping::UNIT_BYTES);
        }
    }
    result
}
