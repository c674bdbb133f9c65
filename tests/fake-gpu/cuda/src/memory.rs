//! Linear and managed memory, and the classification of addresses.

use core::ffi::{c_int, c_uint, c_void};

use aliquot_abi::cuda::{CUdevice, CUdeviceptr, CUmemLocation, CUresult, CUstream, NullStream};

use crate::Done;
use crate::arena::{Extent, Use, round_up};
use crate::caller::{get_all, not_null, put, put_all, put_if_wanted};
use crate::context::{Context, current};
use crate::device::{Device, device};
use crate::process::{initialised, process};
use crate::{capture, host_memory, imported, shared_extents, stream_ordered, virtual_memory};

/// Rows of pitched allocations begin at multiples of this.
const PITCH_BYTES: u64 = 512;
const ATTACH_GLOBAL: c_uint = 1;
const ATTACH_HOST: c_uint = 2;
/// The location types that name the host, with or without a NUMA node.
const LOCATION_HOST: core::ops::RangeInclusive<c_uint> = 2..=4;
const LOCATION_DEVICE: c_uint = 1;
/// The answers of `cuMemRangeGetAttribute` for "the host" and for "no device".
const DEVICE_HOST: c_int = -1;
const DEVICE_NONE: c_int = -2;

/// The kind of memory at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Memory of the device with this ordinal.
    Device(usize),
    /// Host memory that the driver has allocated or registered.
    PinnedHost,
    /// Other memory of the program.
    PageableHost,
}

/// Allocates memory for a context.
pub(crate) fn take(context: &Context, bytes: u64, usage: Use) -> Done<u64> {
    let device = context.device();
    let _accounts = device.accounts();
    let (address, charged_bytes) = device.arena.take(bytes, context.life(), usage).ok_or(CUresult::OUT_OF_MEMORY)?;
    device.reserve(charged_bytes).inspect_err(|_| {
        device.arena.give_back(address, |_| true);
    })?;
    Ok(address)
}

/// Frees memory of [`take`], if it has one of these uses.
pub(crate) fn give_back(address: u64, uses: &[Use]) -> Done {
    let device = device_of(address).ok_or(CUresult::INVALID_VALUE)?;
    let allowed = |extent: &Extent| uses.contains(&extent.usage);
    let _accounts = device.accounts();
    let (_, freed_bytes) = device.arena.give_back(address, allowed).ok_or(CUresult::INVALID_VALUE)?;
    shared_extents::forget(device, address);
    device.release(freed_bytes);
    Ok(())
}

/// Marks linear or managed memory as about to be freed, so that it cannot be freed again. Then
/// [`give_back`] frees it as [`Use::Freeing`].
pub(crate) fn begin_free(device: &Device, address: u64) -> bool {
    let turn = |from| device.arena.turn(address, from, Use::Freeing);
    turn(Use::Linear).or_else(|| turn(Use::Managed)).is_some()
}

/// The device in whose range an address lies.
pub(crate) fn device_of(address: u64) -> Option<&'static Device> {
    initialised().devices.iter().find(|device| device.arena.contains(address))
}

/// The allocation around an address in a device's range.
pub(crate) fn extent_around(address: u64) -> Option<(&'static Device, Extent)> {
    let device = device_of(address)?;
    device.arena.around(address).map(|extent| (device, extent))
}

/// Whether an address is in managed memory.
pub(crate) fn is_managed(address: u64) -> bool {
    extent_around(address).is_some_and(|(_, extent)| extent.usage == Use::Managed)
}

/// The kind of memory of `bytes` from `address` on. If they begin in an allocation, they must lie within it.
pub(crate) fn side_of(address: u64, bytes: u64) -> Done<Side> {
    let (end, side) = if let Some(device) = device_of(address) {
        let extent = device.arena.around(address).ok_or(CUresult::INVALID_VALUE)?;
        let is_host = extent.usage == Use::HostPool;
        (extent.start + extent.bytes, if is_host { Side::PinnedHost } else { Side::Device(device.ordinal) })
    } else if let Some(end) = virtual_memory::mapped_end(address)? {
        end
    } else if let Some(range) = imported::around(address) {
        (range.start + range.bytes, Side::Device(range.ordinal))
    } else if let Some(range) = host_memory::range_around(address) {
        (range.start + range.bytes, Side::PinnedHost)
    } else {
        (u64::MAX, Side::PageableHost)
    };
    if end - address >= bytes { Ok(side) } else { Err(CUresult::INVALID_VALUE) }
}

/// As [`side_of`], for an address that must belong to the driver.
pub(crate) fn known_side_of(address: u64, bytes: u64) -> Done<Side> {
    match side_of(address, bytes)? {
        Side::PageableHost => Err(CUresult::INVALID_VALUE),
        side => Ok(side),
    }
}

/// Marks the allocation around `address` as written.
pub(crate) fn touch(address: u64) {
    if let Some((device, extent)) = extent_around(address)
        && !extent.touched
    {
        device.arena.touch(extent.start);
    }
}

pub(crate) fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Done {
    let device = current()?.device();
    not_null(free)?;
    put(total, device.config.memory_bytes as usize)?;
    put(free, initialised().member.free_memory_bytes(device.index) as usize)
}

pub(crate) fn cuMemAlloc_v2(target: *mut CUdeviceptr, bytes: usize) -> Done {
    let context = current()?;
    not_null(target)?;
    capture::check_unsafe_call()?;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, take(context, bytes as u64, Use::Linear)?)
}

pub(crate) fn cuMemAllocPitch_v2(
    target: *mut CUdeviceptr,
    pitch: *mut usize,
    width_bytes: usize,
    height: usize,
    element_bytes: c_uint,
) -> Done {
    let context = current()?;
    not_null(target)?;
    not_null(pitch)?;
    capture::check_unsafe_call()?;
    if width_bytes == 0 || height == 0 || !matches!(element_bytes, 4 | 8 | 16) {
        return Err(CUresult::INVALID_VALUE);
    }
    let row_bytes = round_up(width_bytes as u64, PITCH_BYTES);
    let bytes = row_bytes.checked_mul(height as u64).ok_or(CUresult::OUT_OF_MEMORY)?;
    put(target, take(context, bytes, Use::Linear)?)?;
    put(pitch, row_bytes as usize)
}

pub(crate) fn cuMemAllocManaged(target: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> Done {
    let context = current()?;
    not_null(target)?;
    capture::check_unsafe_call()?;
    if bytes == 0 || !matches!(flags, ATTACH_GLOBAL | ATTACH_HOST) {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, take(context, bytes as u64, Use::Managed)?)
}

pub(crate) fn cuMemFree_v2(address: CUdeviceptr) -> Done {
    current()?;
    capture::check_unsafe_call()?;
    if address == 0 {
        return Ok(());
    }
    // Freeing waits for all work that may use the memory.
    match device_of(address) {
        Some(device) => crate::queue::wait_for_device(device),
        None => crate::queue::wait_for_all(),
    }
    give_back(address, &[Use::Linear, Use::Managed]).or_else(|_| stream_ordered::free_at_once(address))
}

/// Start and size of the allocation around an address.
pub(crate) fn range_of(address: u64) -> Option<(u64, u64)> {
    if let Some((_, extent)) = extent_around(address) {
        return Some((extent.start, extent.bytes));
    }
    virtual_memory::mapping_range(address)
        .or_else(|| imported::around(address).map(|range| (range.start, range.bytes)))
        .or_else(|| host_memory::range_around(address).map(|range| (range.start, range.bytes)))
}

pub(crate) fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) -> Done {
    current()?;
    let (start, length) = range_of(address).ok_or(CUresult::NOT_FOUND)?;
    put_if_wanted(base, start);
    put_if_wanted(bytes, length as usize);
    Ok(())
}

/// Refuses a range that is not wholly managed memory.
pub(crate) fn check_managed(address: u64, bytes: usize) -> Done {
    if bytes == 0 || !is_managed(address) {
        return Err(CUresult::INVALID_VALUE);
    }
    side_of(address, bytes as u64).map(|_| ())
}

fn check_location(location: CUmemLocation) -> Done {
    match location.kind {
        LOCATION_DEVICE => device(location.id).map(|_| ()),
        kind if LOCATION_HOST.contains(&kind) => Ok(()),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// Advice is accepted and has no effect: every device and the host can access managed memory.
pub(crate) fn cuMemAdvise_v2(address: CUdeviceptr, bytes: usize, advice: c_uint, location: CUmemLocation) -> Done {
    process()?;
    if !(1..=6).contains(&advice) {
        return Err(CUresult::INVALID_VALUE);
    }
    // Advices 1 and 2, about read-mostly data, name no location.
    if advice > 2 {
        check_location(location)?;
    }
    check_managed(address, bytes)
}

pub(crate) fn cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: c_uint, ordinal: CUdevice) -> Done {
    cuMemAdvise_v2(address, bytes, advice, location_of(ordinal))
}

fn location_of(ordinal: CUdevice) -> CUmemLocation {
    let host = ordinal == DEVICE_HOST;
    CUmemLocation { kind: if host { *LOCATION_HOST.start() } else { LOCATION_DEVICE }, id: ordinal.max(0) }
}

pub(crate) fn cuMemPrefetchAsync_v2(
    null: NullStream,
    address: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: c_uint,
    handle: CUstream,
) -> Done {
    let stream = crate::streams::stream(null, handle)?;
    check_location(location)?;
    check_managed(address, bytes)?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    capture::refuse_in_capture(stream)
}

pub(crate) fn cuMemPrefetchAsync(
    null: NullStream,
    address: CUdeviceptr,
    bytes: usize,
    ordinal: CUdevice,
    handle: CUstream,
) -> Done {
    cuMemPrefetchAsync_v2(null, address, bytes, location_of(ordinal), 0, handle)
}

pub(crate) fn cuMemRangeGetAttribute(
    data: *mut c_void,
    data_bytes: usize,
    attribute: c_uint,
    address: CUdeviceptr,
    bytes: usize,
) -> Done {
    process()?;
    check_managed(address, bytes)?;
    not_null(data)?;
    if data_bytes == 0 || !data_bytes.is_multiple_of(4) {
        return Err(CUresult::INVALID_VALUE);
    }
    match attribute {
        // Read mostly
        1 => put(data.cast(), 0),
        // Preferred location, last prefetch
        2 | 4 => put(data.cast(), DEVICE_NONE),
        // Accessed by: a list
        3 => put_all(data.cast(), std::iter::repeat_n(DEVICE_NONE, data_bytes / 4)),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    data_bytes: *mut usize,
    attributes: *mut c_uint,
    count: usize,
    address: CUdeviceptr,
    bytes: usize,
) -> Done {
    process()?;
    let targets = get_all(data, count)?.into_iter().zip(get_all(data_bytes, count)?);
    for ((target, target_bytes), attribute) in targets.zip(get_all(attributes, count)?) {
        cuMemRangeGetAttribute(target, target_bytes, attribute, address, bytes)?;
    }
    Ok(())
}
