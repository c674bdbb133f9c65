//! Memory locations, as the API names them.

use aliquot_abi::cuda::{CU_MEM_LOCATION_TYPE_DEVICE, CUmemLocation, CUresult};

use crate::Done;
use crate::device::{Device, device};

const HOST: u32 = 2;
const HOST_NUMA: u32 = 3;
const HOST_NUMA_CURRENT: u32 = 4;
/// Maximum number of a machine's NUMA nodes.
const NUMA_NODES_MAX: i32 = 1024;

/// A location of memory.
#[derive(Clone, Copy)]
pub(crate) enum Location {
    Device(&'static Device),
    /// The host, on any NUMA node.
    Host,
}

/// Reads the caller's location.
pub(crate) fn read(location: CUmemLocation) -> Done<Location> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => device(location.id).map(Location::Device),
        HOST | HOST_NUMA_CURRENT => Ok(Location::Host),
        HOST_NUMA if (0..NUMA_NODES_MAX).contains(&location.id) => Ok(Location::Host),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// Whether two names mean the same location. The whole host counts as one.
pub(crate) fn same(left: CUmemLocation, right: CUmemLocation) -> bool {
    let on_device = |location: CUmemLocation| location.kind == CU_MEM_LOCATION_TYPE_DEVICE;
    match (on_device(left), on_device(right)) {
        (true, true) => left.id == right.id,
        (false, false) => (left.kind == 0) == (right.kind == 0),
        _ => false,
    }
}
