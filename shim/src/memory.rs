//! Device memory: reserve in the container's ledger, call the driver, then remember the charge or roll back.
//!
//! Memory that is shared between processes (`cuIpcOpenMemHandle`, imported pools and physical memory, external memory)
//! is charged to the process that made it. It is free for a process that opens it: the opener's addresses are not
//! recorded, and closing gives nothing back. If the maker frees it while others have it open, no process is charged.
//! The driver then counts it for the openers, and the manager adds it to the overhead. A free of an unknown address
//! passes through.

pub(crate) use crate::arrays::{array_create, array_destroy, array3d_create, mipmap_create, mipmap_destroy};
pub(crate) use crate::bindings::{
    map_array, multicast_bind, multicast_bind_address, multicast_bind_device, multicast_bind_device_address,
    multicast_unbind,
};
pub(crate) use crate::graph_memory::{
    graph_add_allocation, graph_add_node, graph_add_node_after, graph_exec_destroy, graph_instantiate,
    graph_instantiate_flags, graph_instantiate_params, graph_trim, graph_upload,
};
pub(crate) use crate::host_memory::{host_alloc, host_alloc_flags, host_free, host_register, host_unregister};
pub(crate) use crate::pools::{
    alloc_async, alloc_from_pool_async, free_async, pool_create, pool_destroy, pool_of_location, pool_trim,
};
pub(crate) use crate::vmm::{vmm_create, vmm_import, vmm_map, vmm_release, vmm_retain, vmm_unmap};

use crate::allocations::{self, Charge, Key};
use crate::call::Call;
use crate::gate;
use crate::hooks::types;
use crate::pools;
use crate::process::{self, Part, Process};
use crate::region::Unattached;
use aliquot_abi::cuda::{CUdevice, CUdeviceptr, CUresult, NullStream, c_uint};
use aliquot_abi::ledger;
use aliquot_abi::region::{Account, HOST_ACCOUNT};
use aliquot_abi::rounding::{self, MOVING_BYTES_MIN};
use core::sync::atomic::{AtomicU64, Ordering};

/// The account that pays for a request.
pub(crate) enum Payer {
    /// No account: the shim is passive, or the driver will refuse the call. The call goes to the driver unchanged.
    Nobody,
    /// A part of the slice.
    Part(Part),
    /// The slice's page-locked host memory.
    Host(&'static Process),
    /// A device of which the slice has no part, so that the container has no memory there. If the slice's region cannot
    /// be used, this stands for every device.
    Stranger,
}

/// The answer to a request.
pub(crate) enum Grant {
    /// It is not charged.
    Free,
    /// It is reserved in the ledger.
    Charged(Charge),
    /// The limit forbids it.
    Refused,
}

impl Payer {
    /// The payer for memory of the calling thread's device.
    #[inline]
    pub(crate) fn current() -> Payer {
        Process::if_attached().map_or_else(Payer::attaching, Payer::of_current)
    }

    #[cold]
    #[inline(never)]
    fn attaching() -> Payer {
        Process::for_call().map_or_else(Payer::without_process, Payer::of_current)
    }

    #[inline]
    fn of_current(process: &'static Process) -> Payer {
        match process.current_ordinal() {
            Ok(ordinal) => Payer::of_device(process, ordinal),
            // No context: the driver returns its own error.
            Err(_) => Payer::Nobody,
        }
    }

    /// As [`Payer::current`], but not inlined.
    #[inline(never)]
    pub(crate) fn of_thread() -> Payer {
        Payer::current()
    }

    /// The payer for memory of device `ordinal`.
    #[inline(never)]
    pub(crate) fn of(ordinal: CUdevice) -> Payer {
        Process::for_call().map_or_else(Payer::without_process, |process| Payer::of_device(process, ordinal))
    }

    /// The payer for page-locked memory of the host.
    #[inline(never)]
    pub(crate) fn host() -> Payer {
        Process::for_call().map_or_else(Payer::without_process, Payer::Host)
    }

    #[cold]
    fn without_process(unattached: Unattached) -> Payer {
        if unattached == Unattached::Refused { Payer::Stranger } else { Payer::Nobody }
    }

    #[inline]
    fn of_device(process: &'static Process, ordinal: CUdevice) -> Payer {
        match process.part(ordinal) {
            Some(part) => Payer::Part(part),
            // The device does not exist: the driver returns its own error.
            None if !process.has_device(ordinal) => Payer::Nobody,
            None => Payer::Stranger,
        }
    }

    /// To be called before `bytes` are charged and requested from the driver: they count as moving until this is
    /// dropped.
    #[inline]
    pub(crate) fn moving(&self, bytes: u64) -> Moving {
        // The account of the host has no part in this, and no device has its number.
        let account = if let Payer::Part(part) = self { part.index } else { HOST_ACCOUNT };
        Charge::moving(account, bytes)
    }

    /// Reserves `bytes` for this payer in the ledger.
    #[inline(never)]
    pub(crate) fn charge(&self, bytes: u64) -> Grant {
        self.charge_with(bytes, Part::charge)
    }

    #[inline]
    fn charge_with(&self, bytes: u64, charge_part: impl FnOnce(&Part, u64) -> Option<Charge>) -> Grant {
        let charge = match self {
            Payer::Nobody => return Grant::Free,
            Payer::Stranger => return Grant::Refused,
            Payer::Part(part) => charge_part(part, bytes),
            Payer::Host(process) => process.charge(HOST_ACCOUNT, bytes, process.host_memory_limit_bytes()),
        };
        charge.map_or(Grant::Refused, Grant::Charged)
    }
}

impl Part {
    /// Reserves `bytes`; `None` if the limit forbids it.
    #[inline(never)]
    pub(crate) fn charge(&self, bytes: u64) -> Option<Charge> {
        self.charge_inline(bytes)
    }

    /// As [`charge`](Self::charge), but `None` if that would have to wait, or to make room first.
    pub(crate) fn charge_at_once(&self, bytes: u64) -> Option<Charge> {
        let (books, part) = self.books()?;
        let reserved = ledger::reserve(books, part, bytes, self.memory_limit_bytes_until_look());
        reserved.is_ok().then_some(Charge { account: self.index, bytes })
    }

    #[inline]
    fn charge_inline(&self, bytes: u64) -> Option<Charge> {
        self.process.charge(self.index, bytes, self.memory_limit_bytes_until_look())
    }
}

impl Process {
    /// Reserves `bytes` in account number `account`. `None` if the limit forbids it; then the refusal is counted.
    #[inline]
    pub(crate) fn charge(&'static self, account: usize, bytes: u64, limit_bytes: u64) -> Option<Charge> {
        let (books, part) = self.books(account)?;
        let fits = ledger::reserve(books, part, bytes, limit_bytes).is_ok()
            || pools::try_again(self, account, bytes, &|limit_bytes| {
                ledger::reserve(books, part, bytes, limit_bytes).is_ok()
            });
        if !fits {
            self.count_refusal(account);
        }
        fits.then_some(Charge { account, bytes })
    }

    /// Counts a request that the limit of account number `account` forbids.
    #[cold]
    pub(crate) fn count_refusal(&self, account: usize) {
        if let Some(books) = self.ledger().account(account) {
            books.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Charge {
    /// Gives the bytes back.
    #[inline(never)]
    pub(crate) fn refund(self) {
        self.refund_inline();
    }

    /// As [`refund`](Self::refund), inlined for the most frequent free.
    #[inline]
    fn refund_inline(self) {
        let Some(process) = Process::attached() else { return };
        if let Some((account, part)) = process.books(self.account) {
            ledger::release(account, part, self.bytes);
        }
    }

    /// Reserves `bytes` more. The driver has given all already, so that nothing is `moving` any more. `false` if the
    /// limit forbids it.
    #[inline(never)]
    fn grows(self, bytes: u64, moving: Moving) -> bool {
        let Some(process) = Process::attached() else { return false };
        let Some((books, part)) = process.books(self.account) else { return false };
        let reserve = |limit_bytes| ledger::reserve(books, part, bytes, limit_bytes).is_ok();
        if reserve(process.limit_bytes_until_look(self.account)) {
            return true;
        }
        drop(moving);
        let fits = pools::try_given(process, self.account, &reserve);
        if !fits {
            process.count_refusal(self.account);
        }
        fits
    }

    /// To be called when the driver has given the memory.
    #[inline(never)]
    fn given(self) {
        if let Some(account) = self.device_account() {
            rounding::note_given(account, self.bytes);
        }
    }

    /// Gives the bytes back once the driver has back the memory that it had [given](Charge::given).
    #[inline(never)]
    pub(crate) fn freed(self) {
        self.freed_inline();
    }

    #[inline]
    fn freed_inline(self) {
        self.refund_inline();
        if let Some(account) = self.device_account() {
            rounding::note_taken_back(account, self.bytes);
        }
    }

    /// Gives the bytes back in the ledger, although the driver keeps the memory: it is overhead from now on.
    pub(crate) fn becomes_overhead(self) {
        // Noted first, so that the bytes are missing at no time.
        if let Some(account) = self.device_account() {
            rounding::note_overhead(account, self.bytes);
        }
        self.refund();
    }

    /// As [`becomes_overhead`](Self::becomes_overhead), until the driver takes the memory back at a time that nothing
    /// tells.
    fn free_is_queued(self) {
        if let Some(process) = Process::if_attached() {
            process.queued_frees.store(1, Ordering::Relaxed);
        }
        self.becomes_overhead();
    }

    /// The account, if it is a device's.
    #[inline]
    fn device_account(self) -> Option<&'static Account> {
        Process::if_attached()?.ledger().devices.get(self.account)
    }

    /// To be called before the driver is asked to give or to take back the memory. The bytes move until this is dropped.
    #[inline]
    pub(crate) fn moving(account: usize, bytes: u64) -> Moving {
        let is_large = bytes >= MOVING_BYTES_MIN;
        Moving { moving: if is_large { Moving::begin(account, bytes) } else { None }, bytes }
    }
}

/// Bytes that the driver is asked to give or to take back.
pub(crate) struct Moving {
    moving: Option<&'static AtomicU64>,
    bytes: u64,
}

impl Moving {
    #[inline(never)]
    fn begin(account: usize, bytes: u64) -> Option<&'static AtomicU64> {
        let moving = &Process::if_attached()?.slot().devices.get(account)?.moving_bytes;
        moving.fetch_add(bytes, Ordering::Relaxed);
        Some(moving)
    }
}

impl Drop for Moving {
    #[inline]
    fn drop(&mut self) {
        if let Some(moving) = self.moving {
            // Done after all changes in the meantime.
            moving.fetch_sub(self.bytes, Ordering::Release);
        }
    }
}

/// The answer to a request that the limit forbids: out of memory, unless the thread has no context, which the driver
/// reports first.
#[cold]
fn refused() -> CUresult {
    process::current_ordinal().err().unwrap_or(CUresult::OUT_OF_MEMORY)
}

/// Charges `bytes` to `payer`, makes the call, and remembers the charge by `key`; rolls back if the driver refuses.
#[inline(never)]
pub(crate) fn charged(payer: Payer, bytes: u64, call: &dyn Call<CUresult>, key: &dyn Call<Key>) -> CUresult {
    charged_with(payer, bytes, Part::charge, || call.make(), |charge| remember(key.make(), charge))
}

/// As [`charged`], inlined for the kind of memory that programs allocate most often.
#[inline]
fn charged_inline(payer: Payer, bytes: u64, call: impl FnOnce() -> CUresult, key: impl FnOnce() -> Key) -> CUresult {
    charged_with(payer, bytes, Part::charge_inline, call, |charge| remember_inline(key(), charge))
}

#[inline]
fn charged_with(
    payer: Payer,
    bytes: u64,
    charge_part: impl FnOnce(&Part, u64) -> Option<Charge>,
    call: impl FnOnce() -> CUresult,
    remember: impl FnOnce(Charge),
) -> CUresult {
    let _moving = payer.moving(bytes);
    let charge = match payer.charge_with(bytes, charge_part) {
        Grant::Free => return call(),
        Grant::Refused => return refused(),
        Grant::Charged(charge) => charge,
    };
    let result = call();
    if result.is_ok() {
        remember(charge);
    } else {
        charge.refund();
    }
    if let Some(process) = Process::if_attached() {
        process.marker_page().prepare(process);
    }
    result
}

/// Makes the call that frees `key`, which can wait for the device. Refunds the charge if the call succeeds.
#[inline(never)]
pub(crate) fn freed(key: Key, call: &dyn Call<CUresult>) -> CUresult {
    gate::about_to_wait();
    freed_with(key, call, Charge::freed)
}

/// As [`freed`], for a call that only queues the free in a stream. The driver keeps memory that is charged on its own
/// until the stream gets there.
#[inline(never)]
pub(crate) fn freed_in_order(key: Key, call: &dyn Call<CUresult>) -> CUresult {
    freed_with(key, call, Charge::free_is_queued)
}

#[inline(never)]
fn freed_with(key: Key, call: &dyn Call<CUresult>, end: fn(Charge)) -> CUresult {
    freed_inline(key, || call.make(), end)
}

/// Makes the call that frees `key`, and ends its charge by `end` if the call succeeds. Inlined for the kind of memory
/// that programs free most often.
#[inline]
fn freed_inline(key: Key, call: impl Fn() -> CUresult, end: impl FnOnce(Charge)) -> CUresult {
    // Removed first: once the driver has freed the address, it may give it to another thread.
    let Some(charge) = allocations::forget(key) else { return pools::freed(key, &call) };
    let _moving = Charge::moving(charge.account, charge.bytes);
    let result = call();
    if result.is_ok() || !allocations::remember(key, charge) {
        end(charge);
    }
    result
}

/// A device address of 32 or 64 bits.
pub(crate) trait Address: Copy {
    /// Whether present programs use such addresses. For others no time is saved.
    const IS_OF_TODAY: bool;
    fn wide(self) -> CUdeviceptr;
}

impl Address for u32 {
    const IS_OF_TODAY: bool = false;
    fn wide(self) -> CUdeviceptr {
        u64::from(self)
    }
}

impl Address for u64 {
    const IS_OF_TODAY: bool = true;
    fn wide(self) -> CUdeviceptr {
        self
    }
}

/// A size of 32 or 64 bits.
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

/// The key of the address that a successful call has written.
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
    let (call, key) = unsafe { (|| real(address, bytes), || written(address)) };
    if A::IS_OF_TODAY {
        charged_inline(Payer::current(), bytes.bytes(), call, key)
    } else {
        charged(Payer::of_thread(), bytes.bytes(), &call, &key)
    }
}

/// `cuMemAllocManaged`: charged to the calling thread's device, whose memory it can fill.
pub(crate) unsafe fn alloc_managed(
    _: NullStream,
    real: types::cuMemAllocManaged,
    address: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: as for `alloc`.
    unsafe { charged(Payer::of_thread(), bytes.bytes(), &|| real(address, bytes, flags), &|| written(address)) }
}

/// `cuMemAllocPitch`: charged by the pitch that the driver chooses.
pub(crate) unsafe fn alloc_pitch<A: Address, S: Size>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut A, *mut S, S, S, c_uint) -> CUresult,
    address: *mut A,
    pitch: *mut S,
    width_bytes: S,
    height: S,
    element_bytes: c_uint,
) -> CUresult {
    let least_bytes = width_bytes.bytes().saturating_mul(height.bytes());
    // SAFETY: the host's call; what it writes is read only after a success.
    let (call, given) = unsafe {
        let given = || ((*pitch).bytes().saturating_mul(height.bytes()), written(address));
        (|| real(address, pitch, width_bytes, height, element_bytes), given)
    };
    charged_after(least_bytes, &call, &given)
}

/// Makes a call that allocates at least `least_bytes` for the calling thread's device. `given` returns afterwards how
/// many they are, and the key by which the charge is remembered.
#[inline(never)]
fn charged_after(least_bytes: u64, call: &dyn Call<CUresult>, given: &dyn Call<(u64, Key)>) -> CUresult {
    let payer = Payer::of_thread();
    let moving = payer.moving(least_bytes);
    // A request that does not fit with this size cannot fit.
    let least = match payer.charge(least_bytes) {
        Grant::Free => return call.make(),
        Grant::Refused => return refused(),
        Grant::Charged(charge) => charge,
    };
    let result = call.make();
    if !result.is_ok() {
        least.refund();
        return result;
    }
    let (bytes, key) = given.make();
    let more = bytes.saturating_sub(least_bytes);
    if more != 0 && !least.grows(more, moving) {
        free_again(key);
        least.refund();
        return CUresult::OUT_OF_MEMORY;
    }
    remember(key, Charge { bytes: least_bytes.saturating_add(more), ..least });
    result
}

/// Remembers a charge for memory that the driver has given.
#[inline(never)]
fn remember(key: Key, charge: Charge) {
    remember_inline(key, charge);
}

#[inline]
fn remember_inline(key: Key, charge: Charge) {
    if allocations::remember(key, charge) { charge.given() } else { charge.refund() }
}

/// Frees memory that the driver has allocated although the limit forbids it.
#[cold]
fn free_again(key: Key) {
    gate::about_to_wait();
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
    let (key, call) = (Key::Address(address.wide()), || {
        // SAFETY: the host's call.
        unsafe { real(address) }
    });
    if A::IS_OF_TODAY {
        gate::about_to_wait_inline();
        freed_inline(key, call, Charge::freed_inline)
    } else {
        freed(key, &call)
    }
}
