//! CUDA arrays: charged for the bytes of their elements, freed by handle.

use crate::allocations::{self, Key};
use crate::hooks::{real, types};
use crate::memory::{Payer, charged, freed};
use crate::radix::Radix;
use aliquot_abi::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_V1, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_V1, CUarray,
    CUcontext, CUmipmappedArray, CUresult, NullStream, c_uint,
};
use core::sync::atomic::Ordering;

/// From handles of arrays to the context they were made in: the driver cannot be asked about a handle that may be gone.
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

/// `CUDA_ARRAY3D_LAYERED`: the depth counts layers, which mip levels do not halve.
const LAYERED: c_uint = 1;
/// `CUDA_ARRAY3D_CUBEMAP`: the depth counts faces.
const CUBEMAP: c_uint = 4;
/// `CUDA_ARRAY3D_SPARSE`.
const SPARSE: c_uint = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const DEFERRED_MAPPING: c_uint = 0x80;
/// `CU_AD_FORMAT_NV12`.
const NV12: c_uint = 0xb0;

impl Extents {
    /// Bytes of the array.
    fn bytes(self) -> u64 {
        if self.flags & (SPARSE | DEFERRED_MAPPING) != 0 {
            // Has no memory of its own; what is mapped into it is charged when it is created.
            return 0;
        }
        if self.format == NV12 {
            // A plane of luminance, and one of chrominance at half the resolution both ways.
            return self.width.saturating_mul(self.height.max(1)).saturating_mul(self.depth.max(1)).saturating_mul(3)
                / 2;
        }
        let (blocks_wide, blocks_high, block_bytes) = match block_bytes(self.format) {
            Some(bytes) => (self.width.div_ceil(4), self.height.max(1).div_ceil(4), bytes),
            None => {
                let channels = if counts_channels(self.format) { 1 } else { u64::from(self.channels.max(1)) };
                (self.width, self.height.max(1), u64::from(element_bytes(self.format)).saturating_mul(channels))
            }
        };
        blocks_wide.saturating_mul(blocks_high).saturating_mul(self.depth.max(1)).saturating_mul(block_bytes)
    }

    /// Bytes of the array with `levels` mip levels.
    fn mipmapped_bytes(self, levels: c_uint) -> u64 {
        let depth_is_count = self.flags & (LAYERED | CUBEMAP) != 0;
        let halved = |extent: u64, level: u32| if extent == 0 { 0 } else { (extent >> level).max(1) };
        // No extent has more than 64 bits, so no array more than 64 levels.
        (0..levels.min(64)).fold(0_u64, |sum, level| {
            let level = level.min(63);
            let depth = if depth_is_count { self.depth } else { halved(self.depth, level) };
            let extents =
                Extents { width: halved(self.width, level), height: halved(self.height, level), depth, ..self };
            sum.saturating_add(extents.bytes())
        })
    }
}

/// Whether a format's name says how many channels it has: the normalised ones, and 10:10:10:2.
fn counts_channels(format: c_uint) -> bool {
    matches!(format, 0xc0..=0xcb | 0x50)
}

/// Bytes of one channel of an element, by `CUarray_format`; of all channels where the format counts them.
fn element_bytes(format: c_uint) -> u8 {
    match format {
        // 8-bit integers; the normalised 8-bit formats with one channel.
        0x01 | 0x08 | 0xc0 | 0xc6 => 1,
        // 16-bit integers and half; normalised with two 8-bit or one 16-bit channel.
        0x02 | 0x09 | 0x10 | 0xc1 | 0xc3 | 0xc7 | 0xc9 => 2,
        // 32-bit integers and float; normalised with four 8-bit or two 16-bit channels; 10:10:10:2.
        0x03 | 0x0a | 0x20 | 0xc2 | 0xc4 | 0xc8 | 0xca | 0x50 => 4,
        // Normalised with four 16-bit channels.
        0xc5 | 0xcb => 8,
        // A format newer than this list: charged as the common largest, so that it is not a way around the limit.
        _ => 4,
    }
}

/// Bytes of a block of 4 × 4 elements of a block-compressed format (`CU_AD_FORMAT_BC1_UNORM` to `CU_AD_FORMAT_BC7_UNORM_SRGB`).
fn block_bytes(format: c_uint) -> Option<u64> {
    match format {
        0x91 | 0x92 | 0x97 | 0x98 => Some(8),
        0x93..=0x96 | 0x99..=0x9e => Some(16),
        _ => None,
    }
}

/// An array's description, of whichever version.
pub(crate) trait Description {
    fn extents(&self) -> ArrayExtents;
}

/// [`Extents`], for the trait above.
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
    // SAFETY: the host's call; the handle is read only after a success.
    unsafe { charged(Payer::current(), bytes, || real(array, description), || made((*array).0)) }
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
    // SAFETY: the host's call; the handle is read only after a success.
    unsafe { charged(Payer::current(), bytes, || real(array, description, levels), || made((*array).0)) }
}

/// `cuArrayDestroy`.
pub(crate) unsafe fn array_destroy(_: NullStream, real: types::cuArrayDestroy, array: CUarray) -> CUresult {
    // SAFETY: the host's call.
    freed(handle(array.0), || unsafe { real(array) })
}

/// `cuMipmappedArrayDestroy`.
pub(crate) unsafe fn mipmap_destroy(
    _: NullStream,
    real: types::cuMipmappedArrayDestroy,
    array: CUmipmappedArray,
) -> CUresult {
    // SAFETY: the host's call.
    freed(handle(array.0), || unsafe { real(array) })
}

/// Notes the context of an array that was made just now.
fn made(array: *mut core::ffi::c_void) -> Key {
    let mut context = CUcontext::NULL;
    if let (Some(entry), Some(get)) = (CONTEXTS.entry(array.addr() as u64), real!(cuCtxGetCurrent)) {
        // SAFETY: the pointer is valid.
        let _ = unsafe { get(&raw mut context) };
        entry.store(context.0.addr() as u64, Ordering::Relaxed);
    }
    handle(array)
}

/// Gives back the arrays of a context that has ended.
pub(crate) fn refund_of_context(ended: CUcontext) {
    CONTEXTS.for_each(&mut |array, context| {
        if context.load(Ordering::Relaxed) == ended.0.addr() as u64 {
            context.store(0, Ordering::Relaxed);
            if let Some(charge) = allocations::forget(Key::Handle(array)) {
                charge.refund();
            }
        }
    });
}

fn handle(handle: *mut core::ffi::c_void) -> Key {
    Key::Handle(handle.addr() as u64)
}
