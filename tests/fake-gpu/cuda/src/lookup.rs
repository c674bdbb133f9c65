//! `cuGetProcAddress`, and other queries before a program uses the driver.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::collections::HashMap;
use std::sync::OnceLock;

use aliquot_abi::cuda::{
    CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, CUuuid, NullStream,
};
use aliquot_fake_machine::{Config, ProcAddress};

use crate::Done;
use crate::caller::{not_null, put, put_if_wanted, text};
use crate::exports;
use crate::process::process;
use crate::thunks;

/// The first version with per-thread default streams.
const PER_THREAD_VERSION: u32 = 7000;

/// A function as `cuGetProcAddress` knows it.
pub(crate) struct Export {
    pub(crate) name: &'static str,
    /// The lowest requested version that gets it.
    pub(crate) version: u32,
    pub(crate) function: *const c_void,
    /// The form with per-thread default streams, if there is one.
    pub(crate) per_thread: Option<*const c_void>,
}

/// The result of a look-up, with the values of the second version of the function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Found = 0,
    NotFound = 1,
    VersionNotSufficient = 2,
}

fn table() -> &'static HashMap<&'static str, Vec<Export>> {
    // SAFETY of sharing: the pointers are addresses of this library's functions, which is not unloaded while it is
    // used.
    struct Table(HashMap<&'static str, Vec<Export>>);
    // SAFETY: see above; a function's address can be read in any thread.
    unsafe impl Send for Table {}
    // SAFETY: as above.
    unsafe impl Sync for Table {}
    static TABLE: OnceLock<Table> = OnceLock::new();
    let build = || {
        let mut table: HashMap<_, Vec<Export>> = HashMap::new();
        let mut exported = exports::all();
        if Config::from_env().is_ok_and(|config| config.proc_address == ProcAddress::Other) {
            thunks::replace(&mut exported);
        }
        for export in exported {
            table.entry(export.name).or_default().push(export);
        }
        Table(table)
    };
    &TABLE.get_or_init(build).0
}

/// The driver's CUDA version. Also known before `cuInit`.
fn driver_version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    *VERSION.get_or_init(|| Config::from_env().map_or(13000, |config| config.cuda_version))
}

/// The newest function with this name that callers of `version` may get.
fn find(name: &CStr, version: u32, per_thread: bool) -> (*mut c_void, Status) {
    let exports = name.to_str().ok().and_then(|name| table().get(name));
    let available = |export: &&Export| export.version <= driver_version();
    let mut exports = exports.into_iter().flatten().filter(available).peekable();
    if exports.peek().is_none() {
        return (core::ptr::null_mut(), Status::NotFound);
    }
    let Some(best) = exports.filter(|export| export.version <= version).max_by_key(|export| export.version) else {
        return (core::ptr::null_mut(), Status::VersionNotSufficient);
    };
    let per_thread = best.per_thread.filter(|_| per_thread && version >= PER_THREAD_VERSION);
    (per_thread.unwrap_or(best.function).cast_mut(), Status::Found)
}

/// Looks a function up. If the flags do not choose a default stream, `null` does.
fn look_up(
    null: NullStream,
    symbol: *const c_char,
    target: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Done<Status> {
    not_null(target)?;
    let name = text(symbol)?;
    let per_thread = match flags {
        0 => null == NullStream::PerThread,
        CU_GET_PROC_ADDRESS_LEGACY_STREAM => false,
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM => true,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let (function, status) = find(name, u32::try_from(version).map_err(|_| CUresult::INVALID_VALUE)?, per_thread);
    put(target, function)?;
    Ok(status)
}

pub(crate) fn cuGetProcAddress(
    null: NullStream,
    symbol: *const c_char,
    target: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Done {
    match look_up(null, symbol, target, version, flags)? {
        Status::Found => Ok(()),
        Status::NotFound | Status::VersionNotSufficient => Err(CUresult::NOT_FOUND),
    }
}

/// As [`cuGetProcAddress`], but if the caller asks for the status, only the status reports a missing function.
pub(crate) fn cuGetProcAddress_v2(
    null: NullStream,
    symbol: *const c_char,
    target: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> Done {
    let found = look_up(null, symbol, target, version, flags)?;
    put_if_wanted(status, found as c_uint);
    if found == Status::Found || !status.is_null() { Ok(()) } else { Err(CUresult::NOT_FOUND) }
}

pub(crate) fn cuDriverGetVersion(version: *mut c_int) -> Done {
    put(version, driver_version() as c_int)
}

pub(crate) fn cuGetErrorString(error: CUresult, target: *mut *const c_char) -> Done {
    put_static(target, error.text_with_nul())
}

pub(crate) fn cuGetErrorName(error: CUresult, target: *mut *const c_char) -> Done {
    put_static(target, error.name_with_nul())
}

fn put_static(target: *mut *const c_char, text: Option<&'static str>) -> Done {
    put(target, text.map_or(core::ptr::null(), |text| text.as_ptr().cast()))?;
    text.map(|_| ()).ok_or(CUresult::INVALID_VALUE)
}

/// Always fails: NVIDIA's private tables do not exist here.
pub(crate) fn cuGetExportTable(target: *mut *const c_void, id: *const CUuuid) -> Done {
    not_null(id)?;
    put(target, core::ptr::null())?;
    Err(CUresult::NOT_FOUND)
}

/// Does nothing: there is no profiler.
pub(crate) fn cuProfilerStart() -> Done {
    process().map(|_| ())
}

pub(crate) fn cuProfilerStop() -> Done {
    process().map(|_| ())
}
