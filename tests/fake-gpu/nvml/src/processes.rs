//! The processes that use the devices.

use core::ffi::{c_uint, c_void};

use aliquot_abi::nvml::{
    NVML_PROCESS_DETAIL_LIST_V1, NVML_PROCESS_MODE_ALL, NVML_PROCESS_MODE_COMPUTE, NVML_PROCESS_MODE_GRAPHICS,
    NVML_PROCESS_MODE_MPS, nvmlDevice_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, nvmlProcessInfo_t,
    nvmlProcessInfo_v1_t, nvmlReturn_t,
};
use aliquot_fake_machine::ProcessUse;

use crate::Done;
use crate::caller::{get, put, put_list};
use crate::mig::{Instances, instances};
use crate::session::{index_of, machine};

/// The processes visible to the calling process. Processes that have no id in its pid namespace are left out.
pub(crate) fn processes(handle: nvmlDevice_t) -> Done<impl Iterator<Item = ProcessUse>> {
    let processes = machine()?.device_use(index_of(handle)?).processes;
    Ok(processes.into_iter().filter(|process| process.pid != 0))
}

/// The processes with a context or memory on the device.
pub(crate) fn running(handle: nvmlDevice_t) -> Done<impl Iterator<Item = ProcessUse>> {
    Ok(processes(handle)?.filter(|process| process.contexts > 0 || process.memory_bytes > 0))
}

/// How a process uses the device: directly, or as a client of MPS.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ByItself,
    AsMpsClient,
}

/// Those of the running processes that come to the device in this way.
fn running_by(way: Way, handle: nvmlDevice_t) -> Done<impl Iterator<Item = ProcessUse>> {
    let is_theirs = machine()?.config().mps_clients == (way == Way::AsMpsClient);
    Ok(running(handle)?.filter(move |_| is_theirs))
}

fn infos(way: Way, handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_t>> {
    let Instances { gpu, compute } = instances(handle)?;
    let info = |process: ProcessUse| nvmlProcessInfo_t {
        pid: process.pid,
        used_gpu_memory: process.memory_bytes,
        gpu_instance_id: gpu,
        compute_instance_id: compute,
    };
    Ok(running_by(way, handle)?.map(info).collect())
}

fn infos_v1(way: Way, handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_v1_t>> {
    let info = |process: ProcessUse| nvmlProcessInfo_v1_t { pid: process.pid, used_gpu_memory: process.memory_bytes };
    Ok(running_by(way, handle)?.map(info).collect())
}

fn compute_processes(handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_t>> {
    infos(Way::ByItself, handle)
}

fn compute_processes_v1(handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_v1_t>> {
    infos_v1(Way::ByItself, handle)
}

fn mps_clients(handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_t>> {
    infos(Way::AsMpsClient, handle)
}

fn mps_clients_v1(handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_v1_t>> {
    infos_v1(Way::AsMpsClient, handle)
}

/// An empty list: no process renders graphics.
fn none<T>(handle: nvmlDevice_t) -> Done<Vec<T>> {
    index_of(handle)?;
    Ok(Vec::new())
}

/// An entry of a list with details.
fn detail(info: nvmlProcessInfo_t) -> nvmlProcessDetail_v1_t {
    nvmlProcessDetail_v1_t {
        pid: info.pid,
        used_gpu_memory: info.used_gpu_memory,
        gpu_instance_id: info.gpu_instance_id,
        compute_instance_id: info.compute_instance_id,
        used_gpu_cc_protected_memory: 0,
    }
}

/// Writes a list of the third version. The drivers from 535.43 to 535.86 have longer entries there.
fn put_third(count: *mut c_uint, infos: *mut nvmlProcessInfo_t, list: &[nvmlProcessInfo_t]) -> Done {
    if !machine()?.config().long_process_entries {
        return put_list(count, infos, list);
    }
    put_list(count, infos.cast(), &list.iter().copied().map(detail).collect::<Vec<_>>())
}

macro_rules! process_lists {
    ($($name:ident: $info:ty = $list:ident by $put:ident;)*) => {$(
        pub(crate) fn $name(handle: nvmlDevice_t, count: *mut c_uint, infos: *mut $info) -> Done {
            $put(count, infos, &$list(handle)?)
        }
    )*};
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses: nvmlProcessInfo_v1_t = compute_processes_v1 by put_list;
    nvmlDeviceGetComputeRunningProcesses_v2: nvmlProcessInfo_t = compute_processes by put_list;
    nvmlDeviceGetComputeRunningProcesses_v3: nvmlProcessInfo_t = compute_processes by put_third;
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t = none by put_list;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_t = none by put_list;
    nvmlDeviceGetGraphicsRunningProcesses_v3: nvmlProcessInfo_t = none by put_third;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t = mps_clients_v1 by put_list;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_t = mps_clients by put_list;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: nvmlProcessInfo_t = mps_clients by put_third;
}

pub(crate) fn nvmlDeviceGetEncoderSessions(handle: nvmlDevice_t, count: *mut c_uint, _infos: *mut c_void) -> Done {
    index_of(handle)?;
    put(count, 0)
}

pub(crate) fn nvmlDeviceGetFBCSessions(handle: nvmlDevice_t, count: *mut c_uint, infos: *mut c_void) -> Done {
    nvmlDeviceGetEncoderSessions(handle, count, infos)
}

pub(crate) fn nvmlDeviceGetRunningProcessDetailList(
    handle: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_v1_t,
) -> Done {
    index_of(handle)?;
    // Only the version is read before it is checked.
    if get(list.cast::<c_uint>())? != NVML_PROCESS_DETAIL_LIST_V1 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let nvmlProcessDetailList_v1_t { mode, proc_array, .. } = get(list)?;
    let found = match mode {
        NVML_PROCESS_MODE_COMPUTE => compute_processes(handle)?,
        NVML_PROCESS_MODE_MPS => mps_clients(handle)?,
        NVML_PROCESS_MODE_ALL => [compute_processes(handle)?, mps_clients(handle)?].concat(),
        NVML_PROCESS_MODE_GRAPHICS => Vec::new(),
        _ => return Err(nvmlReturn_t::INVALID_ARGUMENT),
    };
    let count = list.wrapping_byte_add(core::mem::offset_of!(nvmlProcessDetailList_v1_t, num_proc_array_entries));
    put_list(count.cast(), proc_array, &found.into_iter().map(detail).collect::<Vec<_>>())
}
