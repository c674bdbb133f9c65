//! Reserved address ranges, and mappings of physical memory into them.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdeviceptr, CUmemAccessDesc, CUmemLocation, CUresult};

use crate::Done;
use crate::backing::unmap;
use crate::caller::{get, get_all, not_null, put};
use crate::locations::{self, Location};
use crate::memory::Side;
use crate::physical_memory::{GRANULARITY_BYTES, Physical, Place, check_granular, physical, retain};
use crate::process::{initialised, process};

const ACCESS_READ: c_uint = 1;
const ACCESS_READ_WRITE: c_uint = 3;

#[derive(Clone)]
struct Mapping {
    bytes: u64,
    physical: &'static Physical,
    handle: u64,
    /// Locations that may access it, and their access flags.
    access: Vec<(CUmemLocation, c_uint)>,
}

impl Mapping {
    fn is_accessible(&self) -> bool {
        self.access.iter().any(|(_, flags)| *flags != 0)
    }

    /// The host's page protection: the union of all locations' access rights.
    fn protection(&self) -> c_int {
        match self.access.iter().map(|(_, flags)| *flags).max() {
            Some(ACCESS_READ) => libc::PROT_READ,
            Some(ACCESS_READ_WRITE) => libc::PROT_READ | libc::PROT_WRITE,
            _ => libc::PROT_NONE,
        }
    }
}

#[derive(Default)]
struct Space {
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
}

static SPACE: Mutex<Space> = Mutex::new(Space { reservations: BTreeMap::new(), mappings: BTreeMap::new() });

fn space() -> MutexGuard<'static, Space> {
    SPACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of the mapping around an address, and the kind of its memory. An address that is reserved but not mapped is
/// refused.
pub(crate) fn mapped_end(address: u64) -> Done<Option<(u64, Side)>> {
    let space = space();
    if !space.is_reserved(address, 1) {
        return Ok(None);
    }
    let (mut end, side) = match space.mapping_around(address) {
        Some((start, mapping)) if mapping.is_accessible() => (start + mapping.bytes, mapping.physical.side()),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    // Adjacent mappings count as one range.
    while let Some(next) = space.mappings.get(&end).filter(|next| next.is_accessible()) {
        end += next.bytes;
    }
    Ok(Some((end, side)))
}

/// The start and size of the mapping around an address.
pub(crate) fn mapping_range(address: u64) -> Option<(u64, u64)> {
    space().mapping_around(address).map(|(start, mapping)| (start, mapping.bytes))
}

/// The memory mapped at an address, and the number of bytes from there to the mapping's end.
pub(crate) fn mapped_at(address: u64) -> Option<(&'static Physical, u64)> {
    space().mapping_around(address).map(|(start, mapping)| (mapping.physical, start + mapping.bytes - address))
}

impl Space {
    fn mapping_around(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping))
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

/// Makes an inaccessible mapping at `address`, or anywhere if that is null.
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
            unsafe { unmap(address, length) };
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
    // SAFETY: a reservation of this module without mappings, which is no longer in the list.
    unsafe { unmap(address, bytes as u64) };
    Ok(())
}

pub(crate) fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) -> Done {
    let physical = physical(handle)?;
    let (bytes, offset) = (bytes as u64, offset as u64);
    check_granular(address)?;
    check_granular(bytes)?;
    check_granular(offset)?;
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= physical.bytes);
    if bytes == 0 || flags != 0 || !fits || physical.is_tile_pool() {
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
    physical.map(offset, bytes, address)?;
    physical.hold();
    space.mappings.insert(address, Mapping { bytes, physical, handle, access: Vec::new() });
    Ok(())
}

pub(crate) fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> Done {
    process()?;
    let ended = {
        let mut space = space();
        let starts = space.mappings_in(address, bytes as u64)?;
        map_nothing(address, bytes as u64, true)?;
        starts.iter().filter_map(|start| space.mappings.remove(start)).collect::<Vec<_>>()
    };
    ended.iter().for_each(|mapping| mapping.physical.let_go());
    Ok(())
}

pub(crate) fn cuMemRetainAllocationHandle(target: *mut u64, address: *mut c_void) -> Done {
    process()?;
    not_null(target)?;
    let mut space = space();
    let (start, _) = space.mapping_around(address as u64).ok_or(CUresult::INVALID_VALUE)?;
    let mapping = space.mappings.get_mut(&start).ok_or(CUresult::INVALID_VALUE)?;
    mapping.handle = retain(mapping.physical, mapping.handle);
    put(target, mapping.handle)
}

/// Refuses access for a location that cannot reach the memory.
fn check_reachable(physical: &Physical, location: CUmemLocation) -> Done {
    match (locations::read(location)?, physical.place) {
        (Location::Device(other), Place::Device(ordinal)) => {
            let own = &initialised().devices[ordinal];
            let reachable = own.ordinal == other.ordinal || crate::device::linked(own, other);
            if reachable { Ok(()) } else { Err(CUresult::PEER_ACCESS_UNSUPPORTED) }
        }
        (_, Place::Host) | (Location::Device(_), Place::Everywhere) => Ok(()),
        // The host cannot reach a device's memory.
        (Location::Host, _) => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize) -> Done {
    process()?;
    let descriptions = get_all(access, count)?;
    if count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut space = space();
    let starts = space.mappings_in(address, bytes as u64)?;
    for description in &descriptions {
        if !matches!(description.flags, 0 | ACCESS_READ | ACCESS_READ_WRITE) {
            return Err(CUresult::INVALID_VALUE);
        }
        for start in &starts {
            check_reachable(space.mappings[start].physical, description.location)?;
        }
    }
    for start in starts {
        let Some(mapping) = space.mappings.get_mut(&start) else { continue };
        for CUmemAccessDesc { location, flags } in &descriptions {
            mapping.access.retain(|(known, _)| !locations::same(*known, *location));
            mapping.access.push((*location, *flags));
        }
        // SAFETY: pages of a mapping of this module.
        unsafe { libc::mprotect(start as *mut c_void, mapping.bytes as usize, mapping.protection()) };
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) -> Done {
    process()?;
    let location = get(location)?;
    locations::read(location)?;
    let space = space();
    let (_, mapping) = space.mapping_around(address).ok_or(CUresult::INVALID_VALUE)?;
    let entry = mapping.access.iter().find(|(known, _)| locations::same(*known, location));
    put(flags, entry.map_or(0, |(_, flags)| c_ulonglong::from(*flags)))
}
