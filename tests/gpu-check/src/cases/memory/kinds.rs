//! The kinds of memory that a program can ask for.

use std::ptr;

use aliquot_abi::cuda::{
    CU_MEM_LOCATION_TYPE_DEVICE, CU_STREAM_PER_THREAD, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUarray,
    CUmemAllocationProp, CUmemLocation, CUmemPoolProps, CUmemoryPool, CUmipmappedArray, CUresult, CUstream, c_uint,
};

use crate::cuda::{Cuda, CudaError, Done, call};

/// A kind of memory.
pub(in crate::cases) struct Kind {
    /// The function that allocates it.
    pub(in crate::cases) name: &'static str,
    /// Sizes must be multiples of this.
    pub(in crate::cases) granule_bytes: u64,
    /// The driver may take this much more than the calculated size.
    pub(in crate::cases) slack_bytes: u64,
    /// The number and name of the device attribute that tells whether the device has such memory.
    needs: Option<(c_uint, &'static str)>,
    /// Allocates a number of bytes.
    pub(in crate::cases) take: fn(&Cuda, u64) -> Done<Held>,
}

/// Allocated memory.
pub(in crate::cases) struct Held {
    /// Frees the memory.
    pub(in crate::cases) give_back: Box<dyn FnOnce(&Cuda) -> Done>,
}

impl Held {
    fn new(give_back: impl FnOnce(&Cuda) -> Done + 'static) -> Done<Held> {
        Ok(Held { give_back: Box::new(give_back) })
    }
}

impl Kind {
    /// Whether it is laid out as an array, which takes an unknown amount of memory beside its elements.
    pub(in crate::cases) fn is_array(&self) -> bool {
        self.slack_bytes == ARRAY_SLACK_BYTES
    }

    /// Why the device has no such memory; `None` if it has.
    pub(in crate::cases) fn missing(&self, cuda: &Cuda) -> Option<String> {
        let (attribute, name) = self.needs?;
        match cuda.attribute(attribute) {
            Ok(0) => Some(format!("the device has no {name}")),
            Err(CudaError { result: CUresult::INVALID_VALUE, .. }) => Some(format!("the driver knows no {name}")),
            _ => None,
        }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The driver takes memory in pages of 2 MiB, and the node manager counts the difference.
const PAGE_SLACK_BYTES: u64 = 4 * MIB;
/// Arrays are laid out in blocks, and mapped in pages, of the device.
const ARRAY_SLACK_BYTES: u64 = 32 * MIB;
/// Pools grow in pieces of 32 MiB.
const POOL_SLACK_BYTES: u64 = 36 * MIB;
const ATTACH_GLOBAL: c_uint = 1;
const FORMAT_UNSIGNED_INT8: c_uint = 1;
const FORMAT_FLOAT: c_uint = 0x20;
/// The widest row that every device supports, with elements of 16 bytes, so that the number of rows is within limits
/// too.
const MIPMAP_ROW_ELEMENTS: u64 = 16 * KIB;
const MIPMAP_ROW_BYTES: u64 = MIPMAP_ROW_ELEMENTS * 16;
const ALLOCATION_PINNED: c_uint = 1;
const MANAGED_MEMORY: Option<(c_uint, &str)> = Some((83, "managed memory"));
const VIRTUAL_MEMORY: Option<(c_uint, &str)> = Some((102, "virtual memory management"));
const POOLS: Option<(c_uint, &str)> = Some((115, "memory pools"));

/// All kinds of memory.
pub(in crate::cases) const KINDS: &[Kind] = &[
    Kind { name: "cuMemAlloc", granule_bytes: 1, slack_bytes: PAGE_SLACK_BYTES, needs: None, take: alloc },
    Kind { name: "cuMemAllocPitch", granule_bytes: MIB, slack_bytes: PAGE_SLACK_BYTES, needs: None, take: alloc_pitch },
    Kind {
        name: "cuMemAllocManaged",
        granule_bytes: 1,
        slack_bytes: PAGE_SLACK_BYTES,
        needs: MANAGED_MEMORY,
        take: alloc_managed,
    },
    Kind { name: "cuMemAllocAsync", granule_bytes: 1, slack_bytes: POOL_SLACK_BYTES, needs: POOLS, take: alloc_async },
    Kind {
        name: "cuMemAllocAsync_ptsz",
        granule_bytes: 1,
        slack_bytes: POOL_SLACK_BYTES,
        needs: POOLS,
        take: alloc_async_per_thread,
    },
    Kind {
        name: "cuMemAllocFromPoolAsync",
        granule_bytes: 1,
        slack_bytes: POOL_SLACK_BYTES,
        needs: POOLS,
        take: alloc_from_pool,
    },
    Kind { name: "cuArrayCreate", granule_bytes: 16 * KIB, slack_bytes: ARRAY_SLACK_BYTES, needs: None, take: array },
    Kind { name: "cuArray3DCreate", granule_bytes: MIB, slack_bytes: ARRAY_SLACK_BYTES, needs: None, take: array_3d },
    Kind {
        name: "cuMipmappedArrayCreate",
        granule_bytes: MIPMAP_ROW_BYTES,
        slack_bytes: ARRAY_SLACK_BYTES,
        needs: None,
        take: mipmap,
    },
    Kind {
        name: "cuMemCreate",
        granule_bytes: 2 * MIB,
        slack_bytes: PAGE_SLACK_BYTES,
        needs: VIRTUAL_MEMORY,
        take: create,
    },
];

fn alloc(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let address = cuda.allocate(bytes)?;
    Held::new(move |cuda| cuda.free(address))
}

fn alloc_pitch(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let (mut address, mut pitch) = (0, 0);
    let (width, height) = (MIB as usize, (bytes / MIB) as usize);
    // SAFETY: the outputs are live locals.
    unsafe { call!(cuda, cuMemAllocPitch_v2(&mut address, &mut pitch, width, height, 4))? };
    Held::new(move |cuda| cuda.free(address))
}

fn alloc_managed(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let mut address = 0;
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuMemAllocManaged(&mut address, bytes as usize, ATTACH_GLOBAL))? };
    Held::new(move |cuda| cuda.free(address))
}

fn alloc_async(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let (stream, mut address) = (cuda.stream()?, 0);
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuMemAllocAsync(&mut address, bytes as usize, stream))? };
    cuda.finish(stream)?;
    Held::new(move |cuda| {
        // SAFETY: the driver checks the address.
        unsafe { call!(cuda, cuMemFreeAsync(address, stream))? };
        cuda.finish(stream)
    })
}

fn alloc_async_per_thread(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let mut address = 0;
    // SAFETY: the output is a live local; a null stream is this thread's own default stream here.
    unsafe { call!(cuda, cuMemAllocAsync_ptsz(&mut address, bytes as usize, CUstream::NULL))? };
    cuda.finish(CU_STREAM_PER_THREAD)?;
    Held::new(move |cuda| {
        // SAFETY: the driver checks the address.
        unsafe { call!(cuda, cuMemFreeAsync_ptsz(address, CUstream::NULL))? };
        cuda.finish(CU_STREAM_PER_THREAD)
    })
}

fn alloc_from_pool(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let (stream, mut pool, mut address) = (cuda.stream()?, CUmemoryPool::NULL, 0);
    let properties = CUmemPoolProps {
        alloc_kind: ALLOCATION_PINNED,
        handle_types: 0,
        location: on(cuda),
        win32_security_attributes: ptr::null_mut(),
        max_size_bytes: 0,
        reserved: [0; 56],
    };
    // SAFETY: the properties live during the call; the output is a live local.
    unsafe { call!(cuda, cuMemPoolCreate(&mut pool, &properties))? };
    // SAFETY: the output is a live local.
    let taken = unsafe { call!(cuda, cuMemAllocFromPoolAsync(&mut address, bytes as usize, pool, stream)) };
    if let Err(error) = taken.and_then(|()| cuda.finish(stream)) {
        // SAFETY: the pool is not used any more.
        unsafe { call!(cuda, cuMemPoolDestroy(pool))? };
        return Err(error);
    }
    Held::new(move |cuda| {
        // SAFETY: the driver checks the address.
        unsafe { call!(cuda, cuMemFreeAsync(address, stream))? };
        cuda.finish(stream)?;
        // SAFETY: the pool is not used any more.
        unsafe { call!(cuda, cuMemPoolDestroy(pool)) }
    })
}

/// Rows of 16384 elements of one byte, which every device supports.
const ROW_BYTES: u64 = 16 * KIB;

fn array(cuda: &Cuda, bytes: u64) -> Done<Held> {
    // A two-dimensional array has at most 32768 rows on the oldest devices.
    const ROWS_MAX: u64 = 32_768;
    let mut rows = bytes / ROW_BYTES;
    let mut held: Vec<CUarray> = Vec::new();
    while rows > 0 {
        let height = rows.min(ROWS_MAX) as usize;
        let shape =
            CUDA_ARRAY_DESCRIPTOR { width: ROW_BYTES as usize, height, format: FORMAT_UNSIGNED_INT8, num_channels: 1 };
        let mut array = CUarray::NULL;
        // SAFETY: the shape lives during the call; the output is a live local.
        if let Err(error) = unsafe { call!(cuda, cuArrayCreate_v2(&mut array, &shape)) } {
            destroy_arrays(cuda, held)?;
            return Err(error);
        }
        held.push(array);
        rows -= height as u64;
    }
    Held::new(move |cuda| destroy_arrays(cuda, held))
}

fn destroy_arrays(cuda: &Cuda, arrays: Vec<CUarray>) -> Done {
    // SAFETY: nothing uses the arrays any more.
    arrays.into_iter().try_for_each(|array| unsafe { call!(cuda, cuArrayDestroy(array)) })
}

fn array_3d(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let mut array = CUarray::NULL;
    let shape = shape_3d(1024, 1024, (bytes / MIB) as usize);
    // SAFETY: the shape lives during the call; the output is a live local.
    unsafe { call!(cuda, cuArray3DCreate_v2(&mut array, &shape))? };
    Held::new(move |cuda| destroy_arrays(cuda, vec![array]))
}

fn mipmap(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let mut array = CUmipmappedArray::NULL;
    let shape = CUDA_ARRAY3D_DESCRIPTOR {
        format: FORMAT_FLOAT,
        num_channels: 4,
        ..shape_3d(MIPMAP_ROW_ELEMENTS as usize, (bytes / MIPMAP_ROW_BYTES) as usize, 0)
    };
    // SAFETY: the shape lives during the call; the output is a live local.
    unsafe { call!(cuda, cuMipmappedArrayCreate(&mut array, &shape, 1))? };
    // SAFETY: nothing uses the array any more.
    Held::new(move |cuda| unsafe { call!(cuda, cuMipmappedArrayDestroy(array)) })
}

fn shape_3d(width: usize, height: usize, depth: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format: FORMAT_UNSIGNED_INT8, num_channels: 1, flags: 0 }
}

fn create(cuda: &Cuda, bytes: u64) -> Done<Held> {
    let mut handle = 0;
    // SAFETY: the properties live during the call; the output is a live local.
    unsafe { call!(cuda, cuMemCreate(&mut handle, bytes as usize, &allocation_properties(cuda), 0))? };
    // SAFETY: the driver checks the handle.
    Held::new(move |cuda| unsafe { call!(cuda, cuMemRelease(handle)) })
}

/// Properties of plain device memory, for `cuMemCreate`.
pub(in crate::cases) fn allocation_properties(cuda: &Cuda) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: 0,
        location: on(cuda),
        win32_handle_meta_data: ptr::null_mut(),
        alloc_flags: [0; 8],
    }
}

fn on(cuda: &Cuda) -> CUmemLocation {
    CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: cuda.device }
}
