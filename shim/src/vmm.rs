//! Physical memory that is created, mapped and released in separate calls (`cuMemCreate` and its relatives).
//!
//! Such memory lives until its last handle is released *and* its last mapping is removed, and is charged until then.
//! Each piece has a record that counts both; its handles and mappings lead to the record.
//!
//! A handle that was not made by `cuMemCreate` in this process is an import. It is free to the importer and unknown
//! here, unless the driver answers an import of this process's own memory with the handle that it has here already.
//! Memory that other processes have imported is refunded to its maker when the maker's own handles and mappings are
//! gone. From then on only the driver counts it, beyond the ledger, and the manager adds it to the slice's overhead.

use crate::allocations::{Charge, Mapping};
use crate::arena::Arena;
use crate::bindings;
use crate::hooks::{real, types};
use crate::memory::{Grant, Payer};
use crate::radix::Radix;
use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CUdeviceptr, CUmemAllocationProp, CUmemLocation,
    CUresult, NullStream, c_uint, c_void,
};
use aliquot_abi::ledger::BYTES_MASK;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// For each handle: the index of its record plus one and, in the bits from 32 on, how often the driver has returned
/// this handle. A handle that is retained must be released as often.
static HANDLES: Radix<0, 12, 4> = Radix::new();
const RECORD_MASK: u64 = u32::MAX as u64;
const ONCE: u64 = 1 << 32;

/// The record of a piece of physical memory.
struct Record {
    /// Account and bytes, which are refunded at the end. In a free record: the index of the next free record plus one.
    charge: AtomicU64,
    /// Number of handles in the upper half, of mappings in the lower.
    holders: AtomicU64,
}

const HANDLE: u64 = 1 << 32;
const MAPPING: u64 = 1;

impl Record {
    fn charge(&self) -> Charge {
        let word = self.charge.load(Ordering::Relaxed);
        Charge { account: (word >> 56) as usize, bytes: word & BYTES_MASK }
    }
}

const RECORDS_PER_CHUNK: usize = 1 << 16;
const CHUNKS: usize = 1 << 10;

/// All records, in chunks that are allocated when they are needed.
struct Records {
    chunks: [AtomicPtr<Record>; CHUNKS],
    /// Index of the first record that has never been used.
    fresh: AtomicU32,
    /// Lower half: index of the first free record plus one. Upper half: changes with each change of the list.
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
        // SAFETY: a chunk has `RECORDS_PER_CHUNK` records and lives for ever.
        Some(unsafe { &*records.add(index % RECORDS_PER_CHUNK) })
    }

    /// Makes a record with one handle, for memory that was charged `charge`.
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
        record.charge.store((charge.account as u64) << 56 | charge.bytes & BYTES_MASK, Ordering::Relaxed);
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

    /// Adds a holder, unless the memory has no holder any more.
    #[must_use]
    fn hold(&self, index: u32, kind: u64) -> bool {
        let more = |holders: u64| if holders == 0 { None } else { Some(holders.wrapping_add(kind)) };
        let Some(record) = self.get(index) else { return false };
        record.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Removes a holder. With the last one, ends the memory's charge by `end`.
    #[inline(never)]
    fn drop(&self, index: u32, kind: u64, end: fn(Charge)) {
        let Some(record) = self.get(index) else { return };
        if record.holders.fetch_sub(kind, Ordering::AcqRel) == kind {
            let charge = record.charge();
            self.put_free(index, record);
            end(charge);
        }
    }
}

/// A head of the list with the index `index_plus_one`, different from every earlier head.
fn changed(head: u64, index_plus_one: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(index_plus_one)
}

/// The record to which `handle` leads.
fn record_of(handle: u64) -> Option<u32> {
    (HANDLES.existing(handle)?.load(Ordering::Acquire) as u32).checked_sub(1)
}

/// Counts one more time that the driver returned `handle`, for record `index`. `false` if it cannot be recorded.
#[inline(never)]
fn add_handle(handle: u64, index: u32) -> bool {
    let Some(entry) = HANDLES.entry(handle) else { return false };
    let first = u64::from(index) + 1;
    let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
        // If the handle led to another record, the driver has given it out again.
        let same = word & RECORD_MASK == first;
        Some(if same { word.wrapping_add(ONCE) } else { ONCE | first })
    });
    true
}

/// Counts one time less, and returns the record to which `handle` leads.
fn take_handle(handle: u64) -> Option<u32> {
    let entry = HANDLES.existing(handle)?;
    let less = |word: u64| match word >> ONCE.trailing_zeros() {
        0 => None,
        1 => Some(0),
        _ => Some(word.wrapping_sub(ONCE)),
    };
    let word = entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
    (word as u32).checked_sub(1)
}

/// An additional holder of a piece of memory, until this is dropped.
pub(crate) struct Held {
    record: u32,
    kind: u64,
}

impl Held {
    fn new(record: u32, kind: u64) -> Option<Held> {
        RECORDS.hold(record, kind).then_some(Held { record, kind })
    }

    /// Index of the memory's record.
    pub(crate) fn record(&self) -> u32 {
        self.record
    }

    /// Number of the account that the memory is charged to.
    pub(crate) fn account(&self) -> usize {
        RECORDS.get(self.record).map_or(0, |record| record.charge().account)
    }

    /// Makes the hold permanent: it is recorded elsewhere, and ended there.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        RECORDS.drop(self.record, self.kind, Charge::refund);
    }
}

/// Holds the memory that `handle` names. Counts as a mapping.
#[inline(never)]
pub(crate) fn hold_handle(handle: u64) -> Option<Held> {
    Held::new(record_of(handle)?, MAPPING)
}

/// Holds the memory that is mapped at `address`. Counts as a mapping.
#[inline(never)]
pub(crate) fn hold_mapped(address: u64) -> Option<Held> {
    Held::new(record_at(address)?, MAPPING)
}

/// Ends a hold on record `record` that counts as a mapping. If it is the last one, ends the memory's charge by `end`.
pub(crate) fn let_go(record: u32, end: fn(Charge)) {
    RECORDS.drop(record, MAPPING, end);
}

/// The payer for physical memory at `location`.
#[inline(never)]
pub(crate) fn payer_at(location: CUmemLocation) -> Payer {
    match (location.device(), location.kind) {
        (Some(ordinal), _) => Payer::of(ordinal),
        (None, CU_MEM_LOCATION_TYPE_HOST..=CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) => Payer::host(),
        // A kind that the driver refuses, or that a newer driver knows.
        _ => Payer::Nobody,
    }
}

/// `cuMemCreate`: charged to the device or host in the properties; the calling thread needs no context.
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
    let payer = unsafe { properties.as_ref() }.map_or(Payer::Nobody, |properties| payer_at(properties.location));
    let _moving = payer.moving(bytes as u64);
    let charge = match payer.charge(bytes as u64) {
        Grant::Free => return call(),
        Grant::Refused => return CUresult::OUT_OF_MEMORY,
        Grant::Charged(charge) => charge,
    };
    let result = call();
    if !result.is_ok() {
        charge.refund();
        return result;
    }
    match RECORDS.make(charge) {
        // SAFETY: the call has written the handle.
        Some(index) if add_handle(unsafe { *handle }, index) => {}
        Some(index) => RECORDS.drop(index, HANDLE, Charge::refund),
        None => charge.refund(),
    }
    result
}

/// `cuMemRelease`: removes one handle.
pub(crate) unsafe fn vmm_release(_: NullStream, real: types::cuMemRelease, handle: u64) -> CUresult {
    // Removed first: the driver may give the same number to another piece as soon as this one has no handle.
    let index = take_handle(handle);
    let _moving = index.and_then(|index| RECORDS.get(index)).map(|record| {
        let Charge { account, bytes } = record.charge();
        Charge::moving(account, bytes)
    });
    // SAFETY: the host's call.
    let result = unsafe { real(handle) };
    match index {
        Some(index) if result.is_ok() || !add_handle(handle, index) => RECORDS.drop(index, HANDLE, Charge::refund),
        None if result.is_ok() => bindings::object_released(handle),
        _ => {}
    }
    result
}

/// `cuMemRetainAllocationHandle`: adds one handle, for memory that is mapped at an address.
pub(crate) unsafe fn vmm_retain(
    _: NullStream,
    real: types::cuMemRetainAllocationHandle,
    handle: *mut u64,
    address: *mut c_void,
) -> CUresult {
    // Held first: another thread may remove the mapping as soon as the driver has answered.
    let held = record_at(address.addr() as u64).and_then(|record| Held::new(record, HANDLE));
    // SAFETY: the host's call.
    let result = unsafe { real(handle, address) };
    if let Some(held) = held
        // SAFETY: the call has written the handle if it succeeded.
        && result.is_ok() && add_handle(unsafe { *handle }, held.record)
    {
        held.keep();
    }
    result
}

/// `cuMemImportFromShareableHandle`: free, unless it returns a handle of this process's own memory.
pub(crate) unsafe fn vmm_import(
    _: NullStream,
    real: types::cuMemImportFromShareableHandle,
    handle: *mut u64,
    shared: *mut c_void,
    kind: c_uint,
) -> CUresult {
    // SAFETY: the host's call; the handle is read only after a success.
    unsafe {
        let result = real(handle, shared, kind);
        if result.is_ok()
            && let Some(held) = record_of(*handle).and_then(|record| Held::new(record, HANDLE))
            && add_handle(*handle, held.record)
        {
            held.keep();
        }
        result
    }
}

/// The record of the memory that is mapped at `address`.
fn record_at(address: u64) -> Option<u32> {
    let mapping = Mapping::at(address).or_else(|| {
        let (mut base, mut bytes) = (0, 0);
        let get_range = real!(cuMemGetAddressRange_v2)?;
        // SAFETY: the pointers are valid.
        let found = unsafe { get_range(&raw mut base, &raw mut bytes, address) };
        if found.is_ok() { Mapping::at(base) } else { None }
    });
    Some(mapping?.record)
}

/// `cuMemMap`: adds one mapping.
pub(crate) unsafe fn vmm_map(
    _: NullStream,
    real: types::cuMemMap,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CUresult {
    // Held first: another thread may release the handle as soon as the driver has answered.
    let held = hold_handle(handle);
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes, offset, handle, flags) };
    if let (true, Some(held)) = (result.is_ok(), held) {
        // If a range is longer than 16 TiB its length does not fit, but only its start is needed to find it.
        let units = u32::try_from((bytes as u64).div_ceil(Mapping::UNIT_BYTES)).unwrap_or(u32::MAX);
        if (Mapping { record: held.record, units }).remember(address) {
            held.keep();
        }
    }
    result
}

/// `cuMemUnmap`: removes the mappings in the range.
pub(crate) unsafe fn vmm_unmap(_: NullStream, real: types::cuMemUnmap, address: CUdeviceptr, bytes: usize) -> CUresult {
    // Marked first: another thread may map other memory there as soon as the driver has answered.
    Mapping::begin_unmapping(address, bytes as u64);
    let record = Mapping::at(address).and_then(|mapping| RECORDS.get(mapping.record));
    let _moving = record.map(|record| Charge::moving(record.charge().account, bytes as u64));
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes) };
    Mapping::finish_unmapping(address, bytes as u64, result.is_ok(), unmapped);
    result
}

/// Ends the hold of a mapping that is no longer remembered.
pub(crate) fn unmapped(mapping: Mapping) {
    let_go(mapping.record, Charge::refund);
}
