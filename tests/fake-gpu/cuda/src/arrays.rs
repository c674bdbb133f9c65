//! CUDA arrays, with and without mip levels.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUdevice, CUmipmappedArray, CUresult,
};

use crate::Done;
use crate::arena::Use;
use crate::caller::{get, not_null, put};
use crate::context::{Context, Owner, current};
use crate::device::{Device, device};
use crate::handles::{self, Kind, Object};
use crate::imported::{self, Origin};
use crate::{attributes, capture, memory, sparse_arrays};

const LAYERED: c_uint = 0x1;
const CUBEMAP: c_uint = 0x4;
const TEXTURE_GATHER: c_uint = 0x8;
/// The array has only addresses, and gets its memory by `cuMemMapArrayAsync`.
const SPARSE: c_uint = 0x40;
/// Layered, surface load and store, cubemap, texture gather, depth texture, colour attachment, sparse.
const FLAGS: c_uint = 0x7f;

/// An array. Its rows are contiguous, without gaps.
pub(crate) struct Array {
    owner: Owner,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    address: u64,
    /// Whether it is a level of a mipmapped array. The mipmapped array then owns the memory.
    level: bool,
}

/// An array with mip levels.
pub(crate) struct MipmappedArray {
    owner: Owner,
    address: u64,
    levels: Vec<CUarray>,
}

impl Object for Array {
    const KIND: Kind = Kind::Array;
    const IS_REUSED: bool = true;
}

impl Object for MipmappedArray {
    const KIND: Kind = Kind::MipmappedArray;
    const IS_REUSED: bool = true;
}

/// Bytes of one channel of a `CUarray_format`: whole and half numbers, and the normalised ones. Formats in blocks and
/// planes are not simulated.
pub(crate) fn channel_bytes(format: c_uint) -> Done<u64> {
    match format {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => Ok(1),
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn element_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Done<u64> {
    if !matches!(descriptor.num_channels, 1 | 2 | 4) {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(channel_bytes(descriptor.format)? * u64::from(descriptor.num_channels))
}

/// The bytes that an array takes: an extent of 0 counts as 1.
fn array_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Done<u64> {
    let extents = [descriptor.width, descriptor.height.max(1), descriptor.depth.max(1)];
    let shape_is_valid = descriptor.width > 0
        && descriptor.flags & !FLAGS == 0
        && (descriptor.flags & CUBEMAP == 0
            || (descriptor.width == descriptor.height && descriptor.depth.is_multiple_of(6)));
    if !shape_is_valid {
        return Err(CUresult::INVALID_VALUE);
    }
    let bytes =
        extents.iter().try_fold(element_bytes(descriptor)?, |product, &extent| product.checked_mul(extent as u64));
    bytes.ok_or(CUresult::INVALID_VALUE)
}

/// Numbers of the attributes that give the maximum extents of arrays of one and of two dimensions.
struct ExtentAttributes {
    line: c_uint,
    plane: [c_uint; 2],
}

const FLAT: ExtentAttributes = ExtentAttributes { line: 21, plane: [22, 23] };
const MIPMAPPED: ExtentAttributes = ExtentAttributes { line: 77, plane: [73, 74] };
/// The same for all other arrays: layered ones (extents and number of layers), those of three dimensions (in two
/// possible shapes), and cubes.
const LAYERED_LINE: (c_uint, c_uint) = (42, 43);
const LAYERED_PLANE: [c_uint; 3] = [27, 28, 29];
const SPACE: [[c_uint; 3]; 2] = [[24, 25, 26], [47, 48, 49]];
const CUBE: c_uint = 52;
const LAYERED_CUBE: (c_uint, c_uint) = (53, 54);
const GATHERED_PLANE: [c_uint; 2] = [45, 46];

/// Refuses an array that is longer, wider or deeper than a device's textures can be.
fn check_extents(device: &Device, descriptor: &CUDA_ARRAY3D_DESCRIPTOR, attributes: ExtentAttributes) -> Done {
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, flags, .. } = *descriptor;
    let fits = |pairs: &[(usize, c_uint)]| {
        pairs.iter().all(|&(extent, attribute)| extent <= attributes::greatest_extent(device, attribute))
    };
    let in_space = |of: [c_uint; 3]| fits(&[(width, of[0]), (height, of[1]), (depth, of[2])]);
    let in_plane = |of: [c_uint; 2]| fits(&[(width, of[0]), (height, of[1])]);
    let is_layered = flags & LAYERED != 0;
    let fits = match (height, depth) {
        _ if flags & CUBEMAP != 0 && is_layered => fits(&[(width, LAYERED_CUBE.0), (depth, LAYERED_CUBE.1)]),
        _ if flags & CUBEMAP != 0 => fits(&[(width, CUBE)]),
        (0, _) if is_layered => fits(&[(width, LAYERED_LINE.0), (depth, LAYERED_LINE.1)]),
        _ if is_layered => in_space(LAYERED_PLANE),
        (0, 0) => fits(&[(width, attributes.line)]),
        (_, 0) if flags & TEXTURE_GATHER != 0 => in_plane(GATHERED_PLANE),
        (_, 0) => in_plane(attributes.plane),
        _ => SPACE.into_iter().any(in_space),
    };
    if fits { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

impl MipmappedArray {
    pub(crate) fn level(&self, level: c_uint) -> Done<&'static Array> {
        array(*self.levels.get(level as usize).ok_or(CUresult::INVALID_VALUE)?)
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Array {
    pub(crate) fn descriptor(&self) -> &CUDA_ARRAY3D_DESCRIPTOR {
        &self.descriptor
    }

    pub(crate) fn is_sparse(&self) -> bool {
        self.descriptor.flags & SPARSE != 0
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        // The descriptor was checked when the array was made.
        self.descriptor.width as u64 * element_bytes(&self.descriptor).unwrap_or(0)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.descriptor.height.max(1) as u64
    }

    pub(crate) fn planes(&self) -> u64 {
        self.descriptor.depth.max(1) as u64
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.owner.device().ordinal
    }
}

/// Allocates an array's memory, or for a sparse array only addresses.
fn take(context: &'static Context, descriptor: &CUDA_ARRAY3D_DESCRIPTOR, bytes: u64) -> Done<u64> {
    if descriptor.flags & SPARSE == 0 {
        return memory::take(context, bytes, Use::Array);
    }
    if descriptor.height == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let taken = context.device().arena.take(bytes, context.life(), Use::Sparse);
    taken.map(|(address, _)| address).ok_or(CUresult::OUT_OF_MEMORY)
}

/// Frees memory that [`take`] has allocated.
fn give_back(device: &Device, address: u64) -> Done {
    if device.arena.give_back(address, |extent| extent.usage == Use::Sparse).is_some() {
        sparse_arrays::unmap_all(address);
        return Ok(());
    }
    // Levels of memory of another interface are mapped, not allocated.
    if imported::close(address, Origin::External) { Ok(()) } else { memory::give_back(address, &[Use::Array]) }
}

/// The array that a handle names.
pub(crate) fn array(handle: CUarray) -> Done<&'static Array> {
    crate::process::process()?;
    let found = handles::find::<Array>(handle.0).filter(|array| array.owner.is_alive());
    found.ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn mipmapped(handle: CUmipmappedArray) -> Done<&'static MipmappedArray> {
    crate::process::process()?;
    let found = handles::find::<MipmappedArray>(handle.0).filter(|array| array.owner.is_alive());
    found.ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn cuArray3DCreate_v2(target: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) -> Done {
    let context = current()?;
    not_null(target)?;
    let descriptor = get(descriptor)?;
    capture::check_unsafe_call()?;
    check_extents(context.device(), &descriptor, FLAT)?;
    let address = take(context, &descriptor, array_bytes(&descriptor)?)?;
    let (handle, _) = handles::register(Array { owner: context.owner(), descriptor, address, level: false });
    put(target, CUarray(handle))
}

pub(crate) fn cuArrayCreate_v2(target: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) -> Done {
    current()?;
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = get(descriptor)?;
    cuArray3DCreate_v2(target, &CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 })
}

pub(crate) fn cuArrayDestroy(handle: CUarray) -> Done {
    let found = array(handle)?;
    capture::check_unsafe_call()?;
    if found.level {
        return Err(CUresult::INVALID_HANDLE);
    }
    handles::retire::<Array>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    crate::queue::wait_for_device(found.owner.device());
    give_back(found.owner.device(), found.address)
}

pub(crate) fn cuArray3DGetDescriptor_v2(target: *mut CUDA_ARRAY3D_DESCRIPTOR, handle: CUarray) -> Done {
    put(target, array(handle)?.descriptor)
}

pub(crate) fn cuArrayGetDescriptor_v2(target: *mut CUDA_ARRAY_DESCRIPTOR, handle: CUarray) -> Done {
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } = array(handle)?.descriptor;
    put(target, CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })
}

/// The shape of one mip level: each extent halved, but not the number of layers.
fn level_of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: c_uint) -> CUDA_ARRAY3D_DESCRIPTOR {
    let halved = |extent: usize| if extent == 0 { 0 } else { (extent >> level).max(1) };
    let layers = descriptor.flags & (LAYERED | CUBEMAP) != 0;
    CUDA_ARRAY3D_DESCRIPTOR {
        width: halved(descriptor.width),
        height: halved(descriptor.height),
        depth: if layers { descriptor.depth } else { halved(descriptor.depth) },
        ..*descriptor
    }
}

pub(crate) fn cuMipmappedArrayCreate(
    target: *mut CUmipmappedArray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> Done {
    let context = current()?;
    not_null(target)?;
    let descriptor = get(descriptor)?;
    capture::check_unsafe_call()?;
    create_mipmapped(target, context, &descriptor, levels, |bytes| take(context, &descriptor, bytes))
}

/// Makes a mipmapped array in memory that `take` allocates.
pub(crate) fn create_mipmapped(
    target: *mut CUmipmappedArray,
    context: &'static Context,
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
    take: impl FnOnce(u64) -> Done<u64>,
) -> Done {
    array_bytes(descriptor)?;
    check_extents(context.device(), descriptor, MIPMAPPED)?;
    let longest = descriptor.width.max(descriptor.height).max(descriptor.depth);
    if levels == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // The number of levels is limited by how often the longest extent can be halved.
    let shapes = (0..levels.min(longest.ilog2() + 1)).map(|level| level_of(descriptor, level)).collect::<Vec<_>>();
    let sizes = shapes.iter().map(array_bytes).collect::<Done<Vec<_>>>()?;
    let total = sizes.iter().try_fold(0_u64, |sum, &bytes| sum.checked_add(bytes)).ok_or(CUresult::INVALID_VALUE)?;
    let address = take(total)?;
    let mut next = address;
    let levels = shapes.into_iter().zip(sizes).map(|(descriptor, bytes)| {
        let level = Array { owner: context.owner(), descriptor, address: next, level: true };
        next += bytes;
        CUarray(handles::register(level).0)
    });
    let levels = levels.collect();
    let (handle, _) = handles::register(MipmappedArray { owner: context.owner(), address, levels });
    put(target, CUmipmappedArray(handle))
}

pub(crate) fn cuMipmappedArrayGetLevel(target: *mut CUarray, handle: CUmipmappedArray, level: c_uint) -> Done {
    let array = mipmapped(handle)?;
    put(target, *array.levels.get(level as usize).ok_or(CUresult::INVALID_VALUE)?)
}

pub(crate) fn cuMipmappedArrayDestroy(handle: CUmipmappedArray) -> Done {
    let array = mipmapped(handle)?;
    capture::check_unsafe_call()?;
    handles::retire::<MipmappedArray>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    for level in &array.levels {
        handles::retire::<Array>(level.0);
    }
    crate::queue::wait_for_device(array.owner.device());
    give_back(array.owner.device(), array.address)
}

/// Always fails: it concerns arrays with deferred mapping, which are not simulated.
pub(crate) fn cuArrayGetMemoryRequirements(target: *mut c_void, handle: CUarray, ordinal: CUdevice) -> Done {
    array(handle)?;
    device(ordinal)?;
    not_null(target)?;
    Err(CUresult::INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    target: *mut c_void,
    handle: CUmipmappedArray,
    ordinal: CUdevice,
) -> Done {
    mipmapped(handle)?;
    device(ordinal)?;
    not_null(target)?;
    Err(CUresult::INVALID_VALUE)
}
