//! Physical memory that is bound to something other than an address: to tiles of sparse arrays, or to parts of
//! multicast objects.
//!
//! A binding holds the memory as a mapping does. A binding to a multicast object ends when it is unbound, and when a
//! handle of the object is released. All bindings to an array end when the array is destroyed, even if single tiles
//! were unmapped before: the shim does not track single tiles. A binding that finds no free entry in the table never
//! ends. In each of these cases the memory is counted for too long rather than too short a time.

use crate::allocations::Charge;
use crate::call::Call;
use crate::hooks::types;
use crate::process::Process;
use crate::vmm::{self, Held};
use aliquot_abi::cuda::{CUarrayMapInfo, CUdevice, CUdeviceptr, CUresult, CUstream, NullStream, c_uint, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One binding. All zero: a free entry.
struct Binding {
    /// Handle of the array or the multicast object.
    object: AtomicU64,
    /// Place in the object: the account of the memory in the bits from 48 on, and the offset in bytes below.
    place: AtomicU64,
    /// Index of the memory's record plus one.
    record: AtomicU32,
}

const BINDINGS_MAX: usize = 1024;

static BINDINGS: [Binding; BINDINGS_MAX] =
    [const { Binding { object: AtomicU64::new(0), place: AtomicU64::new(0), record: AtomicU32::new(0) } };
        BINDINGS_MAX];

/// Not zero once there has been a binding.
static IN_USE: AtomicU32 = AtomicU32::new(0);

/// The place of every binding to an array: tiles are not tracked.
const ANYWHERE: u64 = u64::MAX;

fn place_of(account: usize, offset: u64) -> u64 {
    (account as u64) << 48 | offset & ((1 << 48) - 1)
}

/// Lets `object` hold the memory of `held`, at `place`.
fn bind(object: u64, place: u64, held: Held) {
    IN_USE.store(1, Ordering::Relaxed);
    let free =
        |binding: &&Binding| binding.object.compare_exchange(0, object, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if let Some(binding) = BINDINGS.iter().find(free) {
        binding.place.store(place, Ordering::Relaxed);
        // Stored last: from now on `unbind` sees a complete binding.
        binding.record.store(held.record() + 1, Ordering::Release);
    }
    held.keep();
}

/// Whether the memory of record `record` is bound to `object` at any place.
fn is_bound(object: u64, record: u32) -> bool {
    let same = |binding: &Binding| {
        binding.record.load(Ordering::Acquire) == record + 1 && binding.object.load(Ordering::Relaxed) == object
    };
    BINDINGS.iter().any(same)
}

/// Ends the bindings of `object` whose places `ends` selects. `end` ends the charge of memory that nothing holds then.
fn unbind(object: u64, ends: &dyn Fn(u64) -> bool, end: fn(Charge)) {
    for binding in &BINDINGS {
        if binding.object.load(Ordering::Relaxed) == object
            && ends(binding.place.load(Ordering::Relaxed))
            && let Some(record) = binding.record.swap(0, Ordering::AcqRel).checked_sub(1)
        {
            binding.object.store(0, Ordering::Release);
            vmm::let_go(record, end);
        }
    }
}

/// An array was destroyed, and with it all bindings to it.
pub(crate) fn array_gone(array: *mut c_void) {
    unbind_all(array.addr() as u64, Charge::refund);
}

/// A handle was released that leads to no memory of this process, perhaps the last one of a multicast object. The object
/// lives on if it has another handle or is mapped. So what was bound to it is overhead until a look that comes later.
pub(crate) fn object_released(object: u64) {
    unbind_all(object, Charge::becomes_overhead);
}

#[inline(never)]
fn unbind_all(object: u64, end: fn(Charge)) {
    if IN_USE.load(Ordering::Relaxed) != 0 {
        unbind(object, &|_| true, end);
    }
}

/// `cuMemMapArrayAsync`: the memory stays bound to the array until the array is destroyed.
pub(crate) unsafe fn map_array(
    _: NullStream,
    real: types::cuMemMapArrayAsync,
    list: *mut CUarrayMapInfo,
    count: c_uint,
    stream: CUstream,
) -> CUresult {
    const MAP: c_uint = 1; // CU_MEM_OPERATION_TYPE_MAP
    // SAFETY: the host's call.
    let result = unsafe { real(list, count, stream) };
    if result.is_ok() && !list.is_null() {
        // SAFETY: the call has succeeded, so the list has `count` elements.
        for entry in unsafe { core::slice::from_raw_parts(list, count as usize) } {
            let array = entry.resource.addr() as u64;
            if entry.mem_operation_type == MAP
                && let Some(held) = vmm::hold_handle(entry.mem_handle)
                && !is_bound(array, held.record())
            {
                bind(array, ANYWHERE, held);
            }
        }
    }
    result
}

/// Makes a call that binds the memory of `held` to a multicast object.
#[inline(never)]
fn bound(object: u64, offset: usize, held: Option<Held>, call: &dyn Call<CUresult>) -> CUresult {
    let result = call.make();
    if let (true, Some(held)) = (result.is_ok(), held) {
        bind(object, place_of(held.account(), offset as u64), held);
    }
    result
}

/// `cuMulticastBindMem`.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn multicast_bind(
    _: NullStream,
    real: types::cuMulticastBindMem,
    object: u64,
    offset: usize,
    handle: u64,
    handle_offset: usize,
    bytes: usize,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call.
    bound(object, offset, vmm::hold_handle(handle), &|| unsafe {
        real(object, offset, handle, handle_offset, bytes, flags)
    })
}

/// `cuMulticastBindMem_v2` of CUDA 13.1, which also takes the device.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn multicast_bind_device(
    _: NullStream,
    real: types::cuMulticastBindMem_v2,
    object: u64,
    device: CUdevice,
    offset: usize,
    handle: u64,
    handle_offset: usize,
    bytes: usize,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call.
    bound(object, offset, vmm::hold_handle(handle), &|| unsafe {
        real(object, device, offset, handle, handle_offset, bytes, flags)
    })
}

/// `cuMulticastBindAddr`.
pub(crate) unsafe fn multicast_bind_address(
    _: NullStream,
    real: types::cuMulticastBindAddr,
    object: u64,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call.
    bound(object, offset, vmm::hold_mapped(address), &|| unsafe { real(object, offset, address, bytes, flags) })
}

/// `cuMulticastBindAddr_v2` of CUDA 13.1, which also takes the device.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn multicast_bind_device_address(
    _: NullStream,
    real: types::cuMulticastBindAddr_v2,
    object: u64,
    device: CUdevice,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call.
    bound(object, offset, vmm::hold_mapped(address), &|| unsafe { real(object, device, offset, address, bytes, flags) })
}

/// `cuMulticastUnbind`.
pub(crate) unsafe fn multicast_unbind(
    _: NullStream,
    real: types::cuMulticastUnbind,
    object: u64,
    device: CUdevice,
    offset: usize,
    bytes: usize,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(object, device, offset, bytes) };
    if result.is_ok()
        && let Some(part) = Process::if_attached().and_then(|process| process.part(device))
    {
        let first = place_of(part.index, offset as u64);
        unbind(object, &|place| place.wrapping_sub(first) < bytes as u64, Charge::refund);
    }
    result
}
