//! Memory of sparse arrays: physical memory that is mapped to their tiles, and lives as long as it is mapped.

use core::ffi::c_uint;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUarray, CUarrayMapInfo, CUmipmappedArray, CUresult, CUstream, NullStream};

use crate::Done;
use crate::arrays::{Array, array, element_bytes, mipmapped};
use crate::caller::get_all;
use crate::capture;
use crate::device::Device;
use crate::physical_memory::{Physical, Place, physical};
use crate::queue::{self, Work};
use crate::streams::stream;

const TILE_BYTES: u64 = 64 << 10;
const RESOURCE_ARRAY: c_uint = 0;
const RESOURCE_MIPMAPPED: c_uint = 1;
const SPARSE_LEVEL: c_uint = 0;
const MIP_TAIL: c_uint = 1;
const MAP: c_uint = 1;
const UNMAP: c_uint = 2;

/// A part of an array: the array's address, the kind of part, and its begin.
type Part = (u64, c_uint, [c_uint; 5]);

static MAPPED: Mutex<BTreeMap<Part, &'static Physical>> = Mutex::new(BTreeMap::new());

fn mapped() -> MutexGuard<'static, BTreeMap<Part, &'static Physical>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the memory mapped to an array, at its end.
pub(crate) fn unmap_all(address: u64) {
    unmap_where(|part| part == address);
}

/// Releases the memory mapped to arrays that have ended with their context.
pub(crate) fn unmap_ended(device: &Device) {
    unmap_where(|part| device.arena.contains(part) && device.arena.around(part).is_none());
}

fn unmap_where(ended: impl Fn(u64) -> bool) {
    let mut mapped = mapped();
    let parts = mapped.keys().copied().filter(|(address, ..)| ended(*address)).collect::<Vec<_>>();
    let memories = parts.iter().filter_map(|part| mapped.remove(part)).collect::<Vec<_>>();
    drop(mapped);
    memories.into_iter().for_each(Physical::let_go);
}

/// Width, height and depth of a tile: 64 KiB of elements.
fn tile(array: &Array) -> Done<[u64; 3]> {
    let flat = array.descriptor().depth == 0;
    let tile = match element_bytes(array.descriptor())? {
        1 if flat => [256, 256, 1],
        2 if flat => [256, 128, 1],
        4 if flat => [128, 128, 1],
        8 if flat => [128, 64, 1],
        16 if flat => [64, 64, 1],
        1 => [64, 32, 32],
        2 => [32, 32, 32],
        4 => [32, 32, 16],
        8 => [32, 16, 16],
        16 => [16, 16, 16],
        _ => return Err(CUresult::INVALID_VALUE),
    };
    Ok(tile)
}

/// An entry's part of the array, and the size of its memory.
fn part_of(info: &CUarrayMapInfo) -> Done<(Part, u64)> {
    let [level, layer, x, y, z, width, height, depth] = info.subresource;
    let (base, array) = match info.resource_type {
        RESOURCE_ARRAY => {
            let array = array(CUarray(info.resource))?;
            (array.address(), array)
        }
        RESOURCE_MIPMAPPED => {
            let mipmapped = mipmapped(CUmipmappedArray(info.resource))?;
            let level = if info.subresource_type == MIP_TAIL { 0 } else { level };
            (mipmapped.address(), mipmapped.level(level)?)
        }
        _ => return Err(CUresult::INVALID_VALUE),
    };
    if !array.is_sparse() {
        return Err(CUresult::INVALID_VALUE);
    }
    match info.subresource_type {
        SPARSE_LEVEL => {
            let tile = tile(array)?;
            let extents = [array.descriptor().width as u64, array.rows(), array.planes()];
            let offsets = [x, y, z].map(u64::from);
            let sizes = [width, height, depth].map(u64::from);
            let mut tiles = 1;
            for axis in 0..3 {
                let end = offsets[axis] + sizes[axis];
                let aligned = offsets[axis].is_multiple_of(tile[axis])
                    && (end == extents[axis] || sizes[axis].is_multiple_of(tile[axis]));
                if sizes[axis] == 0 || end > extents[axis] || !aligned {
                    return Err(CUresult::INVALID_VALUE);
                }
                tiles *= sizes[axis].div_ceil(tile[axis]);
            }
            Ok(((base, SPARSE_LEVEL, [level, layer, x, y, z]), tiles * TILE_BYTES))
        }
        MIP_TAIL => {
            // For a mip tail, the layer is followed by two 64-bit numbers: offset and size.
            let [layer, _, offset_low, offset_high, size_low, size_high, ..] = info.subresource;
            let wide = |low: c_uint, high: c_uint| u64::from(low) | u64::from(high) << 32;
            let (offset, size) = (wide(offset_low, offset_high), wide(size_low, size_high));
            if size == 0 || !offset.is_multiple_of(TILE_BYTES) || !size.is_multiple_of(TILE_BYTES) {
                return Err(CUresult::INVALID_VALUE);
            }
            Ok(((base, MIP_TAIL, [layer, offset_low, offset_high, 0, 0]), size))
        }
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// The memory that an entry maps; `None` if the entry unmaps.
fn memory_of(info: &CUarrayMapInfo, bytes: u64) -> Done<Option<&'static Physical>> {
    if info.flags != 0 || info.reserved != [0; 2] || info.device_bit_mask.count_ones() != 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    match info.mem_operation_type {
        UNMAP => Ok(None),
        MAP if info.mem_handle_type == 0 => {
            let memory = physical(info.mem_handle)?;
            let fits = info.offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes);
            let own = memory.place == Place::Device(info.device_bit_mask.trailing_zeros() as usize);
            let valid = memory.is_tile_pool() && own && fits && info.offset.is_multiple_of(TILE_BYTES);
            if valid { Ok(Some(memory)) } else { Err(CUresult::INVALID_VALUE) }
        }
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemMapArrayAsync(null: NullStream, list: *mut CUarrayMapInfo, count: c_uint, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    capture::refuse_in_capture(stream)?;
    // All entries or none: every one is checked before the first is carried out.
    let mut changes = Vec::new();
    for info in get_all(list, count as usize)? {
        let (part, bytes) = part_of(&info)?;
        changes.push((part, memory_of(&info, bytes)?));
    }
    for (part, memory) in changes {
        if let Some(memory) = memory {
            memory.hold();
        }
        let change = move || {
            let mut mapped = mapped();
            let before = match memory {
                Some(memory) => mapped.insert(part, memory),
                None => mapped.remove(&part),
            };
            drop(mapped);
            if let Some(before) = before {
                before.let_go();
            }
        };
        queue::submit(stream, Work::Task { duration_ns: 0, effect: Some(Box::new(change)) }, false);
    }
    Ok(())
}
