//! Thunks, which give the library's functions other addresses: a driver's `cuGetProcAddress` need not return the
//! addresses of its exports.

use core::ffi::c_void;

use crate::lookup::Export;
use crate::process::reserve_memory_range;

/// Code that jumps to the address stored after it.
#[cfg(target_arch = "x86_64")]
const JUMP: [u8; 8] = [0xff, 0x25, 2, 0, 0, 0, 0x90, 0x90];
#[cfg(target_arch = "aarch64")]
const JUMP: [u8; 8] = [0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6];

type Thunk = [u8; 16];

/// Replaces the functions by thunks. If there is no memory for them, the functions stay.
pub(crate) fn replace(exports: &mut [Export]) {
    let functions = || exports.iter().flat_map(|export| [Some(export.function), export.per_thread]).flatten();
    let bytes = functions().count() * size_of::<Thunk>();
    let Some(code) = reserve_memory_range(bytes) else { return };
    let thunks: *mut Thunk = code.cast();
    for (place, function) in functions().enumerate() {
        let mut thunk = [0; 16];
        thunk[..8].copy_from_slice(&JUMP);
        thunk[8..].copy_from_slice(&(function.expose_provenance() as u64).to_ne_bytes());
        // SAFETY: the reservation is not known elsewhere yet, and has room for as many thunks as there are functions.
        unsafe { thunks.add(place).write(thunk) };
    }
    // SAFETY: the reservation belongs to this function and is never unmapped.
    if unsafe { libc::mprotect(code, bytes, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
        return;
    }
    let mut next = (0..).map(|place| thunks.wrapping_add(place).cast_const().cast::<c_void>());
    for export in exports {
        for function in [Some(&mut export.function), export.per_thread.as_mut()].into_iter().flatten() {
            *function = next.next().unwrap_or(*function);
        }
    }
}
