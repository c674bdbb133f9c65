//! The sizes of free pieces: amounts for which it is worth trying whether a request fits.

use std::collections::BTreeSet;

use crate::state::cluster::Cluster;
use crate::state::node::Device;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::quantity::Bytes;

/// The most members of a group that are expected to share one piece.
const SHARERS_MAX: usize = 8;

/// The resource of which pieces are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece<'a> {
    /// CPU of a node, in thousandths of a core.
    Cpu,
    /// Memory of a node, in MiB.
    MemoryMib,
    /// A counted resource of a node, by its name.
    Counted(&'a str),
    /// Time of a device, in thousandths of it.
    DeviceCore,
    /// Memory of a device, in MiB.
    DeviceMemoryMib,
    /// Memory of a device, in thousandths of it.
    DeviceMemoryThousandths,
}

/// The sizes of free pieces that one of these members could be given, their halves, thirds and so on, and the least
/// that the members' namespace allows a claim.
pub(crate) fn pieces(cluster: &Cluster, members: &[ClaimId], of: Piece<'_>) -> BTreeSet<u64> {
    let mib = |bytes: Bytes| bytes.get() >> 20;
    let mut free = BTreeSet::new();
    for (_, node) in cluster.nodes() {
        let devices = node.devices().iter();
        match of {
            Piece::Cpu => free.extend([node.cpu_free().get()]),
            Piece::MemoryMib => free.extend([mib(node.memory_free())]),
            Piece::Counted(name) => free.extend([node.counted_free(name)]),
            Piece::DeviceCore => free.extend(devices.map(|device| u64::from(device.core_free().get()))),
            Piece::DeviceMemoryMib => free.extend(devices.map(|device| mib(device.memory_free()))),
            Piece::DeviceMemoryThousandths => {
                let part = |device: &Device| u64::from(device.memory_free().thousandths_of(device.memory()));
                free.extend(devices.map(part));
            }
        }
    }
    let sharers = 1..=u64::try_from(members.len().clamp(1, SHARERS_MAX)).unwrap_or(1);
    let mut pieces: BTreeSet<u64> =
        free.iter().flat_map(|free| sharers.clone().map(move |sharers| free / sharers)).collect();
    pieces.extend(minima(cluster, members, of).into_iter().flatten());
    pieces
}

/// The least that the members' namespace allows a claim. For devices, the namespace's minimum is for all of them
/// together.
fn minima(cluster: &Cluster, members: &[ClaimId], of: Piece<'_>) -> Option<Vec<u64>> {
    let claim = members.first().and_then(|claim| cluster.claim(*claim))?;
    let range = &cluster.namespace(&claim.namespace)?.limit_range;
    let devices = u64::from(claim.request.device_count().max(1));
    let (minimum, unit) = match of {
        Piece::Cpu => (range.cpu.minimum?, 1),
        Piece::MemoryMib => (range.memory.minimum?, 1 << 20),
        Piece::Counted(_) => return None,
        Piece::DeviceCore => (range.device_core.minimum?, devices),
        Piece::DeviceMemoryMib => (range.device_memory.minimum?, devices << 20),
        Piece::DeviceMemoryThousandths => {
            let device = cluster.nodes().flat_map(|(_, node)| node.devices()).map(|device| device.memory());
            let sizes: BTreeSet<Bytes> = device.filter(|memory| *memory > Bytes::ZERO).collect();
            let minimum = range.device_memory.minimum?.div_ceil(devices);
            let part = |memory: &Bytes| u128::from(minimum).saturating_mul(1000).div_ceil(memory.get().into());
            return Some(sizes.iter().filter_map(|memory| u64::try_from(part(memory)).ok()).collect());
        }
    };
    Some(vec![minimum.div_ceil(unit)])
}
