//! Start-up and the driver's own look-up.

use crate::hooks::{self, types};
use crate::process::Process;
use crate::region::Region;
use crate::sys;
use aliquot_abi::cuda::{CUresult, NullStream, c_char, c_int, c_uint, c_void};
use core::ffi::CStr;

/// `cuInit`: attaches, so that the first allocation or launch does not have to.
pub(crate) unsafe fn init(_: NullStream, real: types::cuInit, flags: c_uint) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(flags) };
    if result.is_ok() {
        let _ = Process::attached();
    }
    result
}

/// `cuGetProcAddress` of CUDA 11.3.
pub(crate) unsafe fn get_proc_address(
    _: NullStream,
    real: types::cuGetProcAddress,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call; a success says that the pointers were valid.
    unsafe {
        let result = real(name, address, version, flags);
        replace(result, name, address)
    }
}

/// `cuGetProcAddress` of CUDA 12.
pub(crate) unsafe fn get_proc_address_v2(
    _: NullStream,
    real: types::cuGetProcAddress_v2,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> CUresult {
    // SAFETY: the host's call; a success says that the pointers were valid.
    unsafe {
        let result = real(name, address, version, flags, status);
        replace(result, name, address)
    }
}

/// Puts the hook of exactly the function that the driver returned in its place, if there is one.
unsafe fn replace(result: CUresult, name: *const c_char, address: *mut *mut c_void) -> CUresult {
    if !result.is_ok() || name.is_null() || address.is_null() {
        return result;
    }
    // SAFETY: the driver has read the name and written the address.
    let (name, found) = unsafe { (CStr::from_ptr(name), *address) };
    if !found.is_null()
        && let Some(hook) = hooks::by_address(name, found)
    {
        // SAFETY: as above.
        unsafe { *address = hook.export() };
    }
    result
}

/// `chroot`: the region cannot be found by its path afterwards, so it is mapped before.
///
/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    unsafe extern "C" {
        fn __errno_location() -> *mut c_int;
    }
    let _ = Region::get();
    // SAFETY: the host's path.
    match sys::chroot(unsafe { CStr::from_ptr(path) }) {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: the calling thread's errno: this function stands for the C library's, which sets it.
            unsafe { *__errno_location() = (-error.0) as c_int };
            -1
        }
    }
}
