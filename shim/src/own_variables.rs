//! Variables of a library that are named as the driver's functions.
//!
//! A library that loads the driver by itself may keep its function pointers under the functions' own names (`cuInit =
//! dlsym(driver, "cuInit")`). If these variables are exported, the loader finds the shim's function of that name first,
//! and the library would write into code. Without the shim it is bound to its own variable, as no driver is loaded yet.
//! So such references are put right before the driver is opened: nothing uses the variables earlier.

use crate::deep_binding;
use crate::linkmap;
use crate::lookup::Wanted;
use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering;

/// Binds the libraries' references to their own variables of hooked names to these variables, if `path` leads to the
/// driver or NVML.
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
