//! Occupancy: how many blocks of a kernel fit on an SM, limited by threads, blocks and shared memory.

use core::ffi::{c_int, c_uint, c_void};

use aliquot_abi::cuda::{CUfunction, CUlaunchConfig, CUresult};

use crate::Done;
use crate::attributes::SHARED_MEMORY_PER_BLOCK_OPTIN;
use crate::caller::{get, get_all, not_null, put};
use crate::kernels::{THREADS_PER_BLOCK_MAX, function};

const THREADS_PER_SM: c_int = 2048;
const BLOCKS_PER_SM_MAX: c_int = 32;
const SHARED_MEMORY_PER_SM: usize = 228 << 10;
/// Shared memory of each block that the system reserves.
const SHARED_MEMORY_RESERVED: usize = 1 << 10;

fn blocks_per_sm(block_size: c_int, shared_bytes: usize) -> Done<c_int> {
    if block_size <= 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if block_size > THREADS_PER_BLOCK_MAX || shared_bytes > SHARED_MEMORY_PER_BLOCK_OPTIN as usize {
        return Ok(0);
    }
    let by_shared = SHARED_MEMORY_PER_SM / (shared_bytes + SHARED_MEMORY_RESERVED);
    Ok((THREADS_PER_SM / block_size).min(BLOCKS_PER_SM_MAX).min(by_shared as c_int))
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    handle: CUfunction,
    block_size: c_int,
    shared_bytes: usize,
) -> Done {
    function(handle)?;
    put(blocks, blocks_per_sm(block_size, shared_bytes)?)
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    handle: CUfunction,
    block_size: c_int,
    shared_bytes: usize,
    flags: c_uint,
) -> Done {
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, block_size, shared_bytes)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSize(
    grid_size: *mut c_int,
    block_size: *mut c_int,
    handle: CUfunction,
    shared_bytes_of: *mut c_void,
    shared_bytes: usize,
    block_size_limit: c_int,
) -> Done {
    let function = function(handle)?;
    not_null(grid_size)?;
    not_null(block_size)?;
    if block_size_limit < 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let shared_bytes_for = |size: c_int| {
        if shared_bytes_of.is_null() {
            return shared_bytes;
        }
        // SAFETY: by the API's contract the caller passes a function of this type, or null.
        let shared_bytes_of: unsafe extern "C" fn(c_int) -> usize = unsafe { core::mem::transmute(shared_bytes_of) };
        // SAFETY: by the API's contract the function may be called with any block size.
        unsafe { shared_bytes_of(size) }
    };
    let limit = if block_size_limit == 0 { THREADS_PER_BLOCK_MAX } else { block_size_limit.min(THREADS_PER_BLOCK_MAX) };
    let mut best = (0, limit.min(32), 0);
    for size in (1..=limit / 32).map(|warps| warps * 32).rev() {
        let blocks = blocks_per_sm(size, shared_bytes_for(size))?;
        if blocks * size > best.0 {
            best = (blocks * size, size, blocks);
        }
    }
    put(grid_size, best.2 * function.module.owner.device().config.sm_count as c_int)?;
    put(block_size, best.1)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid_size: *mut c_int,
    block_size: *mut c_int,
    handle: CUfunction,
    shared_bytes_of: *mut c_void,
    shared_bytes: usize,
    block_size_limit: c_int,
    flags: c_uint,
) -> Done {
    if flags > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    cuOccupancyMaxPotentialBlockSize(grid_size, block_size, handle, shared_bytes_of, shared_bytes, block_size_limit)
}

pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    handle: CUfunction,
    blocks: c_int,
    block_size: c_int,
) -> Done {
    function(handle)?;
    if blocks <= 0 || blocks > blocks_per_sm(block_size, 0)? {
        return Err(CUresult::INVALID_VALUE);
    }
    let share = SHARED_MEMORY_PER_SM / blocks as usize - SHARED_MEMORY_RESERVED;
    put(bytes, share.min(SHARED_MEMORY_PER_BLOCK_OPTIN as usize))
}

/// Maximum number of blocks of a cluster, on any device with clusters.
const CLUSTER_BLOCKS_MAX: c_uint = 8;
const FIRST_CAPABILITY_WITH_CLUSTERS: u32 = 9;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER_DIMENSION: c_uint = 4;

/// `CUlaunchAttribute`: its id and its value.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchAttribute {
    id: c_uint,
    pad: c_uint,
    value: [c_uint; 16],
}

/// A launch's configuration, how many of its blocks fit on an SM, and the number of SMs. Fails on a device without
/// clusters.
fn clustered(handle: CUfunction, config: *const CUlaunchConfig) -> Done<(CUlaunchConfig, c_int, c_int)> {
    let device = function(handle)?.module.owner.device();
    let config = get(config)?;
    if device.config.compute_capability.0 < FIRST_CAPABILITY_WITH_CLUSTERS {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let threads = config.block_dim.iter().try_fold(1_u32, |product, &extent| product.checked_mul(extent));
    let threads = threads.and_then(|threads| c_int::try_from(threads).ok()).ok_or(CUresult::INVALID_VALUE)?;
    let blocks = blocks_per_sm(threads, config.shared_mem_bytes as usize)?;
    Ok((config, blocks, device.config.sm_count as c_int))
}

pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    size: *mut c_int,
    handle: CUfunction,
    config: *const CUlaunchConfig,
) -> Done {
    let (_, blocks, _) = clustered(handle, config)?;
    put(size, if blocks == 0 { 0 } else { CLUSTER_BLOCKS_MAX as c_int })
}

/// How many clusters can run at once, with the cluster size in the launch's attributes.
pub(crate) fn cuOccupancyMaxActiveClusters(
    clusters: *mut c_int,
    handle: CUfunction,
    config: *const CUlaunchConfig,
) -> Done {
    let (config, blocks, sm_count) = clustered(handle, config)?;
    let attributes = get_all(config.attrs.cast::<LaunchAttribute>(), config.num_attrs as usize)?;
    let dimension = attributes.iter().find(|attribute| attribute.id == CLUSTER_DIMENSION);
    let [x, y, z] = dimension.map_or([1; 3], |attribute| [attribute.value[0], attribute.value[1], attribute.value[2]]);
    let size = x.checked_mul(y).and_then(|area| area.checked_mul(z)).ok_or(CUresult::INVALID_VALUE)?;
    if !(1..=CLUSTER_BLOCKS_MAX).contains(&size) {
        return Err(CUresult::INVALID_VALUE);
    }
    put(clusters, blocks * sm_count / size as c_int)
}
