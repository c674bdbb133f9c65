//! Page-locked host memory: memory that the driver allocates, and the host's own memory that it registers. It is
//! charged in whole pages to a separate account, and refunded by a free or by the end of its context.

use crate::allocations::Key;
use crate::hooks::types;
use crate::memory::{Payer, Size, charged, freed};
use crate::sys;
use aliquot_abi::cuda::{CU_MEMHOSTREGISTER_IOMEMORY, CUresult, NullStream, c_uint, c_void};

/// Bytes of all pages that the range touches: a page is locked as a whole.
fn locked_bytes(start: u64, bytes: u64) -> u64 {
    let page = sys::page_bytes() as u64;
    let before = start & (page - 1);
    bytes.saturating_add(before).saturating_add(page - 1) & !(page - 1)
}

fn key(start: *mut c_void) -> Key {
    Key::Host(start.addr() as u64)
}

/// `cuMemAllocHost`.
pub(crate) unsafe fn host_alloc<S: Size>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut *mut c_void, S) -> CUresult,
    start: *mut *mut c_void,
    bytes: S,
) -> CUresult {
    // SAFETY: the host's call; the address is read only after a success.
    unsafe { charged(Payer::host(), locked_bytes(0, bytes.bytes()), &|| real(start, bytes), &|| key(*start)) }
}

/// `cuMemHostAlloc`.
pub(crate) unsafe fn host_alloc_flags(
    _: NullStream,
    real: types::cuMemHostAlloc,
    start: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the host's call; the address is read only after a success.
    unsafe { charged(Payer::host(), locked_bytes(0, bytes.bytes()), &|| real(start, bytes, flags), &|| key(*start)) }
}

/// `cuMemFreeHost`.
pub(crate) unsafe fn host_free(_: NullStream, real: types::cuMemFreeHost, start: *mut c_void) -> CUresult {
    // SAFETY: the host's call.
    freed(key(start), &|| unsafe { real(start) })
}

/// `cuMemHostRegister`.
#[inline(never)]
pub(crate) unsafe fn host_register(
    _: NullStream,
    real: types::cuMemHostRegister,
    start: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    // Registers of another device on the bus are not memory of the host.
    let payer = if flags & CU_MEMHOSTREGISTER_IOMEMORY == 0 { Payer::host() } else { Payer::Nobody };
    // SAFETY: the host's call.
    charged(payer, locked_bytes(start.addr() as u64, bytes.bytes()), &|| unsafe { real(start, bytes, flags) }, &|| {
        key(start)
    })
}

/// `cuMemHostUnregister`.
pub(crate) unsafe fn host_unregister(_: NullStream, real: types::cuMemHostUnregister, start: *mut c_void) -> CUresult {
    // SAFETY: the host's call.
    freed(key(start), &|| unsafe { real(start) })
}
