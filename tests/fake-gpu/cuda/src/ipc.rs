//! Memory of `cuMemAlloc` in several processes. It is charged to the process that allocated it.

use core::ffi::c_uint;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdeviceptr, CUipcMemHandle, CUresult};

use crate::Done;
use crate::arena::Use;
use crate::backing::Plain;
use crate::caller::{not_null, put};
use crate::context::current;
use crate::imported::{self, Origin};
use crate::memory::extent_around;
use crate::pool_sharing::ordinal_of_index;
use crate::process::{initialised, process};
use crate::shared_extents::Ticket;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which every open must pass.
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;

/// Addresses of open memory, by handle and the context's life.
static OPEN: Mutex<BTreeMap<(Vec<u8>, u32), u64>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<(Vec<u8>, u32), u64>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn cuIpcGetMemHandle(target: *mut CUipcMemHandle, address: CUdeviceptr) -> Done {
    process()?;
    not_null(target)?;
    let (device, extent) = extent_around(address).ok_or(CUresult::INVALID_VALUE)?;
    if extent.usage != Use::Linear {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    handle.reserved[..size_of::<Ticket>()].copy_from_slice(Ticket::issue(device, &extent, Ticket::IPC)?.bytes());
    put(target, handle)
}

fn open_memory(target: *mut CUdeviceptr, handle: &CUipcMemHandle, flags: c_uint, again: bool) -> Done {
    let context = current()?;
    not_null(target)?;
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(CUresult::INVALID_VALUE);
    }
    let ticket = Ticket::read(&handle.reserved, Ticket::IPC).ok_or(CUresult::INVALID_HANDLE)?;
    // A process cannot open its own memory.
    if ticket.place.process_id == std::process::id() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    let ordinal = ordinal_of_index(ticket.device_index.into()).ok_or(CUresult::INVALID_DEVICE)?;
    let (own, other) = (context.device(), &initialised().devices[ordinal]);
    if own.ordinal != ordinal && !crate::device::linked(own, other) {
        return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
    }
    let key = (handle.reserved.to_vec(), context.life());
    let mut open = open();
    if let Some(&address) = open.get(&key)
        && imported::around(address).is_some()
    {
        if !again {
            return Err(CUresult::ALREADY_MAPPED);
        }
        imported::open_again(address);
        return put(target, address);
    }
    let (backing, offset) = ticket.open().ok_or(CUresult::INVALID_HANDLE)?;
    let address = imported::map(&backing, offset, ticket.bytes, ordinal, context.life(), Origin::Ipc)?;
    open.insert(key, address);
    put(target, address)
}

pub(crate) fn cuIpcOpenMemHandle(target: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> Done {
    open_memory(target, &handle, flags, false)
}

/// As [`cuIpcOpenMemHandle`], but memory that is open already is opened again at the same address.
pub(crate) fn cuIpcOpenMemHandle_v2(target: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> Done {
    open_memory(target, &handle, flags, true)
}

pub(crate) fn cuIpcCloseMemHandle(address: CUdeviceptr) -> Done {
    current()?;
    crate::queue::wait_for_all();
    let mut open = open();
    if !imported::close(address, Origin::Ipc) {
        return Err(CUresult::INVALID_VALUE);
    }
    if imported::around(address).is_none() {
        open.retain(|_, known| *known != address);
    }
    Ok(())
}
