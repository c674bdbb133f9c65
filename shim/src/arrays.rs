//! CUDA arrays: charged for the bytes of their elements, freed by handle.
//!
//! The driver stores elements in tiles and may take more memory than that. It does not tell how much:
//! `cuArrayGetMemoryRequirements` answers only for arrays without memory of their own. The rest is part of the slice's
//! overhead.

use crate::allocations::{self, Key};
use crate::bindings;
use crate::call::Call;
use crate::hooks::{real, types};
use crate::live_contexts::primary_of;
use crate::memory::{Payer, charged, freed};
use crate::process::Process;
use crate::radix::Radix;
use aliquot_abi::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_V1, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_V1, CUarray,
    CUcontext, CUmipmappedArray, CUresult, NullStream, c_uint,
};
use core::sync::atomic::Ordering;

/// The context in which each array was made, by handle: the driver cannot be asked about a handle that may be gone. An
/// array that is made in a green context is the primary context's.
static CONTEXTS: Radix<0, 12, 4> = Radix::new();

/// An array's extents in elements; a dimension that the array lacks is 0.
#[derive(Clone, Copy)]
struct Extents {
    width: u64,
    height: u64,
    depth: u64,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_LAYERED`: the depth is a number of layers, which mip levels do not halve.
const LAYERED: c_uint = 1;
/// `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of faces.
const CUBEMAP: c_uint = 4;
/// `CUDA_ARRAY3D_SPARSE`: the array has no memory of its own.
const SPARSE: c_uint = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: the array has no memory of its own.
const DEFERRED_MAPPING: c_uint = 0x80;

impl Extents {
    /// Bytes of the array.
    fn bytes(self) -> u64 {
        if self.flags & (SPARSE | DEFERRED_MAPPING) != 0 {
            // The array has no memory of its own. Memory that is mapped into it is charged when that memory is created.
            return 0;
        }
        let (width, height, bits) = match block_bytes(self.format) {
            Some(bytes) => (self.width.div_ceil(4), self.height.max(1).div_ceil(4), u64::from(bytes) * 8),
            None => (self.width, self.height.max(1), element_bits(self.format, self.channels)),
        };
        width.saturating_mul(height).saturating_mul(self.depth.max(1)).saturating_mul(bits).div_ceil(8)
    }

    /// Bytes of the array with `levels` mip levels.
    fn mipmapped_bytes(self, levels: c_uint) -> u64 {
        let depth_is_count = self.flags & (LAYERED | CUBEMAP) != 0;
        let halved = |extent: u64, level: u32| if extent == 0 { 0 } else { (extent >> level).max(1) };
        // An extent has 64 bits, so an array has at most 64 levels.
        (0..levels.min(64)).fold(0_u64, |sum, level| {
            let level = level.min(63);
            let depth = if depth_is_count { self.depth } else { halved(self.depth, level) };
            let extents =
                Extents { width: halved(self.width, level), height: halved(self.height, level), depth, ..self };
            sum.saturating_add(extents.bytes())
        })
    }
}

/// Bits of one element, for all its channels or planes together, by `CUarray_format` as of CUDA 13.
fn element_bits(format: c_uint, channels: c_uint) -> u64 {
    let channels = u64::from(channels.max(1));
    match format {
        // Integers and floats of 8, 16 and 32 bits, with the number of channels that the description gives.
        0x01 | 0x08 => channels.saturating_mul(8),
        0x02 | 0x09 | 0x10 => channels.saturating_mul(16),
        0x03 | 0x0a | 0x20 => channels.saturating_mul(32),
        // All other formats imply their number of channels. Here: normalised integers with one to four channels, and
        // 10:10:10:2.
        0xc0 | 0xc6 => 8,
        0xc1 | 0xc3 | 0xc7 | 0xc9 => 16,
        0xc2 | 0xc4 | 0xc8 | 0xca | 0x50 => 32,
        0xc5 | 0xcb => 64,
        // Full luminance, and two planes of chrominance at half the resolution both ways: 8 bits, then up to 16 bits.
        0xb0 | 0x53 | 0x59 => 12,
        0x9f | 0xa1 | 0x54 | 0x5a => 24,
        // Chrominance at half the resolution one way, in planes or packed: 8 bits, then up to 16 bits.
        0xa2 | 0xa5 | 0x55 | 0x5b => 16,
        0xa3 | 0xa4 | 0xa6 | 0xa7 | 0x51 | 0x56 | 0x5c => 32,
        // Full chrominance in planes: 8 bits, then up to 16 bits. Then packed with a fourth channel: likewise.
        0xb2 | 0xb4 | 0x57 | 0x5d => 24,
        0xb3 | 0xb5 | 0x58 | 0x5e => 48,
        0xa8 | 0xa9 | 0x52 => 32,
        0xb1 => 64,
        // A format newer than this list is charged like the largest one, so that it is no way around the limit.
        _ => 128,
    }
}

/// Bytes of a block of 4 × 4 elements of a block-compressed format (`CU_AD_FORMAT_BC1_UNORM` to
/// `CU_AD_FORMAT_BC7_UNORM_SRGB`).
fn block_bytes(format: c_uint) -> Option<u8> {
    match format {
        0x91 | 0x92 | 0x97 | 0x98 => Some(8),
        0x93..=0x96 | 0x99..=0x9e => Some(16),
        _ => None,
    }
}

/// An array's description, of any version.
pub(crate) trait Description {
    fn extents(&self) -> ArrayExtents;
}

/// Wraps [`Extents`], which is private, for the trait above.
pub(crate) struct ArrayExtents(Extents);

macro_rules! descriptions {
    ($($type:ident { $($depth:ident $flags:ident)? };)*) => {$(
        impl Description for $type {
            fn extents(&self) -> ArrayExtents {
                ArrayExtents(Extents {
                    width: self.width as u64,
                    height: self.height as u64,
                    depth: 0 $(+ self.$depth as u64)?,
                    format: self.format,
                    channels: self.num_channels,
                    flags: 0 $(| self.$flags)?,
                })
            }
        }
    )*};
}

descriptions! {
    CUDA_ARRAY_DESCRIPTOR_V1 {};
    CUDA_ARRAY_DESCRIPTOR {};
    CUDA_ARRAY3D_DESCRIPTOR_V1 { depth flags };
    CUDA_ARRAY3D_DESCRIPTOR { depth flags };
}

/// `cuArrayCreate`.
pub(crate) unsafe fn array_create<D: Description>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut CUarray, *const D) -> CUresult,
    array: *mut CUarray,
    description: *const D,
) -> CUresult {
    // SAFETY: a pointer that is not null is the host's description.
    let bytes = unsafe { description.as_ref() }.map_or(0, |description| description.extents().0.bytes());
    let destroy = real!(cuArrayDestroy);
    // SAFETY: the host's call; the handle is read only after a success, and an array that was just made is unused.
    unsafe {
        let undo = || destroy.map(|destroy| destroy(*array));
        let refused = refused_by_driver(bytes, &|| real(array, description), &undo);
        refused
            .unwrap_or_else(|| charged(Payer::of_thread(), bytes, &|| real(array, description), &|| made((*array).0)))
    }
}

/// `cuArray3DCreate`.
pub(crate) use array_create as array3d_create;

/// `cuMipmappedArrayCreate`.
pub(crate) unsafe fn mipmap_create(
    _: NullStream,
    real: types::cuMipmappedArrayCreate,
    array: *mut CUmipmappedArray,
    description: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> CUresult {
    // SAFETY: a pointer that is not null is the host's description.
    let bytes =
        unsafe { description.as_ref() }.map_or(0, |description| description.extents().0.mipmapped_bytes(levels));
    let destroy = real!(cuMipmappedArrayDestroy);
    // SAFETY: the host's call; the handle is read only after a success, and an array that was just made is unused.
    unsafe {
        let undo = || destroy.map(|destroy| destroy(*array));
        let refused = refused_by_driver(bytes, &|| real(array, description, levels), &undo);
        refused.unwrap_or_else(|| {
            charged(Payer::of_thread(), bytes, &|| real(array, description, levels), &|| made((*array).0))
        })
    }
}

/// The driver's own answer to a request for an array larger than the whole device; `None` if the array is not. The
/// driver checks the shape first, and answers an array that is too wide with "invalid value", not "out of memory".
fn refused_by_driver(bytes: u64, call: &dyn Call<CUresult>, undo: &dyn Call<Option<CUresult>>) -> Option<CUresult> {
    let process = Process::attached()?;
    let (device, mut total) = (process.current_ordinal().ok()?, 0);
    let get_total = real!(cuDeviceTotalMem_v2)?;
    // SAFETY: the pointer is valid.
    let told = unsafe { get_total(&raw mut total, device) };
    if !told.is_ok() || bytes <= total as u64 {
        return None;
    }
    let result = call.make();
    if !result.is_ok() {
        return Some(result);
    }
    // The array takes less memory than its description says. It is refused by the description.
    let _ = undo.make();
    Some(CUresult::OUT_OF_MEMORY)
}

/// `cuArrayDestroy`.
pub(crate) unsafe fn array_destroy(_: NullStream, real: types::cuArrayDestroy, array: CUarray) -> CUresult {
    // SAFETY: the host's call.
    destroyed(array.0, &|| unsafe { real(array) })
}

/// `cuMipmappedArrayDestroy`.
pub(crate) unsafe fn mipmap_destroy(
    _: NullStream,
    real: types::cuMipmappedArrayDestroy,
    array: CUmipmappedArray,
) -> CUresult {
    // SAFETY: the host's call.
    destroyed(array.0, &|| unsafe { real(array) })
}

fn destroyed(array: *mut core::ffi::c_void, call: &dyn Call<CUresult>) -> CUresult {
    let result = freed(handle(array), call);
    if result.is_ok() {
        bindings::array_gone(array);
    }
    result
}

/// Remembers the context of an array that was just made.
fn made(array: *mut core::ffi::c_void) -> Key {
    let mut context = CUcontext::NULL;
    if let (Some(entry), Some(get)) = (CONTEXTS.entry(array.addr() as u64), real!(cuCtxGetCurrent)) {
        // SAFETY: the pointer is valid.
        let _ = unsafe { get(&raw mut context) };
        entry.store(primary_of(context).0.addr() as u64, Ordering::Relaxed);
    }
    handle(array)
}

/// Refunds the arrays of a context that has ended.
pub(crate) fn refund_of_context(ended: CUcontext) {
    CONTEXTS.for_each(&mut |array, context| {
        if context.load(Ordering::Relaxed) == ended.0.addr() as u64 {
            context.store(0, Ordering::Relaxed);
            bindings::array_gone(core::ptr::without_provenance_mut(array as usize));
            if let Some(charge) = allocations::forget(Key::Handle(array)) {
                charge.freed();
            }
        }
    });
}

fn handle(handle: *mut core::ffi::c_void) -> Key {
    Key::Handle(handle.addr() as u64)
}
