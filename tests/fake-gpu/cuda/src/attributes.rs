//! `cuDeviceGetAttribute`: the values of an H100 with a recent driver, unless the configuration sets them.

use core::ffi::{c_int, c_uint};

use aliquot_abi::cuda::{CUdevice, CUresult};

use crate::Done;
use crate::caller::put;
use crate::device::{Device, device, linked};
use crate::process::initialised;

/// Clock of the SMs.
pub(crate) const CLOCK_KHZ: c_int = 1_980_000;
/// Maximum dynamic shared memory of a block without opt-in.
pub(crate) const SHARED_MEMORY_PER_BLOCK: c_int = 48 << 10;
/// Maximum dynamic shared memory of a block with opt-in.
pub(crate) const SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 227 << 10;

pub(crate) fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    put(value, attribute_of(device, attribute).ok_or(CUresult::INVALID_VALUE)?)
}

fn has_peer(device: &Device) -> bool {
    let mut others = initialised().devices.iter().filter(|other| other.ordinal != device.ordinal);
    others.any(|other| linked(device, other))
}

/// The maximum extent of a device's textures that `attribute` gives.
pub(crate) fn greatest_extent(device: &Device, attribute: c_uint) -> usize {
    attribute_of(device, attribute).and_then(|extent| usize::try_from(extent).ok()).unwrap_or(0)
}

/// The value of an attribute, by its number in `CUdevice_attribute`.
fn attribute_of(device: &Device, attribute: c_uint) -> Option<c_int> {
    let config = device.config;
    Some(match attribute {
        // Threads of a block, and its extents
        1..=3 => 1024,
        4 => 64,
        // Grid extents
        5 => c_int::MAX,
        6 | 7 => 65535,
        8 => SHARED_MEMORY_PER_BLOCK,
        // Constant memory, warp, pitch, registers, clock, texture alignment
        9 => 64 << 10,
        10 => 32,
        11 => c_int::MAX,
        12 | 82 => 65536,
        13 => CLOCK_KHZ,
        14 => 512,
        // Overlap of copies with kernels, the number of copy engines
        15 => 1,
        40 => 3,
        16 => config.sm_count as c_int,
        // Time limit, integrated, host mapping, compute mode
        17 | 18 => 0,
        19 => 1,
        20 => initialised().config.compute_mode as c_int,
        // Textures
        21 | 22 => 131_072,
        23 => 65536,
        55 | 77 => 32768,
        24..=26 => 16384,
        27 | 28 | 42 | 45 | 46 | 61 | 62 | 63 | 56 | 57 | 66 | 67 => 32768,
        29 | 43 | 64 => 2048,
        47 | 48 => 8192,
        49 => 32768,
        52 | 53 => 32768,
        54 | 68 => 2046,
        58..=60 => 16384,
        65 => 32768,
        69 => 1 << 28,
        70 => 131_072,
        71 => 65000,
        72 => 2_097_120,
        73 | 74 => 32768,
        30 => 512,
        51 => 32,
        44 => 1,
        // Concurrent kernels, ECC
        31 | 32 => 1,
        33 => config.pci.1 as c_int,
        34 => config.pci.2 as c_int,
        50 => config.pci.0 as c_int,
        // TCC driver: Windows only
        35 => 0,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        41 => 1,
        75 => config.compute_capability.0 as c_int,
        76 => config.compute_capability.1 as c_int,
        // Stream priorities, L1 caches
        78..=80 => 1,
        81 => 228 << 10,
        83 => 1,
        // Board with several devices, number of this device
        84 => 0,
        85 => device.index as c_int,
        86 | 88 | 100 | 101 => 0,
        87 => 2,
        // Concurrent managed access, preemption, host pointers of registered memory
        89..=91 => 1,
        // Stream memory operations of version 1: existence, 64 bits, NOR; of version 2: 64 bits, NOR
        92..=94 => c_int::from(initialised().config.stream_mem_ops_v1),
        122 | 123 => 1,
        95 | 96 => 1,
        97 => SHARED_MEMORY_PER_BLOCK_OPTIN,
        98 | 99 => 1,
        // Virtual memory management, with file descriptors as handles for other processes
        102 | 103 => 1,
        104 | 105 => 0,
        106 => 32,
        107 => 0,
        108 => 32 << 20,
        109 => 128 << 20,
        110 | 116 | 117 | 118 => 0,
        111 => 1 << 10,
        // Sparse arrays, registration of read-only memory, timeline semaphores
        112..=114 => 1,
        // Memory pools, and file descriptors as handles for other processes
        115 | 119 => 1,
        // Clusters
        120 => c_int::from(config.compute_capability.0 >= 9),
        // Deferred mapping, DMA buffers, fabric handles, unified function pointers
        121 | 124 | 128 | 133 => 0,
        // Events of other processes, multicast
        125 => 1,
        132 => c_int::from(has_peer(device)),
        126 => 4,
        127 => c_int::from(config.compute_capability.0 >= 9),
        129 => 1,
        130 => 0,
        131 => -1,
        134 => config.numa_node as c_int,
        135..=138 => 0,
        // H100 SXM5 and its board
        139 => 0x2330_10de,
        140 => 0x16c1_10de,
        // Virtual memory and pools of the host, but not between machines
        141 | 142 | 144 | 145 => 1,
        143 | 146..=148 => 0,
        _ => return None,
    })
}
