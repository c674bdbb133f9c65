//! Texture and surface objects: views of memory and arrays. They are checked when they are made, but no kernel uses
//! them.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{CUarray, CUmipmappedArray, CUresult, CUsurfObject, CUtexObject};

use crate::Done;
use crate::arrays::{array, channel_bytes, mipmapped};
use crate::caller::{get, not_null, put};
use crate::context::current;
use crate::handles::{self, Kind, Object};
use crate::memory::{Side, known_side_of};
use crate::process::process;

const ARRAY: c_uint = 0;
const MIPMAPPED_ARRAY: c_uint = 1;
const LINEAR: c_uint = 2;
const PITCH_2D: c_uint = 3;
/// `CUDA_ARRAY3D_SURFACE_LDST`.
const SURFACE_LOAD_STORE: c_uint = 2;
/// Linear textures begin at multiples of this, rows of pitched ones at multiples of 32.
const ALIGNMENT_BYTES: u64 = 512;
const PITCH_ALIGNMENT_BYTES: u64 = 32;
/// Maximum number of elements of a linear texture.
const LINEAR_ELEMENTS_MAX: u64 = 1 << 28;
/// `CUaddress_mode` and `CUfilter_mode`.
const ADDRESS_MODE_MAX: c_uint = 3;
const FILTER_MODE_MAX: c_uint = 1;
/// Integers, normalised coordinates, sRGB, no trilinear optimisation, seamless cubes.
const TEXTURE_FLAGS: c_uint = 0x1 | 0x2 | 0x10 | 0x20 | 0x40;

/// `CUDA_RESOURCE_DESC`: a kind, its data, and flags.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_uint,
    object: u64,
    format: c_uint,
    channels: c_uint,
    /// Bytes of linear memory; or width, height and pitch.
    sizes: [u64; 3],
    rest: [u64; 11],
    flags: c_uint,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sampling {
    address_modes: [c_uint; 3],
    filter_mode: c_uint,
    flags: c_uint,
    max_anisotropy: c_uint,
    mipmap_filter_mode: c_uint,
    levels_and_colour: [f32; 7],
    reserved: [c_uint; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`: a format, extents, levels and layers.
type View = [u64; 14];

const _: () = assert!(size_of::<Resource>() == 144 && size_of::<Sampling>() == 104);

struct Texture {
    resource: Resource,
    sampling: Sampling,
    view: Option<View>,
}

struct Surface {
    resource: Resource,
}

impl Object for Texture {
    const KIND: Kind = Kind::Texture;
}

impl Object for Surface {
    const KIND: Kind = Kind::Surface;
}

fn texture(object: CUtexObject) -> Done<&'static Texture> {
    process()?;
    handles::find(core::ptr::with_exposed_provenance_mut(object as usize)).ok_or(CUresult::INVALID_VALUE)
}

fn surface(object: CUsurfObject) -> Done<&'static Surface> {
    process()?;
    handles::find(core::ptr::with_exposed_provenance_mut(object as usize)).ok_or(CUresult::INVALID_VALUE)
}

impl Resource {
    fn object(&self) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(self.object as usize)
    }

    fn element_bytes(&self) -> Done<u64> {
        if !matches!(self.channels, 1 | 2 | 4) {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(channel_bytes(self.format)? * u64::from(self.channels))
    }

    /// Refuses memory that is not a device's or is too short.
    fn check_memory(&self, bytes: u64) -> Done {
        match known_side_of(self.object, bytes)? {
            Side::Device(_) if self.object.is_multiple_of(ALIGNMENT_BYTES) => Ok(()),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    fn check(&self) -> Done {
        if self.flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        match self.kind {
            ARRAY => array(CUarray(self.object())).map(|_| ()),
            MIPMAPPED_ARRAY => mipmapped(CUmipmappedArray(self.object())).map(|_| ()),
            LINEAR => {
                let [bytes, ..] = self.sizes;
                if bytes == 0 || bytes / self.element_bytes()? > LINEAR_ELEMENTS_MAX {
                    return Err(CUresult::INVALID_VALUE);
                }
                self.check_memory(bytes)
            }
            PITCH_2D => {
                let [width, height, pitch] = self.sizes;
                let row_bytes = width.checked_mul(self.element_bytes()?).ok_or(CUresult::INVALID_VALUE)?;
                let is_possible =
                    width > 0 && height > 0 && pitch >= row_bytes && pitch.is_multiple_of(PITCH_ALIGNMENT_BYTES);
                if !is_possible {
                    return Err(CUresult::INVALID_VALUE);
                }
                self.check_memory((height - 1).saturating_mul(pitch).saturating_add(row_bytes))
            }
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

impl Sampling {
    fn check(&self) -> Done {
        let modes_are_known = self.address_modes.iter().all(|&mode| mode <= ADDRESS_MODE_MAX)
            && self.filter_mode <= FILTER_MODE_MAX
            && self.mipmap_filter_mode <= FILTER_MODE_MAX;
        if modes_are_known && self.flags & !TEXTURE_FLAGS == 0 { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }
}

pub(crate) fn cuTexObjectCreate(
    target: *mut CUtexObject,
    resource: *const c_void,
    sampling: *const c_void,
    view: *const c_void,
) -> Done {
    current()?;
    not_null(target)?;
    let (resource, sampling) = (get(resource.cast::<Resource>())?, get(sampling.cast::<Sampling>())?);
    resource.check()?;
    sampling.check()?;
    let view = if view.is_null() { None } else { Some(get(view.cast::<View>())?) };
    // Only arrays can have a resource view, which changes their format.
    if view.is_some() && matches!(resource.kind, LINEAR | PITCH_2D) {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, handles::register(Texture { resource, sampling, view }).0.expose_provenance() as u64)
}

pub(crate) fn cuTexObjectDestroy(object: CUtexObject) -> Done {
    texture(object)?;
    let handle = core::ptr::with_exposed_provenance_mut(object as usize);
    handles::retire::<Texture>(handle).map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) fn cuTexObjectGetResourceDesc(target: *mut c_void, object: CUtexObject) -> Done {
    put(target.cast(), texture(object)?.resource)
}

pub(crate) fn cuTexObjectGetTextureDesc(target: *mut c_void, object: CUtexObject) -> Done {
    put(target.cast(), texture(object)?.sampling)
}

pub(crate) fn cuTexObjectGetResourceViewDesc(target: *mut c_void, object: CUtexObject) -> Done {
    put(target.cast(), texture(object)?.view.ok_or(CUresult::INVALID_VALUE)?)
}

pub(crate) fn cuSurfObjectCreate(target: *mut CUsurfObject, resource: *const c_void) -> Done {
    current()?;
    not_null(target)?;
    let resource = get(resource.cast::<Resource>())?;
    resource.check()?;
    let is_surface =
        resource.kind == ARRAY && array(CUarray(resource.object()))?.descriptor().flags & SURFACE_LOAD_STORE != 0;
    if !is_surface {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, handles::register(Surface { resource }).0.expose_provenance() as u64)
}

pub(crate) fn cuSurfObjectDestroy(object: CUsurfObject) -> Done {
    surface(object)?;
    let handle = core::ptr::with_exposed_provenance_mut(object as usize);
    handles::retire::<Surface>(handle).map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) fn cuSurfObjectGetResourceDesc(target: *mut c_void, object: CUsurfObject) -> Done {
    put(target.cast(), surface(object)?.resource)
}
