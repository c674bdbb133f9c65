//! Stream-ordered allocations and frees.

use aliquot_abi::cuda::{CUdeviceptr, CUmemoryPool, CUresult, CUstream, NullStream};

use crate::Done;
use crate::arena::Use;
use crate::caller::{not_null, put};
use crate::capture::{self, Issue};
use crate::graph_memory;
use crate::graph_nodes::NodeKind;
use crate::imported::{self, Origin};
use crate::memory::{self, device_of};
use crate::pool_settings::current_pool;
use crate::pools::{self, Pool, pool};
use crate::queue::{self, Work};
use crate::streams::{Stream, stream};

fn allocate(target: *mut CUdeviceptr, bytes: usize, pool: &'static Pool, stream: &'static Stream) -> Done {
    not_null(target)?;
    // Only the process that made a pool can allocate from it.
    if bytes == 0 || pool.source.is_some() {
        return Err(CUresult::INVALID_VALUE);
    }
    if capture::is_capturing(stream)? {
        return put(target, capture::allocate(stream, pool.properties, bytes as u64)?);
    }
    put(target, pool.take(bytes as u64, stream.id)?)
}

pub(crate) fn cuMemAllocAsync(null: NullStream, target: *mut CUdeviceptr, bytes: usize, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    allocate(target, bytes, pool(current_pool(stream.owner.device()))?, stream)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    null: NullStream,
    target: *mut CUdeviceptr,
    bytes: usize,
    handle: CUmemoryPool,
    stream_handle: CUstream,
) -> Done {
    let stream = stream(null, stream_handle)?;
    allocate(target, bytes, pool(handle)?, stream)
}

pub(crate) fn cuMemFreeAsync(null: NullStream, address: CUdeviceptr, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    if address == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if capture::is_capturing(stream)? {
        // A captured free must be of memory that a graph allocated.
        graph_memory::at(address).ok_or(CUresult::INVALID_VALUE)?;
        if let Issue::Captured = capture::issue(stream, || NodeKind::MemoryFree(address))? {
            return Ok(());
        }
    }
    free_in_stream(stream, address)
}

/// Frees memory when the stream reaches this operation. From now on it cannot be freed again.
fn free_in_stream(stream: &'static Stream, address: u64) -> Done {
    if let Some(memory) = graph_memory::at(address) {
        return memory.free_in_stream(stream);
    }
    if imported::around(address).is_some_and(|range| range.start == address && range.origin == Origin::Pool) {
        let effect = Box::new(move || {
            imported::close(address, Origin::Pool);
        });
        queue::submit(stream, Work::Task { duration_ns: 0, effect: Some(effect) }, false);
        return Ok(());
    }
    let device = device_of(address).ok_or(CUresult::INVALID_VALUE)?;
    let effect: Box<dyn FnOnce() + Send> = if memory::begin_free(device, address) {
        // It is gone already if its context has ended meanwhile.
        Box::new(move || _ = memory::give_back(address, &[Use::Freeing]))
    } else {
        let extent = pools::begin_free(device, address)?;
        let owed = pools::announce_free(&extent, stream.id);
        Box::new(move || pools::end_free(device, &extent, &owed))
    };
    queue::submit(stream, Work::Task { duration_ns: 0, effect: Some(effect) }, false);
    Ok(())
}

/// Frees memory of a stream, of a graph, or of another process's pool, without a stream.
pub(crate) fn free_at_once(address: u64) -> Done {
    if let Some(memory) = graph_memory::at(address) {
        return memory.free_at_once();
    }
    if [Origin::Pool, Origin::External].into_iter().any(|origin| imported::close(address, origin)) {
        return Ok(());
    }
    let device = device_of(address).ok_or(CUresult::INVALID_VALUE)?;
    let extent = pools::begin_free(device, address)?;
    pools::end_free(device, &extent, &pools::announce_free(&extent, 0));
    pools::trim_after_synchronize(device);
    Ok(())
}
