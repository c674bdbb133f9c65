//! Accounting, which is enabled: it contains the processes that use a device now, and no ended ones.

use core::ffi::{c_uint, c_void};

use aliquot_abi::nvml::{nvmlAccountingStats_t, nvmlDevice_t, nvmlReturn_t};

use crate::Done;
use crate::caller::{put, put_list};
use crate::processes::running;
use crate::session::{index_of, not_supported};

const ENABLED: c_uint = 1;
/// Maximum number of processes in the buffer.
const BUFFER_SIZE: c_uint = 4000;

pub(crate) fn nvmlDeviceGetAccountingMode(handle: nvmlDevice_t, mode: *mut c_uint) -> Done {
    index_of(handle)?;
    put(mode, ENABLED)
}

pub(crate) fn nvmlDeviceGetAccountingBufferSize(handle: nvmlDevice_t, size: *mut c_uint) -> Done {
    index_of(handle)?;
    put(size, BUFFER_SIZE)
}

pub(crate) fn nvmlDeviceGetAccountingPids(handle: nvmlDevice_t, count: *mut c_uint, pids: *mut c_uint) -> Done {
    put_list(count, pids, &running(handle)?.map(|process| process.pid).collect::<Vec<_>>())
}

pub(crate) fn nvmlDeviceGetAccountingStats(
    handle: nvmlDevice_t,
    pid: c_uint,
    stats: *mut nvmlAccountingStats_t,
) -> Done {
    let process = running(handle)?.find(|process| process.pid == pid).ok_or(nvmlReturn_t::NOT_FOUND)?;
    let kept = nvmlAccountingStats_t {
        gpu_utilization: process.utilization_percent,
        max_memory_usage: process.memory_bytes,
        is_running: 1,
        ..Default::default()
    };
    put(stats, kept)
}

/// Exists only in later drivers than the simulated one.
pub(crate) fn nvmlDeviceGetAccountingStats_v2(handle: nvmlDevice_t, _stats: *mut c_void) -> Done {
    not_supported(handle)
}
