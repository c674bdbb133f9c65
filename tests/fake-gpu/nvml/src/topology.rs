//! The connections of devices, from the configuration: each NVLink peer is one link. All other links of a device that
//! is connected to a switch lead there.

use core::ffi::{c_uint, c_ulong};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlPciInfo_t, nvmlReturn_t};
use aliquot_fake_machine::DeviceConfig;

use crate::Done;
use crate::caller::put;
use crate::devices::pci_info;
use crate::session::{device, index_of, machine};

const LINKS_MAX: c_uint = 18;
const LINK_VERSION: c_uint = 4;
const LINK_CAPABILITIES: c_uint = 6;
/// Topology levels: the devices share a NUMA node, or only the system.
const TOPOLOGY_NODE: c_uint = 40;
const TOPOLOGY_SYSTEM: c_uint = 50;
const P2P_OK: c_uint = 0;
const P2P_NOT_SUPPORTED: c_uint = 5;
const P2P_CAPABILITIES: c_uint = 5;

/// The PCI bus of the switch.
const SWITCH_BUS: c_uint = 0xf0;

/// The device or switch at the far end of a link.
#[derive(Clone, Copy)]
enum FarEnd {
    Device(usize),
    Switch,
}

/// The other end of a link, if the link exists.
fn far_end(handle: nvmlDevice_t, link: c_uint) -> Done<Option<FarEnd>> {
    let device = device(handle)?;
    if link >= LINKS_MAX {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let peer = device.nvlink.get(link as usize).copied().map(FarEnd::Device);
    Ok(peer.or(device.nvswitch.then_some(FarEnd::Switch)))
}

/// As [`far_end`], but fails if the link does not exist.
fn far_end_of_link(handle: nvmlDevice_t, link: c_uint) -> Done<FarEnd> {
    far_end(handle, link)?.ok_or(nvmlReturn_t::NOT_SUPPORTED)
}

pub(crate) fn nvmlDeviceGetNvLinkState(handle: nvmlDevice_t, link: c_uint, active: *mut c_uint) -> Done {
    let device = device(handle)?;
    if device.nvlink.is_empty() && !device.nvswitch {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    put(active, c_uint::from(far_end(handle, link)?.is_some()))
}

pub(crate) fn nvmlDeviceGetNvLinkVersion(handle: nvmlDevice_t, link: c_uint, version: *mut c_uint) -> Done {
    far_end_of_link(handle, link)?;
    put(version, LINK_VERSION)
}

pub(crate) fn nvmlDeviceGetNvLinkCapability(
    handle: nvmlDevice_t,
    link: c_uint,
    capability: c_uint,
    result: *mut c_uint,
) -> Done {
    far_end_of_link(handle, link)?;
    if capability >= LINK_CAPABILITIES {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    put(result, 1)
}

pub(crate) fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t) -> Done {
    let end = far_end_of_link(handle, link)?;
    let devices = &machine()?.config().devices;
    let config = match end {
        FarEnd::Device(peer) => devices[peer].clone(),
        FarEnd::Switch => DeviceConfig { pci: (0, SWITCH_BUS, 0), ..devices[index_of(handle)?].clone() },
    };
    put(pci, pci_info(&config))
}

pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(one: nvmlDevice_t, other: nvmlDevice_t, level: *mut c_uint) -> Done {
    let (first, second) = (device(one)?, device(other)?);
    if index_of(one)? == index_of(other)? {
        return put(level, 0);
    }
    put(level, if first.numa_node == second.numa_node { TOPOLOGY_NODE } else { TOPOLOGY_SYSTEM })
}

pub(crate) fn nvmlDeviceGetP2PStatus(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    capability: c_uint,
    status: *mut c_uint,
) -> Done {
    let (first, second) = (index_of(one)?, index_of(other)?);
    if capability >= P2P_CAPABILITIES {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let (one, other) = (device(one)?, device(other)?);
    let by_switch = one.nvswitch && other.nvswitch;
    let linked = by_switch || one.nvlink.contains(&second) || other.nvlink.contains(&first);
    put(status, if linked { P2P_OK } else { P2P_NOT_SUPPORTED })
}

/// Writes a set of numbers as a bit mask.
fn put_mask(words: c_uint, target: *mut c_ulong, numbers: impl Iterator<Item = usize>) -> Done {
    let mut mask = vec![0 as c_ulong; words as usize];
    if mask.is_empty() {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    for number in numbers {
        if let Some(word) = mask.get_mut(number / c_ulong::BITS as usize) {
            *word |= 1 << (number % c_ulong::BITS as usize);
        }
    }
    mask.into_iter().enumerate().try_for_each(|(index, word)| put(target.wrapping_add(index), word))
}

/// Every CPU of the host counts as near the device.
pub(crate) fn nvmlDeviceGetCpuAffinity(handle: nvmlDevice_t, words: c_uint, mask: *mut c_ulong) -> Done {
    index_of(handle)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    put_mask(words, mask, 0..cpus)
}

pub(crate) fn nvmlDeviceGetMemoryAffinity(
    handle: nvmlDevice_t,
    words: c_uint,
    mask: *mut c_ulong,
    scope: c_uint,
) -> Done {
    let node = device(handle)?.numa_node;
    if scope > 1 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    put_mask(words, mask, std::iter::once(node as usize))
}
