//! Pools of stream-ordered memory: their reserved and used memory.
//!
//! A pool reserves memory in chunks. It keeps freed memory until a synchronisation finds it above the release
//! threshold, or until memory is short. Addresses come from the device's range, so kept memory can serve allocations of
//! any size.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUdeviceptr, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult,
};

use crate::Done;
use crate::arena::{Extent, GRANULE_BYTES, Use, round_up};
use crate::device::Device;
use crate::handles::{self, Kind, Object};
use crate::pool_sharing::Source;
use crate::process::{initialised, process};
use crate::shared_extents;

/// The smallest piece by which a pool can grow.
const GRANULARITY_BYTES: u64 = 2 << 20;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const PINNED: c_uint = 1;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
pub(crate) const MANAGED: c_uint = 2;

pub(crate) struct Pool {
    /// The device from which it takes memory and addresses. A host pool takes only addresses.
    pub(crate) ordinal: usize,
    /// The owner number of its extents.
    id: u32,
    pub(crate) properties: CUmemPoolProps,
    /// The place of its memory, if it is another process's pool.
    pub(crate) source: Option<Source>,
    /// Whether it is a default pool, which cannot be destroyed.
    pub(crate) is_default: bool,
    handle: AtomicU64,
    destroyed: AtomicBool,
    state: Mutex<PoolState>,
}

// SAFETY: the only pointer inside is a property that is stored but never dereferenced.
unsafe impl Send for Pool {}
// SAFETY: as above; mutable data is atomic or behind a mutex.
unsafe impl Sync for Pool {}

#[derive(Default)]
pub(crate) struct PoolState {
    pub(crate) usage: PoolUsage,
    pub(crate) release_threshold: u64,
    pub(crate) reuse_switched_off: [bool; 3],
    /// Other devices that may access it, and their access flags.
    pub(crate) access: Vec<(CUmemLocation, c_uint)>,
    /// Frees that streams have not reached yet.
    pending: Vec<PendingFree>,
}

/// A free that a stream has not reached yet: the stream, and the number of bytes that the free will give back.
struct PendingFree {
    stream: u64,
    owed_bytes: Arc<AtomicU64>,
}

/// A pool's memory figures.
#[derive(Clone, Copy, Default)]
pub(crate) struct PoolUsage {
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_high_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) used_high_bytes: u64,
}

impl Object for Pool {
    const KIND: Kind = Kind::MemoryPool;
    const IS_REUSED: bool = true;
}

/// All pools, by the owner number of their extents.
static POOLS: Mutex<Vec<Option<&'static Pool>>> = Mutex::new(Vec::new());
/// Bytes reserved by all pools together, so that a synchronisation can skip them if there are none.
static RESERVED_BYTES: AtomicU64 = AtomicU64::new(0);

fn pools() -> MutexGuard<'static, Vec<Option<&'static Pool>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn round_up_to_chunks(bytes: u64) -> u64 {
    let chunk_bytes = initialised().config.pool_chunk_bytes;
    bytes.div_ceil(chunk_bytes).saturating_mul(chunk_bytes)
}

/// The properties of a pool of pinned memory on a device.
pub(crate) fn device_properties(ordinal: usize) -> CUmemPoolProps {
    CUmemPoolProps {
        alloc_kind: PINNED,
        handle_types: 0,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as c_int },
        win32_security_attributes: core::ptr::null_mut(),
        max_size_bytes: 0,
        reserved: [0; 56],
    }
}

impl Pool {
    /// Makes a pool on a device, or a host pool, according to the properties.
    pub(crate) fn create(
        ordinal: usize,
        properties: CUmemPoolProps,
        is_default: bool,
        source: Option<Source>,
    ) -> (CUmemoryPool, &'static Pool) {
        let mut pools = pools();
        let pool = Pool {
            ordinal,
            id: pools.len() as u32,
            properties,
            source,
            is_default,
            handle: AtomicU64::new(0),
            destroyed: AtomicBool::new(false),
            state: Mutex::new(PoolState::default()),
        };
        let (handle, pool) = handles::register(pool);
        pool.handle.store(handle.expose_provenance() as u64, Ordering::Release);
        pools.push(Some(pool));
        (CUmemoryPool(handle), pool)
    }

    /// Makes a device's default pool.
    pub(crate) fn of_device(ordinal: usize) -> (CUmemoryPool, &'static Pool) {
        Pool::create(ordinal, device_properties(ordinal), true, None)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self) -> CUmemoryPool {
        CUmemoryPool(core::ptr::with_exposed_provenance_mut(self.handle.load(Ordering::Acquire) as usize))
    }

    /// Whether it is a pool of host memory.
    pub(crate) fn is_host(&self) -> bool {
        self.properties.alloc_kind == PINNED && self.properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE
    }

    pub(crate) fn device(&self) -> &'static Device {
        &initialised().devices[self.ordinal]
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        self.state().usage
    }

    pub(crate) fn reset_high_water(&self, used: bool) {
        let usage = &mut self.state().usage;
        if used {
            usage.used_high_bytes = usage.used_bytes;
        } else {
            usage.reserved_high_bytes = usage.reserved_bytes;
        }
    }

    fn max_bytes(&self) -> u64 {
        if self.properties.max_size_bytes == 0 { u64::MAX } else { self.properties.max_size_bytes as u64 }
    }

    fn reserve(&self, bytes: u64) -> Done {
        if !self.is_host() {
            self.device().reserve(bytes)?;
        }
        RESERVED_BYTES.fetch_add(bytes, Ordering::AcqRel);
        Ok(())
    }

    fn release(&self, bytes: u64) {
        RESERVED_BYTES.fetch_sub(bytes, Ordering::AcqRel);
        if !self.is_host() {
            self.device().release(bytes);
        }
    }

    /// Releases unused memory beyond `bytes`, in whole chunks.
    pub(crate) fn trim_to(&self, bytes: u64) {
        let mut state = self.state();
        let usage = &mut state.usage;
        let keep = round_up_to_chunks(usage.used_bytes.max(bytes));
        if let Some(surplus) = usage.reserved_bytes.checked_sub(keep).filter(|&surplus| surplus > 0) {
            usage.reserved_bytes = keep;
            self.release(surplus);
        }
    }

    fn trim_to_threshold(&self) {
        let threshold = if self.is_destroyed() { 0 } else { self.state().release_threshold };
        self.trim_to(threshold);
    }

    fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed)
    }

    /// Destroys the pool: from now on it keeps no unused memory.
    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Ordering::Relaxed);
        self.trim_to(0);
    }

    /// Counts `bytes` as used and reserves missing memory. First reuses memory whose free is queued on `stream` and not
    /// reached yet.
    pub(crate) fn charge(&self, bytes: u64, stream: Option<u64>) -> Done {
        loop {
            let missing = {
                let mut state = self.state();
                let wanted = state.usage.used_bytes.checked_add(bytes).ok_or(CUresult::OUT_OF_MEMORY)?;
                let beyond = wanted.saturating_sub(state.usage.reserved_bytes);
                let borrowed = stream.map_or(0, |stream| state.borrow(stream, beyond));
                let usage = &mut state.usage;
                usage.used_bytes -= borrowed;
                let used = usage.used_bytes + bytes;
                if used > self.max_bytes() {
                    return Err(CUresult::OUT_OF_MEMORY);
                }
                if used <= usage.reserved_bytes {
                    usage.used_bytes = used;
                    usage.used_high_bytes = usage.used_high_bytes.max(used);
                    return Ok(());
                }
                used - usage.reserved_bytes
            };
            self.grow(missing)?;
        }
    }

    /// Reserves at least `missing` more bytes: whole chunks, or the remaining room if that is less.
    fn grow(&self, missing: u64) -> Done {
        let room = self.max_bytes().saturating_sub(self.usage().reserved_bytes);
        let generous = round_up_to_chunks(missing).min(room.max(missing));
        let least = round_up(missing, GRANULARITY_BYTES);
        let grown = match self.reserve(generous) {
            Ok(()) => generous,
            Err(error) if least >= generous => return Err(error),
            Err(_) => self.reserve(least).map(|()| least)?,
        };
        let usage = &mut self.state().usage;
        usage.reserved_bytes += grown;
        usage.reserved_high_bytes = usage.reserved_high_bytes.max(usage.reserved_bytes);
        Ok(())
    }

    /// Reserves memory for `bytes` more, without counting them as used.
    pub(crate) fn prepare(&self, bytes: u64) -> Done {
        let usage = self.usage();
        let missing = (usage.used_bytes + bytes).saturating_sub(usage.reserved_bytes);
        if missing > 0 { self.grow(missing) } else { Ok(()) }
    }

    /// Counts `bytes` as no longer used.
    pub(crate) fn refund(&self, bytes: u64) {
        self.state().usage.used_bytes -= bytes;
        if self.is_destroyed() {
            self.trim_to(0);
        }
    }

    /// The use of the pool's extents.
    fn usage_of_extents(&self) -> Use {
        if self.is_host() { Use::HostPool } else { Use::Pool }
    }

    /// Allocates memory for a stream.
    pub(crate) fn take(&self, bytes: u64, stream: u64) -> Done<u64> {
        let charged = round_up(bytes, GRANULE_BYTES);
        self.charge(charged, Some(stream))?;
        let taken = self.device().arena.take(bytes, self.id, self.usage_of_extents());
        taken.map(|(address, _)| address).ok_or_else(|| {
            self.refund(charged);
            CUresult::OUT_OF_MEMORY
        })
    }
}

impl PoolState {
    /// Takes up to `bytes` of the memory whose free is queued on a stream and not reached yet.
    fn borrow(&mut self, stream: u64, bytes: u64) -> u64 {
        let mut borrowed = 0;
        for free in self.pending.iter().filter(|free| free.stream == stream) {
            let owed = free.owed_bytes.load(Ordering::Relaxed);
            let part = owed.min(bytes - borrowed);
            free.owed_bytes.store(owed - part, Ordering::Relaxed);
            borrowed += part;
        }
        borrowed
    }
}

/// The pool of an extent.
pub(crate) fn pool_of(extent: &Extent) -> Option<&'static Pool> {
    pools().get(extent.owner as usize).copied().flatten()
}

/// Marks stream-ordered memory as about to be freed, so that it cannot be freed again.
pub(crate) fn begin_free(device: &Device, address: CUdeviceptr) -> Done<Extent> {
    let extent = device.arena.turn(address, Use::Pool, Use::PoolFreeing);
    let extent = extent.or_else(|| device.arena.turn(address, Use::HostPool, Use::PoolFreeing));
    let extent = extent.ok_or(CUresult::INVALID_VALUE)?;
    shared_extents::forget(device, address);
    Ok(extent)
}

/// Announces the free of an extent in a stream. The result must be passed to [`end_free`].
pub(crate) fn announce_free(extent: &Extent, stream: u64) -> Arc<AtomicU64> {
    let owed_bytes = Arc::new(AtomicU64::new(extent.granular_bytes()));
    if let Some(pool) = pool_of(extent) {
        pool.state().pending.push(PendingFree { stream, owed_bytes: owed_bytes.clone() });
    }
    owed_bytes
}

/// Frees an extent after [`begin_free`].
pub(crate) fn end_free(device: &Device, extent: &Extent, owed_bytes: &Arc<AtomicU64>) {
    let freeing = |extent: &Extent| extent.usage == Use::PoolFreeing;
    let Some((extent, _)) = device.arena.give_back(extent.start, freeing) else { return };
    let Some(pool) = pool_of(&extent) else { return };
    let bytes = {
        let mut state = pool.state();
        state.pending.retain(|free| !Arc::ptr_eq(&free.owed_bytes, owed_bytes));
        owed_bytes.load(Ordering::Relaxed)
    };
    pool.refund(bytes);
}

/// Releases the device's pools' unused memory above their thresholds, as a synchronisation does.
#[inline]
pub(crate) fn trim_after_synchronize(device: &Device) {
    if RESERVED_BYTES.load(Ordering::Acquire) != 0 {
        on_device(device, Pool::trim_to_threshold);
    }
}

/// Releases all unused memory of the device's pools, because memory is short. Returns true if there was any.
pub(crate) fn trim_in_need(device: &Device) -> bool {
    let before = RESERVED_BYTES.load(Ordering::Acquire);
    on_device(device, |pool| pool.trim_to(0));
    RESERVED_BYTES.load(Ordering::Acquire) < before
}

fn on_device(device: &Device, action: impl Fn(&'static Pool)) {
    // Not the graphs' pool, which only `cuDeviceGraphMemTrim` trims.
    let own = |pool: &&'static Pool| pool.ordinal == device.ordinal && !core::ptr::eq(*pool, device.graph_pool);
    let pools = pools().iter().flatten().copied().filter(own).collect::<Vec<_>>();
    pools.into_iter().for_each(action);
}

/// The pool that a handle names.
pub(crate) fn pool(handle: CUmemoryPool) -> Done<&'static Pool> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}
