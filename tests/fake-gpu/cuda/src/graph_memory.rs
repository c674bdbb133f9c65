//! Memory of graphs. Its address is fixed when the node is made; it takes device memory from a launch to its free.
//!
//! Each device has one pool for it, which keeps its reserve until it is trimmed. Which calls are valid depends on the
//! order of the program's calls (`live`); how much memory is taken depends on the order of the streams (`uses`).

use core::ffi::c_uint;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aliquot_abi::cuda::{CU_MEM_LOCATION_TYPE_DEVICE, CUDA_MEM_ALLOC_NODE_PARAMS, CUmemAccessDesc, CUresult};

use crate::Done;
use crate::arena::{GRANULE_BYTES, Use, round_up};
use crate::caller::get_all;
use crate::device::{Device, device};
use crate::pools::PINNED;
use crate::process::initialised;
use crate::queue::{self, Work};
use crate::streams::Stream;

/// The memory of an allocation node.
pub(crate) struct GraphMemory {
    ordinal: usize,
    parameters: CUDA_MEM_ALLOC_NODE_PARAMS,
    access: Vec<CUmemAccessDesc>,
    state: Mutex<State>,
}

// SAFETY: the pointers among the parameters are stored but never dereferenced; `access` holds what one of them pointed
// to.
unsafe impl Send for GraphMemory {}
// SAFETY: as above; mutable data is behind a mutex.
unsafe impl Sync for GraphMemory {}

#[derive(Default)]
struct State {
    /// Whether a launch has allocated it, and the program has not freed it since.
    live: bool,
    /// Launches that have taken it and whose free has not been reached by a stream.
    uses: usize,
    /// Whether its graph has freed it but keeps it for the next launch.
    kept: bool,
}

/// A known allocation. While it is live it outlives its graph, because the program may still free it.
struct Known {
    memory: Weak<GraphMemory>,
    live: Option<Arc<GraphMemory>>,
}

static ALLOCATIONS: Mutex<BTreeMap<u64, Known>> = Mutex::new(BTreeMap::new());

fn allocations() -> MutexGuard<'static, BTreeMap<u64, Known>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The graph memory at an address.
pub(crate) fn at(address: u64) -> Option<Arc<GraphMemory>> {
    allocations().get(&address)?.memory.upgrade()
}

impl GraphMemory {
    /// Makes the memory of a node; its address becomes one of the parameters.
    pub(crate) fn new(parameters: CUDA_MEM_ALLOC_NODE_PARAMS) -> Done<Arc<GraphMemory>> {
        let properties = &parameters.pool_props;
        let kind: c_uint = properties.location.kind;
        if kind != CU_MEM_LOCATION_TYPE_DEVICE || properties.alloc_kind != PINNED || properties.handle_types != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let device = device(properties.location.id)?;
        if parameters.bytesize == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut access = get_all(parameters.access_descs, parameters.access_desc_count)?;
        for description in &access {
            let other = crate::device::device(description.location.id)?;
            if other.ordinal != device.ordinal && !crate::device::linked(device, other) {
                return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
            }
        }
        let bytes = parameters.bytesize as u64;
        let (dptr, _) = device.arena.take(bytes, 0, Use::Graph).ok_or(CUresult::OUT_OF_MEMORY)?;
        let access_descs = if access.is_empty() { core::ptr::null() } else { access.as_mut_ptr().cast_const() };
        let parameters = CUDA_MEM_ALLOC_NODE_PARAMS { access_descs, dptr, ..parameters };
        let state = Mutex::new(State::default());
        let memory = Arc::new(GraphMemory { ordinal: device.ordinal, parameters, access, state });
        allocations().insert(dptr, Known { memory: Arc::downgrade(&memory), live: None });
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.parameters.dptr
    }

    /// The parameters of the node. The access list that they point to lives as long as the node.
    pub(crate) fn parameters(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        debug_assert_eq!(self.access.len(), self.parameters.access_desc_count);
        self.parameters
    }

    pub(crate) fn device(&self) -> &'static Device {
        &initialised().devices[self.ordinal]
    }

    fn charged_bytes(&self) -> u64 {
        round_up(self.parameters.bytesize as u64, GRANULE_BYTES)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state().live
    }

    /// The bytes that a launch would take in addition to those already taken.
    pub(crate) fn missing_bytes(&self) -> u64 {
        if self.state().uses == 0 { self.charged_bytes() } else { 0 }
    }

    /// Takes the memory for a launch.
    pub(crate) fn begin(self: &Arc<Self>) -> Done {
        let mut state = self.state();
        if state.uses == 0 {
            self.device().graph_pool.charge(self.charged_bytes(), None)?;
        }
        state.uses += 1;
        state.live = true;
        drop(state);
        if let Some(known) = allocations().get_mut(&self.address()) {
            known.live = Some(self.clone());
        }
        Ok(())
    }

    /// The work of a graph's own free node. The graph keeps the memory, although other graphs may use it in the
    /// meantime.
    pub(crate) fn end_in_graph_work(self: Arc<Self>) -> Work {
        let effect = move || {
            self.state().kept = true;
            self.end();
        };
        Work::Task { duration_ns: 0, effect: Some(Box::new(effect)) }
    }

    /// Ends the keeping of the memory by the graph that has freed it.
    pub(crate) fn let_go(&self) {
        self.state().kept = false;
    }

    /// Records that the program frees the memory, which it can do once. [`GraphMemory::end`] gives the memory itself
    /// back.
    pub(crate) fn announce_free(&self) -> Done {
        let was_live = core::mem::replace(&mut self.state().live, false);
        // Dropped after the lock, because dropping the last owner takes the lock too.
        let _owner = allocations().get_mut(&self.address()).and_then(|known| known.live.take());
        if was_live { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Gives the memory of one launch back to the pool.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.uses = state.uses.saturating_sub(1);
        if state.uses == 0 {
            self.device().graph_pool.refund(self.charged_bytes());
        }
    }

    /// The work that gives the memory back when a stream reaches it.
    pub(crate) fn end_work(self: Arc<Self>) -> Work {
        Work::Task { duration_ns: 0, effect: Some(Box::new(move || self.end())) }
    }

    pub(crate) fn free_in_stream(self: Arc<Self>, stream: &'static Stream) -> Done {
        self.announce_free()?;
        queue::submit(stream, self.end_work(), false);
        Ok(())
    }

    pub(crate) fn free_at_once(&self) -> Done {
        self.announce_free()?;
        self.end();
        Ok(())
    }
}

/// Bytes of a device that belong to graphs: used ones, and freed ones that graphs keep. Graphs that do not run at the
/// same time may share memory.
pub(crate) fn used_bytes(device: &Device) -> u64 {
    let usage = device.graph_pool.usage();
    let kept = kept_on(device).iter().map(|memory| memory.charged_bytes()).sum::<u64>();
    (usage.used_bytes + kept).min(usage.reserved_bytes)
}

/// The memory that graphs have freed but keep.
fn kept_on(device: &Device) -> Vec<Arc<GraphMemory>> {
    let all = allocations().values().filter_map(|known| known.memory.upgrade()).collect::<Vec<_>>();
    let is_kept = |memory: &Arc<GraphMemory>| {
        let state = memory.state();
        memory.ordinal == device.ordinal && state.kept && state.uses == 0
    };
    all.into_iter().filter(is_kept).collect()
}

/// Gives back the memory that no graph uses now.
pub(crate) fn trim(device: &Device) {
    kept_on(device).iter().for_each(|memory| memory.let_go());
    device.graph_pool.trim_to(0);
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        allocations().remove(&self.address());
        self.device().arena.give_back(self.address(), |extent| extent.usage == Use::Graph);
    }
}
