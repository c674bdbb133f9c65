//! Devices: which are visible to this process, and their properties.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUdevice, CUdevprop, CUmemoryPool, CUresult, CUuuid};
use aliquot_fake_machine::{Config, DeviceConfig, Machine};

use crate::Done;
use crate::arena::Arena;
use crate::caller::{get, not_null, put, put_text, text};
use crate::context::{Context, PrimaryContext};
use crate::executor::Executor;
use crate::graph_memory;
use crate::handles;
use crate::pools::Pool;
use crate::process::{Process, initialised, process};

/// A device visible to this process.
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    /// Its index in the machine.
    pub(crate) index: usize,
    pub(crate) config: &'static DeviceConfig,
    pub(crate) arena: Arena,
    accounts: Mutex<()>,
    pub(crate) executor: Executor,
    pub(crate) primary: PrimaryContext,
    /// The pool that comes with the device, and the one that `cuMemAllocAsync` uses.
    pub(crate) default_pool: (CUmemoryPool, &'static Pool),
    pub(crate) current_pool: Mutex<CUmemoryPool>,
    /// The pool of graphs' allocation nodes.
    pub(crate) graph_pool: &'static Pool,
}

impl Device {
    pub(crate) fn new(ordinal: usize, index: usize, config: &'static Config) -> Option<Device> {
        let default_pool = Pool::of_device(ordinal);
        Some(Device {
            ordinal,
            index,
            config: &config.devices[index],
            arena: Arena::new(config.devices[index].memory_bytes, config.allocation_block_bytes)?,
            accounts: Mutex::new(()),
            executor: Executor::new(),
            primary: PrimaryContext::new(),
            default_pool,
            current_pool: Mutex::new(default_pool.0),
            graph_pool: Pool::of_device(ordinal).1,
        })
    }

    /// Reserves `bytes` of the device's memory. If there is not enough, the process's pools first release their unused
    /// reserves.
    pub(crate) fn reserve(&self, bytes: u64) -> Done {
        let member = &initialised().member;
        let taken = member.reserve_memory(self.index, bytes)
            || (crate::pools::trim_in_need(self) && member.reserve_memory(self.index, bytes));
        if taken { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
    }

    /// Held while a context allocates or frees memory, because the memory that this takes or frees depends on shared
    /// blocks.
    pub(crate) fn accounts(&self) -> MutexGuard<'_, ()> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases `bytes` of the device's memory.
    pub(crate) fn release(&self, bytes: u64) {
        initialised().member.release_memory(self.index, bytes);
    }
}

/// Makes the handle of each device's primary context, which stays the same for all lives of the context.
pub(crate) fn make_primary_contexts(process: &'static Process) {
    for device in &process.devices {
        let (handle, context) = handles::register(Context::new_primary(device));
        device.primary.set(handle, context);
    }
}

/// The machine's indices of the devices that `CUDA_VISIBLE_DEVICES` selects. Its entries are indices, or UUIDs or their
/// prefixes. They count up to the first one that names no device; if a device is named twice, no device is visible.
///
/// A GPU in MIG mode is replaced by its instances. If the selection contains an instance, that is the only visible
/// device: a process can use one instance, and no GPU besides it.
pub(crate) fn visible_devices(machine: &Machine, variable: Option<&str>) -> Vec<usize> {
    let config = machine.config();
    let mut visible = Vec::new();
    match variable {
        None => visible.extend((0..config.devices.len()).filter(|&index| is_usable(machine, index))),
        Some(variable) => {
            for entry in variable.split(',').map(str::trim) {
                let gpu = |index: usize| (index < config.devices.len()).then_some(index);
                let index = entry.parse::<usize>().map_or_else(|_| device_by_uuid(config, entry), gpu);
                match index.filter(|&index| is_usable(machine, index)) {
                    Some(index) if visible.contains(&index) => return Vec::new(),
                    Some(index) => visible.push(index),
                    None => break,
                }
            }
        }
    }
    match visible.iter().find(|&&index| config.devices[index].gpu.is_some()) {
        Some(&instance) => vec![instance],
        None => visible,
    }
}

fn is_usable(machine: &Machine, index: usize) -> bool {
    machine.is_present(index) && !machine.is_lost(index) && !machine.is_in_mig_mode(index)
}

fn device_by_uuid(config: &Config, entry: &str) -> Option<usize> {
    let prefix = entry.to_ascii_lowercase();
    if !prefix.starts_with("gpu-") && !prefix.starts_with("mig-") {
        return None;
    }
    let named = |device: &DeviceConfig| device.uuid_text().to_ascii_lowercase().starts_with(&prefix);
    let mut matches = config.devices.iter().enumerate().filter(|(_, device)| named(device));
    let (index, _) = matches.next()?;
    matches.next().is_none().then_some(index)
}

/// The device with this ordinal.
pub(crate) fn device(ordinal: CUdevice) -> Done<&'static Device> {
    let devices = &process()?.devices;
    usize::try_from(ordinal).ok().and_then(|ordinal| devices.get(ordinal)).ok_or(CUresult::INVALID_DEVICE)
}

pub(crate) fn cuDeviceGet(target: *mut CUdevice, ordinal: c_int) -> Done {
    process()?;
    not_null(target)?;
    put(target, device(ordinal)?.ordinal as CUdevice)
}

pub(crate) fn cuDeviceGetCount(count: *mut c_int) -> Done {
    put(count, process()?.devices.len() as c_int)
}

pub(crate) fn cuDeviceGetName(name: *mut c_char, length: c_int, ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    put_text(name, usize::try_from(length).unwrap_or(0), &device.config.name)
}

pub(crate) fn cuDeviceGetUuid(uuid: *mut CUuuid, ordinal: CUdevice) -> Done {
    put(uuid, CUuuid { bytes: device(ordinal)?.config.uuid })
}

pub(crate) fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, ordinal: CUdevice) -> Done {
    cuDeviceGetUuid(uuid, ordinal)
}

pub(crate) fn cuDeviceTotalMem_v2(bytes: *mut usize, ordinal: CUdevice) -> Done {
    put(bytes, device(ordinal)?.config.memory_bytes as usize)
}

pub(crate) fn cuDeviceGetProperties(properties: *mut CUdevprop, ordinal: CUdevice) -> Done {
    device(ordinal)?;
    let value = CUdevprop {
        max_threads_per_block: 1024,
        max_threads_dim: [1024, 1024, 64],
        max_grid_size: [c_int::MAX, 65535, 65535],
        shared_mem_per_block: 48 << 10,
        total_constant_memory: 64 << 10,
        simd_width: 32,
        mem_pitch: c_int::MAX,
        regs_per_block: 65536,
        clock_rate: crate::attributes::CLOCK_KHZ,
        texture_align: 512,
    };
    put(properties, value)
}

pub(crate) fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, ordinal: CUdevice) -> Done {
    let capability = device(ordinal)?.config.compute_capability;
    not_null(minor)?;
    put(major, capability.0 as c_int)?;
    put(minor, capability.1 as c_int)
}

pub(crate) fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    put_text(id, usize::try_from(length).unwrap_or(0), &device.config.pci_text(4))
}

pub(crate) fn cuDeviceGetByPCIBusId(target: *mut CUdevice, id: *const c_char) -> Done {
    let devices = &process()?.devices;
    not_null(target)?;
    let id = text(id)?.to_string_lossy().to_ascii_uppercase();
    let named = |device: &&Device| {
        let (short, long) = (device.config.pci_text(4), device.config.pci_text(8));
        id == short || id == long || format!("0000:{id}") == short || format!("{id}.0") == short
    };
    put(target, devices.iter().find(named).ok_or(CUresult::INVALID_DEVICE)?.ordinal as CUdevice)
}

/// Whether NVLinks lead from one device to the other, directly or through a switch.
pub(crate) fn linked(from: &Device, to: &Device) -> bool {
    let by_switch = from.config.nvswitch && to.config.nvswitch;
    by_switch || from.config.nvlink.contains(&to.index) || to.config.nvlink.contains(&from.index)
}

pub(crate) fn cuDeviceCanAccessPeer(can: *mut c_int, ordinal: CUdevice, peer: CUdevice) -> Done {
    let (from, to) = (device(ordinal)?, device(peer)?);
    put(can, c_int::from(linked(from, to)))
}

pub(crate) fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, from: CUdevice, to: CUdevice) -> Done {
    let (from, to) = (device(from)?, device(to)?);
    if from.index == to.index || !(1..=5).contains(&attribute) {
        return Err(CUresult::INVALID_VALUE);
    }
    put(value, c_int::from(linked(from, to)))
}

pub(crate) fn cuDeviceGetExecAffinitySupport(supported: *mut c_int, kind: c_uint, ordinal: CUdevice) -> Done {
    device(ordinal)?;
    // The only kind is a number of SMs, which needs MPS.
    if kind != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    put(supported, 0)
}

pub(crate) fn cuDeviceGetGraphMemAttribute(ordinal: CUdevice, attribute: c_uint, value: *mut c_void) -> Done {
    let device = device(ordinal)?;
    let usage = device.graph_pool.usage();
    let bytes = match attribute {
        0 => graph_memory::used_bytes(device),
        1 => usage.used_high_bytes,
        2 => usage.reserved_bytes,
        3 => usage.reserved_high_bytes,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    put(value.cast::<u64>(), bytes)
}

pub(crate) fn cuDeviceSetGraphMemAttribute(ordinal: CUdevice, attribute: c_uint, value: *mut c_void) -> Done {
    let pool = device(ordinal)?.graph_pool;
    // Only the high-water marks can be set, and only to 0.
    if !matches!(attribute, 1 | 3) || get(value.cast::<u64>())? != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    pool.reset_high_water(attribute == 1);
    Ok(())
}

pub(crate) fn cuDeviceGraphMemTrim(ordinal: CUdevice) -> Done {
    graph_memory::trim(device(ordinal)?);
    Ok(())
}
