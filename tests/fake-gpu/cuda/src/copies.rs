//! Copies: they really move the bytes, when they have had their time on the device.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUcontext, CUdeviceptr, CUresult, CUstream, NullStream,
};
use aliquot_fake_machine::{CopyPath, copy_duration_ns};

use crate::Done;
use crate::arrays::array;
use crate::caller::get;
use crate::capture::{self, Issue};
use crate::context::context;
use crate::graph_nodes::NodeKind;
use crate::memory::{Side, known_side_of, side_of, touch};
use crate::process::initialised;
use crate::queue::{self, Work};
use crate::streams::{Stream, stream};

const MEMORY_TYPE_HOST: c_uint = 1;
const MEMORY_TYPE_DEVICE: c_uint = 2;
const MEMORY_TYPE_ARRAY: c_uint = 3;
const MEMORY_TYPE_UNIFIED: c_uint = 4;
/// Pageable memory up to this size is taken over before an asynchronous copy returns.
const STAGED_BYTES: usize = 64 << 10;

/// A box of bytes, in one memory.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    row_pitch: u64,
    plane_pitch: u64,
    side: Side,
}

/// A copy that was found to be possible.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    target: Place,
    source: Place,
    width_bytes: u64,
    height: u64,
    depth: u64,
}

impl Copy {
    fn linear(target: u64, target_side: Side, source: u64, source_side: Side, bytes: u64) -> Copy {
        let place = |address, side| Place { address, row_pitch: bytes, plane_pitch: bytes, side };
        let (target, source) = (place(target, target_side), place(source, source_side));
        Copy { target, source, width_bytes: bytes, height: 1, depth: 1 }
    }

    /// Between two addresses, each of either side.
    fn unified(target: u64, source: u64, bytes: usize) -> Done<Copy> {
        let bytes = bytes as u64;
        check_addresses(target, source, bytes)?;
        Ok(Copy::linear(target, side_of(target, bytes)?, source, side_of(source, bytes)?, bytes))
    }

    fn bytes(&self) -> u64 {
        self.width_bytes * self.height * self.depth
    }

    fn is_within_device(&self) -> bool {
        matches!((self.target.side, self.source.side), (Side::Device(_), Side::Device(_)))
    }

    pub(crate) fn duration_ns(&self) -> u64 {
        if initialised().instant {
            return 0;
        }
        let path = if self.is_within_device() { CopyPath::DeviceDevice } else { CopyPath::HostDevice };
        copy_duration_ns(path, self.bytes())
    }

    /// Moves the bytes.
    pub(crate) fn carry_out(&self) {
        touch(self.target.address);
        for plane in 0..self.depth {
            for row in 0..self.height {
                let target = self.target.address + plane * self.target.plane_pitch + row * self.target.row_pitch;
                let source = self.source.address + plane * self.source.plane_pitch + row * self.source.row_pitch;
                // SAFETY: device sides were checked to lie in one allocation, which the driver keeps until work that was
                // queued before its free is done; host sides are the caller's, who vouches for them by the API's contract.
                unsafe { core::ptr::copy(source as *const u8, target as *mut u8, self.width_bytes as usize) };
            }
        }
    }

    pub(crate) fn work(self) -> Work {
        Work::Task { duration_ns: self.duration_ns(), effect: Some(Box::new(move || self.carry_out())) }
    }
}

fn check_addresses(target: u64, source: u64, bytes: u64) -> Done {
    if (target == 0 || source == 0) && bytes > 0 { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// Carries a copy out on a stream. The caller may use the memory again as the driver promises: at once after a
/// synchronous copy, and for pageable memory also after an asynchronous one.
fn issue(stream: &'static Stream, copy: Copy, synchronous: bool) -> Done {
    if synchronous {
        capture::check_unsafe_call()?;
    }
    if let Issue::Captured = capture::issue(stream, || NodeKind::Copy(copy))? {
        return Ok(());
    }
    if copy.bytes() == 0 {
        return Ok(());
    }
    let staged = !synchronous
        && copy.source.side == Side::PageableHost
        && copy.height * copy.depth == 1
        && copy.width_bytes as usize <= STAGED_BYTES;
    if staged && !queue::runs_at_once(initialised()) {
        // SAFETY: the caller vouches for the source, see `carry_out`.
        let bytes = unsafe { core::slice::from_raw_parts(copy.source.address as *const u8, copy.width_bytes as usize) };
        let stage = bytes.to_vec();
        let effect = move || {
            let source = Place { address: stage.as_ptr() as u64, ..copy.source };
            Copy { source, ..copy }.carry_out();
        };
        queue::submit(stream, Work::Task { duration_ns: copy.duration_ns(), effect: Some(Box::new(effect)) }, false);
        return Ok(());
    }
    queue::submit(stream, copy.work(), false);
    let pageable = copy.target.side == Side::PageableHost || copy.source.side == Side::PageableHost;
    // A synchronous copy within a device does not wait for the device.
    if (synchronous && !copy.is_within_device()) || (pageable && !staged) {
        queue::wait_for_stream(stream);
    }
    Ok(())
}

pub(crate) fn cuMemcpy(null: NullStream, target: CUdeviceptr, source: CUdeviceptr, bytes: usize) -> Done {
    issue(stream(null, CUstream::NULL)?, Copy::unified(target, source, bytes)?, true)
}

pub(crate) fn cuMemcpyAsync(
    null: NullStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    handle: CUstream,
) -> Done {
    issue(stream(null, handle)?, Copy::unified(target, source, bytes)?, false)
}

pub(crate) fn cuMemcpyPeer(
    null: NullStream,
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    bytes: usize,
) -> Done {
    cuMemcpyPeerAsync(null, target, target_context, source, source_context, bytes, CUstream::NULL)
}

pub(crate) fn cuMemcpyPeerAsync(
    null: NullStream,
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    bytes: usize,
    handle: CUstream,
) -> Done {
    let stream = stream(null, handle)?;
    context(target_context)?;
    context(source_context)?;
    let copy = Copy::linear(
        target,
        known_side_of(target, bytes as u64)?,
        source,
        known_side_of(source, bytes as u64)?,
        bytes as u64,
    );
    issue(stream, copy, false)
}

fn to_device(target: CUdeviceptr, source: *const c_void, bytes: usize) -> Done<Copy> {
    let (source, bytes) = (source as u64, bytes as u64);
    check_addresses(target, source, bytes)?;
    Ok(Copy::linear(target, known_side_of(target, bytes)?, source, side_of(source, bytes)?, bytes))
}

fn from_device(target: *mut c_void, source: CUdeviceptr, bytes: usize) -> Done<Copy> {
    let (target, bytes) = (target as u64, bytes as u64);
    check_addresses(target, source, bytes)?;
    Ok(Copy::linear(target, side_of(target, bytes)?, source, known_side_of(source, bytes)?, bytes))
}

fn within_device(target: CUdeviceptr, source: CUdeviceptr, bytes: usize) -> Done<Copy> {
    let bytes = bytes as u64;
    check_addresses(target, source, bytes)?;
    Ok(Copy::linear(target, known_side_of(target, bytes)?, source, known_side_of(source, bytes)?, bytes))
}

pub(crate) fn cuMemcpyHtoD_v2(null: NullStream, target: CUdeviceptr, source: *const c_void, bytes: usize) -> Done {
    issue(stream(null, CUstream::NULL)?, to_device(target, source, bytes)?, true)
}

pub(crate) fn cuMemcpyDtoH_v2(null: NullStream, target: *mut c_void, source: CUdeviceptr, bytes: usize) -> Done {
    issue(stream(null, CUstream::NULL)?, from_device(target, source, bytes)?, true)
}

pub(crate) fn cuMemcpyDtoD_v2(null: NullStream, target: CUdeviceptr, source: CUdeviceptr, bytes: usize) -> Done {
    issue(stream(null, CUstream::NULL)?, within_device(target, source, bytes)?, true)
}

pub(crate) fn cuMemcpyHtoDAsync_v2(
    null: NullStream,
    target: CUdeviceptr,
    source: *const c_void,
    bytes: usize,
    handle: CUstream,
) -> Done {
    issue(stream(null, handle)?, to_device(target, source, bytes)?, false)
}

pub(crate) fn cuMemcpyDtoHAsync_v2(
    null: NullStream,
    target: *mut c_void,
    source: CUdeviceptr,
    bytes: usize,
    handle: CUstream,
) -> Done {
    issue(stream(null, handle)?, from_device(target, source, bytes)?, false)
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    null: NullStream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
    handle: CUstream,
) -> Done {
    issue(stream(null, handle)?, within_device(target, source, bytes)?, false)
}

/// One side of a copy of rows and planes, as the API describes it.
struct Described {
    kind: c_uint,
    host: u64,
    device: u64,
    array: CUarray,
    x_bytes: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl Described {
    /// The place of a box of `[width in bytes, rows, planes]`.
    fn place(&self, [width, height, depth]: [usize; 3]) -> Done<Place> {
        let invalid = || CUresult::INVALID_VALUE;
        if self.kind == MEMORY_TYPE_ARRAY {
            let array = array(self.array)?;
            let row_pitch = array.row_bytes();
            let plane_pitch = row_pitch * array.rows();
            let start = self.z as u64 * plane_pitch + self.y as u64 * row_pitch + self.x_bytes as u64;
            let fits = (self.x_bytes + width) as u64 <= row_pitch
                && (self.y + height) as u64 <= array.rows()
                && (self.z + depth) as u64 <= array.planes();
            let side = Side::Device(array.ordinal());
            return fits
                .then_some(Place { address: array.address() + start, row_pitch, plane_pitch, side })
                .ok_or_else(invalid);
        }
        let base = if self.kind == MEMORY_TYPE_HOST { self.host } else { self.device };
        let pitch = if self.pitch == 0 { self.x_bytes + width } else { self.pitch };
        let rows = if self.height == 0 { self.y + height } else { self.height };
        if base == 0 || pitch < self.x_bytes + width || (depth > 1 && rows < self.y + height) {
            return Err(invalid());
        }
        let plane_pitch = pitch.checked_mul(rows).ok_or_else(invalid)?;
        let start = [self.z.checked_mul(plane_pitch), self.y.checked_mul(pitch), Some(self.x_bytes)];
        let start = start.into_iter().try_fold(0_usize, |sum, part| sum.checked_add(part?)).ok_or_else(invalid)?;
        let address = base.checked_add(start as u64).ok_or_else(invalid)?;
        let span = (depth - 1) * plane_pitch + (height - 1) * pitch + width;
        let side = match self.kind {
            MEMORY_TYPE_HOST | MEMORY_TYPE_UNIFIED => side_of(address, span as u64)?,
            MEMORY_TYPE_DEVICE => known_side_of(address, span as u64)?,
            _ => return Err(invalid()),
        };
        Ok(Place { address, row_pitch: pitch as u64, plane_pitch: plane_pitch as u64, side })
    }
}

/// The copy that a description asks for; `None` if it is of no bytes.
pub(crate) fn copy_3d(parameters: &CUDA_MEMCPY3D) -> Done<Option<Copy>> {
    let p = parameters;
    if !p.reserved0.is_null() || !p.reserved1.is_null() || p.src_lod != 0 || p.dst_lod != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let source = Described {
        kind: p.src_memory_type,
        host: p.src_host as u64,
        device: p.src_device,
        array: p.src_array,
        x_bytes: p.src_x_in_bytes,
        y: p.src_y,
        z: p.src_z,
        pitch: p.src_pitch,
        height: p.src_height,
    };
    let target = Described {
        kind: p.dst_memory_type,
        host: p.dst_host as u64,
        device: p.dst_device,
        array: p.dst_array,
        x_bytes: p.dst_x_in_bytes,
        y: p.dst_y,
        z: p.dst_z,
        pitch: p.dst_pitch,
        height: p.dst_height,
    };
    let extent = [p.width_in_bytes, p.height, p.depth];
    if extent.contains(&0) {
        return Ok(None);
    }
    let (source, target) = (source.place(extent)?, target.place(extent)?);
    Ok(Some(Copy {
        target,
        source,
        width_bytes: p.width_in_bytes as u64,
        height: p.height as u64,
        depth: p.depth as u64,
    }))
}

fn copy_2d(parameters: *const CUDA_MEMCPY2D) -> Done<Option<Copy>> {
    let p = get(parameters)?;
    copy_3d(&CUDA_MEMCPY3D {
        src_x_in_bytes: p.src_x_in_bytes,
        src_y: p.src_y,
        src_z: 0,
        src_lod: 0,
        src_memory_type: p.src_memory_type,
        src_host: p.src_host,
        src_device: p.src_device,
        src_array: p.src_array,
        reserved0: core::ptr::null_mut(),
        src_pitch: p.src_pitch,
        src_height: 0,
        dst_x_in_bytes: p.dst_x_in_bytes,
        dst_y: p.dst_y,
        dst_z: 0,
        dst_lod: 0,
        dst_memory_type: p.dst_memory_type,
        dst_host: p.dst_host,
        dst_device: p.dst_device,
        dst_array: p.dst_array,
        reserved1: core::ptr::null_mut(),
        dst_pitch: p.dst_pitch,
        dst_height: 0,
        width_in_bytes: p.width_in_bytes,
        height: p.height,
        depth: 1,
    })
}

fn issue_if_any(stream: &'static Stream, copy: Option<Copy>, synchronous: bool) -> Done {
    copy.map_or(Ok(()), |copy| issue(stream, copy, synchronous))
}

pub(crate) fn cuMemcpy2D_v2(null: NullStream, parameters: *const CUDA_MEMCPY2D) -> Done {
    issue_if_any(stream(null, CUstream::NULL)?, copy_2d(parameters)?, true)
}

pub(crate) fn cuMemcpy2DUnaligned_v2(null: NullStream, parameters: *const CUDA_MEMCPY2D) -> Done {
    cuMemcpy2D_v2(null, parameters)
}

pub(crate) fn cuMemcpy2DAsync_v2(null: NullStream, parameters: *const CUDA_MEMCPY2D, handle: CUstream) -> Done {
    issue_if_any(stream(null, handle)?, copy_2d(parameters)?, false)
}

pub(crate) fn cuMemcpy3D_v2(null: NullStream, parameters: *const CUDA_MEMCPY3D) -> Done {
    issue_if_any(stream(null, CUstream::NULL)?, copy_3d(&get(parameters)?)?, true)
}

pub(crate) fn cuMemcpy3DAsync_v2(null: NullStream, parameters: *const CUDA_MEMCPY3D, handle: CUstream) -> Done {
    issue_if_any(stream(null, handle)?, copy_3d(&get(parameters)?)?, false)
}
