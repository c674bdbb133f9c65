//! Structures that the driver API takes by pointer, and checks of their layout.

mod nodes;

pub use nodes::*;

use super::{
    CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CUarray, CUdevice, CUdeviceptr,
    CUfunction, CUstream, c_int, c_uint, c_void,
};

/// A device's UUID.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUuuid {
    /// The sixteen bytes, in the order in which the UUID is written.
    pub bytes: [u8; 16],
}

/// Where memory lies.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUmemLocation {
    /// `CUmemLocationType`.
    pub kind: c_uint,
    /// The device's ordinal, or the NUMA node, as `kind` says.
    pub id: c_int,
}

impl CUmemLocation {
    /// The device whose memory this is; `None` for memory of the host, and for kinds that no header knows.
    #[must_use]
    pub const fn device(self) -> Option<CUdevice> {
        match self.kind {
            CU_MEM_LOCATION_TYPE_DEVICE => Some(self.id),
            // Here the id consists of two bytes: the device's ordinal, and the number of the part.
            CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => Some(self.id & 0xff),
            _ => None,
        }
    }
}

/// A permission to access a range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAccessDesc {
    /// The device or host.
    pub location: CUmemLocation,
    /// `CUmemAccess_flags`.
    pub flags: c_uint,
}

/// The properties of memory that `cuMemCreate` is to make.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    /// `CUmemAllocationType`.
    pub kind: c_uint,
    /// `CUmemAllocationHandleType` flags.
    pub requested_handle_types: c_uint,
    /// Where the memory shall lie.
    pub location: CUmemLocation,
    /// Not used on Linux.
    pub win32_handle_meta_data: *mut c_void,
    /// Compression, RDMA and usage flags.
    pub alloc_flags: [u8; 8],
}

/// The properties of a pool that `cuMemPoolCreate` is to make.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    /// `CUmemAllocationType`.
    pub alloc_kind: c_uint,
    /// `CUmemAllocationHandleType` flags.
    pub handle_types: c_uint,
    /// Where the memory shall lie.
    pub location: CUmemLocation,
    /// Not used on Linux.
    pub win32_security_attributes: *mut c_void,
    /// Greatest size of the pool in bytes; 0: the driver's choice.
    pub max_size_bytes: usize,
    /// Usage, RDMA flag and reserved bytes.
    pub reserved: [u8; 56],
}

/// A two-dimensional array's shape, in the 32-bit interface before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR_V1 {
    /// Width in elements.
    pub width: c_uint,
    /// Height in elements; 0 for a one-dimensional array.
    pub height: c_uint,
    /// `CUarray_format`.
    pub format: c_uint,
    /// Channels of an element.
    pub num_channels: c_uint,
}

/// A two-dimensional array's shape.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    /// Width in elements.
    pub width: usize,
    /// Height in elements; 0 for a one-dimensional array.
    pub height: usize,
    /// `CUarray_format`.
    pub format: c_uint,
    /// Channels of an element.
    pub num_channels: c_uint,
}

/// A three-dimensional array's shape, in the 32-bit interface before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_V1 {
    /// Width in elements.
    pub width: c_uint,
    /// Height in elements; 0 for a one-dimensional array.
    pub height: c_uint,
    /// Depth in elements or layers; 0 for fewer dimensions.
    pub depth: c_uint,
    /// `CUarray_format`.
    pub format: c_uint,
    /// Channels of an element.
    pub num_channels: c_uint,
    /// `CUDA_ARRAY3D_*` flags.
    pub flags: c_uint,
}

/// A three-dimensional array's shape.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    /// Width in elements.
    pub width: usize,
    /// Height in elements; 0 for a one-dimensional array.
    pub height: usize,
    /// Depth in elements or layers; 0 for fewer dimensions.
    pub depth: usize,
    /// `CUarray_format`.
    pub format: c_uint,
    /// Channels of an element.
    pub num_channels: c_uint,
    /// `CUDA_ARRAY3D_*` flags.
    pub flags: c_uint,
}

/// A launch with attributes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    /// Blocks of the grid in x, y and z.
    pub grid_dim: [c_uint; 3],
    /// Threads of a block in x, y and z.
    pub block_dim: [c_uint; 3],
    /// Dynamic shared memory per block in bytes.
    pub shared_mem_bytes: c_uint,
    /// The stream.
    pub stream: CUstream,
    /// `CUlaunchAttribute`s.
    pub attrs: *mut c_void,
    /// Number of attributes.
    pub num_attrs: c_uint,
}

/// One device's part of a cooperative launch over several devices.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_LAUNCH_PARAMS {
    /// The kernel.
    pub function: CUfunction,
    /// Blocks of the grid in x, y and z.
    pub grid_dim: [c_uint; 3],
    /// Threads of a block in x, y and z.
    pub block_dim: [c_uint; 3],
    /// Dynamic shared memory per block in bytes.
    pub shared_mem_bytes: c_uint,
    /// The stream.
    pub stream: CUstream,
    /// The kernel's arguments.
    pub kernel_params: *mut *mut c_void,
}

/// A two-dimensional copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY2D {
    /// First byte of a row in the source.
    pub src_x_in_bytes: usize,
    /// First row of the source.
    pub src_y: usize,
    /// `CUmemorytype` of the source.
    pub src_memory_type: c_uint,
    /// Source, if it is host memory.
    pub src_host: *const c_void,
    /// Source, if it is device memory.
    pub src_device: CUdeviceptr,
    /// Source, if it is an array.
    pub src_array: CUarray,
    /// Bytes from row to row of the source.
    pub src_pitch: usize,
    /// First byte of a row in the destination.
    pub dst_x_in_bytes: usize,
    /// First row of the destination.
    pub dst_y: usize,
    /// `CUmemorytype` of the destination.
    pub dst_memory_type: c_uint,
    /// Destination, if it is host memory.
    pub dst_host: *mut c_void,
    /// Destination, if it is device memory.
    pub dst_device: CUdeviceptr,
    /// Destination, if it is an array.
    pub dst_array: CUarray,
    /// Bytes from row to row of the destination.
    pub dst_pitch: usize,
    /// Bytes of a row.
    pub width_in_bytes: usize,
    /// Rows.
    pub height: usize,
}

/// A three-dimensional copy.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D {
    /// First byte of a row in the source.
    pub src_x_in_bytes: usize,
    /// First row of the source.
    pub src_y: usize,
    /// First plane of the source.
    pub src_z: usize,
    /// Level of detail of the source.
    pub src_lod: usize,
    /// `CUmemorytype` of the source.
    pub src_memory_type: c_uint,
    /// Source, if it is host memory.
    pub src_host: *const c_void,
    /// Source, if it is device memory.
    pub src_device: CUdeviceptr,
    /// Source, if it is an array.
    pub src_array: CUarray,
    /// Must be null.
    pub reserved0: *mut c_void,
    /// Bytes from row to row of the source.
    pub src_pitch: usize,
    /// Rows of a plane of the source.
    pub src_height: usize,
    /// First byte of a row in the destination.
    pub dst_x_in_bytes: usize,
    /// First row of the destination.
    pub dst_y: usize,
    /// First plane of the destination.
    pub dst_z: usize,
    /// Level of detail of the destination.
    pub dst_lod: usize,
    /// `CUmemorytype` of the destination.
    pub dst_memory_type: c_uint,
    /// Destination, if it is host memory.
    pub dst_host: *mut c_void,
    /// Destination, if it is device memory.
    pub dst_device: CUdeviceptr,
    /// Destination, if it is an array.
    pub dst_array: CUarray,
    /// Must be null.
    pub reserved1: *mut c_void,
    /// Bytes from row to row of the destination.
    pub dst_pitch: usize,
    /// Rows of a plane of the destination.
    pub dst_height: usize,
    /// Bytes of a row.
    pub width_in_bytes: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Planes.
    pub depth: usize,
}

/// A device's properties, as CUDA 2 described them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevprop {
    /// Threads of a block at most.
    pub max_threads_per_block: c_int,
    /// Threads of a block at most in x, y and z.
    pub max_threads_dim: [c_int; 3],
    /// Blocks of a grid at most in x, y and z.
    pub max_grid_size: [c_int; 3],
    /// Shared memory of a block at most, in bytes.
    pub shared_mem_per_block: c_int,
    /// Constant memory in bytes.
    pub total_constant_memory: c_int,
    /// Threads of a warp.
    pub simd_width: c_int,
    /// Greatest pitch in bytes.
    pub mem_pitch: c_int,
    /// Registers of a block at most.
    pub regs_per_block: c_int,
    /// Clock in kHz.
    pub clock_rate: c_int,
    /// Alignment of textures in bytes.
    pub texture_align: c_int,
}

/// One operation of `cuStreamBatchMemOp`: a wait or a write. (Other kinds use the same 48 bytes in another way.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUstreamBatchMemOpParams {
    /// `CUstreamBatchMemOpType`.
    pub operation: c_uint,
    /// The address that is waited on or written.
    pub address: CUdeviceptr,
    /// The value; a 32-bit operation uses the lower half.
    pub value64: u64,
    /// `CUstreamWaitValue_flags` or `CUstreamWriteValue_flags`.
    pub flags: c_uint,
    /// Reserved for the driver.
    pub alias: CUdeviceptr,
    /// Makes room for the larger kinds.
    pub reserved: u64,
}

/// An identifier by which another process opens stream-ordered memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolPtrExportData {
    /// Reserved for the driver.
    pub reserved: [u8; 64],
}

/// An identifier by which another process opens memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    /// Reserved for the driver.
    pub reserved: [u8; 64],
}

/// An identifier by which another process opens an event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcEventHandle {
    /// Reserved for the driver.
    pub reserved: [u8; 64],
}

/// A multicast object: memory of several devices, to which one write goes at once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmulticastObjectProp {
    /// Number of devices.
    pub num_devices: c_uint,
    /// Size in bytes.
    pub size: usize,
    /// `CUmemAllocationHandleType` flags.
    pub handle_types: u64,
    /// Must be 0.
    pub flags: u64,
}

/// A part of a sparse array, and the memory that it gets or loses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUarrayMapInfo {
    /// `CUresourcetype`: an array or a mipmapped array.
    pub resource_type: c_uint,
    /// The array.
    pub resource: *mut c_void,
    /// `CUarraySparseSubresourceType`: a box of a level, or the tail of mip levels.
    pub subresource_type: c_uint,
    /// Aligns the next field to eight bytes.
    pub reserved0: c_uint,
    /// Level, layer, offsets and extents of a box; or layer, a gap, offset and size of a tail.
    pub subresource: [c_uint; 8],
    /// `CUmemOperationType`: map or unmap.
    pub mem_operation_type: c_uint,
    /// `CUmemHandleType`.
    pub mem_handle_type: c_uint,
    /// The physical memory.
    pub mem_handle: u64,
    /// Its first byte.
    pub offset: u64,
    /// Devices on which the operation happens, one bit each.
    pub device_bit_mask: c_uint,
    /// Must be 0.
    pub flags: c_uint,
    /// Must be 0.
    pub reserved: [c_uint; 2],
}

/// A three-dimensional copy between contexts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY3D_PEER {
    /// The copy. In place of the two pointers that must be null it has the contexts of source and destination.
    pub copy: CUDA_MEMCPY3D,
}

/// A part of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevResource {
    /// `CUdevResourceType`.
    pub kind: c_uint,
    pad: c_uint,
    origin: u64,
    internal: [u64; 10],
    /// For multiprocessors: number, minimum, alignment, flags, and domain.
    sms: [c_uint; 5],
    rest: [c_uint; 5],
    next: u64,
}

impl CUdevResource {
    /// A number of multiprocessors. `origin` is stored in the part that is reserved for the driver.
    #[must_use]
    pub const fn of_sms(kind: c_uint, origin: u64, sms: [c_uint; 5]) -> CUdevResource {
        CUdevResource { kind, pad: 0, origin, internal: [0; 10], sms, rest: [0; 5], next: 0 }
    }

    /// Number of multiprocessors, minimum, alignment, flags, and domain.
    #[must_use]
    pub const fn sms(&self) -> [c_uint; 5] {
        self.sms
    }

    /// What the driver stored in its reserved part.
    #[must_use]
    pub const fn origin(&self) -> u64 {
        self.origin
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<CUmemAllocationProp>() == 32 && offset_of!(CUmemAllocationProp, location) == 8);
    assert!(size_of::<CUmemPoolProps>() == 88 && offset_of!(CUmemPoolProps, max_size_bytes) == 24);
    assert!(size_of::<CUDA_ARRAY_DESCRIPTOR>() == 24 && size_of::<CUDA_ARRAY3D_DESCRIPTOR>() == 40);
    assert!(size_of::<CUlaunchConfig>() == 56 && offset_of!(CUlaunchConfig, stream) == 32);
    assert!(size_of::<CUDA_LAUNCH_PARAMS>() == 56 && offset_of!(CUDA_LAUNCH_PARAMS, stream) == 40);
    assert!(size_of::<CUDA_MEMCPY2D>() == 128 && size_of::<CUDA_MEMCPY3D>() == 200);
    assert!(size_of::<CUarrayMapInfo>() == 96 && offset_of!(CUarrayMapInfo, mem_handle) == 64);
    assert!(size_of::<CUmulticastObjectProp>() == 32);
    assert!(size_of::<CUdevResource>() == 144 && offset_of!(CUdevResource, sms) == 96);
    assert!(size_of::<CUdevprop>() == 56 && size_of::<CUstreamBatchMemOpParams>() == 48);
};
