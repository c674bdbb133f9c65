//! The functions of CUDA before 3.2, with addresses and sizes of 32 bits, and other superseded forms.
//!
//! A 64-bit driver exports them, but its device addresses do not fit. A function that would return an address reports a
//! lack of memory, and a function that takes one finds nothing there.

use core::ffi::{c_char, c_int, c_uint, c_void};

use aliquot_abi::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_V1, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_V1, CUarray,
    CUcontext, CUdevice, CUdeviceptrV1, CUevent, CUfunction, CUmodule, CUresult, CUstream, NullStream,
};

use crate::Done;
use crate::caller::{bytes, get, not_null, put};
use crate::context::current;
use crate::kernels::function;
use crate::{
    array_copies, arrays, context, copies, device, events, host_memory, launches, memory, modules, sets, streams,
};

fn narrow(value: usize) -> c_uint {
    c_uint::try_from(value).unwrap_or(c_uint::MAX)
}

pub(crate) fn cuDeviceTotalMem(target: *mut c_uint, ordinal: CUdevice) -> Done {
    let mut total = 0;
    device::cuDeviceTotalMem_v2(&mut total, ordinal)?;
    put(target, narrow(total))
}

pub(crate) fn cuDevicePrimaryCtxRelease(ordinal: CUdevice) -> Done {
    context::cuDevicePrimaryCtxRelease_v2(ordinal)
}

/// Before CUDA 11 the flags could not be set while the context was alive.
pub(crate) fn cuDevicePrimaryCtxSetFlags(ordinal: CUdevice, flags: c_uint) -> Done {
    let (mut present, mut active) = (0, 0);
    context::cuDevicePrimaryCtxGetState(ordinal, &mut present, &mut active)?;
    if active != 0 && present != flags {
        return Err(CUresult::PRIMARY_CONTEXT_ACTIVE);
    }
    context::cuDevicePrimaryCtxSetFlags_v2(ordinal, flags)
}

pub(crate) fn cuDevicePrimaryCtxReset(ordinal: CUdevice) -> Done {
    context::cuDevicePrimaryCtxReset_v2(ordinal)
}

pub(crate) fn cuCtxCreate(target: *mut CUcontext, flags: c_uint, ordinal: CUdevice) -> Done {
    context::cuCtxCreate_v2(target, flags, ordinal)
}

pub(crate) fn cuCtxDestroy(handle: CUcontext) -> Done {
    context::cuCtxDestroy_v2(handle)
}

pub(crate) fn cuCtxPushCurrent(handle: CUcontext) -> Done {
    context::cuCtxPushCurrent_v2(handle)
}

pub(crate) fn cuCtxPopCurrent(target: *mut CUcontext) -> Done {
    context::cuCtxPopCurrent_v2(target)
}

pub(crate) fn cuStreamDestroy(handle: CUstream) -> Done {
    streams::cuStreamDestroy_v2(handle)
}

pub(crate) fn cuEventDestroy(handle: CUevent) -> Done {
    events::cuEventDestroy_v2(handle)
}

pub(crate) fn cuModuleGetGlobal(
    address: *mut CUdeviceptrV1,
    size: *mut c_uint,
    handle: CUmodule,
    name: *const c_char,
) -> Done {
    let (mut found, mut length) = (0, 0);
    modules::cuModuleGetGlobal_v2(&mut found, &mut length, handle, name)?;
    if address.is_null() { put(size, narrow(length)) } else { Err(CUresult::OUT_OF_MEMORY) }
}

pub(crate) fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> Done {
    let (mut free_bytes, mut total_bytes) = (0, 0);
    memory::cuMemGetInfo_v2(&mut free_bytes, &mut total_bytes)?;
    put(free, narrow(free_bytes))?;
    put(total, narrow(total_bytes))
}

/// Fails, because no device address fits into 32 bits.
fn no_address(target: *mut CUdeviceptrV1, size: c_uint) -> Done {
    current()?;
    not_null(target)?;
    Err(if size == 0 { CUresult::INVALID_VALUE } else { CUresult::OUT_OF_MEMORY })
}

pub(crate) fn cuMemAlloc(target: *mut CUdeviceptrV1, size: c_uint) -> Done {
    no_address(target, size)
}

pub(crate) fn cuMemAllocPitch(
    target: *mut CUdeviceptrV1,
    pitch: *mut c_uint,
    width_bytes: c_uint,
    height: c_uint,
    _element_bytes: c_uint,
) -> Done {
    not_null(pitch)?;
    no_address(target, width_bytes.saturating_mul(height))
}

pub(crate) fn cuMemFree(address: CUdeviceptrV1) -> Done {
    memory::cuMemFree_v2(address.into())
}

pub(crate) fn cuMemGetAddressRange(base: *mut CUdeviceptrV1, size: *mut c_uint, address: CUdeviceptrV1) -> Done {
    let (mut start, mut length) = (0, 0);
    memory::cuMemGetAddressRange_v2(&mut start, &mut length, address.into())?;
    put(base, CUdeviceptrV1::try_from(start).map_err(|_| CUresult::NOT_FOUND)?)?;
    put(size, narrow(length))
}

pub(crate) fn cuMemAllocHost(target: *mut *mut c_void, size: c_uint) -> Done {
    host_memory::cuMemAllocHost_v2(target, size as usize)
}

pub(crate) fn cuMemHostGetDevicePointer(target: *mut CUdeviceptrV1, pointer: *mut c_void, flags: c_uint) -> Done {
    let mut address = 0;
    host_memory::cuMemHostGetDevicePointer_v2(&mut address, pointer, flags)?;
    put(target, CUdeviceptrV1::try_from(address).map_err(|_| CUresult::INVALID_VALUE)?)
}

pub(crate) fn cuMemHostRegister(pointer: *mut c_void, size: usize, flags: c_uint) -> Done {
    host_memory::cuMemHostRegister_v2(pointer, size, flags)
}

fn wide_2d(d: CUDA_ARRAY_DESCRIPTOR_V1) -> CUDA_ARRAY_DESCRIPTOR {
    let (width, height) = (d.width as usize, d.height as usize);
    CUDA_ARRAY_DESCRIPTOR { width, height, format: d.format, num_channels: d.num_channels }
}

fn wide_3d(d: CUDA_ARRAY3D_DESCRIPTOR_V1) -> CUDA_ARRAY3D_DESCRIPTOR {
    let (width, height, depth) = (d.width as usize, d.height as usize, d.depth as usize);
    CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format: d.format, num_channels: d.num_channels, flags: d.flags }
}

pub(crate) fn cuArrayCreate(target: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR_V1) -> Done {
    current()?;
    arrays::cuArrayCreate_v2(target, &wide_2d(get(descriptor)?))
}

pub(crate) fn cuArray3DCreate(target: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR_V1) -> Done {
    current()?;
    arrays::cuArray3DCreate_v2(target, &wide_3d(get(descriptor)?))
}

pub(crate) fn cuArrayGetDescriptor(target: *mut CUDA_ARRAY_DESCRIPTOR_V1, handle: CUarray) -> Done {
    let mut d = CUDA_ARRAY_DESCRIPTOR { width: 0, height: 0, format: 0, num_channels: 0 };
    arrays::cuArrayGetDescriptor_v2(&mut d, handle)?;
    let (width, height) = (narrow(d.width), narrow(d.height));
    put(target, CUDA_ARRAY_DESCRIPTOR_V1 { width, height, format: d.format, num_channels: d.num_channels })
}

pub(crate) fn cuArray3DGetDescriptor(target: *mut CUDA_ARRAY3D_DESCRIPTOR_V1, handle: CUarray) -> Done {
    let mut d = CUDA_ARRAY3D_DESCRIPTOR { width: 0, height: 0, depth: 0, format: 0, num_channels: 0, flags: 0 };
    arrays::cuArray3DGetDescriptor_v2(&mut d, handle)?;
    let (width, height, depth) = (narrow(d.width), narrow(d.height), narrow(d.depth));
    let (format, num_channels, flags) = (d.format, d.num_channels, d.flags);
    put(target, CUDA_ARRAY3D_DESCRIPTOR_V1 { width, height, depth, format, num_channels, flags })
}

macro_rules! linear_copies {
    ($($name:ident, $name_async:ident: $target:ty, $source:ty => $wide:ident, $wide_async:ident;)*) => {$(
        pub(crate) fn $name(target: $target, source: $source, size: c_uint) -> Done {
            copies::$wide(NullStream::Legacy, target.into(), source.into(), size as usize)
        }

        pub(crate) fn $name_async(target: $target, source: $source, size: c_uint, stream: CUstream) -> Done {
            copies::$wide_async(NullStream::Legacy, target.into(), source.into(), size as usize, stream)
        }
    )*};
}

linear_copies! {
    cuMemcpyHtoD, cuMemcpyHtoDAsync: CUdeviceptrV1, *const c_void => cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2;
    cuMemcpyDtoH, cuMemcpyDtoHAsync: *mut c_void, CUdeviceptrV1 => cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2;
    cuMemcpyDtoD, cuMemcpyDtoDAsync: CUdeviceptrV1, CUdeviceptrV1 => cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2;
}

pub(crate) fn cuMemcpyAtoA(
    target: CUarray,
    target_offset: c_uint,
    source: CUarray,
    source_offset: c_uint,
    size: c_uint,
) -> Done {
    let (target_offset, source_offset) = (target_offset as usize, source_offset as usize);
    array_copies::cuMemcpyAtoA_v2(NullStream::Legacy, target, target_offset, source, source_offset, size as usize)
}

pub(crate) fn cuMemcpyAtoD(target: CUdeviceptrV1, source: CUarray, offset: c_uint, size: c_uint) -> Done {
    array_copies::cuMemcpyAtoD_v2(NullStream::Legacy, target.into(), source, offset as usize, size as usize)
}

pub(crate) fn cuMemcpyDtoA(target: CUarray, offset: c_uint, source: CUdeviceptrV1, size: c_uint) -> Done {
    array_copies::cuMemcpyDtoA_v2(NullStream::Legacy, target, offset as usize, source.into(), size as usize)
}

pub(crate) fn cuMemcpyAtoH(target: *mut c_void, source: CUarray, offset: c_uint, size: c_uint) -> Done {
    array_copies::cuMemcpyAtoH_v2(NullStream::Legacy, target, source, offset as usize, size as usize)
}

pub(crate) fn cuMemcpyHtoA(target: CUarray, offset: c_uint, source: *const c_void, size: c_uint) -> Done {
    array_copies::cuMemcpyHtoA_v2(NullStream::Legacy, target, offset as usize, source, size as usize)
}

pub(crate) fn cuMemcpyAtoHAsync(
    target: *mut c_void,
    source: CUarray,
    offset: c_uint,
    size: c_uint,
    stream: CUstream,
) -> Done {
    array_copies::cuMemcpyAtoHAsync_v2(NullStream::Legacy, target, source, offset as usize, size as usize, stream)
}

pub(crate) fn cuMemcpyHtoAAsync(
    target: CUarray,
    offset: c_uint,
    source: *const c_void,
    size: c_uint,
    stream: CUstream,
) -> Done {
    array_copies::cuMemcpyHtoAAsync_v2(NullStream::Legacy, target, offset as usize, source, size as usize, stream)
}

/// Copies of rows and planes with the old structures, whose device addresses of 32 bits cannot be valid here.
fn no_copy(parameters: *const c_void) -> Done {
    current()?;
    not_null(parameters)?;
    Err(CUresult::NOT_SUPPORTED)
}

pub(crate) fn cuMemcpy2D(parameters: *const c_void) -> Done {
    no_copy(parameters)
}

pub(crate) fn cuMemcpy2DUnaligned(parameters: *const c_void) -> Done {
    no_copy(parameters)
}

pub(crate) fn cuMemcpy3D(parameters: *const c_void) -> Done {
    no_copy(parameters)
}

pub(crate) fn cuMemcpy2DAsync(parameters: *const c_void, stream: CUstream) -> Done {
    streams::stream(NullStream::Legacy, stream)?;
    no_copy(parameters)
}

pub(crate) fn cuMemcpy3DAsync(parameters: *const c_void, stream: CUstream) -> Done {
    streams::stream(NullStream::Legacy, stream)?;
    no_copy(parameters)
}

macro_rules! sets {
    ($($name:ident, $name_rows:ident: $value:ty => $wide:ident, $wide_rows:ident;)*) => {$(
        pub(crate) fn $name(target: CUdeviceptrV1, value: $value, count: c_uint) -> Done {
            sets::$wide(NullStream::Legacy, target.into(), value, count as usize)
        }

        pub(crate) fn $name_rows(
            target: CUdeviceptrV1,
            pitch: c_uint,
            value: $value,
            width: c_uint,
            height: c_uint,
        ) -> Done {
            let (pitch, width, height) = (pitch as usize, width as usize, height as usize);
            sets::$wide_rows(NullStream::Legacy, target.into(), pitch, value, width, height)
        }
    )*};
}

sets! {
    cuMemsetD8, cuMemsetD2D8: u8 => cuMemsetD8_v2, cuMemsetD2D8_v2;
    cuMemsetD16, cuMemsetD2D16: u16 => cuMemsetD16_v2, cuMemsetD2D16_v2;
    cuMemsetD32, cuMemsetD2D32: u32 => cuMemsetD32_v2, cuMemsetD2D32_v2;
}

/// The shape and arguments of a function, which the launch functions before CUDA 4 use.
#[derive(Default)]
pub(crate) struct LegacyLaunch {
    block: [c_uint; 3],
    shared_bytes: c_uint,
    arguments: Vec<u8>,
}

/// Maximum size of the arguments in bytes.
const ARGUMENT_BYTES_MAX: usize = 4096;

pub(crate) fn cuFuncSetBlockShape(handle: CUfunction, x: c_int, y: c_int, z: c_int) -> Done {
    let function = function(handle)?;
    if x <= 0 || y <= 0 || z <= 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    function.legacy_launch().block = [x as c_uint, y as c_uint, z as c_uint];
    Ok(())
}

pub(crate) fn cuFuncSetSharedSize(handle: CUfunction, size: c_uint) -> Done {
    function(handle)?.legacy_launch().shared_bytes = size;
    Ok(())
}

pub(crate) fn cuParamSetSize(handle: CUfunction, size: c_uint) -> Done {
    let function = function(handle)?;
    if size as usize > ARGUMENT_BYTES_MAX {
        return Err(CUresult::INVALID_VALUE);
    }
    function.legacy_launch().arguments.resize(size as usize, 0);
    Ok(())
}

fn set_argument(handle: CUfunction, offset: c_int, value: &[u8]) -> Done {
    let function = function(handle)?;
    let start = usize::try_from(offset).map_err(|_| CUresult::INVALID_VALUE)?;
    let end = start + value.len();
    if end > ARGUMENT_BYTES_MAX {
        return Err(CUresult::INVALID_VALUE);
    }
    let arguments = &mut function.legacy_launch().arguments;
    if arguments.len() < end {
        arguments.resize(end, 0);
    }
    arguments[start..end].copy_from_slice(value);
    Ok(())
}

pub(crate) fn cuParamSeti(handle: CUfunction, offset: c_int, value: c_uint) -> Done {
    set_argument(handle, offset, &value.to_ne_bytes())
}

pub(crate) fn cuParamSetf(handle: CUfunction, offset: c_int, value: f32) -> Done {
    set_argument(handle, offset, &value.to_ne_bytes())
}

pub(crate) fn cuParamSetv(handle: CUfunction, offset: c_int, value: *mut c_void, size: c_uint) -> Done {
    function(handle)?;
    set_argument(handle, offset, bytes(value.cast_const().cast(), size as usize)?)
}

pub(crate) fn cuLaunch(handle: CUfunction) -> Done {
    cuLaunchGrid(handle, 1, 1)
}

pub(crate) fn cuLaunchGrid(handle: CUfunction, width: c_int, height: c_int) -> Done {
    cuLaunchGridAsync(handle, width, height, CUstream::NULL)
}

pub(crate) fn cuLaunchGridAsync(handle: CUfunction, width: c_int, height: c_int, stream: CUstream) -> Done {
    let function = function(handle)?;
    if width <= 0 || height <= 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (block, shared_bytes, mut arguments) = {
        let launch = function.legacy_launch();
        (launch.block, launch.shared_bytes, launch.arguments.clone())
    };
    let mut count = arguments.len();
    // The list `extra` of `cuLaunchKernel`, which passes all arguments in one buffer.
    let mut extra = [
        core::ptr::without_provenance_mut(1),
        arguments.as_mut_ptr().cast(),
        core::ptr::without_provenance_mut(2),
        (&raw mut count).cast(),
        core::ptr::null_mut(),
    ];
    launches::cuLaunchKernel(
        NullStream::Legacy,
        handle,
        width as c_uint,
        height as c_uint,
        1,
        block[0],
        block[1],
        block[2],
        shared_bytes,
        stream,
        core::ptr::null_mut(),
        extra.as_mut_ptr(),
    )
}
