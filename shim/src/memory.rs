//! Device memory: reserve in the container's ledger, call the driver, remember or roll back.

pub(crate) use crate::arrays::{array_create, array_destroy, array3d_create, mipmap_create, mipmap_destroy};
pub(crate) use crate::vmm::{vmm_create, vmm_map, vmm_release, vmm_retain, vmm_unmap};

use crate::allocations::{self, Charge, Key};
use crate::hooks::types;
use crate::process::{self, Part, Process};
use aliquot_abi::cuda::{CUdevice, CUdeviceptr, CUmemoryPool, CUresult, CUstream, NullStream, c_uint};
use aliquot_abi::ledger;

/// What the calling thread may charge.
pub(crate) enum Payer {
    /// Nobody: the shim is passive, or the driver will refuse the call. It goes to the driver as it is.
    Nobody,
    /// A part of the slice.
    Part(Part),
    /// A device that the slice has no part of: it has no memory for this container.
    Stranger,
}

impl Payer {
    /// Who pays for memory of the calling thread's device.
    #[inline]
    pub(crate) fn current() -> Payer {
        let Some(process) = Process::attached() else { return Payer::Nobody };
        match process.current_ordinal() {
            Ok(ordinal) => Payer::of_device(process, ordinal),
            // No context: the driver says so better.
            Err(_) => Payer::Nobody,
        }
    }

    /// Who pays for memory of device `ordinal`.
    pub(crate) fn of(ordinal: CUdevice) -> Payer {
        Process::attached().map_or(Payer::Nobody, |process| Payer::of_device(process, ordinal))
    }

    #[inline]
    fn of_device(process: &'static Process, ordinal: CUdevice) -> Payer {
        match process.part(ordinal) {
            Some(part) => Payer::Part(part),
            None if process.is_disabled() => Payer::Nobody,
            None => Payer::Stranger,
        }
    }
}

impl Part {
    /// Reserves `bytes`; `None` if the limit forbids it.
    #[inline]
    pub(crate) fn charge(&self, bytes: u64) -> Option<Charge> {
        let (account, part) = self.books()?;
        ledger::reserve(account, part, bytes, self.memory_limit_bytes()).ok()?;
        Some(Charge { account: self.index, bytes })
    }
}

impl Charge {
    /// Gives the bytes back.
    #[inline]
    pub(crate) fn refund(self) {
        let Some(process) = Process::attached() else { return };
        if let Some((account, part)) = process.books(self.account) {
            ledger::release(account, part, self.bytes);
        }
    }
}

/// The answer to a request that the limit forbids: out of memory, unless the driver has a better reason to refuse.
#[cold]
fn refused() -> CUresult {
    process::current_ordinal().err().unwrap_or(CUresult::OUT_OF_MEMORY)
}

/// Charges `bytes`, makes the call, and lets `key` name what was charged; rolls back if the driver refuses.
#[inline]
pub(crate) fn charged(
    payer: Payer,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
    key: impl FnOnce() -> Key,
) -> CUresult {
    let part = match payer {
        Payer::Nobody => return call(),
        Payer::Stranger => return refused(),
        Payer::Part(part) => part,
    };
    let Some(charge) = part.charge(bytes) else { return refused() };
    let result = call();
    if !result.is_ok() || !allocations::remember(key(), charge) {
        charge.refund();
    }
    result
}

/// Makes the driver free what `key` names, and gives back what it was charged if the driver did.
#[inline]
pub(crate) fn freed(key: Key, call: impl FnOnce() -> CUresult) -> CUresult {
    // Taken out before the driver frees it: afterwards the driver may give the same address to another thread.
    let charge = allocations::forget(key);
    let result = call();
    if let Some(charge) = charge {
        if result.is_ok() {
            charge.refund();
        } else {
            let _ = allocations::remember(key, charge);
        }
    }
    result
}

/// A device address, of either width.
pub(crate) trait Address: Copy {
    fn wide(self) -> CUdeviceptr;
}

impl Address for u32 {
    fn wide(self) -> CUdeviceptr {
        u64::from(self)
    }
}

impl Address for u64 {
    fn wide(self) -> CUdeviceptr {
        self
    }
}

/// A size, of either width.
pub(crate) trait Size: Copy {
    fn bytes(self) -> u64;
}

impl Size for u32 {
    fn bytes(self) -> u64 {
        u64::from(self)
    }
}

impl Size for usize {
    fn bytes(self) -> u64 {
        self as u64
    }
}

/// The address that a successful call has written.
///
/// # Safety
/// The driver must have written to `address`.
#[inline]
unsafe fn written<A: Address>(address: *mut A) -> Key {
    // SAFETY: vouched for by the caller.
    Key::Address(unsafe { *address }.wide())
}

/// `cuMemAlloc`.
#[inline]
pub(crate) unsafe fn alloc<A: Address, S: Size>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut A, S) -> CUresult,
    address: *mut A,
    bytes: S,
) -> CUresult {
    // SAFETY: the host's call; the address is read only after a success.
    unsafe { charged(Payer::current(), bytes.bytes(), || real(address, bytes), || written(address)) }
}

/// `cuMemAllocManaged`: charged to the device whose memory it can come to fill.
pub(crate) unsafe fn alloc_managed(
    _: NullStream,
    real: types::cuMemAllocManaged,
    address: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: as for `alloc`.
    unsafe { charged(Payer::current(), bytes.bytes(), || real(address, bytes, flags), || written(address)) }
}

/// `cuMemAllocPitch`: charged with the pitch that the driver chose.
pub(crate) unsafe fn alloc_pitch<A: Address, S: Size>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut A, *mut S, S, S, c_uint) -> CUresult,
    address: *mut A,
    pitch: *mut S,
    width_bytes: S,
    height: S,
    element_bytes: c_uint,
) -> CUresult {
    // SAFETY: the host's call, here and below; what it writes is read only after a success.
    let call = || unsafe { real(address, pitch, width_bytes, height, element_bytes) };
    let part = match Payer::current() {
        Payer::Nobody => return call(),
        Payer::Stranger => return refused(),
        Payer::Part(part) => part,
    };
    // No pitch is less than the width: what does not fit with this cannot fit.
    let Some(least) = part.charge(width_bytes.bytes().saturating_mul(height.bytes())) else { return refused() };
    let result = call();
    if !result.is_ok() {
        least.refund();
        return result;
    }
    // SAFETY: the call succeeded.
    let (taken, key) = unsafe { ((*pitch).bytes().saturating_mul(height.bytes()), written(address)) };
    let more = taken.saturating_sub(least.bytes);
    let fits = more == 0 || part.charge(more).is_some();
    if !fits {
        least.refund();
        free_again(key);
        return CUresult::OUT_OF_MEMORY;
    }
    let charge = Charge { account: part.index, bytes: least.bytes.saturating_add(more) };
    if !allocations::remember(key, charge) {
        charge.refund();
    }
    result
}

/// Frees what the driver gave and the limit forbids.
#[cold]
pub(crate) fn free_again(key: Key) {
    if let (Key::Address(address), Some(free)) = (key, crate::hooks::real!(cuMemFree_v2)) {
        // SAFETY: the address was allocated just now and the host does not know it yet.
        let _ = unsafe { free(address) };
    }
}

/// `cuMemFree`.
#[inline]
pub(crate) unsafe fn free<A: Address>(
    _: NullStream,
    real: unsafe extern "C" fn(A) -> CUresult,
    address: A,
) -> CUresult {
    // SAFETY: the host's call.
    freed(Key::Address(address.wide()), || unsafe { real(address) })
}

/// `cuMemAllocAsync`.
pub(crate) unsafe fn alloc_async(
    _: NullStream,
    real: types::cuMemAllocAsync,
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: as for `alloc`.
    unsafe { charged(Payer::current(), bytes.bytes(), || real(address, bytes, stream), || written(address)) }
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) unsafe fn alloc_from_pool_async(
    _: NullStream,
    real: types::cuMemAllocFromPoolAsync,
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: as for `alloc`.
    unsafe { charged(Payer::current(), bytes.bytes(), || real(address, bytes, pool, stream), || written(address)) }
}

/// `cuMemFreeAsync`.
pub(crate) unsafe fn free_async(
    _: NullStream,
    real: types::cuMemFreeAsync,
    address: CUdeviceptr,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    freed(Key::Address(address), || unsafe { real(address, stream) })
}
