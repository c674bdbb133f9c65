//! Variables of a library that have the names of driver functions.
//!
//! A library that loads the driver by itself may keep its function pointers under the functions' own names (`cuInit =
//! dlsym(driver, "cuInit")`). If these variables are exported, the loader finds the shim's function of that name first,
//! and the library would write into code. Without the shim the library is bound to its own variable, because no driver
//! is loaded yet. So such references are corrected before the driver is opened: the variables are not used earlier.

use crate::deep_binding;
use crate::linkmap;
use crate::lookup::Wanted;
use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering;

/// If `path` leads to the driver or NVML, binds references of libraries to hooked names to the libraries' own variables
/// of these names, if they have any.
///
/// # Safety
/// `path` must be null or NUL-terminated.
pub(crate) unsafe fn give_back_before_opening(path: *const c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: vouched for by the caller.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if name.starts_with(b"libcuda.so") || name.starts_with(b"libnvidia-ml.so") {
        give_back();
    }
}

#[cold]
fn give_back() {
    linkmap::find(|object| {
        object.image.each_reference(|reference| {
            let Some(variable) = reference.own_variable else { return };
            // SAFETY: an object's names are NUL-terminated.
            let Some(wanted) = (unsafe { Wanted::from_name(reference.name) }) else { return };
            if reference.slot.load(Ordering::Relaxed) == wanted.ours() {
                deep_binding::write(&object.image, &reference, variable);
            }
        });
        None::<()>
    });
}
