//! Multicast objects: addresses through which the memory of several devices is written at once.
//!
//! Memory bound to an object lives as long as it is bound. Writes through the object do not reach the bound memory:
//! only kernels write in this way, and kernels compute nothing here.

use core::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdevice, CUdeviceptr, CUmulticastObjectProp, CUresult};

use crate::Done;
use crate::caller::{get, not_null, put};
use crate::device::{device, linked};
use crate::physical_memory::{GRANULARITY_BYTES, Physical, Place, physical, register_multicast};
use crate::process::{initialised, process};
use crate::virtual_memory::mapped_at;

/// The part of a multicast object that physical memory does not have.
pub(crate) struct Multicast {
    device_count: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Ordinals of the devices.
    devices: Vec<usize>,
    bindings: Vec<Binding>,
}

/// A device's memory bound to a range of the object.
struct Binding {
    ordinal: usize,
    offset: u64,
    bytes: u64,
    memory: &'static Physical,
}

impl Multicast {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn first_device(&self) -> usize {
        self.state().devices.first().copied().unwrap_or(0)
    }

    /// Releases all bound memory at the object's end.
    pub(crate) fn unbind_all(&self) {
        let bindings = std::mem::take(&mut self.state().bindings);
        bindings.iter().for_each(|binding| binding.memory.let_go());
    }
}

fn check_properties(properties: &CUmulticastObjectProp) -> Done {
    if !(2..=initialised().devices.len()).contains(&(properties.num_devices as usize)) || properties.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // Sharing multicast objects between processes is not simulated.
    if properties.handle_types != 0 { Err(CUresult::NOT_SUPPORTED) } else { Ok(()) }
}

pub(crate) fn cuMulticastGetGranularity(
    target: *mut usize,
    properties: *const CUmulticastObjectProp,
    option: c_uint,
) -> Done {
    process()?;
    check_properties(&get(properties)?)?;
    if option > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, GRANULARITY_BYTES as usize)
}

pub(crate) fn cuMulticastCreate(target: *mut u64, properties: *const CUmulticastObjectProp) -> Done {
    process()?;
    not_null(target)?;
    let properties = get(properties)?;
    check_properties(&properties)?;
    let bytes = properties.size as u64;
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY_BYTES) {
        return Err(CUresult::INVALID_VALUE);
    }
    let device_count = properties.num_devices as usize;
    put(target, register_multicast(bytes, Multicast { device_count, state: Mutex::default() })?)
}

fn multicast(handle: u64) -> Done<(&'static Physical, &'static Multicast)> {
    let physical = physical(handle)?;
    let multicast = physical.multicast.as_ref().ok_or(CUresult::INVALID_VALUE)?;
    Ok((physical, multicast))
}

pub(crate) fn cuMulticastAddDevice(handle: u64, ordinal: CUdevice) -> Done {
    let (_, multicast) = multicast(handle)?;
    let new = device(ordinal)?;
    let mut state = multicast.state();
    let reachable = initialised().devices.iter().any(|other| other.ordinal != new.ordinal && linked(new, other));
    if !reachable {
        return Err(CUresult::NOT_SUPPORTED);
    }
    if state.devices.contains(&new.ordinal) || state.devices.len() >= multicast.device_count {
        return Err(CUresult::INVALID_VALUE);
    }
    state.devices.push(new.ordinal);
    Ok(())
}

/// Binds memory to an object. All its devices must have been added before.
fn bind(
    handle: u64,
    expected: Option<CUdevice>,
    offset: usize,
    memory: &'static Physical,
    memory_room: u64,
    bytes: usize,
) -> Done {
    let (object, multicast) = multicast(handle)?;
    let (offset, bytes) = (offset as u64, bytes as u64);
    let Place::Device(ordinal) = memory.place else { return Err(CUresult::INVALID_VALUE) };
    if let Some(expected) = expected
        && device(expected)?.ordinal != ordinal
    {
        return Err(CUresult::INVALID_DEVICE);
    }
    let granular = offset.is_multiple_of(GRANULARITY_BYTES) && bytes.is_multiple_of(GRANULARITY_BYTES) && bytes > 0;
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= object.bytes) && bytes <= memory_room;
    if !granular || !inside {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut state = multicast.state();
    if state.devices.len() < multicast.device_count {
        return Err(CUresult::ILLEGAL_STATE);
    }
    if !state.devices.contains(&ordinal) {
        return Err(CUresult::INVALID_DEVICE);
    }
    let overlaps = |other: &Binding| {
        other.ordinal == ordinal && other.offset < offset + bytes && offset < other.offset + other.bytes
    };
    if state.bindings.iter().any(overlaps) {
        return Err(CUresult::INVALID_VALUE);
    }
    memory.hold();
    state.bindings.push(Binding { ordinal, offset, bytes, memory });
    Ok(())
}

fn bind_memory(
    handle: u64,
    expected: Option<CUdevice>,
    offset: usize,
    memory_handle: u64,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> Done {
    multicast(handle)?;
    let memory = physical(memory_handle)?;
    let room = memory.bytes.checked_sub(memory_offset as u64).ok_or(CUresult::INVALID_VALUE)?;
    if flags != 0 || !(memory_offset as u64).is_multiple_of(GRANULARITY_BYTES) {
        return Err(CUresult::INVALID_VALUE);
    }
    bind(handle, expected, offset, memory, room, bytes)
}

fn bind_address(
    handle: u64,
    expected: Option<CUdevice>,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> Done {
    multicast(handle)?;
    let (memory, room) = mapped_at(address).ok_or(CUresult::INVALID_VALUE)?;
    if flags != 0 || !address.is_multiple_of(GRANULARITY_BYTES) {
        return Err(CUresult::INVALID_VALUE);
    }
    bind(handle, expected, offset, memory, room, bytes)
}

pub(crate) fn cuMulticastBindMem(
    handle: u64,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> Done {
    bind_memory(handle, None, offset, memory, memory_offset, bytes, flags)
}

pub(crate) fn cuMulticastBindMem_v2(
    handle: u64,
    ordinal: CUdevice,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> Done {
    bind_memory(handle, Some(ordinal), offset, memory, memory_offset, bytes, flags)
}

pub(crate) fn cuMulticastBindAddr(
    handle: u64,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> Done {
    bind_address(handle, None, offset, address, bytes, flags)
}

pub(crate) fn cuMulticastBindAddr_v2(
    handle: u64,
    ordinal: CUdevice,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> Done {
    bind_address(handle, Some(ordinal), offset, address, bytes, flags)
}

/// Unbinds a device's bindings in a range, which must contain whole bindings.
pub(crate) fn cuMulticastUnbind(handle: u64, ordinal: CUdevice, offset: usize, bytes: usize) -> Done {
    let (_, multicast) = multicast(handle)?;
    let ordinal = device(ordinal)?.ordinal;
    let (start, end) = (offset as u64, (offset as u64).saturating_add(bytes as u64));
    let mut state = multicast.state();
    let is_inside = |binding: &Binding| binding.ordinal == ordinal && binding.offset >= start && binding.offset < end;
    let whole = |binding: &Binding| binding.offset + binding.bytes <= end;
    if !state.bindings.iter().any(is_inside) || !state.bindings.iter().filter(|b| is_inside(b)).all(whole) {
        return Err(CUresult::INVALID_VALUE);
    }
    let (ended, kept) = std::mem::take(&mut state.bindings).into_iter().partition(is_inside);
    state.bindings = kept;
    drop(state);
    let ended: Vec<Binding> = ended;
    ended.iter().for_each(|binding| binding.memory.let_go());
    Ok(())
}
