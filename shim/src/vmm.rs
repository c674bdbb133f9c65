//! Physical memory that is created, mapped and released by itself (`cuMemCreate` and its relatives).
//!
//! Such memory lives until its last handle is released *and* its last mapping is gone, and is charged for as long. Each
//! piece has a record that counts both; the handle and the mappings lead to it.
//!
//! A handle that was not made by `cuMemCreate` in this process is an import: free to the importer, and unknown here,
//! unless the driver answers an import of this process's own memory with the number that it has here already. What
//! others have imported is refunded to its maker when its own handles and mappings are gone: from then on it shows only
//! as memory that the driver counts beyond the ledger, which the manager adds to the slice's overhead.

use crate::allocations::{Charge, Mapping};
use crate::arena::Arena;
use crate::hooks::{real, types};
use crate::memory::{Grant, Payer};
use crate::radix::Radix;
use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CUdeviceptr, CUmemAllocationProp, CUmemLocation,
    CUresult, NullStream, c_uint, c_void,
};
use aliquot_abi::ledger::BYTES_MASK;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// From handles to the index of their record plus one, and from bit 32 on how often the driver has given the number
/// out: a handle that is retained has to be released as often.
static HANDLES: Radix<0, 12, 4> = Radix::new();
const RECORD_MASK: u64 = u32::MAX as u64;
const ONCE: u64 = 1 << 32;

/// A piece of physical memory.
struct Record {
    /// Account and bytes that are given back at the end; in a free record the index of the next free one plus one.
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

    /// One more holder, unless the memory has none any more.
    #[must_use]
    fn hold(&self, index: u32, kind: u64) -> bool {
        let more = |holders: u64| if holders == 0 { None } else { Some(holders.wrapping_add(kind)) };
        let Some(record) = self.get(index) else { return false };
        record.holders.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// One holder less. Gives the memory back with the last one.
    #[inline(never)]
    fn drop(&self, index: u32, kind: u64) {
        let Some(record) = self.get(index) else { return };
        if record.holders.fetch_sub(kind, Ordering::AcqRel) == kind {
            let word = record.charge.load(Ordering::Relaxed);
            self.put_free(index, record);
            Charge { account: (word >> 56) as usize, bytes: word & BYTES_MASK }.refund();
        }
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

/// Lets `handle` lead to record `index` once more than it does. `false` if it cannot.
#[inline(never)]
fn add_handle(handle: u64, index: u32) -> bool {
    let Some(entry) = HANDLES.entry(handle) else { return false };
    let first = u64::from(index) + 1;
    let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
        // A number that led elsewhere has been given anew.
        let same = word & RECORD_MASK == first;
        Some(if same { word.wrapping_add(ONCE) } else { ONCE | first })
    });
    true
}

/// Takes out one of the times that `handle` leads to its record, which is returned.
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

/// Memory that is held by more than its handles and mappings, until this is dropped.
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
        RECORDS.get(self.record).map_or(0, |record| (record.charge.load(Ordering::Relaxed) >> 56) as usize)
    }

    /// Lets something that is remembered elsewhere hold the memory.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        RECORDS.drop(self.record, self.kind);
    }
}

/// Holds the memory that `handle` names, as a mapping does.
#[inline(never)]
pub(crate) fn hold_handle(handle: u64) -> Option<Held> {
    Held::new(record_of(handle)?, MAPPING)
}

/// Holds the memory that is mapped at `address`, as a mapping does.
#[inline(never)]
pub(crate) fn hold_mapped(address: u64) -> Option<Held> {
    Held::new(record_at(address)?, MAPPING)
}

/// What held the memory of record `record` as a mapping does has gone.
pub(crate) fn let_go(record: u32) {
    RECORDS.drop(record, MAPPING);
}

/// Whose account physical memory at `location` is charged to.
#[inline(never)]
pub(crate) fn payer_at(location: CUmemLocation) -> Payer {
    match (location.device(), location.kind) {
        (Some(ordinal), _) => Payer::of(ordinal),
        (None, CU_MEM_LOCATION_TYPE_HOST..=CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) => Payer::host(),
        // A kind that the driver refuses, or one of its future.
        _ => Payer::Nobody,
    }
}

/// `cuMemCreate`: charged to the device or host that the properties name; the calling thread needs no context.
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
        Some(index) => RECORDS.drop(index, HANDLE),
        None => charge.refund(),
    }
    result
}

/// `cuMemRelease`: one handle less.
pub(crate) unsafe fn vmm_release(_: NullStream, real: types::cuMemRelease, handle: u64) -> CUresult {
    // Taken out before: the driver may give the same number to the next piece as soon as this one has no handle.
    let index = take_handle(handle);
    // SAFETY: the host's call.
    let result = unsafe { real(handle) };
    if let Some(index) = index
        && (result.is_ok() || !add_handle(handle, index))
    {
        RECORDS.drop(index, HANDLE);
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
    // Held before: afterwards another thread may have taken the mapping away.
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

/// `cuMemImportFromShareableHandle`: free, unless it is this process's own memory by the number that it has here.
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

/// The record of what is mapped at `address`.
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
    // Held before: afterwards another thread may have released the handle.
    let held = hold_handle(handle);
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes, offset, handle, flags) };
    if let (true, Some(held)) = (result.is_ok(), held) {
        // A range of more than 16 TiB is found by its beginning all the same.
        let units = u32::try_from((bytes as u64).div_ceil(Mapping::UNIT_BYTES)).unwrap_or(u32::MAX);
        if (Mapping { record: held.record, units }).remember(address) {
            held.keep();
        }
    }
    result
}

/// `cuMemUnmap`: the mappings in the range are gone.
pub(crate) unsafe fn vmm_unmap(_: NullStream, real: types::cuMemUnmap, address: CUdeviceptr, bytes: usize) -> CUresult {
    // Noted before: afterwards another thread may have mapped something else there.
    Mapping::begin_unmapping(address, bytes as u64);
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes) };
    Mapping::finish_unmapping(address, bytes as u64, result.is_ok(), unmapped);
    result
}

/// A mapping that is remembered no more has gone.
pub(crate) fn unmapped(mapping: Mapping) {
    let_go(mapping.record);
}
