//! Pools of stream-ordered memory: charged for their reserve (see `reserve`), not for the sizes that are requested.
//!
//! A pool is charged to the device or host that it was made for, whichever device is current when it is used. Requests
//! to a pool of managed memory are charged one by one. The driver's default pools become known at their first use. A
//! pool that another process shares is free here, because nothing can be allocated from it.
//!
//! A pool shrinks when it is trimmed, when it is destroyed and, if something was freed before, at synchronisations. All
//! these calls are hooked and settle the pool. In a process without pools, the hooks of synchronisations cost one load.
//! While a stream is being captured, allocations in it become nodes of the graph, and no pool grows.

use crate::allocations::{Key, Pooled};
use crate::call::Call;
use crate::gate;
use crate::graph_memory;
use crate::hooks::{real, types};
use crate::looks;
use crate::markers::outside_capture;
use crate::memory::{self, Payer, charged};
use crate::process::{Process, ordinal_of_stream};
use crate::radix::Radix;
use crate::reserve::{Expected, Reserve, Settled, Settler};
use crate::sys;
use crate::vmm::payer_at;
use aliquot_abi::cuda::{
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_STREAM_CAPTURE_STATUS_NONE, CUdevice,
    CUdeviceptr, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, NullStream, c_uint,
};
use aliquot_abi::ledger::{self, BYTES_MASK};
use aliquot_abi::region::HOST_ACCOUNT;
use aliquot_abi::rounding;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most pools that are charged as a whole. Allocations from further pools are charged one by one.
const POOLS_MAX: usize = 1024;
/// How often a thread that destroys a pool yields to threads that query the pool.
const READERS_WAIT_MAX: u32 = 1 << 14;
/// A pool takes physical memory in multiples of at least this.
pub(crate) const PIECE_BYTES: u64 = 2 << 20;

/// The pools of a process; all zero: none.
#[repr(C)]
pub(crate) struct Pools {
    /// The number of each pool plus one, by handle.
    numbers: Radix<0, 12, 4>,
    pools: [Pool; POOLS_MAX],
    /// All pools from this number on are unused and always were.
    end: AtomicU32,
    /// Not zero: something was freed, so a pool may shrink at a synchronisation.
    watched: AtomicU32,
}

#[repr(C)]
struct Pool {
    /// The pool's handle, or one of the values below, which are no handles.
    handle: AtomicU64,
    /// Number of the account to which the pool is charged, or [`Pool::STRANGER`].
    account: AtomicU32,
    /// Bytes of allocations that have not been freed.
    live_bytes: AtomicU64,
    /// Number of threads that are making a driver call with the handle.
    readers: AtomicU32,
    reserve: Reserve,
}

impl Pool {
    /// The entry is unused.
    const FREE: u64 = 0;
    /// A thread is filling the entry or emptying it, or the driver is destroying the pool.
    const CLAIMED: u64 = 1;
    /// The handle is gone, but charged memory of the pool is still in use.
    const DESTROYED: u64 = 2;
    /// In place of an account: memory of a device of which the slice has no part.
    const STRANGER: u32 = u32::MAX;

    /// The account to which the pool is charged; `None`: the slice has no such memory.
    fn account(&self) -> Option<usize> {
        let account = self.account.load(Ordering::Relaxed);
        (account != Self::STRANGER).then_some(account as usize)
    }

    /// Calls `call` with the handle, which stays valid meanwhile. `None` if the pool has none.
    fn with_handle<T>(&self, call: impl FnOnce(CUmemoryPool) -> Option<T>) -> Option<T> {
        self.readers.fetch_add(1, Ordering::AcqRel);
        let handle = self.handle.load(Ordering::Acquire);
        let answer = if handle > Self::DESTROYED { call(handle_of(handle)) } else { None };
        self.readers.fetch_sub(1, Ordering::AcqRel);
        answer
    }

    /// One of the driver's figures about the pool, in bytes.
    #[inline(never)]
    fn attribute(&self, attribute: c_uint) -> Option<u64> {
        let get = real!(cuMemPoolGetAttribute)?;
        self.with_handle(|handle| {
            let mut bytes = 0_u64;
            // SAFETY: the pointer is valid for the attribute, which is a 64-bit number.
            unsafe { get(handle, attribute, (&raw mut bytes).cast()) }.is_ok().then_some(bytes)
        })
    }

    /// Begins a request for `bytes`: charges the memory that the pool must take from the device for it. `None` if the
    /// limit forbids it.
    fn begin_request(&self, process: &'static Process, account: usize, bytes: u64) -> Option<Expected<'_>> {
        let expected = self.reserve.expect(bytes.min(BYTES_MASK));
        let begin = |used_bytes: &dyn Fn() -> u64, limit_bytes| {
            let ahead_bytes = || {
                let used = used_bytes();
                missing_bytes(bytes, self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT).unwrap_or(0), used)
            };
            self.reserve.begin_request(process, account, &ahead_bytes, limit_bytes)
        };
        let used_bytes = || {
            let taken = expected.taken_by_others();
            self.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT).unwrap_or(u64::MAX).saturating_add(taken)
        };
        if begin(&used_bytes, process.limit_bytes_until_look(account))
            || try_again(process, account, PIECE_BYTES, &|limit_bytes| begin(&used_bytes, limit_bytes))
        {
            return Some(expected);
        }
        // Memory whose free has been queued in a stream, but is not done yet, is free for later requests in this
        // stream. The driver uses it before it takes more; if it does take more, settling finds out afterwards. If such
        // memory were not counted as free, a program that frees and allocates again without a synchronisation would be
        // refused at half its limit.
        let live_bytes = || {
            let others = expected.others_bytes();
            self.live_bytes.load(Ordering::Acquire).saturating_add(others)
        };
        (live_bytes() < used_bytes() && begin(&live_bytes, process.limit_bytes(account))).then_some(expected)
    }

    /// Memory that an allocation had is not in use any more.
    #[inline(never)]
    fn lives_less(&self, bytes: u64) {
        // Saturating: a free in a stream capture is not seen here.
        let less = |live: u64| Some(live.saturating_sub(bytes));
        let _ = self.live_bytes.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    fn settle(&self, process: &'static Process, settler: Settler) -> Settled {
        let Some(account) = self.account() else { return Settled::Exactly };
        let reserved = || self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        self.reserve.settle(process, account, settler, &reserved)
    }

    /// Makes the pool give back its unused memory.
    fn trim(&self, process: &'static Process) {
        let Some(trim) = real!(cuMemPoolTrimTo) else { return };
        gate::mark_all(process);
        // SAFETY: the handle is valid.
        let _ = self.with_handle(|handle| Some(outside_capture(|| unsafe { trim(handle, 0) })));
        self.settle(process, Settler::Observer);
    }

    /// Frees the entry of a destroyed pool whose memory is no longer in use.
    fn retire(&self, process: &'static Process) {
        let unused = self.live_bytes.load(Ordering::Acquire) == 0;
        if unused
            && self.handle.compare_exchange(Self::DESTROYED, Self::CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            if let Some(account) = self.account() {
                self.reserve.settle(process, account, Settler::Observer, &|| Some(0));
            }
            self.handle.store(Self::FREE, Ordering::Release);
        }
    }
}

/// The bytes that a pool takes from the device for a request of `bytes`, if it has `reserved` bytes of which `used` are
/// in use.
#[inline(never)]
pub(crate) fn missing_bytes(bytes: u64, reserved: u64, used: u64) -> u64 {
    let missing = bytes.saturating_sub(reserved.saturating_sub(used));
    missing.saturating_add(PIECE_BYTES - 1) & !(PIECE_BYTES - 1)
}

fn handle_of(handle: u64) -> CUmemoryPool {
    CUmemoryPool(core::ptr::with_exposed_provenance_mut(handle as usize))
}

impl Pools {
    /// The pool that `handle` names, and its number. `None`: its allocations are charged one by one.
    fn find(&'static self, process: &'static Process, handle: CUmemoryPool) -> Option<(u16, &'static Pool)> {
        let number = match self.numbers.existing(handle.0.addr() as u64).map_or(0, |word| word.load(Ordering::Acquire))
        {
            0 => self.insert(handle, account_of_default(process, handle)?)?,
            number => (number - 1) as u16,
        };
        Some((number, self.pools.get(usize::from(number))?))
    }

    /// Makes an entry for `handle`. Returns its number.
    fn insert(&self, handle: CUmemoryPool, account: u32) -> Option<u16> {
        let handle = handle.0.expose_provenance() as u64;
        let number = self.numbers.entry(handle)?;
        if let Some(known) = number.load(Ordering::Acquire).checked_sub(1) {
            return Some(known as u16);
        }
        let claim = |pool: &Pool| {
            pool.handle.compare_exchange(Pool::FREE, Pool::CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let (place, pool) = self.pools.iter().enumerate().find(|(_, pool)| claim(pool))?;
        pool.account.store(account, Ordering::Relaxed);
        pool.live_bytes.store(0, Ordering::Relaxed);
        self.end.fetch_max(place as u32 + 1, Ordering::AcqRel);
        match number.compare_exchange(0, place as u64 + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                pool.handle.store(handle, Ordering::Release);
                Some(place as u16)
            }
            // Another thread has made an entry for it at the same time.
            Err(first) => {
                pool.handle.store(Pool::FREE, Ordering::Release);
                Some((first - 1) as u16)
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().take(self.end.load(Ordering::Acquire) as usize)
    }
}

/// The account of the device whose default pool is `handle`, if it is a default pool.
fn account_of_default(process: &'static Process, handle: CUmemoryPool) -> Option<u32> {
    let get = real!(cuDeviceGetDefaultMemPool)?;
    let is_default = |&ordinal: &CUdevice| {
        let mut pool = CUmemoryPool::NULL;
        // SAFETY: the pointer is valid.
        unsafe { get(&raw mut pool, ordinal) }.is_ok() && pool == handle
    };
    (0..process.ordinals()).find(is_default).map(|ordinal| account_of_device(process, ordinal))
}

fn account_of_device(process: &'static Process, ordinal: CUdevice) -> u32 {
    process.part(ordinal).map_or(Pool::STRANGER, |part| part.index as u32)
}

/// Whether an operation on `stream` would now become part of a graph, or be refused by the driver.
fn is_captured(stream: CUstream) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is valid; the driver checks the handle.
    let asked = real!(cuStreamIsCapturing).map(|ask| unsafe { ask(stream, &raw mut status) });
    asked.is_some_and(|result| !result.is_ok() || status != CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Allocates `bytes` from the pool that `handle` names.
fn allocate(
    process: &'static Process,
    handle: CUmemoryPool,
    address: *mut CUdeviceptr,
    bytes: u64,
    stream: CUstream,
    call: &dyn Call<CUresult>,
) -> CUresult {
    if is_captured(stream) {
        graph_memory::expect_nodes(process);
        return call.make();
    }
    let Some((number, pool)) = process.pools.find(process, handle) else {
        // SAFETY: read only after a success, when the driver has written it.
        return charged(Payer::of_thread(), bytes, call, &|| Key::Address(unsafe { *address }));
    };
    let Some(account) = pool.account() else { return CUresult::OUT_OF_MEMORY };
    let Some(expected) = pool.begin_request(process, account, bytes) else {
        process.count_refusal(account);
        return CUresult::OUT_OF_MEMORY;
    };
    let result = call.make();
    if result.is_ok() {
        pool.live_bytes.fetch_add(bytes, Ordering::AcqRel);
    }
    drop(expected);
    let settle = |limit_bytes| pool.settle(process, Settler::Request { limit_bytes });
    let mut settled = settle(process.limit_bytes_until_look(account));
    if settled == Settled::OverLimit
        && try_given(process, account, &|limit_bytes| settle(limit_bytes) != Settled::OverLimit)
    {
        settled = Settled::ForOthers;
    }
    if settled == Settled::OverLimit && result.is_ok() {
        // The pool has taken larger pieces than it needed, and the limit forbids that. The request counts as under way
        // until they are given back, so that no other thread charges them meanwhile.
        if let Some(free) = real!(cuMemFreeAsync) {
            // SAFETY: the memory was allocated in this stream just now, and the host does not know it yet.
            let _ = unsafe { free(*address, stream) };
        }
        pool.lives_less(bytes);
        process.pools.watched.store(1, Ordering::Release);
        pool.trim(process);
        pool.reserve.end_request();
        pool.settle(process, Settler::Observer);
        process.count_refusal(account);
        return CUresult::OUT_OF_MEMORY;
    }
    pool.reserve.end_request();
    if settled != Settled::Exactly {
        pool.settle(process, Settler::Observer);
    }
    // SAFETY: read only after a success, when the driver has written it.
    if result.is_ok() && !(Pooled { pool: number, bytes }).remember(unsafe { *address }) {
        pool.lives_less(bytes);
    }
    result
}

/// Makes a call that frees `key`, which was not charged on its own.
#[inline(never)]
pub(crate) fn freed(key: Key, call: &dyn Call<CUresult>) -> CUresult {
    let Key::Address(address) = key else { return call.make() };
    let pooled = Pooled::forget(address);
    let result = call.make();
    if let Some(pooled) = pooled
        && (result.is_ok() || !pooled.remember(address))
    {
        gone(pooled);
    }
    result
}

/// To be called when an allocation of a pool is freed. The pool keeps its memory until a synchronisation, or longer.
pub(crate) fn gone(pooled: Pooled) {
    let Some(process) = Process::attached() else { return };
    let Some(pool) = process.pools.pools.get(usize::from(pooled.pool)) else { return };
    pool.lives_less(pooled.bytes);
    process.pools.watched.store(1, Ordering::Release);
}

/// Sets the charges to the driver's present reserves.
pub(crate) fn settle_all(process: &'static Process) {
    for pool in process.pools.all() {
        pool.settle(process, Settler::Observer);
    }
    graph_memory::settle_all(process);
}

/// To be called after a synchronisation: there the driver gives back reserves beyond the pools' thresholds.
#[inline]
pub(crate) fn settle_synchronized(process: &'static Process) {
    if process.pools.watched.load(Ordering::Relaxed) != 0 {
        settle_watched(process);
    }
}

#[inline(never)]
fn settle_watched(process: &'static Process) {
    process.pools.watched.store(0, Ordering::SeqCst);
    let mut is_empty = true;
    for pool in process.pools.all() {
        pool.settle(process, Settler::Observer);
        pool.retire(process);
        is_empty &= pool.reserve.charged_bytes() == 0;
    }
    // The remaining reserves may shrink at a later synchronisation: frees in other streams may still be queued.
    if !is_empty {
        process.pools.watched.store(1, Ordering::Release);
    }
}

/// Called before a refusal of a request that takes at least `bytes`. First has the manager look, if it may not have
/// seen everything. Then does what the driver does before it reports that there is no memory: settles pools that have
/// shrunk, and trims the pools. Repeats `attempt` with the limit after each step that may help, and while the ledger
/// holds memory of ended processes.
#[cold]
pub(crate) fn try_again(process: &'static Process, account: usize, bytes: u64, attempt: &dyn Fn(u64) -> bool) -> bool {
    looks::overhead_was_less(process, account, bytes, attempt) || makes_room(process, account, attempt)
}

/// As [`try_again`], for memory that the driver has given already. A look that begins now finds it, and takes it for
/// overhead as long as it is not charged.
#[cold]
pub(crate) fn try_given(process: &'static Process, account: usize, reserve: &dyn Fn(u64) -> bool) -> bool {
    let Some((books, _)) = process.books(account) else { return false };
    let is_overhead = looks::has_looked_again(process, account);
    if is_overhead {
        // Until the next look it is counted twice, or not at all any more, so no request is refused without one.
        rounding::note_overhead(books, 1);
    }
    let attempt = |limit_bytes| match is_overhead {
        true => ledger::used_bytes(books) <= limit_bytes && reserve(u64::MAX),
        false => reserve(limit_bytes),
    };
    attempt(process.limit_bytes(account)) || makes_room(process, account, &attempt)
}

/// Makes room without a look. Returns whether `attempt` has succeeded.
fn makes_room(process: &'static Process, account: usize, attempt: &dyn Fn(u64) -> bool) -> bool {
    let attempt = &|| attempt(process.limit_bytes(account));
    if process.pools.end.load(Ordering::Relaxed) != 0 || graph_memory::is_charged(process, account) {
        settle_all(process);
        process.pools.all().for_each(|pool| pool.retire(process));
        if attempt() {
            return true;
        }
        for pool in process.pools.all().filter(|pool| pool.account() == Some(account)) {
            pool.trim(process);
        }
        graph_memory::trim(process, account);
        if attempt() {
            return true;
        }
    }
    looks::ended_make_room(process, account, attempt)
}

/// `cuMemAllocAsync`: from the pool of the stream's device.
pub(crate) unsafe fn alloc_async(
    null: NullStream,
    real: types::cuMemAllocAsync,
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(address, bytes, stream) };
    let stream = null.explicit(stream);
    let process = match Process::for_call() {
        Ok(process) => process,
        Err(unattached) => return unattached.answer(CUresult::OUT_OF_MEMORY, &call),
    };
    let (Ok(ordinal), Some(get)) = (ordinal_of_stream(process, stream), real!(cuDeviceGetMemPool)) else {
        // No context, or no such stream: the driver returns its own error.
        return call();
    };
    let mut pool = CUmemoryPool::NULL;
    // SAFETY: the pointer is valid.
    if !unsafe { get(&raw mut pool, ordinal) }.is_ok() {
        return call();
    }
    allocate(process, pool, address, bytes as u64, stream, &call)
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) unsafe fn alloc_from_pool_async(
    null: NullStream,
    real: types::cuMemAllocFromPoolAsync,
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(address, bytes, pool, stream) };
    match Process::for_call() {
        Ok(process) => allocate(process, pool, address, bytes as u64, null.explicit(stream), &call),
        Err(unattached) => unattached.answer(CUresult::OUT_OF_MEMORY, &call),
    }
}

/// `cuMemFreeAsync`.
pub(crate) unsafe fn free_async(
    null: NullStream,
    real: types::cuMemFreeAsync,
    address: CUdeviceptr,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(address, stream) };
    if is_captured(null.explicit(stream)) {
        // It is freed when the graph is launched.
        return call();
    }
    memory::freed_in_order(Key::Address(address), &call)
}

/// `cuMemPoolCreate`: the location in the properties tells the account.
pub(crate) unsafe fn pool_create(
    _: NullStream,
    real: types::cuMemPoolCreate,
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> CUresult {
    // SAFETY: the host's call; what it was given is read only after a success.
    unsafe {
        let result = real(pool, properties);
        if result.is_ok()
            && let (Some(process), Some(pool), Some(properties)) =
                (Process::attached(), pool.as_ref(), properties.as_ref())
        {
            learn(process, *pool, properties.alloc_kind, properties.location);
        }
        result
    }
}

/// `cuMemGetDefaultMemPool` and `cuMemGetMemPool`: the pool of a location, which may be the host.
pub(crate) unsafe fn pool_of_location(
    _: NullStream,
    real: types::cuMemGetMemPool,
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: c_uint,
) -> CUresult {
    // SAFETY: the host's call; what it was given is read only after a success.
    unsafe {
        let result = real(pool, location, kind);
        if result.is_ok()
            && let (Some(process), Some(pool), Some(location)) = (Process::attached(), pool.as_ref(), location.as_ref())
        {
            learn(process, *pool, kind, *location);
        }
        result
    }
}

/// Records the account to which the pool of this `kind` is charged. If there is none, its allocations are charged one
/// by one. A pool of managed memory has none: its location is only the preferred one, and each device can have its
/// memory.
fn learn(process: &'static Process, pool: CUmemoryPool, kind: c_uint, location: CUmemLocation) {
    const MANAGED: c_uint = 2; // CU_MEM_ALLOCATION_TYPE_MANAGED
    let account = match payer_at(location) {
        _ if kind == MANAGED => return,
        Payer::Part(part) => part.index as u32,
        Payer::Host(_) => HOST_ACCOUNT as u32,
        Payer::Stranger => Pool::STRANGER,
        Payer::Nobody => return,
    };
    process.pools.insert(pool, account);
}

/// `cuMemPoolDestroy`: memory in use stays until it is freed, and is charged until the next synchronisation after that.
pub(crate) unsafe fn pool_destroy(_: NullStream, real: types::cuMemPoolDestroy, handle: CUmemoryPool) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(handle) };
    let Some(process) = Process::attached() else { return call() };
    gate::mark_all(process);
    if account_of_default(process, handle).is_some() {
        // The driver refuses to destroy a default pool and leaves it unchanged, so it must not be trimmed below.
        return call();
    }
    let word = process.pools.numbers.existing(handle.0.addr() as u64);
    let number = word.map_or(0, |word| word.swap(0, Ordering::AcqRel));
    let known = (number as usize).checked_sub(1).and_then(|number| process.pools.pools.get(number));
    let (Some(word), Some(pool)) = (word, known) else { return call() };
    // A destroyed pool keeps its memory in use, and the driver answers no more queries about it.
    pool.trim(process);
    let in_use = pool.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) != Some(0);
    // Removed first: the driver may give the handle to another pool as soon as this one is gone. Other threads may free
    // the entry only after the driver's answer: it may refuse.
    let handle = pool.handle.swap(Pool::CLAIMED, Ordering::AcqRel);
    // These threads only make short driver calls. A thread that was cancelled in one of them is not waited for.
    for _ in 0..READERS_WAIT_MAX {
        if pool.readers.load(Ordering::Acquire) == 0 {
            break;
        }
        sys::yield_now();
    }
    let result = call();
    if !result.is_ok() {
        pool.handle.store(handle, Ordering::Release);
        word.store(number, Ordering::Release);
        return result;
    }
    pool.handle.store(Pool::DESTROYED, Ordering::Release);
    if in_use {
        process.pools.watched.store(1, Ordering::Release);
    } else {
        pool.retire(process);
    }
    result
}

/// `cuMemPoolTrimTo`.
pub(crate) unsafe fn pool_trim(
    _: NullStream,
    real: types::cuMemPoolTrimTo,
    handle: CUmemoryPool,
    keep_bytes: usize,
) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    let result = unsafe { real(handle, keep_bytes) };
    if let Some(process) = Process::attached()
        && let Some((_, pool)) = process.pools.find(process, handle)
    {
        pool.settle(process, Settler::Observer);
    }
    result
}
