//! Creation and attributes of pools, and the choice of the default and current pools.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdevice, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUresult};

use crate::Done;
use crate::caller::{get, get_all, not_null, put};
use crate::device::{Device, device};
use crate::handles;
use crate::locations::{self, Location};
use crate::pools::{MANAGED, PINNED, Pool, device_properties, pool};
use crate::process::{initialised, process};

const HANDLE_POSIX_FD: c_uint = 1;
const ACCESS_NONE: c_uint = 0;
const ACCESS_READ_WRITE: c_uint = 3;

pub(crate) fn cuMemPoolTrimTo(handle: CUmemoryPool, keep_bytes: usize) -> Done {
    pool(handle)?.trim_to(keep_bytes as u64);
    Ok(())
}

pub(crate) fn cuMemPoolSetAttribute(handle: CUmemoryPool, attribute: c_uint, value: *mut c_void) -> Done {
    let pool = pool(handle)?;
    match attribute {
        1..=3 => pool.state().reuse_switched_off[attribute as usize - 1] = get(value.cast::<c_int>())? == 0,
        4 => pool.state().release_threshold = get(value.cast())?,
        // The high-water marks can be set only to 0.
        6 | 8 if get(value.cast::<u64>())? == 0 => pool.reset_high_water(attribute == 8),
        _ => return Err(CUresult::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAttribute(handle: CUmemoryPool, attribute: c_uint, value: *mut c_void) -> Done {
    let pool = pool(handle)?;
    let state = pool.state();
    let properties = &pool.properties;
    match attribute {
        1..=3 => put(value.cast(), c_int::from(!state.reuse_switched_off[attribute as usize - 1])),
        4 => put(value.cast(), state.release_threshold),
        5 => put(value.cast(), state.usage.reserved_bytes),
        6 => put(value.cast(), state.usage.reserved_high_bytes),
        7 => put(value.cast(), state.usage.used_bytes),
        8 => put(value.cast(), state.usage.used_high_bytes),
        9 => put(value.cast(), properties.alloc_kind),
        10 => put(value.cast(), properties.handle_types),
        11 => put(value.cast(), properties.location.id),
        12 => put(value.cast(), properties.location.kind),
        13 => put(value.cast(), properties.max_size_bytes as u64),
        // Decompression in hardware
        14 => put(value.cast::<c_int>(), 0),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolSetAccess(handle: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) -> Done {
    let pool = pool(handle)?;
    let entries = get_all(map, count)?;
    for entry in &entries {
        let other = locations::read(entry.location)?;
        let own = locations::same(entry.location, pool.properties.location);
        if !matches!(entry.flags, 0 | 1 | 3) || (own && entry.flags != ACCESS_READ_WRITE) {
            return Err(CUresult::INVALID_VALUE);
        }
        match other {
            Location::Device(other) if !own && !pool.is_host() && !crate::device::linked(pool.device(), other) => {
                return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
            }
            // The host can access only host pools.
            Location::Host if !pool.is_host() => return Err(CUresult::INVALID_VALUE),
            _ => {}
        }
    }
    let mut state = pool.state();
    for entry in entries {
        state.access.retain(|(location, _)| !locations::same(*location, entry.location));
        state.access.push((entry.location, entry.flags));
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(flags: *mut c_uint, handle: CUmemoryPool, location: *mut CUmemLocation) -> Done {
    let pool = pool(handle)?;
    let location = get(location)?;
    locations::read(location)?;
    if locations::same(location, pool.properties.location) {
        return put(flags, ACCESS_READ_WRITE);
    }
    let state = pool.state();
    let entry = state.access.iter().find(|(known, _)| locations::same(*known, location));
    put(flags, entry.map_or(ACCESS_NONE, |(_, flags)| *flags))
}

/// The ordinal of the device from which a pool of this kind and location takes memory and addresses.
fn ordinal_of(kind: c_uint, location: CUmemLocation) -> Done<usize> {
    match (kind, locations::read(location)) {
        (PINNED | MANAGED, Ok(Location::Device(device))) => Ok(device.ordinal),
        (PINNED | MANAGED, Ok(Location::Host)) => Ok(0),
        // Managed memory need not have a preferred location.
        (MANAGED, Err(_)) if location.kind == 0 => Ok(0),
        (PINNED | MANAGED, Err(error)) => Err(error),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuMemPoolCreate(target: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Done {
    process()?;
    not_null(target)?;
    let properties = get(properties)?;
    let ordinal = ordinal_of(properties.alloc_kind, properties.location)?;
    match properties.handle_types {
        0 => {}
        HANDLE_POSIX_FD if properties.alloc_kind == PINNED => {}
        // Fabric handles need a fabric manager; those of Windows need Windows.
        _ => return Err(CUresult::NOT_SUPPORTED),
    }
    put(target, Pool::create(ordinal, properties, false, None).0)
}

pub(crate) fn cuMemPoolDestroy(handle: CUmemoryPool) -> Done {
    let pool = pool(handle)?;
    if pool.is_default {
        return Err(CUresult::INVALID_VALUE);
    }
    handles::retire::<Pool>(handle.0).ok_or(CUresult::INVALID_VALUE)?;
    let mut chosen = chosen();
    for choice in chosen.iter_mut().filter(|choice| choice.current == handle) {
        choice.current = choice.default;
    }
    drop(chosen);
    for device in &initialised().devices {
        let mut current = device.current_pool.lock().unwrap_or_else(PoisonError::into_inner);
        if *current == handle {
            *current = device.default_pool.0;
        }
    }
    // Memory that is still in use stays until it is freed.
    pool.destroy();
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(target: *mut CUmemoryPool, ordinal: CUdevice) -> Done {
    put(target, device(ordinal)?.default_pool.0)
}

pub(crate) fn cuDeviceGetMemPool(target: *mut CUmemoryPool, ordinal: CUdevice) -> Done {
    put(target, current_pool(device(ordinal)?))
}

/// The pool from which `cuMemAllocAsync` allocates on a device.
pub(crate) fn current_pool(device: &Device) -> CUmemoryPool {
    *device.current_pool.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn cuDeviceSetMemPool(ordinal: CUdevice, handle: CUmemoryPool) -> Done {
    let device = device(ordinal)?;
    let pool = pool(handle)?;
    let is_of_device = pool.ordinal == device.ordinal && !pool.is_host() && pool.properties.alloc_kind == PINNED;
    if !is_of_device || pool.source.is_some() {
        return Err(CUresult::INVALID_VALUE);
    }
    *device.current_pool.lock().unwrap_or_else(PoisonError::into_inner) = handle;
    Ok(())
}

/// The default and current pools of a location and kind other than a device's pinned memory.
struct Choice {
    kind: c_uint,
    location: CUmemLocation,
    default: CUmemoryPool,
    current: CUmemoryPool,
}

static CHOSEN: Mutex<Vec<Choice>> = Mutex::new(Vec::new());

fn chosen() -> MutexGuard<'static, Vec<Choice>> {
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies `look` to the pools of a location and kind. They are made on first use.
fn with_choice<T>(kind: c_uint, location: CUmemLocation, look: impl FnOnce(&mut Choice) -> T) -> Done<T> {
    let ordinal = ordinal_of(kind, location)?;
    let mut chosen = chosen();
    let is_it = |choice: &Choice| choice.kind == kind && locations::same(choice.location, location);
    let place = chosen.iter().position(is_it).unwrap_or_else(|| {
        let properties = CUmemPoolProps { alloc_kind: kind, location, ..device_properties(ordinal) };
        let (default, _) = Pool::create(ordinal, properties, true, None);
        chosen.push(Choice { kind, location, default, current: default });
        chosen.len() - 1
    });
    Ok(look(&mut chosen[place]))
}

/// The device, if location and kind mean a device's pinned memory.
fn pinned_device(kind: c_uint, location: CUmemLocation) -> Done<Option<&'static Device>> {
    match locations::read(location) {
        Ok(Location::Device(device)) if kind == PINNED => Ok(Some(device)),
        _ => Ok(None),
    }
}

pub(crate) fn cuMemGetDefaultMemPool(target: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_uint) -> Done {
    process()?;
    let location = get(location)?;
    let pool = match pinned_device(kind, location)? {
        Some(device) => device.default_pool.0,
        None => with_choice(kind, location, |choice| choice.default)?,
    };
    put(target, pool)
}

pub(crate) fn cuMemGetMemPool(target: *mut CUmemoryPool, location: *mut CUmemLocation, kind: c_uint) -> Done {
    process()?;
    let location = get(location)?;
    let pool = match pinned_device(kind, location)? {
        Some(device) => current_pool(device),
        None => with_choice(kind, location, |choice| choice.current)?,
    };
    put(target, pool)
}

pub(crate) fn cuMemSetMemPool(location: *mut CUmemLocation, kind: c_uint, handle: CUmemoryPool) -> Done {
    process()?;
    let location = get(location)?;
    if let Some(device) = pinned_device(kind, location)? {
        return cuDeviceSetMemPool(device.ordinal as CUdevice, handle);
    }
    let pool = pool(handle)?;
    let fits = pool.properties.alloc_kind == kind && locations::same(pool.properties.location, location);
    if !fits || pool.source.is_some() {
        return Err(CUresult::INVALID_VALUE);
    }
    with_choice(kind, location, |choice| choice.current = handle)
}
