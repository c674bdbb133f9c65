//! Access to the caller's memory.
//!
//! NVML takes pointers. Null is refused. Otherwise, by NVML's contract, a pointer points to what the function's
//! documentation says, which cannot be checked here. Every access to the caller's memory goes through these functions.

use core::ffi::{CStr, c_char, c_uint};

use aliquot_abi::nvml::nvmlReturn_t;

use crate::Done;

fn not_null<T>(pointer: *const T) -> Done {
    if pointer.is_null() { Err(nvmlReturn_t::INVALID_ARGUMENT) } else { Ok(()) }
}

/// Writes a result to the caller's `target`.
pub(crate) fn put<T>(target: *mut T, value: T) -> Done {
    not_null(target)?;
    // SAFETY: not null, and by NVML's contract valid for writes of `T`; alignment is not relied on.
    unsafe { target.write_unaligned(value) };
    Ok(())
}

/// Reads a value that the caller passes by pointer.
pub(crate) fn get<T: Copy>(source: *const T) -> Done<T> {
    not_null(source)?;
    // SAFETY: not null, and by NVML's contract valid for reads of `T`, a plain type.
    Ok(unsafe { source.read_unaligned() })
}

/// The NUL-terminated text that the caller passes.
pub(crate) fn text<'a>(source: *const c_char) -> Done<&'a str> {
    not_null(source)?;
    // SAFETY: not null, and by NVML's contract a NUL-terminated string that lives as long as the call.
    unsafe { CStr::from_ptr(source) }.to_str().map_err(|_| nvmlReturn_t::NOT_FOUND)
}

/// Writes `text` with a NUL into a buffer of `length` bytes, if it fits.
pub(crate) fn put_text(target: *mut c_char, length: c_uint, text: &str) -> Done {
    not_null(target)?;
    if text.len() + 1 > length as usize {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        put(target.wrapping_add(index), byte as c_char)?;
    }
    Ok(())
}

/// Writes a list into room for `count` items. If there is too little room, writes the needed number to `count` and
/// fails.
pub(crate) fn put_list<T: Copy>(count: *mut c_uint, target: *mut T, items: &[T]) -> Done {
    let room = get(count)? as usize;
    put(count, items.len() as c_uint)?;
    if items.len() > room || (target.is_null() && !items.is_empty()) {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    items.iter().enumerate().try_for_each(|(index, item)| put(target.wrapping_add(index), *item))
}
