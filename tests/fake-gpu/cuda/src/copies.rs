//! Copies. They really move the bytes, at the end of their time on the device.

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
/// Pageable memory up to this size is staged before an asynchronous copy returns.
const STAGED_BYTES: usize = 64 << 10;

/// A box of bytes, in one memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    address: u64,
    row_pitch: u64,
    plane_pitch: u64,
    side: Side,
    /// The array that contains it; null if none does.
    array: CUarray,
}

/// A copy whose parameters were checked.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) target: Place,
    pub(crate) source: Place,
    pub(crate) width_bytes: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

impl Copy {
    fn linear(target: u64, target_side: Side, source: u64, source_side: Side, bytes: u64) -> Copy {
        Copy::between(Place::linear(target, target_side, bytes), Place::linear(source, source_side, bytes), bytes)
    }

    /// A copy of contiguous bytes.
    pub(crate) fn between(target: Place, source: Place, bytes: u64) -> Copy {
        Copy { target, source, width_bytes: bytes, height: 1, depth: 1 }
    }

    /// A copy between two addresses, each on the host or on a device.
    pub(crate) fn unified(target: u64, source: u64, bytes: usize) -> Done<Copy> {
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
                // SAFETY: a device side was checked to lie in one allocation, which the driver keeps until work queued
                // before its free is done; a host side is valid by the API's contract with the caller.
                unsafe { core::ptr::copy(source as *const u8, target as *mut u8, self.width_bytes as usize) };
            }
        }
    }

    pub(crate) fn work(self) -> Work {
        Work::Task { duration_ns: self.duration_ns(), effect: Some(Box::new(move || self.carry_out())) }
    }
}

impl Place {
    pub(crate) fn linear(address: u64, side: Side, bytes: u64) -> Place {
        Place::pitched(address, side, bytes, bytes)
    }

    pub(crate) fn pitched(address: u64, side: Side, row_pitch: u64, plane_pitch: u64) -> Place {
        Place { address, row_pitch, plane_pitch, side, array: CUarray::NULL }
    }

    /// A place in an array that begins at byte `x` of row `y` of plane `z`: `width` bytes of each of `rows` = [rows,
    /// planes]; or, if that is `None`, `width` contiguous bytes.
    pub(crate) fn in_array(handle: CUarray, [x, y, z]: [u64; 3], rows: Option<[u64; 2]>, width: u64) -> Done<Place> {
        let array = array(handle)?;
        if array.is_sparse() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let row_pitch = array.row_bytes();
        let plane_pitch = row_pitch * array.rows();
        let within = |start: u64, extent: u64, end: u64| start.checked_add(extent).is_some_and(|sum| sum <= end);
        let fits = match rows {
            Some([height, depth]) => {
                within(x, width, row_pitch) && within(y, height, array.rows()) && within(z, depth, array.planes())
            }
            None => within(x, width, plane_pitch * array.planes()),
        };
        if !fits {
            return Err(CUresult::INVALID_VALUE);
        }
        let address = array.address() + z * plane_pitch + y * row_pitch + x;
        Ok(Place { address, row_pitch, plane_pitch, side: Side::Device(array.ordinal()), array: handle })
    }

    /// The place as the API describes it: memory type, address, array, and begin in the array.
    fn described(&self) -> (c_uint, u64, CUarray, [u64; 3]) {
        if let Ok(array) = array(self.array) {
            let offset = self.address - array.address();
            let (plane, rest) = (offset / self.plane_pitch, offset % self.plane_pitch);
            return (MEMORY_TYPE_ARRAY, 0, self.array, [rest % self.row_pitch, rest / self.row_pitch, plane]);
        }
        let kind = if matches!(self.side, Side::Device(_)) { MEMORY_TYPE_DEVICE } else { MEMORY_TYPE_HOST };
        (kind, self.address, CUarray::NULL, [0; 3])
    }
}

impl Copy {
    /// The copy as the API describes it.
    pub(crate) fn parameters(&self) -> CUDA_MEMCPY3D {
        let (src_memory_type, src_address, src_array, [src_x, src_y, src_z]) = self.source.described();
        let (dst_memory_type, dst_address, dst_array, [dst_x, dst_y, dst_z]) = self.target.described();
        let device = |kind, address| if kind == MEMORY_TYPE_DEVICE { address } else { 0 };
        let host =
            |kind, address: u64| if kind == MEMORY_TYPE_HOST { address as *mut c_void } else { core::ptr::null_mut() };
        let rows = |place: &Place| (place.plane_pitch / place.row_pitch.max(1)) as usize;
        CUDA_MEMCPY3D {
            src_x_in_bytes: src_x as usize,
            src_y: src_y as usize,
            src_z: src_z as usize,
            src_lod: 0,
            src_memory_type,
            src_host: host(src_memory_type, src_address),
            src_device: device(src_memory_type, src_address),
            src_array,
            reserved0: core::ptr::null_mut(),
            src_pitch: self.source.row_pitch as usize,
            src_height: rows(&self.source),
            dst_x_in_bytes: dst_x as usize,
            dst_y: dst_y as usize,
            dst_z: dst_z as usize,
            dst_lod: 0,
            dst_memory_type,
            dst_host: host(dst_memory_type, dst_address),
            dst_device: device(dst_memory_type, dst_address),
            dst_array,
            reserved1: core::ptr::null_mut(),
            dst_pitch: self.target.row_pitch as usize,
            dst_height: rows(&self.target),
            width_in_bytes: self.width_bytes as usize,
            height: self.height as usize,
            depth: self.depth as usize,
        }
    }
}

fn check_addresses(target: u64, source: u64, bytes: u64) -> Done {
    if (target == 0 || source == 0) && bytes > 0 { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// Issues a copy on a stream. As the driver promises, the caller may reuse the memory after the call if the copy is
/// synchronous, or if the memory is pageable.
pub(crate) fn issue(stream: &'static Stream, copy: Copy, synchronous: bool) -> Done {
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
        // SAFETY: the source is valid by the API's contract with the caller, as in `carry_out`.
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
        crate::pools::trim_after_synchronize(stream.owner.device());
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
    /// The place of a box of [width in bytes, rows, planes].
    fn place(&self, [width, height, depth]: [usize; 3]) -> Done<Place> {
        let invalid = || CUresult::INVALID_VALUE;
        if self.kind == MEMORY_TYPE_ARRAY {
            let start = [self.x_bytes as u64, self.y as u64, self.z as u64];
            return Place::in_array(self.array, start, Some([height as u64, depth as u64]), width as u64);
        }
        let base = if self.kind == MEMORY_TYPE_HOST { self.host } else { self.device };
        let row_end = self.x_bytes.checked_add(width).ok_or_else(invalid)?;
        let last_row = self.y.checked_add(height).ok_or_else(invalid)?;
        let pitch = if self.pitch == 0 { row_end } else { self.pitch };
        let rows = if self.height == 0 { last_row } else { self.height };
        if base == 0 || pitch < row_end || (depth > 1 && rows < last_row) {
            return Err(invalid());
        }
        let plane_pitch = pitch.checked_mul(rows).ok_or_else(invalid)?;
        let start = [self.z.checked_mul(plane_pitch), self.y.checked_mul(pitch), Some(self.x_bytes)];
        let start = start.into_iter().try_fold(0_usize, |sum, part| sum.checked_add(part?)).ok_or_else(invalid)?;
        let address = base.checked_add(start as u64).ok_or_else(invalid)?;
        // A product that saturates is refused later, because no memory is that long.
        let before = (depth - 1).saturating_mul(plane_pitch).saturating_add((height - 1).saturating_mul(pitch));
        let span = before.saturating_add(width);
        let side = match self.kind {
            MEMORY_TYPE_HOST | MEMORY_TYPE_UNIFIED => side_of(address, span as u64)?,
            MEMORY_TYPE_DEVICE => known_side_of(address, span as u64)?,
            _ => return Err(invalid()),
        };
        let (row_pitch, plane_pitch) = (pitch as u64, plane_pitch as u64);
        Ok(Place::pitched(address, side, row_pitch, plane_pitch))
    }
}

/// The described copy; `None` if it has no bytes.
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

pub(crate) fn issue_if_any(stream: &'static Stream, copy: Option<Copy>, synchronous: bool) -> Done {
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
