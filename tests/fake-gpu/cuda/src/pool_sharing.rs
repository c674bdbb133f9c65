//! Pools and their allocations in several processes.
//!
//! A pool's descriptor is a file that tells where the pool's process keeps its device memory. An allocation is named by
//! a [`Ticket`]. Imported memory is charged to the process that allocated it, not to the importing process.

use core::ffi::{c_int, c_uint, c_void};

use aliquot_abi::cuda::{CUdeviceptr, CUmemPoolPtrExportData, CUmemoryPool, CUresult};

use crate::Done;
use crate::arena::Use;
use crate::backing::{Backing, BackingPlace, Plain};
use crate::caller::{get, not_null, put};
use crate::imported::{self, Origin};
use crate::memory::extent_around;
use crate::pools::{Pool, device_properties, pool, pool_of};
use crate::process::{initialised, process};
use crate::shared_extents::Ticket;

const HANDLE_POSIX_FD: c_uint = 1;
const MAGIC: u64 = u64::from_be_bytes(*b"alq-pool");

/// Another process's pool.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    place: BackingPlace,
}

/// The contents of a pool's descriptor.
#[derive(Clone, Copy)]
#[repr(C)]
struct Descriptor {
    magic: u64,
    place: BackingPlace,
    device_index: u64,
}

// SAFETY: integers only, and the assertion below excludes padding.
unsafe impl Plain for Descriptor {}

const _: () = assert!(size_of::<Descriptor>() == 32);

/// This process's ordinal of a device with this index in the machine, if it is visible.
pub(crate) fn ordinal_of_index(index: u64) -> Option<usize> {
    initialised().devices.iter().position(|device| device.index as u64 == index)
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    target: *mut c_void,
    handle: CUmemoryPool,
    handle_type: c_uint,
    flags: u64,
) -> Done {
    let pool = pool(handle)?;
    not_null(target)?;
    if flags != 0 || handle_type != HANDLE_POSIX_FD || pool.properties.handle_types & handle_type == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (arena, _) = pool.device().arena.trailer();
    let descriptor = Descriptor { magic: MAGIC, place: arena.place(), device_index: pool.device().index as u64 };
    let file = Backing::create(c"simulated-gpu-pool", 0).ok_or(CUresult::OUT_OF_MEMORY)?;
    if !file.write(0, descriptor.bytes()) {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    put(target.cast::<c_int>(), file.duplicate().ok_or(CUresult::OUT_OF_MEMORY)?)
}

/// Reads a record from the beginning of a descriptor's file. The descriptor still belongs to the program.
fn read_descriptor(handle: *mut c_void) -> Option<Descriptor> {
    let number = c_int::try_from(handle.addr()).ok()?;
    // SAFETY: duplicating a descriptor accesses no memory; an invalid number is refused.
    let file = Backing::own(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) })?;
    let mut bytes = [0; size_of::<Descriptor>()];
    let descriptor = file.read(0, &mut bytes).then(|| Descriptor::from_bytes(&bytes)).flatten();
    descriptor.filter(|descriptor| descriptor.magic == MAGIC)
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    target: *mut CUmemoryPool,
    handle: *mut c_void,
    handle_type: c_uint,
    flags: u64,
) -> Done {
    process()?;
    not_null(target)?;
    if flags != 0 || handle_type != HANDLE_POSIX_FD {
        return Err(CUresult::INVALID_VALUE);
    }
    let descriptor = read_descriptor(handle).ok_or(CUresult::INVALID_VALUE)?;
    let ordinal = ordinal_of_index(descriptor.device_index).ok_or(CUresult::INVALID_DEVICE)?;
    let source = Source { place: descriptor.place };
    put(target, Pool::create(ordinal, device_properties(ordinal), false, Some(source)).0)
}

pub(crate) fn cuMemPoolExportPointer(target: *mut CUmemPoolPtrExportData, address: CUdeviceptr) -> Done {
    process()?;
    not_null(target)?;
    let (device, extent) = extent_around(address).ok_or(CUresult::INVALID_VALUE)?;
    let in_pool = extent.start == address && matches!(extent.usage, Use::Pool | Use::HostPool);
    let pool = pool_of(&extent).filter(|pool| in_pool && pool.properties.handle_types != 0);
    pool.ok_or(CUresult::INVALID_VALUE)?;
    let ticket = Ticket::issue(device, &extent, Ticket::POOL)?;
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    data.reserved[..size_of::<Ticket>()].copy_from_slice(ticket.bytes());
    put(target, data)
}

pub(crate) fn cuMemPoolImportPointer(
    target: *mut CUdeviceptr,
    handle: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> Done {
    let pool = pool(handle)?;
    not_null(target)?;
    let source = pool.source.ok_or(CUresult::INVALID_VALUE)?;
    let ticket = Ticket::read(&get(data)?.reserved, Ticket::POOL).ok_or(CUresult::INVALID_VALUE)?;
    if ticket.place != source.place {
        return Err(CUresult::INVALID_VALUE);
    }
    let (backing, offset) = ticket.open().ok_or(CUresult::INVALID_VALUE)?;
    put(target, imported::map(&backing, offset, ticket.bytes, pool.ordinal, 0, Origin::Pool)?)
}
