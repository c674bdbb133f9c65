//! Memory of graphs: its address is fixed when the node is made; it counts against the device from launch to free.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aliquot_abi::cuda::CUresult;

use crate::Done;
use crate::arena::{GRANULE_BYTES, Use, round_up};
use crate::device::Device;
use crate::process::{initialised, process};

/// What an allocation node allocates.
pub(crate) struct GraphMemory {
    ordinal: usize,
    address: u64,
    bytes: u64,
    in_use: AtomicBool,
}

static ALLOCATIONS: Mutex<BTreeMap<u64, Weak<GraphMemory>>> = Mutex::new(BTreeMap::new());

fn allocations() -> MutexGuard<'static, BTreeMap<u64, Weak<GraphMemory>>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The graph memory at an address.
pub(crate) fn at(address: u64) -> Option<Arc<GraphMemory>> {
    allocations().get(&address)?.upgrade()
}

impl GraphMemory {
    pub(crate) fn new(ordinal: usize, bytes: u64) -> Done<Arc<GraphMemory>> {
        let device = process()?.devices.get(ordinal).ok_or(CUresult::INVALID_DEVICE)?;
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let address = device.arena.take(bytes, 0, Use::Graph).ok_or(CUresult::OUT_OF_MEMORY)?;
        let memory = Arc::new(GraphMemory { ordinal, address, bytes, in_use: AtomicBool::new(false) });
        allocations().insert(address, Arc::downgrade(&memory));
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    fn device(&self) -> &'static Device {
        &initialised().devices[self.ordinal]
    }

    fn charged_bytes(&self) -> u64 {
        round_up(self.bytes, GRANULE_BYTES)
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// Takes the memory for a launch.
    pub(crate) fn begin(&self) -> Done {
        if self.in_use.swap(true, Ordering::AcqRel) {
            // The launch before has not freed it.
            return Err(CUresult::INVALID_VALUE);
        }
        self.device()
            .graph_pool
            .charge(self.charged_bytes())
            .inspect_err(|_| self.in_use.store(false, Ordering::Release))
    }

    /// Gives the memory back. False if it was not in use.
    pub(crate) fn end(&self) -> bool {
        let was_in_use = self.in_use.swap(false, Ordering::AcqRel);
        if was_in_use {
            let pool = self.device().graph_pool;
            pool.refund(self.charged_bytes());
            pool.trim_to(0);
        }
        was_in_use
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        self.end();
        allocations().remove(&self.address);
        self.device().arena.give_back(self.address, |extent| extent.usage == Use::Graph);
    }
}
