//! Import of external memory. Here it can only come from the driver's own shareable handles, because no other interface
//! is simulated.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUDA_ARRAY3D_DESCRIPTOR, CUdeviceptr, CUexternalMemory, CUmipmappedArray, CUresult};

use crate::Done;
use crate::arrays::create_mipmapped;
use crate::caller::{get, not_null, put};
use crate::context::current;
use crate::handles::{self, Kind, Object};
use crate::imported::{self, Origin};
use crate::physical_memory::Foreign;
use crate::process::process;

const OPAQUE_FD: c_uint = 1;
/// Greatest `CUexternalMemoryHandleType`.
const HANDLE_TYPE_MAX: c_uint = 9;
/// `CUDA_EXTERNAL_MEMORY_DEDICATED`.
const DEDICATED: c_uint = 1;

struct External {
    memory: Mutex<Option<Foreign>>,
}

impl Object for External {
    const KIND: Kind = Kind::ExternalMemory;
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HandleDescription {
    kind: c_uint,
    handle: [u64; 2],
    bytes: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BufferDescription {
    offset: u64,
    bytes: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

/// `CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MipmappedDescription {
    offset: u64,
    array: CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
    reserved: [c_uint; 16],
}

const _: () = {
    assert!(size_of::<HandleDescription>() == 104 && size_of::<BufferDescription>() == 88);
    assert!(size_of::<MipmappedDescription>() == 120);
};

fn external(handle: CUexternalMemory) -> Done<&'static External> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_HANDLE)
}

impl External {
    fn memory(&self) -> MutexGuard<'_, Option<Foreign>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a part of the memory in the current context.
    fn map(&self, offset: u64, bytes: u64) -> Done<u64> {
        let context = current()?;
        let memory = self.memory();
        let memory = memory.as_ref().ok_or(CUresult::INVALID_HANDLE)?;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > memory.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        imported::map(&memory.backing, offset, bytes, memory.ordinal(), context.life(), Origin::External)
    }
}

pub(crate) fn cuImportExternalMemory(target: *mut CUexternalMemory, description: *const c_void) -> Done {
    current()?;
    not_null(target)?;
    let description = get(description.cast::<HandleDescription>())?;
    let plain = description.flags & !DEDICATED == 0 && description.reserved == [0; 16] && description.bytes > 0;
    match description.kind {
        _ if !plain => return Err(CUresult::INVALID_VALUE),
        OPAQUE_FD => {}
        // Handles of Windows, of other devices, and of the kernel's buffers
        2..=HANDLE_TYPE_MAX => return Err(CUresult::NOT_SUPPORTED),
        _ => return Err(CUresult::INVALID_VALUE),
    }
    let number = description.handle[0] as c_int;
    let memory = Foreign::look_at(number).ok_or(CUresult::INVALID_HANDLE)?;
    if description.bytes > memory.bytes {
        return Err(CUresult::INVALID_VALUE);
    }
    // From now on the descriptor belongs to the driver. SAFETY: the program has given up this descriptor; the file
    // stays open through another one.
    unsafe { libc::close(number) };
    put(target, CUexternalMemory(handles::register(External { memory: Mutex::new(Some(memory)) }).0))
}

pub(crate) fn cuExternalMemoryGetMappedBuffer(
    target: *mut CUdeviceptr,
    handle: CUexternalMemory,
    description: *const c_void,
) -> Done {
    let external = external(handle)?;
    not_null(target)?;
    let description = get(description.cast::<BufferDescription>())?;
    if description.flags != 0 || description.reserved != [0; 16] {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, external.map(description.offset, description.bytes)?)
}

pub(crate) fn cuExternalMemoryGetMappedMipmappedArray(
    target: *mut CUmipmappedArray,
    handle: CUexternalMemory,
    description: *const c_void,
) -> Done {
    let external = external(handle)?;
    not_null(target)?;
    let MipmappedDescription { offset, array, levels, reserved } = get(description.cast::<MipmappedDescription>())?;
    if reserved != [0; 16] {
        return Err(CUresult::INVALID_VALUE);
    }
    create_mipmapped(target, current()?, &array, levels, |bytes| external.map(offset, bytes))
}

/// Existing mappings of the memory stay until they are freed.
pub(crate) fn cuDestroyExternalMemory(handle: CUexternalMemory) -> Done {
    external(handle)?;
    let external = handles::retire::<External>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    external.memory().take();
    Ok(())
}
