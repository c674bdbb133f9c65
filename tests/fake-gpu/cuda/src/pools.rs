//! Stream-ordered memory.
//!
//! A pool reserves device memory in pieces of two megabytes and keeps what is freed until a synchronisation finds it above
//! the release threshold. Addresses come from the device's range, so memory that a pool keeps serves any size.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{
    CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, NullStream,
};

use crate::Done;
use crate::arena::{Extent, Use, round_up};
use crate::caller::{get, get_all, not_null, put};
use crate::capture::{self, Issue};
use crate::device::{Device, device};
use crate::graph_nodes::NodeKind;
use crate::handles::{self, Kind, Object};
use crate::memory::device_of;
use crate::process::{initialised, process};
use crate::queue::{self, Work};
use crate::streams::{Stream, stream};
use crate::{graph_exec, graph_memory};

const RESERVE_BYTES: u64 = 2 << 20;
const ALLOCATION_PINNED: c_uint = 1;
const LOCATION_DEVICE: c_uint = 1;
const ACCESS_NONE: c_uint = 0;
const ACCESS_READ_WRITE: c_uint = 3;

/// A pool.
pub(crate) struct Pool {
    ordinal: usize,
    /// The number that its extents carry.
    id: u32,
    max_bytes: u64,
    destroyed: AtomicBool,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    usage: PoolUsage,
    release_threshold: u64,
    reuse_switched_off: [bool; 3],
    /// Devices besides the pool's own that may access it.
    access: Vec<(c_int, c_uint)>,
}

/// What a pool holds.
#[derive(Clone, Copy, Default)]
pub(crate) struct PoolUsage {
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_high_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) used_high_bytes: u64,
}

impl Object for Pool {
    const KIND: Kind = Kind::MemoryPool;
}

/// Every pool, so that an extent leads to its own.
static POOLS: Mutex<Vec<Option<&'static Pool>>> = Mutex::new(Vec::new());

fn pools() -> MutexGuard<'static, Vec<Option<&'static Pool>>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn new(ordinal: usize) -> Pool {
        Pool::with_limit(ordinal, u64::MAX)
    }

    fn with_limit(ordinal: usize, max_bytes: u64) -> Pool {
        let mut pools = pools();
        pools.push(None);
        let id = pools.len() as u32 - 1;
        Pool { ordinal, id, max_bytes, destroyed: AtomicBool::new(false), state: Mutex::new(PoolState::default()) }
    }

    /// Makes the pool known to its extents. To be called once it is where it stays.
    pub(crate) fn publish(&'static self) -> &'static Pool {
        pools()[self.id as usize] = Some(self);
        self
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(&self) -> &'static Device {
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

    /// Gives back what is kept beyond `bytes`.
    pub(crate) fn trim_to(&self, bytes: u64) {
        let mut state = self.state();
        let usage = &mut state.usage;
        let keep = round_up(usage.used_bytes.max(bytes), RESERVE_BYTES);
        if let Some(surplus) = usage.reserved_bytes.checked_sub(keep).filter(|&surplus| surplus > 0) {
            usage.reserved_bytes = keep;
            self.device().release(surplus);
        }
    }

    fn trim_to_threshold(&self) {
        let threshold = if self.destroyed.load(Ordering::Relaxed) { 0 } else { self.state().release_threshold };
        self.trim_to(threshold);
    }

    /// Counts `bytes` as used, reserving what is missing.
    pub(crate) fn charge(&self, bytes: u64) -> Done {
        let mut state = self.state();
        let usage = &mut state.usage;
        let used = usage.used_bytes.checked_add(bytes).ok_or(CUresult::OUT_OF_MEMORY)?;
        if used > self.max_bytes {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        if used > usage.reserved_bytes {
            let reserved = round_up(used, RESERVE_BYTES);
            self.device().reserve(reserved - usage.reserved_bytes)?;
            usage.reserved_bytes = reserved;
            usage.reserved_high_bytes = usage.reserved_high_bytes.max(reserved);
        }
        usage.used_bytes = used;
        usage.used_high_bytes = usage.used_high_bytes.max(used);
        Ok(())
    }

    /// Counts `bytes` as no longer used.
    pub(crate) fn refund(&self, bytes: u64) {
        self.state().usage.used_bytes -= bytes;
    }

    pub(crate) fn take(&self, bytes: u64) -> Done<u64> {
        let charged = round_up(bytes, crate::arena::GRANULE_BYTES);
        self.charge(charged)?;
        self.device().arena.take(bytes, self.id, Use::Pool).ok_or_else(|| {
            self.refund(charged);
            CUresult::OUT_OF_MEMORY
        })
    }
}

/// Frees stream-ordered memory, of a use that was turned to freeing.
pub(crate) fn free(device: &Device, extent: &Extent) {
    let freeing = |extent: &Extent| extent.usage == Use::PoolFreeing;
    if let Some(extent) = device.arena.give_back(extent.start, freeing) {
        let pool = pools().get(extent.owner as usize).copied().flatten();
        if let Some(pool) = pool {
            pool.refund(extent.charged_bytes());
            if pool.destroyed.load(Ordering::Relaxed) {
                pool.trim_to(0);
            }
        }
    }
}

/// Gives back what the device's pools keep beyond their thresholds, as a synchronisation does.
pub(crate) fn trim_after_synchronize(device: &Device) {
    let pools = pools().iter().flatten().copied().filter(|pool| pool.ordinal == device.ordinal).collect::<Vec<_>>();
    pools.into_iter().for_each(Pool::trim_to_threshold);
}

/// The pool that a handle names.
pub(crate) fn pool(handle: CUmemoryPool) -> Done<&'static Pool> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}

fn allocate(target: *mut CUdeviceptr, bytes: usize, pool: &'static Pool, stream: &'static Stream) -> Done {
    not_null(target)?;
    if bytes == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if capture::is_capturing(stream)? {
        return put(target, capture::allocate(stream, pool.ordinal, bytes as u64)?);
    }
    put(target, pool.take(bytes as u64)?)
}

pub(crate) fn cuMemAllocAsync(null: NullStream, target: *mut CUdeviceptr, bytes: usize, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    let current = *stream.owner.device().current_pool.lock().unwrap_or_else(PoisonError::into_inner);
    allocate(target, bytes, pool(current)?, stream)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    null: NullStream,
    target: *mut CUdeviceptr,
    bytes: usize,
    handle: CUmemoryPool,
    stream_handle: CUstream,
) -> Done {
    let stream = stream(null, stream_handle)?;
    allocate(target, bytes, pool(handle)?, stream)
}

pub(crate) fn cuMemFreeAsync(null: NullStream, address: CUdeviceptr, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    if address == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if let Issue::Captured = capture::issue(stream, || NodeKind::MemoryFree(address))? {
        return Ok(());
    }
    free_in_stream(stream, address)
}

/// Frees memory when the stream gets there; from now on it cannot be freed again.
pub(crate) fn free_in_stream(stream: &'static Stream, address: u64) -> Done {
    if let Some(memory) = graph_memory::at(address) {
        queue::submit(stream, graph_exec::free_work(memory), false);
        return Ok(());
    }
    let device = device_of(address).ok_or(CUresult::INVALID_VALUE)?;
    let extent = device.arena.turn(address, Use::Pool, Use::PoolFreeing).ok_or(CUresult::INVALID_VALUE)?;
    let effect = Box::new(move || free(device, &extent));
    queue::submit(stream, Work::Task { duration_ns: 0, effect: Some(effect) }, false);
    Ok(())
}

pub(crate) fn cuMemPoolTrimTo(handle: CUmemoryPool, keep_bytes: usize) -> Done {
    pool(handle)?.trim_to(keep_bytes as u64);
    Ok(())
}

pub(crate) fn cuMemPoolSetAttribute(handle: CUmemoryPool, attribute: c_uint, value: *mut c_void) -> Done {
    let pool = pool(handle)?;
    match attribute {
        1..=3 => pool.state().reuse_switched_off[attribute as usize - 1] = get(value.cast::<c_int>())? == 0,
        4 => pool.state().release_threshold = get(value.cast())?,
        // The high-water marks can be reset, to nothing but 0.
        6 | 8 if get(value.cast::<u64>())? == 0 => pool.reset_high_water(attribute == 8),
        _ => return Err(CUresult::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAttribute(handle: CUmemoryPool, attribute: c_uint, value: *mut c_void) -> Done {
    let pool = pool(handle)?;
    let state = pool.state();
    match attribute {
        1..=3 => put(value.cast(), c_int::from(!state.reuse_switched_off[attribute as usize - 1])),
        4 => put(value.cast(), state.release_threshold),
        5 => put(value.cast(), state.usage.reserved_bytes),
        6 => put(value.cast(), state.usage.reserved_high_bytes),
        7 => put(value.cast(), state.usage.used_bytes),
        8 => put(value.cast(), state.usage.used_high_bytes),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolSetAccess(handle: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) -> Done {
    let pool = pool(handle)?;
    for entry in get_all(map, count)? {
        let other = device(entry.location.id)?;
        let own = other.ordinal == pool.ordinal;
        if entry.location.kind != LOCATION_DEVICE || !matches!(entry.flags, 0 | 1 | 3) || (own && entry.flags != 3) {
            return Err(CUresult::INVALID_VALUE);
        }
        if !own && !crate::device::linked(pool.device(), other) {
            return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
        }
        let mut state = pool.state();
        state.access.retain(|(ordinal, _)| *ordinal != entry.location.id);
        state.access.push((entry.location.id, entry.flags));
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(flags: *mut c_uint, handle: CUmemoryPool, location: *mut CUmemLocation) -> Done {
    let pool = pool(handle)?;
    let location = get(location)?;
    let other = device(location.id)?;
    if location.kind != LOCATION_DEVICE {
        return Err(CUresult::INVALID_VALUE);
    }
    if other.ordinal == pool.ordinal {
        return put(flags, ACCESS_READ_WRITE);
    }
    let state = pool.state();
    let entry = state.access.iter().find(|(ordinal, _)| *ordinal == location.id);
    put(flags, entry.map_or(ACCESS_NONE, |(_, flags)| *flags))
}

pub(crate) fn cuMemPoolCreate(target: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Done {
    process()?;
    not_null(target)?;
    let properties = get(properties)?;
    if properties.alloc_kind != ALLOCATION_PINNED || properties.location.kind != LOCATION_DEVICE {
        return Err(CUresult::INVALID_VALUE);
    }
    // Handles with which others could open the pool are not simulated, as the device's attribute says.
    if properties.handle_types != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let device = device(properties.location.id)?;
    let max_bytes = if properties.max_size_bytes == 0 { u64::MAX } else { properties.max_size_bytes as u64 };
    let (handle, pool) = handles::register(Pool::with_limit(device.ordinal, max_bytes));
    pool.publish();
    put(target, CUmemoryPool(handle))
}

pub(crate) fn cuMemPoolDestroy(handle: CUmemoryPool) -> Done {
    let pool = pool(handle)?;
    let device = pool.device();
    if handle == device.default_pool.0 {
        return Err(CUresult::INVALID_VALUE);
    }
    handles::retire::<Pool>(handle.0).ok_or(CUresult::INVALID_VALUE)?;
    let mut current = device.current_pool.lock().unwrap_or_else(PoisonError::into_inner);
    if *current == handle {
        *current = device.default_pool.0;
    }
    // Memory that is still in use stays until it is freed.
    pool.destroyed.store(true, Ordering::Relaxed);
    pool.trim_to(0);
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(target: *mut CUmemoryPool, ordinal: CUdevice) -> Done {
    put(target, device(ordinal)?.default_pool.0)
}

pub(crate) fn cuDeviceGetMemPool(target: *mut CUmemoryPool, ordinal: CUdevice) -> Done {
    put(target, *device(ordinal)?.current_pool.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn cuDeviceSetMemPool(ordinal: CUdevice, handle: CUmemoryPool) -> Done {
    let device = device(ordinal)?;
    if pool(handle)?.ordinal != device.ordinal {
        return Err(CUresult::INVALID_VALUE);
    }
    *device.current_pool.lock().unwrap_or_else(PoisonError::into_inner) = handle;
    Ok(())
}
