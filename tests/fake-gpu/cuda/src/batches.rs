//! Several copies or prefetches in one call, and copies with attributes.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{CUarray, CUdeviceptr, CUmemLocation, CUresult, CUstream, NullStream};

use crate::Done;
use crate::arrays::{array, element_bytes};
use crate::caller::{get, get_all, put_if_wanted};
use crate::capture;
use crate::copies::{Copy, Place, issue};
use crate::locations;
use crate::memory::{check_managed, side_of};
use crate::queue;
use crate::streams::{Stream, stream};

/// `CUmemcpySrcAccessOrder`: in stream order, during the call, or at any time.
const ACCESS_ORDERS: core::ops::RangeInclusive<c_uint> = 1..=3;
const DURING_CALL: c_uint = 2;
/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`.
const PREFER_OVERLAP: c_uint = 1;
const OPERAND_POINTER: c_uint = 1;
const OPERAND_ARRAY: c_uint = 2;

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    access_order: c_uint,
    source_hint: CUmemLocation,
    target_hint: CUmemLocation,
    flags: c_uint,
}

/// `CUmemcpy3DOperand`: a pointer with row length, layer height and hint; or an array with an offset.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    kind: c_uint,
    object: u64,
    numbers: [u64; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operation {
    source: Operand,
    target: Operand,
    extent: [u64; 3],
    access_order: c_uint,
    flags: c_uint,
}

const _: () = assert!(size_of::<Attributes>() == 24 && size_of::<Operation>() == 112);

/// Waits until the sources have been read, if the call must not return before that.
fn finish(stream: &'static Stream, mut orders: impl Iterator<Item = c_uint>) -> Done {
    if orders.any(|order| order == DURING_CALL) && !capture::is_capturing(stream)? {
        queue::wait_for_stream(stream);
    }
    Ok(())
}

fn check_order_and_flags(access_order: c_uint, flags: c_uint) -> Done {
    if ACCESS_ORDERS.contains(&access_order) && flags & !PREFER_OVERLAP == 0 {
        Ok(())
    } else {
        Err(CUresult::INVALID_VALUE)
    }
}

/// The stream of a batch, which cannot be the legacy default stream.
fn batch_stream(null: NullStream, handle: CUstream) -> Done<&'static Stream> {
    let stream = stream(null, handle)?;
    if stream.kind == crate::streams::StreamKind::Legacy { Err(CUresult::INVALID_VALUE) } else { Ok(stream) }
}

/// Checks all copies before the first is issued. Writes the number of the first invalid one to `failed`.
fn issue_all(stream: &'static Stream, copies: impl Iterator<Item = Done<Copy>>, failed: *mut usize) -> Done {
    put_if_wanted(failed, usize::MAX);
    let mut checked = Vec::new();
    for (number, copy) in copies.enumerate() {
        checked.push(copy.inspect_err(|_| put_if_wanted(failed, number))?);
    }
    checked.into_iter().try_for_each(|copy| issue(stream, copy, false))
}

/// Checks a list of first entries, as for attributes: it must start with entry 0 and increase.
fn check_firsts(firsts: *mut usize, count: usize, entries: usize) -> Done {
    let firsts = get_all(firsts, count)?;
    let rising = firsts.windows(2).all(|pair| pair[0] < pair[1]);
    let valid = firsts.first() == Some(&0) && rising && firsts.last().is_some_and(|&last| last < entries);
    if valid { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

fn check_attributes(attributes: *mut c_void, firsts: *mut usize, count: usize, copies: usize) -> Done<Vec<Attributes>> {
    check_firsts(firsts, count, copies)?;
    let attributes = get_all(attributes.cast::<Attributes>(), count)?;
    attributes.iter().try_for_each(|one| check_order_and_flags(one.access_order, one.flags))?;
    Ok(attributes)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuMemcpyBatchAsync(
    null: NullStream,
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    attribute_firsts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    handle: CUstream,
) -> Done {
    let stream = batch_stream(null, handle)?;
    if count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let attributes = check_attributes(attributes, attribute_firsts, attribute_count, count)?;
    let places = get_all(targets, count)?.into_iter().zip(get_all(sources, count)?);
    let copies = places.zip(get_all(sizes, count)?).map(|((target, source), bytes)| {
        if bytes == 0 { Err(CUresult::INVALID_VALUE) } else { Copy::unified(target, source, bytes) }
    });
    issue_all(stream, copies, failed)?;
    finish(stream, attributes.iter().map(|one| one.access_order))
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuMemcpyBatchAsync_v2(
    null: NullStream,
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    attribute_firsts: *mut usize,
    attribute_count: usize,
    handle: CUstream,
) -> Done {
    let nowhere = core::ptr::null_mut();
    cuMemcpyBatchAsync(
        null,
        targets,
        sources,
        sizes,
        count,
        attributes,
        attribute_firsts,
        attribute_count,
        nowhere,
        handle,
    )
}

pub(crate) fn cuMemcpyWithAttributesAsync(
    null: NullStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    attributes: *mut c_void,
    handle: CUstream,
) -> Done {
    let stream = stream(null, handle)?;
    let attributes = get(attributes.cast::<Attributes>())?;
    check_order_and_flags(attributes.access_order, attributes.flags)?;
    issue(stream, Copy::unified(target, source, bytes)?, false)?;
    finish(stream, [attributes.access_order].into_iter())
}

impl Operand {
    /// Bytes of an element if the operand is an array.
    fn element_bytes(&self) -> Done<Option<u64>> {
        match self.kind {
            OPERAND_POINTER => Ok(None),
            OPERAND_ARRAY => Ok(Some(element_bytes(array(self.array())?.descriptor())?)),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    fn array(&self) -> CUarray {
        CUarray(core::ptr::with_exposed_provenance_mut(self.object as usize))
    }

    /// The operand's place, for a copy of `[width, height, depth]` elements of `element_bytes`.
    fn place(&self, [width, height, depth]: [u64; 3], element_bytes: u64) -> Done<Place> {
        if self.kind == OPERAND_ARRAY {
            let [x, y, z] = self.numbers;
            let x_bytes = x.saturating_mul(element_bytes);
            let width_bytes = width.saturating_mul(element_bytes);
            return Place::in_array(self.array(), [x_bytes, y, z], Some([height, depth]), width_bytes);
        }
        let [row_length, layer_height, _] = self.numbers;
        let row = if row_length == 0 { width } else { row_length };
        let rows = if layer_height == 0 { height } else { layer_height };
        if self.object == 0 || row < width || rows < height {
            return Err(CUresult::INVALID_VALUE);
        }
        // A product that saturates is refused later, because no memory is that long.
        let row_pitch = row.saturating_mul(element_bytes);
        let plane_pitch = row_pitch.saturating_mul(rows);
        let before = (depth - 1).saturating_mul(plane_pitch).saturating_add((height - 1).saturating_mul(row_pitch));
        let span = before.saturating_add(width.saturating_mul(element_bytes));
        Ok(Place::pitched(self.object, side_of(self.object, span)?, row_pitch, plane_pitch))
    }
}

impl Operation {
    fn copy(&self) -> Done<Copy> {
        check_order_and_flags(self.access_order, self.flags)?;
        if self.extent.contains(&0) {
            return Err(CUresult::INVALID_VALUE);
        }
        let elements = [self.source.element_bytes()?, self.target.element_bytes()?];
        // With an array, extents are in elements. Two arrays must have elements of the same size.
        let element_bytes = match elements {
            [Some(left), Some(right)] if left != right => return Err(CUresult::INVALID_VALUE),
            [left, right] => left.or(right).unwrap_or(1),
        };
        let [width, height, depth] = self.extent;
        let source = self.source.place(self.extent, element_bytes)?;
        let target = self.target.place(self.extent, element_bytes)?;
        Ok(Copy { target, source, width_bytes: width.saturating_mul(element_bytes), height, depth })
    }
}

pub(crate) fn cuMemcpy3DBatchAsync(
    null: NullStream,
    count: usize,
    operations: *mut c_void,
    failed: *mut usize,
    flags: u64,
    handle: CUstream,
) -> Done {
    let stream = batch_stream(null, handle)?;
    if flags != 0 || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let operations = get_all(operations.cast::<Operation>(), count)?;
    issue_all(stream, operations.iter().map(Operation::copy), failed)?;
    finish(stream, operations.iter().map(|operation| operation.access_order))
}

pub(crate) fn cuMemcpy3DBatchAsync_v2(
    null: NullStream,
    count: usize,
    operations: *mut c_void,
    flags: u64,
    handle: CUstream,
) -> Done {
    cuMemcpy3DBatchAsync(null, count, operations, core::ptr::null_mut(), flags, handle)
}

pub(crate) fn cuMemcpy3DWithAttributesAsync(
    null: NullStream,
    operation: *mut c_void,
    flags: u64,
    handle: CUstream,
) -> Done {
    let stream = stream(null, handle)?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let operation = get(operation.cast::<Operation>())?;
    issue(stream, operation.copy()?, false)?;
    finish(stream, [operation.access_order].into_iter())
}

/// Checks the ranges, which must be managed memory, and the stream.
fn check_ranges(
    null: NullStream,
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    handle: CUstream,
) -> Done<&'static Stream> {
    let stream = batch_stream(null, handle)?;
    if count == 0 || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut ranges = get_all(addresses, count)?.into_iter().zip(get_all(sizes, count)?);
    ranges.try_for_each(|(address, bytes)| check_managed(address, bytes))?;
    Ok(stream)
}

/// Checks the locations to which the ranges are to move.
fn check_places(places: *mut CUmemLocation, firsts: *mut usize, count: usize, ranges: usize) -> Done {
    check_firsts(firsts, count, ranges)?;
    get_all(places, count)?.into_iter().try_for_each(|place| locations::read(place).map(|_| ()))
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuMemPrefetchBatchAsync(
    null: NullStream,
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    places: *mut CUmemLocation,
    firsts: *mut usize,
    place_count: usize,
    flags: u64,
    handle: CUstream,
) -> Done {
    let stream = check_ranges(null, addresses, sizes, count, flags, handle)?;
    check_places(places, firsts, place_count, count)?;
    capture::refuse_in_capture(stream)
}

/// Does nothing after its checks: discarded memory may keep its contents.
pub(crate) fn cuMemDiscardBatchAsync(
    null: NullStream,
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    handle: CUstream,
) -> Done {
    capture::refuse_in_capture(check_ranges(null, addresses, sizes, count, flags, handle)?)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuMemDiscardAndPrefetchBatchAsync(
    null: NullStream,
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    places: *mut CUmemLocation,
    firsts: *mut usize,
    place_count: usize,
    flags: u64,
    handle: CUstream,
) -> Done {
    cuMemPrefetchBatchAsync(null, addresses, sizes, count, places, firsts, place_count, flags, handle)
}
