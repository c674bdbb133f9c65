//! Virtual memory management: address ranges, physical memory, and mappings of one into the other.
//!
//! Physical memory is a part of one anonymous file, so that it can be mapped at several addresses. It lives, and counts
//! against the device, until its handle is released and its last mapping is gone.

use core::ffi::{c_uint, c_ulonglong, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aliquot_abi::cuda::{CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUresult};

use crate::Done;
use crate::caller::{get, get_all, not_null, put};
use crate::device::device;
use crate::handles::{self, Kind, Object};
use crate::process::{initialised, process};

/// Sizes and addresses are multiples of this.
const GRANULARITY_BYTES: u64 = 2 << 20;
const ALLOCATION_PINNED: c_uint = 1;
const LOCATION_DEVICE: c_uint = 1;
const ACCESS_READ: c_uint = 1;
const ACCESS_READ_WRITE: c_uint = 3;

/// Physical memory of a device.
pub(crate) struct Physical {
    properties: CUmemAllocationProp,
    ordinal: usize,
    bytes: u64,
    /// Its place in the file.
    offset: u64,
    /// Handles and mappings.
    references: Mutex<(usize, usize)>,
}

// SAFETY: the only pointer inside is a property that is carried and never followed.
unsafe impl Send for Physical {}
// SAFETY: as above; what changes is behind a mutex.
unsafe impl Sync for Physical {}

impl Object for Physical {
    const KIND: Kind = Kind::PhysicalMemory;
}

#[derive(Clone, Copy)]
struct Mapping {
    bytes: u64,
    physical: &'static Physical,
    handle: *mut c_void,
    access: c_uint,
}

// SAFETY: the handle is a number here.
unsafe impl Send for Mapping {}

#[derive(Default)]
struct Space {
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    file_bytes: u64,
}

static SPACE: Mutex<Space> =
    Mutex::new(Space { reservations: BTreeMap::new(), mappings: BTreeMap::new(), file_bytes: 0 });

fn space() -> MutexGuard<'static, Space> {
    SPACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file that holds all physical memory of the process.
fn file() -> Done<i32> {
    static FILE: OnceLock<Option<i32>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        // SAFETY: the name is NUL-terminated; the descriptor is kept for ever.
        let descriptor = unsafe { libc::memfd_create(c"simulated-gpu".as_ptr(), libc::MFD_CLOEXEC) };
        (descriptor >= 0).then_some(descriptor)
    });
    file.ok_or(CUresult::OUT_OF_MEMORY)
}

impl Physical {
    /// Changes the numbers of handles and mappings; when both are 0 the memory is gone.
    fn count(&self, change: impl FnOnce(&mut (usize, usize))) {
        let mut references = self.references.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut references);
        if *references == (0, 0) {
            initialised().devices[self.ordinal].release(self.bytes);
            if let Ok(file) = file() {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: the descriptor is open for ever; this part of the file is nobody's any more.
                unsafe { libc::fallocate(file, mode, self.offset as i64, self.bytes as i64) };
            }
        }
    }
}

/// The end of the mapping around an address, and its device. An address that is reserved but not mapped is refused.
pub(crate) fn mapped_end(address: u64) -> Done<Option<(u64, usize)>> {
    let space = space();
    if !space.is_reserved(address, 1) {
        return Ok(None);
    }
    let (mut end, ordinal) = match space.mapping_around(address) {
        Some((start, mapping)) if mapping.access != 0 => (start + mapping.bytes, mapping.physical.ordinal),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    // Mappings that lie side by side are one range to whoever uses it.
    while let Some(next) = space.mappings.get(&end).filter(|next| next.access != 0) {
        end += next.bytes;
    }
    Ok(Some((end, ordinal)))
}

/// The start and size of the mapping around an address.
pub(crate) fn mapping_range(address: u64) -> Option<(u64, u64)> {
    space().mapping_around(address).map(|(start, mapping)| (start, mapping.bytes))
}

impl Space {
    fn mapping_around(&self, address: u64) -> Option<(u64, Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, *mapping))
    }

    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let around = self.reservations.range(..=address).next_back();
        around.is_some_and(|(&start, &length)| {
            address.checked_add(bytes).is_some_and(|end| end <= start + length) && address - start < length
        })
    }

    /// The mappings that make up exactly the range.
    fn mappings_in(&self, address: u64, bytes: u64) -> Done<Vec<u64>> {
        let end = address.checked_add(bytes).ok_or(CUresult::INVALID_VALUE)?;
        let mut next = address;
        let mut starts = Vec::new();
        while next < end {
            let mapping = self.mappings.get(&next).ok_or(CUresult::INVALID_VALUE)?;
            starts.push(next);
            next += mapping.bytes;
        }
        if next == end && bytes > 0 { Ok(starts) } else { Err(CUresult::INVALID_VALUE) }
    }
}

fn check_granular(value: u64) -> Done {
    if value.is_multiple_of(GRANULARITY_BYTES) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Puts an inaccessible mapping at `address`, or anywhere if that is null.
fn map_nothing(address: u64, bytes: u64, fixed: bool) -> Done<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | if fixed { libc::MAP_FIXED } else { 0 };
    // SAFETY: a fixed mapping replaces only pages of a reservation of this module.
    let mapped = unsafe { libc::mmap(address as *mut c_void, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(CUresult::OUT_OF_MEMORY) } else { Ok(mapped as u64) }
}

pub(crate) fn cuMemAddressReserve(
    target: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    _wish: CUdeviceptr,
    flags: c_ulonglong,
) -> Done {
    process()?;
    not_null(target)?;
    let bytes = bytes as u64;
    check_granular(bytes)?;
    if bytes == 0 || flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let alignment = (alignment as u64).max(GRANULARITY_BYTES);
    let room = bytes.checked_add(alignment).ok_or(CUresult::OUT_OF_MEMORY)?;
    let mapped = map_nothing(0, room, false)?;
    let start = crate::arena::round_up(mapped, alignment);
    for (address, length) in [(mapped, start - mapped), (start + bytes, mapped + room - start - bytes)] {
        if length > 0 {
            // SAFETY: the parts before and behind the reservation, mapped just now.
            unsafe { libc::munmap(address as *mut c_void, length as usize) };
        }
    }
    space().reservations.insert(start, bytes);
    put(target, start)
}

pub(crate) fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> Done {
    process()?;
    let mut space = space();
    if space.reservations.get(&address) != Some(&(bytes as u64)) {
        return Err(CUresult::INVALID_VALUE);
    }
    if space.mappings.range(address..address + bytes as u64).next().is_some() {
        return Err(CUresult::INVALID_VALUE);
    }
    space.reservations.remove(&address);
    // SAFETY: a reservation of this module without mappings, which nobody knows any more.
    unsafe { libc::munmap(address as *mut c_void, bytes) };
    Ok(())
}

fn check_properties(properties: &CUmemAllocationProp) -> Done<usize> {
    if properties.kind != ALLOCATION_PINNED || properties.location.kind != LOCATION_DEVICE {
        return Err(CUresult::INVALID_VALUE);
    }
    // Handles for other processes are not simulated, as the device's attributes say.
    if properties.requested_handle_types != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    Ok(device(properties.location.id)?.ordinal)
}

pub(crate) fn cuMemCreate(
    target: *mut u64,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> Done {
    process()?;
    not_null(target)?;
    let properties = get(properties)?;
    let ordinal = check_properties(&properties)?;
    let bytes = bytes as u64;
    check_granular(bytes)?;
    if bytes == 0 || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let file = file()?;
    let device = &initialised().devices[ordinal];
    device.reserve(bytes)?;
    let mut space = space();
    let offset = space.file_bytes;
    // SAFETY: the descriptor is open for ever.
    if unsafe { libc::ftruncate(file, (offset + bytes) as i64) } != 0 {
        device.release(bytes);
        return Err(CUresult::OUT_OF_MEMORY);
    }
    space.file_bytes += bytes;
    let (handle, _) =
        handles::register(Physical { properties, ordinal, bytes, offset, references: Mutex::new((1, 0)) });
    put(target, handle as u64)
}

fn physical(handle: u64) -> Done<&'static Physical> {
    process()?;
    handles::find(core::ptr::with_exposed_provenance_mut(handle as usize)).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) fn cuMemRelease(handle: u64) -> Done {
    let physical = physical(handle)?;
    let last = {
        let references = physical.references.lock().unwrap_or_else(PoisonError::into_inner);
        references.0 == 1
    };
    if last {
        let handle = core::ptr::with_exposed_provenance_mut(handle as usize);
        handles::retire::<Physical>(handle).ok_or(CUresult::INVALID_VALUE)?;
    }
    physical.count(|(handles, _)| *handles -= 1);
    Ok(())
}

pub(crate) fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) -> Done {
    let physical = physical(handle)?;
    let (bytes, offset) = (bytes as u64, offset as u64);
    check_granular(address)?;
    check_granular(bytes)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes);
    if bytes == 0 || flags != 0 || offset % GRANULARITY_BYTES != 0 || !fits {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut space = space();
    if !space.is_reserved(address, bytes) {
        return Err(CUresult::INVALID_VALUE);
    }
    let before = space.mappings.range(..address + bytes).next_back();
    if before.is_some_and(|(start, mapping)| start + mapping.bytes > address) {
        return Err(CUresult::ALREADY_MAPPED);
    }
    // SAFETY: replaces pages of a reservation of this module in which nothing is mapped.
    let mapped = unsafe {
        libc::mmap(
            address as *mut c_void,
            bytes as usize,
            libc::PROT_NONE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file()?,
            (physical.offset + offset) as i64,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let handle = core::ptr::with_exposed_provenance_mut(handle as usize);
    space.mappings.insert(address, Mapping { bytes, physical, handle, access: 0 });
    physical.count(|(_, mappings)| *mappings += 1);
    Ok(())
}

pub(crate) fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> Done {
    process()?;
    let mut space = space();
    let starts = space.mappings_in(address, bytes as u64)?;
    map_nothing(address, bytes as u64, true)?;
    for start in starts {
        if let Some(mapping) = space.mappings.remove(&start) {
            mapping.physical.count(|(_, mappings)| *mappings -= 1);
        }
    }
    Ok(())
}

pub(crate) fn cuMemRetainAllocationHandle(target: *mut u64, address: *mut c_void) -> Done {
    process()?;
    not_null(target)?;
    let (_, mapping) = space().mapping_around(address as u64).ok_or(CUresult::INVALID_VALUE)?;
    let known = handles::find::<Physical>(mapping.handle).is_some();
    // A memory whose handles were all released gets a new one.
    let handle = if known { mapping.handle } else { handles::name(mapping.physical) };
    mapping.physical.count(|(handles, _)| *handles += 1);
    put(target, handle as u64)
}

pub(crate) fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize) -> Done {
    process()?;
    let descriptions = get_all(access, count)?;
    if count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut space = space();
    let starts = space.mappings_in(address, bytes as u64)?;
    for description in descriptions {
        let other = device(description.location.id)?;
        if description.location.kind != LOCATION_DEVICE || !matches!(description.flags, 0 | 1 | 3) {
            return Err(CUresult::INVALID_VALUE);
        }
        for start in &starts {
            let Some(mapping) = space.mappings.get_mut(start) else { continue };
            let own = mapping.physical.ordinal == other.ordinal;
            if !own && !crate::device::linked(&initialised().devices[mapping.physical.ordinal], other) {
                return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
            }
            if own {
                mapping.access = description.flags;
            }
            let protection = match description.flags {
                ACCESS_READ => libc::PROT_READ,
                ACCESS_READ_WRITE => libc::PROT_READ | libc::PROT_WRITE,
                _ => libc::PROT_NONE,
            };
            // SAFETY: pages of a mapping of this module.
            unsafe { libc::mprotect(*start as *mut c_void, mapping.bytes as usize, protection) };
        }
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) -> Done {
    process()?;
    let location = get(location)?;
    let device = device(location.id)?;
    let (_, mapping) = space().mapping_around(address).ok_or(CUresult::INVALID_VALUE)?;
    let own = mapping.physical.ordinal == device.ordinal;
    put(flags, if own { c_ulonglong::from(mapping.access) } else { 0 })
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    option: c_uint,
) -> Done {
    process()?;
    check_properties(&get(properties)?)?;
    if option > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    put(granularity, GRANULARITY_BYTES as usize)
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(properties: *mut CUmemAllocationProp, handle: u64) -> Done {
    put(properties, physical(handle)?.properties)
}
