//! Access to the caller's memory.
//!
//! The driver API takes pointers. Null is refused. Otherwise, by the API's contract, a pointer points to what the
//! function's documentation says, which cannot be checked here. Every access to the caller's memory goes through these
//! functions, so that this trust is in one place. They are only for pointers that the caller of the driver API passed.

use core::ffi::{CStr, c_char};

use aliquot_abi::cuda::CUresult;

use crate::Done;

/// Writes a result to the caller's `target`.
pub(crate) fn put<T>(target: *mut T, value: T) -> Done {
    if target.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and by the API's contract valid for writes of `T`; alignment is not relied on.
    unsafe { target.write_unaligned(value) };
    Ok(())
}

/// Writes an optional result: does nothing if `target` is null.
pub(crate) fn put_if_wanted<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: as in `put`.
        unsafe { target.write_unaligned(value) };
    }
}

/// Reads a value that the caller passes by pointer.
pub(crate) fn get<T: Copy>(source: *const T) -> Done<T> {
    if source.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and by the API's contract valid for reads of `T`, which is a plain type of the API.
    Ok(unsafe { source.read_unaligned() })
}

/// Reads an array that the caller passes.
pub(crate) fn get_all<T: Copy>(source: *const T, count: usize) -> Done<Vec<T>> {
    (0..count).map(|index| get(source.wrapping_add(index)).and_then(|item| not_null(source).map(|()| item))).collect()
}

/// Writes an array to the caller's `target`.
pub(crate) fn put_all<T>(target: *mut T, values: impl IntoIterator<Item = T>) -> Done {
    for (index, value) in values.into_iter().enumerate() {
        not_null(target)?;
        put(target.wrapping_add(index), value)?;
    }
    Ok(())
}

/// Refuses a null pointer.
pub(crate) fn not_null<T>(pointer: *const T) -> Done {
    if pointer.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

/// The NUL-terminated text that the caller passes.
pub(crate) fn text<'a>(source: *const c_char) -> Done<&'a CStr> {
    not_null(source)?;
    // SAFETY: not null, and by the API's contract a NUL-terminated string that lives as long as the call.
    Ok(unsafe { CStr::from_ptr(source) })
}

/// The `count` bytes at the caller's `source`.
pub(crate) fn bytes<'a>(source: *const u8, count: usize) -> Done<&'a [u8]> {
    not_null(source)?;
    // SAFETY: not null, and by the API's contract `count` readable bytes that live as long as the call.
    Ok(unsafe { core::slice::from_raw_parts(source, count) })
}

/// Writes `text` with a NUL into a buffer of `length` bytes, truncated if it does not fit.
pub(crate) fn put_text(target: *mut c_char, length: usize, text: &str) -> Done {
    if target.is_null() || length == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let kept = text.len().min(length - 1);
    put_all(target, text.as_bytes()[..kept].iter().map(|&byte| byte as c_char).chain([0]))
}
