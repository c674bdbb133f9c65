//! Copies of contiguous bytes of an array, and copies between contexts.

use core::ffi::c_void;

use aliquot_abi::cuda::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUcontext, CUdeviceptr, CUresult, CUstream, NullStream,
};

use crate::Done;
use crate::caller::get;
use crate::context::context;
use crate::copies::{Copy, Place, copy_3d, issue, issue_if_any};
use crate::memory::{known_side_of, side_of};
use crate::streams::{Stream, stream};

/// `bytes` bytes of an array from `offset` on.
fn in_array(handle: CUarray, offset: usize, bytes: usize) -> Done<Place> {
    Place::in_array(handle, [offset as u64, 0, 0], None, bytes as u64)
}

fn in_memory(address: u64, bytes: usize, known: bool) -> Done<Place> {
    if address == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let side = if known { known_side_of(address, bytes as u64)? } else { side_of(address, bytes as u64)? };
    Ok(Place::linear(address, side, bytes as u64))
}

fn copy(stream: &'static Stream, target: Place, source: Place, bytes: usize, synchronous: bool) -> Done {
    issue(stream, Copy::between(target, source, bytes as u64), synchronous)
}

pub(crate) fn cuMemcpyAtoA_v2(
    null: NullStream,
    target: CUarray,
    target_offset: usize,
    source: CUarray,
    source_offset: usize,
    bytes: usize,
) -> Done {
    let stream = stream(null, CUstream::NULL)?;
    copy(stream, in_array(target, target_offset, bytes)?, in_array(source, source_offset, bytes)?, bytes, true)
}

pub(crate) fn cuMemcpyAtoD_v2(
    null: NullStream,
    target: CUdeviceptr,
    source: CUarray,
    offset: usize,
    bytes: usize,
) -> Done {
    let stream = stream(null, CUstream::NULL)?;
    copy(stream, in_memory(target, bytes, true)?, in_array(source, offset, bytes)?, bytes, true)
}

pub(crate) fn cuMemcpyDtoA_v2(
    null: NullStream,
    target: CUarray,
    offset: usize,
    source: CUdeviceptr,
    bytes: usize,
) -> Done {
    let stream = stream(null, CUstream::NULL)?;
    copy(stream, in_array(target, offset, bytes)?, in_memory(source, bytes, true)?, bytes, true)
}

pub(crate) fn cuMemcpyAtoH_v2(
    null: NullStream,
    target: *mut c_void,
    source: CUarray,
    offset: usize,
    bytes: usize,
) -> Done {
    let stream = stream(null, CUstream::NULL)?;
    copy(stream, in_memory(target as u64, bytes, false)?, in_array(source, offset, bytes)?, bytes, true)
}

pub(crate) fn cuMemcpyAtoHAsync_v2(
    null: NullStream,
    target: *mut c_void,
    source: CUarray,
    offset: usize,
    bytes: usize,
    handle: CUstream,
) -> Done {
    let stream = stream(null, handle)?;
    copy(stream, in_memory(target as u64, bytes, false)?, in_array(source, offset, bytes)?, bytes, false)
}

pub(crate) fn cuMemcpyHtoA_v2(
    null: NullStream,
    target: CUarray,
    offset: usize,
    source: *const c_void,
    bytes: usize,
) -> Done {
    let stream = stream(null, CUstream::NULL)?;
    copy(stream, in_array(target, offset, bytes)?, in_memory(source as u64, bytes, false)?, bytes, true)
}

pub(crate) fn cuMemcpyHtoAAsync_v2(
    null: NullStream,
    target: CUarray,
    offset: usize,
    source: *const c_void,
    bytes: usize,
    handle: CUstream,
) -> Done {
    let stream = stream(null, handle)?;
    copy(stream, in_array(target, offset, bytes)?, in_memory(source as u64, bytes, false)?, bytes, false)
}

/// The copy in a structure that also names contexts.
fn between_contexts(parameters: *const CUDA_MEMCPY3D_PEER) -> Done<Option<Copy>> {
    let copy = get(parameters)?.copy;
    context(CUcontext(copy.reserved0))?;
    context(CUcontext(copy.reserved1))?;
    let nothing = core::ptr::null_mut();
    copy_3d(&CUDA_MEMCPY3D { reserved0: nothing, reserved1: nothing, ..copy })
}

pub(crate) fn cuMemcpy3DPeer(null: NullStream, parameters: *const CUDA_MEMCPY3D_PEER) -> Done {
    // A copy between devices is asynchronous to the host also in this form.
    cuMemcpy3DPeerAsync(null, parameters, CUstream::NULL)
}

pub(crate) fn cuMemcpy3DPeerAsync(null: NullStream, parameters: *const CUDA_MEMCPY3D_PEER, handle: CUstream) -> Done {
    issue_if_any(stream(null, handle)?, between_contexts(parameters)?, false)
}
