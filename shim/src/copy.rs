//! Copies and memsets: their number, the bytes that they move, and the time that threads wait for them.
//!
//! They pass no gate: copy engines work beside kernels, and a copy that waited for a lease would hold up host code that
//! holds none. The device itself divides the memory bandwidth that they use. So nothing depends on these counters; they
//! are only displayed.
//!
//! Some copies that are queued by name wait all the same, for their stream and so for the launches in it: those into
//! pageable memory of the host, and from there if they are not small. Before them the thread's launches are marked.
//!
//! A copy counts for the calling thread's device, a prefetch for its target device. A copy that is recorded in a stream
//! capture has not moved anything yet: its bytes belong to the graph. Discarding moves nothing. The forms from before
//! CUDA 3.2, with addresses of 32 bits, are not counted: no address of a 64-bit program fits into them.

use crate::context::is_unknown;
use crate::gate;
use crate::hooks::types;
use crate::markers;
use crate::memory::Size;
use crate::process::Process;
use crate::synchronize::Wait;
use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUdevice,
    CUdeviceptr, CUmemLocation, CUresult, CUstream, NullStream, c_uint, c_void,
};
use core::sync::atomic::Ordering;

/// Stands for the ordinal of the calling thread's device.
const CURRENT: CUdevice = -1;

/// Counts a copy that the driver has queued in `stream`, if `result` is a success. Returns `result`.
#[inline(never)]
fn queued(result: CUresult, stream: CUstream, bytes: u64, ordinal: CUdevice) -> CUresult {
    queued_together(result, stream, 1, bytes, ordinal)
}

/// As [`queued`], for several copies.
fn queued_together(result: CUresult, stream: CUstream, copies: usize, bytes: u64, ordinal: CUdevice) -> CUresult {
    markers::note_failure(result);
    if result.is_ok() && !gate::is_capturing(stream) {
        count(copies, bytes, ordinal, 0);
    }
    result
}

/// Counts a copy that the host has waited for, if `result` is a success. Returns `result`.
#[inline(never)]
fn waited_for(result: CUresult, bytes: u64, wait: Wait) -> CUresult {
    let waited_ns = wait.end(bytes);
    markers::note_failure(result);
    if result.is_ok() {
        count(1, bytes, CURRENT, waited_ns);
    }
    result
}

fn count(copies: usize, bytes: u64, ordinal: CUdevice, waited_ns: u64) {
    let Some(process) = Process::attached() else { return };
    let ordinal = if ordinal == CURRENT { process.current_ordinal() } else { Ok(ordinal) };
    let Some(work) = ordinal.ok().and_then(|ordinal| process.part(ordinal)?.work()) else { return };
    work.copies.fetch_add(copies as u64, Ordering::Relaxed);
    work.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
    if waited_ns > 0 {
        work.copy_ns.fetch_add(waited_ns, Ordering::Relaxed);
    }
}

/// The driver takes so many bytes of pageable memory at once, without a wait for the stream.
const STAGED_BYTES: u64 = 64 << 10;

/// To be called before a copy of `bytes` is queued. An address is 0 if an array or, as the program says, a device's
/// memory is on that side.
#[inline(never)]
fn about_to_queue(target: u64, source: u64, bytes: u64) {
    let is_pageable = |address| address != 0 && is_unknown(address);
    if let Some(process) = Process::if_attached()
        && process.may_have_unmarked()
        && (is_pageable(target) || (bytes > STAGED_BYTES && is_pageable(source)))
    {
        gate::mark_all(process);
    }
}

/// An argument that can name one side of a copy.
pub(crate) trait Side: Copy {
    /// The address, or 0: see [`about_to_queue`].
    fn address(self) -> u64;
}

/// An address in the host's memory. In calls that take both kinds, also one in a device's memory.
impl Side for CUdeviceptr {
    fn address(self) -> u64 {
        self
    }
}

impl Side for *const c_void {
    fn address(self) -> u64 {
        self.addr() as u64
    }
}

impl Side for *mut c_void {
    fn address(self) -> u64 {
        self.addr() as u64
    }
}

impl Side for CUarray {
    fn address(self) -> u64 {
        0
    }
}

/// An offset in an array, which has no address.
impl Side for usize {
    fn address(self) -> u64 {
        0
    }
}

/// `cuMemcpy` and its kinds between host and device.
pub(crate) unsafe fn linear<D, S, N: Size>(
    _: NullStream,
    real: unsafe extern "C" fn(D, S, N) -> CUresult,
    destination: D,
    source: S,
    size: N,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call.
    let result = unsafe { real(destination, source, size) };
    waited_for(result, size.bytes(), wait)
}

/// `cuMemcpyAsync` and its kinds between host and device.
pub(crate) unsafe fn linear_async<D: Side, S: Side, N: Size>(
    null: NullStream,
    real: unsafe extern "C" fn(D, S, N, CUstream) -> CUresult,
    destination: D,
    source: S,
    size: N,
    stream: CUstream,
) -> CUresult {
    about_to_queue(destination.address(), source.address(), size.bytes());
    // SAFETY: the host's call.
    let result = unsafe { real(destination, source, size, stream) };
    queued(result, null.explicit(stream), size.bytes(), CURRENT)
}

/// `cuMemcpyPeer`.
pub(crate) unsafe fn peer(
    _: NullStream,
    real: types::cuMemcpyPeer,
    destination: CUdeviceptr,
    destination_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    bytes: usize,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call.
    let result = unsafe { real(destination, destination_context, source, source_context, bytes) };
    waited_for(result, bytes as u64, wait)
}

/// `cuMemcpyPeerAsync`.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn peer_async(
    null: NullStream,
    real: types::cuMemcpyPeerAsync,
    destination: CUdeviceptr,
    destination_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(destination, destination_context, source, source_context, bytes, stream) };
    queued(result, null.explicit(stream), bytes as u64, CURRENT)
}

/// `cuMemcpyWithAttributesAsync`. By its attributes it can wait whatever the memory.
pub(crate) unsafe fn attributed(
    null: NullStream,
    real: types::cuMemcpyWithAttributesAsync,
    destination: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    attributes: *mut c_void,
    stream: CUstream,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    let result = unsafe { real(destination, source, bytes, attributes, stream) };
    queued(result, null.explicit(stream), bytes as u64, CURRENT)
}

/// `cuMemcpyAtoD`, `cuMemcpyAtoH`, `cuMemcpyDtoA`, `cuMemcpyHtoA`: one side is an array and an offset in it.
pub(crate) unsafe fn array<A, B, C>(
    _: NullStream,
    real: unsafe extern "C" fn(A, B, C, usize) -> CUresult,
    first: A,
    second: B,
    third: C,
    bytes: usize,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call.
    let result = unsafe { real(first, second, third, bytes) };
    waited_for(result, bytes as u64, wait)
}

/// `cuMemcpyAtoHAsync`, `cuMemcpyHtoAAsync`.
pub(crate) unsafe fn array_async<A: Side, B, C: Side>(
    null: NullStream,
    real: unsafe extern "C" fn(A, B, C, usize, CUstream) -> CUresult,
    first: A,
    second: B,
    third: C,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    about_to_queue(first.address(), third.address(), bytes as u64);
    // SAFETY: the host's call.
    let result = unsafe { real(first, second, third, bytes, stream) };
    queued(result, null.explicit(stream), bytes as u64, CURRENT)
}

/// `cuMemcpyAtoA`.
pub(crate) unsafe fn arrays(
    _: NullStream,
    real: types::cuMemcpyAtoA_v2,
    destination: CUarray,
    destination_offset: usize,
    source: CUarray,
    source_offset: usize,
    bytes: usize,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call.
    let result = unsafe { real(destination, destination_offset, source, source_offset, bytes) };
    waited_for(result, bytes as u64, wait)
}

/// The description of a copy of several rows.
pub(crate) trait Shape {
    /// The bytes that it moves.
    fn bytes(&self) -> u64;

    /// The addresses of its destination and its source, as for [`about_to_queue`].
    fn sides(&self) -> (u64, u64);
}

/// The address on one side of a description, which has one for each type of memory.
fn side(memory_type: c_uint, host: impl Side, unified: CUdeviceptr) -> u64 {
    const HOST: c_uint = 1; // CU_MEMORYTYPE_HOST
    const UNIFIED: c_uint = 4; // CU_MEMORYTYPE_UNIFIED
    match memory_type {
        HOST => host.address(),
        UNIFIED => unified,
        _ => 0,
    }
}

impl Shape for CUDA_MEMCPY2D {
    fn bytes(&self) -> u64 {
        (self.width_in_bytes as u64).saturating_mul(self.height as u64)
    }

    fn sides(&self) -> (u64, u64) {
        let destination = side(self.dst_memory_type, self.dst_host, self.dst_device);
        (destination, side(self.src_memory_type, self.src_host, self.src_device))
    }
}

impl Shape for CUDA_MEMCPY3D {
    fn bytes(&self) -> u64 {
        (self.width_in_bytes as u64).saturating_mul(self.height as u64).saturating_mul(self.depth as u64)
    }

    fn sides(&self) -> (u64, u64) {
        let destination = side(self.dst_memory_type, self.dst_host, self.dst_device);
        (destination, side(self.src_memory_type, self.src_host, self.src_device))
    }
}

impl Shape for CUDA_MEMCPY3D_PEER {
    fn bytes(&self) -> u64 {
        self.copy.bytes()
    }

    fn sides(&self) -> (u64, u64) {
        self.copy.sides()
    }
}

/// `CUDA_MEMCPY3D_BATCH_OP`, as far as its fields are read here.
#[repr(C)]
pub(crate) struct BatchOperation {
    source_and_destination: [[u64; 5]; 2],
    width: usize,
    height: usize,
    depth: usize,
    order_and_flags: u64,
}

const _: () = assert!(size_of::<BatchOperation>() == 112 && core::mem::offset_of!(BatchOperation, width) == 80);

impl BatchOperation {
    /// Exact if an element has one byte, as for addresses. Only the driver knows the size of an array's elements.
    fn bytes(&self) -> u64 {
        (self.width as u64).saturating_mul(self.height as u64).saturating_mul(self.depth as u64)
    }
}

/// The bytes of the copy that `shape` describes; 0 if it is null.
///
/// # Safety
/// `shape` must be null or the host's structure.
unsafe fn bytes_of<T: Shape>(shape: *const T) -> u64 {
    // SAFETY: vouched for by the caller.
    unsafe { shape.as_ref() }.map_or(0, Shape::bytes)
}

/// `cuMemcpy2D`, `cuMemcpy3D`.
pub(crate) unsafe fn shaped<T: Shape>(
    _: NullStream,
    real: unsafe extern "C" fn(*const T) -> CUresult,
    shape: *const T,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call and structure.
    let (result, bytes) = unsafe { (real(shape), bytes_of(shape)) };
    waited_for(result, bytes, wait)
}

/// `cuMemcpy2DAsync`, `cuMemcpy3DAsync`.
pub(crate) unsafe fn shaped_async<T: Shape>(
    null: NullStream,
    real: unsafe extern "C" fn(*const T, CUstream) -> CUresult,
    shape: *const T,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's structure.
    if let Some(shape) = unsafe { shape.as_ref() } {
        let (destination, source) = shape.sides();
        about_to_queue(destination, source, shape.bytes());
    }
    // SAFETY: the host's call and structure.
    let (result, bytes) = unsafe { (real(shape, stream), bytes_of(shape)) };
    queued(result, null.explicit(stream), bytes, CURRENT)
}

/// The sum of `bytes` over the `count` elements of `list`.
///
/// # Safety
/// `list` must be null or have `count` elements.
unsafe fn sum<T>(list: *const T, count: usize, bytes: impl Fn(&T) -> u64) -> u64 {
    if list.is_null() {
        return 0;
    }
    let mut sum: u64 = 0;
    for number in 0..count {
        // SAFETY: within the list, as the caller vouches.
        sum = sum.saturating_add(bytes(unsafe { &*list.wrapping_add(number) }));
    }
    sum
}

/// Counts a list of copies with the sizes `sizes`.
#[inline(never)]
unsafe fn batch_queued(result: CUresult, stream: CUstream, sizes: *const usize, count: usize) -> CUresult {
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the list has `count` elements.
    let bytes = unsafe { sum(sizes, count, |&size| size as u64) };
    queued_together(result, stream, count, bytes, CURRENT)
}

/// `cuMemcpyBatchAsync` before CUDA 13. Beside many copies a marker costs little, so it is not asked whether one of them
/// waits, here and below.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn batch_until_failure(
    null: NullStream,
    real: types::cuMemcpyBatchAsync,
    destinations: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    indices: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: CUstream,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call and lists.
    unsafe {
        let result = real(destinations, sources, sizes, count, attributes, indices, attribute_count, failed, stream);
        batch_queued(result, null.explicit(stream), sizes, count)
    }
}

/// `cuMemcpyBatchAsync`.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn batch(
    null: NullStream,
    real: types::cuMemcpyBatchAsync_v2,
    destinations: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    indices: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call and lists.
    unsafe {
        let result = real(destinations, sources, sizes, count, attributes, indices, attribute_count, stream);
        batch_queued(result, null.explicit(stream), sizes, count)
    }
}

/// `cuMemPrefetchBatchAsync`. Its parts can go to several devices; they all count for the calling thread's device.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn prefetch_batch(
    null: NullStream,
    real: types::cuMemPrefetchBatchAsync,
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    locations: *mut CUmemLocation,
    indices: *mut usize,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call and lists.
    unsafe {
        let result = real(addresses, sizes, count, locations, indices, location_count, flags, stream);
        batch_queued(result, null.explicit(stream), sizes, count)
    }
}

/// Counts a list of copies of several rows each.
#[inline(never)]
unsafe fn shapes_queued(result: CUresult, stream: CUstream, operations: *const c_void, count: usize) -> CUresult {
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the list has `count` elements.
    let bytes = unsafe { sum(operations.cast(), count, BatchOperation::bytes) };
    queued_together(result, stream, count, bytes, CURRENT)
}

/// `cuMemcpy3DBatchAsync` before CUDA 13.
pub(crate) unsafe fn shaped_batch_until_failure(
    null: NullStream,
    real: types::cuMemcpy3DBatchAsync,
    count: usize,
    operations: *mut c_void,
    failed: *mut usize,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call and list.
    unsafe {
        let result = real(count, operations, failed, flags, stream);
        shapes_queued(result, null.explicit(stream), operations, count)
    }
}

/// `cuMemcpy3DBatchAsync`.
pub(crate) unsafe fn shaped_batch(
    null: NullStream,
    real: types::cuMemcpy3DBatchAsync_v2,
    count: usize,
    operations: *mut c_void,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call and list.
    unsafe {
        let result = real(count, operations, flags, stream);
        shapes_queued(result, null.explicit(stream), operations, count)
    }
}

/// `cuMemcpy3DWithAttributesAsync`.
pub(crate) unsafe fn shaped_attributed(
    null: NullStream,
    real: types::cuMemcpy3DWithAttributesAsync,
    operation: *mut c_void,
    flags: u64,
    stream: CUstream,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call and structure.
    unsafe {
        let result = real(operation, flags, stream);
        shapes_queued(result, null.explicit(stream), operation, 1)
    }
}

/// The bytes of `count` values of type `V`.
fn bytes_of_values<V>(count: usize) -> u64 {
    (count as u64).saturating_mul(size_of::<V>() as u64)
}

/// `cuMemsetD8`, `cuMemsetD16`, `cuMemsetD32`.
pub(crate) unsafe fn set<V>(
    _: NullStream,
    real: unsafe extern "C" fn(CUdeviceptr, V, usize) -> CUresult,
    destination: CUdeviceptr,
    value: V,
    count: usize,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call.
    let result = unsafe { real(destination, value, count) };
    waited_for(result, bytes_of_values::<V>(count), wait)
}

/// `cuMemsetD8Async`, `cuMemsetD16Async`, `cuMemsetD32Async`.
pub(crate) unsafe fn set_async<V>(
    null: NullStream,
    real: unsafe extern "C" fn(CUdeviceptr, V, usize, CUstream) -> CUresult,
    destination: CUdeviceptr,
    value: V,
    count: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(destination, value, count, stream) };
    queued(result, null.explicit(stream), bytes_of_values::<V>(count), CURRENT)
}

/// `cuMemsetD2D8`, `cuMemsetD2D16`, `cuMemsetD2D32`.
pub(crate) unsafe fn set_rows<V>(
    _: NullStream,
    real: unsafe extern "C" fn(CUdeviceptr, usize, V, usize, usize) -> CUresult,
    destination: CUdeviceptr,
    pitch: usize,
    value: V,
    width: usize,
    height: usize,
) -> CUresult {
    let wait = Wait::begin();
    // SAFETY: the host's call.
    let result = unsafe { real(destination, pitch, value, width, height) };
    waited_for(result, bytes_of_values::<V>(width).saturating_mul(height as u64), wait)
}

/// `cuMemsetD2D8Async`, `cuMemsetD2D16Async`, `cuMemsetD2D32Async`.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn set_rows_async<V>(
    null: NullStream,
    real: unsafe extern "C" fn(CUdeviceptr, usize, V, usize, usize, CUstream) -> CUresult,
    destination: CUdeviceptr,
    pitch: usize,
    value: V,
    width: usize,
    height: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(destination, pitch, value, width, height, stream) };
    let bytes = bytes_of_values::<V>(width).saturating_mul(height as u64);
    queued(result, null.explicit(stream), bytes, CURRENT)
}

/// `cuMemPrefetchAsync` before CUDA 12.2. A prefetch to the host, which is no device, counts for the calling thread's
/// device.
pub(crate) unsafe fn prefetch(
    null: NullStream,
    real: types::cuMemPrefetchAsync,
    address: CUdeviceptr,
    bytes: usize,
    destination: CUdevice,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes, destination, stream) };
    queued(result, null.explicit(stream), bytes as u64, destination.max(CURRENT))
}

/// `cuMemPrefetchAsync`.
pub(crate) unsafe fn prefetch_to(
    null: NullStream,
    real: types::cuMemPrefetchAsync_v2,
    address: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: c_uint,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(address, bytes, location, flags, stream) };
    let ordinal = if location.kind == CU_MEM_LOCATION_TYPE_DEVICE { location.id } else { CURRENT };
    queued(result, null.explicit(stream), bytes as u64, ordinal)
}
