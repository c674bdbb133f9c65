//! `cuLink*`: several images linked into one. The result contains only the names and parameters of the inputs' kernels
//! and variables, because a kernel has no more here.

use core::ffi::{c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUlinkState, CUresult};

use crate::Done;
use crate::caller::{bytes, not_null, put, put_if_wanted, text};
use crate::context::{Owner, current};
use crate::handles::{self, Kind, Object};
use crate::images::{self, Image};
use crate::modules::check_options;

/// `CUjitInputType`: cubin, PTX, fat binary, object, library of objects. CUDA 13 no longer accepts NVVM.
const PTX: c_uint = 1;
const INPUT_TYPES: core::ops::RangeInclusive<c_uint> = 0..=4;

/// A link in progress.
struct Linking {
    owner: Owner,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// PTX with all added images.
    source: String,
    /// Whether an image was added whose kernels are not known.
    is_opaque: bool,
    /// The result, which lives as long as this object.
    output: Option<Vec<u8>>,
}

impl Object for Linking {
    const KIND: Kind = Kind::LinkState;
}

fn linking(handle: CUlinkState) -> Done<&'static Linking> {
    crate::process::process()?;
    let found = handles::find::<Linking>(handle.0).filter(|linking| linking.owner.is_alive());
    found.ok_or(CUresult::INVALID_HANDLE)
}

impl Linking {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, kind: c_uint, contents: &[u8]) -> Done {
        let image = images::read_file(contents)?;
        let mut state = self.state();
        if !INPUT_TYPES.contains(&kind) || state.output.is_some() {
            return Err(CUresult::INVALID_VALUE);
        }
        if kind == PTX && contents.starts_with(b"\x7fELF") {
            return Err(CUresult::INVALID_PTX);
        }
        state.is_opaque |= image.entries.is_none();
        state.source.push_str(&describe(&image));
        Ok(())
    }
}

/// PTX that declares the contents of an image.
fn describe(image: &Image) -> String {
    let mut source = String::new();
    for variable in &image.variables {
        source.push_str(&format!(".visible .global .b8 {}[{}];\n", variable.name, variable.bytes));
    }
    for entry in image.entries.iter().flatten() {
        let parameter = |(number, (offset, size)): (usize, &(usize, usize))| {
            // With the largest power of two that divides the offset as alignment, the parameter gets this offset again.
            let alignment = 1 << offset.trailing_zeros().min(7);
            format!(".param .align {alignment} .b8 p{number}[{size}]")
        };
        let parameters = entry.parameters.iter().flatten().enumerate().map(parameter).collect::<Vec<_>>().join(",");
        source.push_str(&format!(".visible .entry {}({parameters}){{ret;}}\n", entry.name));
    }
    source
}

pub(crate) fn cuLinkCreate_v2(
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    target: *mut CUlinkState,
) -> Done {
    let context = current()?;
    not_null(target)?;
    check_options(option_count, options, values)?;
    let linking = Linking { owner: context.owner(), state: Mutex::default() };
    put(target, CUlinkState(handles::register(linking).0))
}

pub(crate) fn cuLinkCreate(
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
    target: *mut CUlinkState,
) -> Done {
    cuLinkCreate_v2(option_count, options, values, target)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuLinkAddData_v2(
    handle: CUlinkState,
    kind: c_uint,
    data: *mut c_void,
    size: usize,
    _name: *const c_char,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> Done {
    let linking = linking(handle)?;
    check_options(option_count, options, values)?;
    if size == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    linking.add(kind, bytes(data.cast_const().cast(), size)?)
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuLinkAddData(
    handle: CUlinkState,
    kind: c_uint,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> Done {
    cuLinkAddData_v2(handle, kind, data, size, name, option_count, options, values)
}

pub(crate) fn cuLinkAddFile_v2(
    handle: CUlinkState,
    kind: c_uint,
    path: *const c_char,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> Done {
    let linking = linking(handle)?;
    check_options(option_count, options, values)?;
    let path = std::ffi::OsStr::from_bytes(text(path)?.to_bytes());
    linking.add(kind, &std::fs::read(path).map_err(|_| CUresult::FILE_NOT_FOUND)?)
}

pub(crate) fn cuLinkAddFile(
    handle: CUlinkState,
    kind: c_uint,
    path: *const c_char,
    option_count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> Done {
    cuLinkAddFile_v2(handle, kind, path, option_count, options, values)
}

pub(crate) fn cuLinkComplete(handle: CUlinkState, image: *mut *mut c_void, size: *mut usize) -> Done {
    let linking = linking(handle)?;
    not_null(image)?;
    let mut state = linking.state();
    let whole = if state.is_opaque {
        images::opaque()
    } else {
        format!(".version 8.0\n.target sm_90\n.address_size 64\n{}\0", state.source).into_bytes()
    };
    let output = state.output.get_or_insert(whole);
    put(image, output.as_mut_ptr().cast())?;
    put_if_wanted(size, output.len());
    Ok(())
}

pub(crate) fn cuLinkDestroy(handle: CUlinkState) -> Done {
    linking(handle)?;
    let linking = handles::retire::<Linking>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    *linking.state() = State::default();
    Ok(())
}
