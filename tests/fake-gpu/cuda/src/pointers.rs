//! `cuPointerGetAttribute`: properties of pointers.

use core::ffi::{c_int, c_uint, c_void};

use aliquot_abi::cuda::{CUcontext, CUdeviceptr, CUmemoryPool, CUresult};

use crate::Done;
use crate::arena::Use;
use crate::caller::{get, get_all, put};
use crate::context::handle_of_life;
use crate::host_memory;
use crate::memory::{Side, extent_around, range_of, side_of};
use crate::pools::{Pool, pool_of};
use crate::process::process;

const MEMORY_TYPE_HOST: c_uint = 1;
const MEMORY_TYPE_DEVICE: c_uint = 2;
const DEVICE_INVALID: c_int = -2;

const CONTEXT: c_uint = 1;
const SYNC_MEMOPS: c_uint = 6;

/// The properties of a pointer.
struct Facts {
    address: u64,
    side: Side,
    usage: Option<Use>,
    /// The life of the context in which it was allocated; 0 if in none.
    life: u32,
}

impl Facts {
    fn of(address: u64) -> Facts {
        let extent = extent_around(address).map(|(_, extent)| extent);
        let owned = |usage| matches!(usage, Use::Linear | Use::Managed | Use::Global);
        Facts {
            address,
            side: side_of(address, 1).unwrap_or(Side::PageableHost),
            usage: extent.as_ref().map(|extent| extent.usage),
            life: extent.filter(|extent| owned(extent.usage)).map_or(0, |extent| extent.owner),
        }
    }

    fn is_known(&self) -> bool {
        self.side != Side::PageableHost
    }

    fn is_managed(&self) -> bool {
        self.usage == Some(Use::Managed)
    }

    fn ordinal(&self) -> c_int {
        match self.side {
            Side::Device(ordinal) => ordinal as c_int,
            Side::PinnedHost => 0,
            Side::PageableHost => DEVICE_INVALID,
        }
    }

    /// The context of an allocation: null for stream-ordered and mapped memory.
    fn context(&self) -> CUcontext {
        match self.side {
            Side::Device(_) => handle_of_life(self.life),
            Side::PinnedHost => {
                host_memory::range_around(self.address).map_or(CUcontext::NULL, |range| handle_of_life(range.life))
            }
            _ => CUcontext::NULL,
        }
    }

    fn write(&self, attribute: c_uint, data: *mut c_void) -> Done {
        let (start, bytes) = range_of(self.address).unwrap_or((0, 0));
        let extent = extent_around(self.address).map(|(_, extent)| extent);
        let pooled = extent.filter(|extent| matches!(extent.usage, Use::Pool | Use::HostPool));
        let pool = pooled.and_then(|extent| pool_of(&extent)).map_or(CUmemoryPool::NULL, Pool::handle);
        let host_reachable = self.side == Side::PinnedHost || self.is_managed();
        match attribute {
            CONTEXT => put(data.cast(), self.context()),
            2 if self.side == Side::PinnedHost => put(data.cast(), MEMORY_TYPE_HOST),
            2 => put(data.cast(), MEMORY_TYPE_DEVICE),
            3 => put(data.cast(), self.address),
            4 if host_reachable => put(data.cast(), self.address),
            4 => Err(CUresult::INVALID_VALUE),
            SYNC_MEMOPS => put(data.cast::<u8>(), 0),
            // A number that identifies the allocation within the process.
            7 => put(data.cast(), start),
            8 => put(data.cast::<u8>(), u8::from(self.is_managed())),
            9 => put(data.cast(), self.ordinal()),
            // Whether `cuIpcGetMemHandle` accepts it
            10 => put(data.cast::<c_int>(), c_int::from(self.usage == Some(Use::Linear))),
            // GPUDirect RDMA
            15 => put(data.cast::<c_int>(), 0),
            11 => put(data.cast(), start),
            12 => put(data.cast(), bytes as usize),
            13 => put(data.cast::<c_int>(), 1),
            14 => put(data.cast::<c_uint>(), 0),
            // Read and write
            16 => put(data.cast::<c_uint>(), 3),
            17 => put(data.cast(), pool),
            18 => put(data.cast(), start),
            19 => put(data.cast(), bytes as usize),
            20 => put(data.cast(), start),
            21 => put(data.cast::<u8>(), 0),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

pub(crate) fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, address: CUdeviceptr) -> Done {
    process()?;
    let facts = Facts::of(address);
    if !facts.is_known() {
        return Err(CUresult::INVALID_VALUE);
    }
    facts.write(attribute, data)
}

/// As [`cuPointerGetAttribute`], but attributes that do not apply to the pointer are 0, not an error.
pub(crate) fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut c_uint,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> Done {
    process()?;
    let facts = Facts::of(address);
    let attributes = get_all(attributes, count as usize)?;
    for (attribute, target) in attributes.into_iter().zip(get_all(data, count as usize)?) {
        match (attribute, facts.is_known()) {
            (0 | 22.., _) => return Err(CUresult::INVALID_VALUE),
            (9, false) => put(target.cast(), DEVICE_INVALID)?,
            // Flags of one byte, and words of four, before the addresses and sizes of eight.
            (6 | 8 | 21, false) => put(target.cast::<u8>(), 0)?,
            (2 | 10 | 13 | 14 | 15 | 16, false) => put(target.cast::<u32>(), 0)?,
            (5, _) => put(target.cast::<[u64; 2]>(), [0; 2])?,
            (_, false) => put(target.cast::<u64>(), 0)?,
            (4, true) if facts.write(4, target).is_err() => put(target.cast::<u64>(), 0)?,
            (_, true) => facts.write(attribute, target)?,
        }
    }
    Ok(())
}

pub(crate) fn cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: CUdeviceptr) -> Done {
    process()?;
    if attribute != SYNC_MEMOPS || !Facts::of(address).is_known() {
        return Err(CUresult::INVALID_VALUE);
    }
    // Nothing to set: synchronous operations always wait here.
    get(value.cast::<u8>()).map(|_| ())
}
