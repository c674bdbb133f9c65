//! Start-up and the driver's own look-up.

use crate::deep_binding;
use crate::hooks::{Request, types};
use crate::lookup;
use crate::process::Process;
use crate::region::Region;
use aliquot_abi::cuda::{
    CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUresult, NullStream, c_char,
    c_int, c_uint, c_void,
};
use core::ffi::CStr;
use core::sync::atomic::AtomicPtr;

/// `cuInit`: attaches the process, so that the first allocation or launch does not have to.
pub(crate) unsafe fn init(_: NullStream, real: types::cuInit, flags: c_uint) -> CUresult {
    deep_binding::catch_up();
    // SAFETY: the host's call.
    let result = unsafe { real(flags) };
    if result.is_ok() {
        let _ = Process::attached();
    }
    result
}

/// `cuGetProcAddress`, the version of CUDA 11.3.
pub(crate) unsafe fn get_proc_address(
    form: NullStream,
    real: types::cuGetProcAddress,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call; after a success the pointers are valid.
    unsafe {
        let result = real(name, address, version, flags);
        replace(result, name, address, version, wants_per_thread(form, flags))
    }
}

/// `cuGetProcAddress`, the version of CUDA 12.
pub(crate) unsafe fn get_proc_address_v2(
    form: NullStream,
    real: types::cuGetProcAddress_v2,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> CUresult {
    // SAFETY: the host's call; after a success the pointers are valid.
    unsafe {
        let result = real(name, address, version, flags, status);
        replace(result, name, address, version, wants_per_thread(form, flags))
    }
}

/// Whether a look-up with these `flags`, by the look-up function of this `form`, asks for functions with per-thread
/// default streams.
fn wants_per_thread(form: NullStream, flags: u64) -> bool {
    match flags {
        CU_GET_PROC_ADDRESS_LEGACY_STREAM => false,
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM => true,
        _ => form == NullStream::PerThread,
    }
}

/// Replaces the function that the driver returned by its hook, if it has one.
unsafe fn replace(
    result: CUresult,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    per_thread: bool,
) -> CUresult {
    deep_binding::catch_up();
    if !result.is_ok() || name.is_null() || address.is_null() {
        return result;
    }
    // SAFETY: the driver has read the name and written the address.
    let (name, found) = unsafe { (CStr::from_ptr(name), *address) };
    if !found.is_null()
        && let Some(hook) = (Request { name, version, per_thread }).answered_by(found)
    {
        // SAFETY: as above.
        unsafe { *address = hook.export() };
    }
    result
}

/// `chroot`: maps the region first, because it cannot be found by its path afterwards.
///
/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    Region::map_ahead();
    let real = lookup::next_definition(&REAL, c"chroot", chroot as *const ());
    if real.is_null() {
        return -1;
    }
    // SAFETY: the address is that of the next library's function of this name; the host's path.
    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_int>(real)(path) }
}
