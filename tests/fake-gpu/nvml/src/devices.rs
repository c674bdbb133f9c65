//! The devices and their properties.

use core::ffi::{c_char, c_int, c_uint};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlPciInfo_t, nvmlReturn_t};
use aliquot_fake_machine::DeviceConfig;

use crate::Done;
use crate::caller::{put, put_text, text};
use crate::session::{device, handle, index_of, machine};

/// NVML's number for boards of the NVIDIA brand.
const BRAND_NVIDIA: c_uint = 14;
/// H100 SXM5 and its board.
const PCI_DEVICE_ID: c_uint = 0x2330_10de;
const PCI_SUBSYSTEM_ID: c_uint = 0x16c1_10de;

/// The number of devices with an NVML index. Instances whose GPU is a device of the machine have none; they come after
/// the others.
fn indexed() -> Done<usize> {
    let devices = &machine()?.config().devices;
    Ok(devices.iter().filter(|device| device.gpu.is_none()).count())
}

pub(crate) fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Done {
    put(count, indexed()? as c_uint)
}

pub(crate) fn nvmlDeviceGetCount(count: *mut c_uint) -> Done {
    nvmlDeviceGetCount_v2(count)
}

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, target: *mut nvmlDevice_t) -> Done {
    if index as usize >= indexed()? {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let found = handle(index as usize);
    index_of(found)?;
    put(target, found)
}

pub(crate) fn nvmlDeviceGetHandleByIndex(index: c_uint, target: *mut nvmlDevice_t) -> Done {
    nvmlDeviceGetHandleByIndex_v2(index, target)
}

fn put_found(target: *mut nvmlDevice_t, wanted: impl Fn(usize, &DeviceConfig) -> bool) -> Done {
    let machine = machine()?;
    let mut devices = machine.config().devices.iter().enumerate();
    let found = devices.position(|(index, device)| machine.is_present(index) && wanted(index, device));
    let found = handle(found.ok_or(nvmlReturn_t::NOT_FOUND)?);
    index_of(found)?;
    put(target, found)
}

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, target: *mut nvmlDevice_t) -> Done {
    machine()?;
    let uuid = text(uuid)?;
    put_found(target, |_, device| device.uuid_text().eq_ignore_ascii_case(uuid))
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, target: *mut nvmlDevice_t) -> Done {
    machine()?;
    let id = text(id)?;
    let same = |text: String| text.eq_ignore_ascii_case(id);
    put_found(target, |_, device| same(device.pci_text(4)) || same(device.pci_text(8)))
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId(id: *const c_char, target: *mut nvmlDevice_t) -> Done {
    nvmlDeviceGetHandleByPciBusId_v2(id, target)
}

/// A device's serial number, in the format of real boards.
fn serial(index: usize) -> String {
    format!("{:013}", 1_650_000_000_000_u64 + index as u64)
}

pub(crate) fn nvmlDeviceGetHandleBySerial(number: *const c_char, target: *mut nvmlDevice_t) -> Done {
    machine()?;
    let number = text(number)?;
    put_found(target, |index, _| serial(index) == number)
}

pub(crate) fn nvmlDeviceGetName(handle: nvmlDevice_t, name: *mut c_char, length: c_uint) -> Done {
    put_text(name, length, &device(handle)?.name)
}

pub(crate) fn nvmlDeviceGetIndex(handle: nvmlDevice_t, index: *mut c_uint) -> Done {
    put(index, index_of(handle)? as c_uint)
}

pub(crate) fn nvmlDeviceGetMinorNumber(handle: nvmlDevice_t, minor: *mut c_uint) -> Done {
    if device(handle)?.gpu.is_some() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    put(minor, index_of(handle)? as c_uint)
}

pub(crate) fn nvmlDeviceGetUUID(handle: nvmlDevice_t, uuid: *mut c_char, length: c_uint) -> Done {
    put_text(uuid, length, &device(handle)?.uuid_text())
}

pub(crate) fn nvmlDeviceGetSerial(handle: nvmlDevice_t, number: *mut c_char, length: c_uint) -> Done {
    put_text(number, length, &serial(index_of(handle)?))
}

pub(crate) fn nvmlDeviceGetBrand(handle: nvmlDevice_t, brand: *mut c_uint) -> Done {
    device(handle)?;
    put(brand, BRAND_NVIDIA)
}

/// NVML numbers architectures starting with Kepler. A device's follows from its compute capability.
pub(crate) fn nvmlDeviceGetArchitecture(handle: nvmlDevice_t, architecture: *mut c_uint) -> Done {
    let number = match device(handle)?.compute_capability {
        (5, _) => 3,
        (6, _) => 4,
        (7, 0 | 2) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => return Err(nvmlReturn_t::NOT_SUPPORTED),
    };
    put(architecture, number)
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(handle: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) -> Done {
    let capability = device(handle)?.compute_capability;
    put(major, capability.0 as c_int)?;
    put(minor, capability.1 as c_int)
}

pub(crate) fn nvmlDeviceGetNumGpuCores(handle: nvmlDevice_t, cores: *mut c_uint) -> Done {
    put(cores, device(handle)?.sm_count * 128)
}

fn fixed<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let kept = text.len().min(LENGTH - 1);
    bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    bytes
}

/// A device's PCI address and ids.
pub(crate) fn pci_info(device: &DeviceConfig) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        bus_id_legacy: fixed(&device.pci_text(4)),
        domain: device.pci.0,
        bus: device.pci.1,
        device: device.pci.2,
        pci_device_id: PCI_DEVICE_ID,
        pci_sub_system_id: PCI_SUBSYSTEM_ID,
        bus_id: fixed(&device.pci_text(8)),
    }
}

pub(crate) fn nvmlDeviceGetPciInfo_v3(handle: nvmlDevice_t, pci: *mut nvmlPciInfo_t) -> Done {
    put(pci, pci_info(device(handle)?))
}

/// In the versions before the third, the structure ends before the long bus id.
fn put_short_pci_info(handle: nvmlDevice_t, pci: *mut nvmlPciInfo_t) -> Done {
    let info = pci_info(device(handle)?);
    let words = [info.domain, info.bus, info.device, info.pci_device_id, info.pci_sub_system_id];
    put(pci.cast::<[u8; 16]>(), info.bus_id_legacy)?;
    put(pci.cast::<[u8; 16]>().wrapping_add(1).cast(), words)
}

pub(crate) fn nvmlDeviceGetPciInfo_v2(handle: nvmlDevice_t, pci: *mut nvmlPciInfo_t) -> Done {
    put_short_pci_info(handle, pci)
}

pub(crate) fn nvmlDeviceGetPciInfo(handle: nvmlDevice_t, pci: *mut nvmlPciInfo_t) -> Done {
    put_short_pci_info(handle, pci)
}
