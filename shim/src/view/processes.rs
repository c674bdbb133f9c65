//! The processes that use a device: the container's own, by the ids that they have in this pid namespace.

use super::{Listing, Share, Sight, is_answered};
use crate::hooks::{real, types};
use crate::sys;
use aliquot_abi::cuda::c_void;
use aliquot_abi::ledger::{self, Identity};
use aliquot_abi::nvml::{
    NVML_PROCESS_DETAIL_LIST_V1, NVML_PROCESS_MODE_ALL, NVML_PROCESS_MODE_COMPUTE, c_uint, nvmlDevice_t,
    nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlReturn_t,
};
use aliquot_abi::region::{NO_SLOT, SlotDevice};
use core::sync::atomic::Ordering;

/// A process of the container, and its use of a device.
pub(crate) struct OwnProcess {
    pub(super) pid: u32,
    pub(super) memory_bytes: u64,
    /// Device time in the last second, in thousandths of the device's time.
    pub(super) used_permille: u64,
}

impl OwnProcess {
    fn new(Identity { pid, .. }: Identity, device: &SlotDevice) -> Option<OwnProcess> {
        let overhead_bytes = device.overhead_bytes.load(Ordering::Relaxed);
        let memory_bytes = ledger::held_bytes(&device.memory).saturating_add(overhead_bytes);
        let signs = [&device.used_permille, &device.marker_submitted, &device.copies];
        let is_user = memory_bytes > 0 || signs.iter().any(|sign| sign.load(Ordering::Relaxed) > 0);
        is_user.then(|| OwnProcess { pid, memory_bytes, used_permille: device.used_permille.load(Ordering::Relaxed) })
    }
}

/// Calls `see` with each live process of the container that uses the device. A process of another pid namespace has no
/// id here, and is left out.
#[cold]
#[inline(never)]
pub(super) fn for_each_own_process(share: &Share, see: &mut dyn FnMut(&OwnProcess)) {
    let namespace = sys::inode(c"/proc/self/ns/pid").unwrap_or(0);
    for (number, slot) in share.ledger.slots.iter().enumerate().skip(NO_SLOT + 1) {
        let Some(identity) = ledger::identity(share.ledger, number) else { continue };
        let Some(device) = slot.devices.get(share.index) else { continue };
        if identity.pid_namespace == namespace
            && let Some(process) = OwnProcess::new(identity, device)
            && sys::process_exists(process.pid)
        {
            see(&process);
        }
    }
}

/// An entry of a list of processes.
pub(crate) trait Entry {
    fn new(process: &OwnProcess, instances: Instances) -> Self;
}

impl Entry for nvmlProcessInfo_v1_t {
    fn new(process: &OwnProcess, _: Instances) -> Self {
        nvmlProcessInfo_v1_t { pid: process.pid, used_gpu_memory: process.memory_bytes }
    }
}

impl Entry for nvmlProcessInfo_t {
    fn new(process: &OwnProcess, Instances { gpu, compute }: Instances) -> Self {
        nvmlProcessInfo_t {
            pid: process.pid,
            used_gpu_memory: process.memory_bytes,
            gpu_instance_id: gpu,
            compute_instance_id: compute,
        }
    }
}

impl Entry for nvmlProcessDetail_v1_t {
    fn new(process: &OwnProcess, Instances { gpu, compute }: Instances) -> Self {
        nvmlProcessDetail_v1_t {
            pid: process.pid,
            used_gpu_memory: process.memory_bytes,
            gpu_instance_id: gpu,
            compute_instance_id: compute,
            used_gpu_cc_protected_memory: 0,
        }
    }
}

/// The instances of its GPU that a MIG device consists of.
#[derive(Clone, Copy)]
pub(crate) struct Instances {
    gpu: c_uint,
    compute: c_uint,
}

impl Instances {
    #[cold]
    #[inline(never)]
    fn of(device: nvmlDevice_t) -> Instances {
        const NONE: c_uint = c_uint::MAX;
        let ask = |get: Option<types::nvmlDeviceGetGpuInstanceId>| {
            let mut id = NONE;
            // SAFETY: the pointer is valid. NVML refuses the query for a device that is not a MIG device.
            get.filter(|get| unsafe { get(device, &raw mut id) }.is_ok()).map_or(NONE, |_| id)
        };
        Instances { gpu: ask(real!(nvmlDeviceGetGpuInstanceId)), compute: ask(real!(nvmlDeviceGetComputeInstanceId)) }
    }
}

/// An NVML function that lists processes.
type List<T> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut T) -> nvmlReturn_t;

/// As [`List<T>`], without the elements' type: the code below is needed once for all types.
fn untyped<T>(list: List<T>) -> List<c_void> {
    // SAFETY: the two types differ only in what the last pointer points to.
    unsafe { core::mem::transmute::<List<T>, List<c_void>>(list) }
}

/// Writes the entry of a process at a place of an array.
type Write = unsafe fn(*mut c_void, usize, &OwnProcess, Instances);

/// As [`Write`], for an array of `T`.
unsafe fn write<T: Entry>(array: *mut c_void, place: usize, process: &OwnProcess, instances: Instances) {
    // SAFETY: the caller vouches that the array has this place.
    unsafe { array.cast::<T>().wrapping_add(place).write(T::new(process, instances)) };
}

/// Lists the container's processes.
///
/// # Safety
/// `array` must be null or valid for `*count` elements of the type that `write` writes.
#[inline(never)]
unsafe fn list_own(
    share: &Share,
    device: nvmlDevice_t,
    count: &mut c_uint,
    array: *mut c_void,
    write: Write,
) -> nvmlReturn_t {
    // SAFETY: vouched for by the caller.
    let (instances, mut list) = (Instances::of(device), unsafe { Listing::begin(count, array) });
    for_each_own_process(share, &mut |process| {
        if let Some(place) = list.next() {
            // SAFETY: there is room for this place.
            unsafe { write(array, place, process, instances) };
        }
    });
    list.result()
}

/// Answers a query for processes: by [`list_own`] with this `write`, or by an empty list.
unsafe fn list_processes(
    real: List<c_void>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut c_void,
    write: Option<Write>,
) -> nvmlReturn_t {
    let sight = Sight::of(device);
    // SAFETY: a pointer that is not null is the host's count.
    let (false, Some(count)) = (matches!(sight, Sight::Whole), (unsafe { count.as_mut() })) else {
        // SAFETY: the host's call.
        return unsafe { real(device, count, infos) };
    };
    let mut none = 0;
    // SAFETY: the pointer to the count is valid, and the count says that there is no room.
    let answer = unsafe { real(device, &raw mut none, core::ptr::null_mut()) };
    if !is_answered(answer) {
        return answer;
    }
    match (sight, write) {
        // SAFETY: the host's array, and the count that belongs to it.
        (Sight::Part(share), Some(write)) => unsafe { list_own(&share, device, count, infos, write) },
        _ => {
            *count = 0;
            nvmlReturn_t::SUCCESS
        }
    }
}

/// `nvmlDeviceGetComputeRunningProcesses`.
pub(crate) unsafe fn compute_processes<T: Entry>(
    real: List<T>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut T,
) -> nvmlReturn_t {
    // SAFETY: the host's pointers, and the array's type.
    unsafe { list_processes(untyped(real), device, count, infos.cast(), Some(write::<T>)) }
}

/// `nvmlDeviceGetComputeRunningProcesses_v3`. The first drivers of R535 (535.43 to 535.86) have longer elements here,
/// like those of `nvmlDeviceGetRunningProcessDetailList`, which they do not have yet.
pub(crate) unsafe fn compute_processes_v3(
    real: List<nvmlProcessInfo_t>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let knows_protected_memory = real!(nvmlDeviceGetConfComputeMemSizeInfo).is_some();
    let is_long = knows_protected_memory && real!(nvmlDeviceGetRunningProcessDetailList).is_none();
    let write = if is_long { write::<nvmlProcessDetail_v1_t> } else { write::<nvmlProcessInfo_t> };
    // SAFETY: the host's pointers, and the array's type.
    unsafe { list_processes(untyped(real), device, count, infos.cast(), Some(write)) }
}

/// `nvmlDeviceGetGraphicsRunningProcesses`, `nvmlDeviceGetMPSComputeRunningProcesses` and the sessions of codecs:
/// empty. The list of compute processes shows all processes that the shim knows of; others belong to other containers.
pub(crate) unsafe fn no_processes<T>(
    real: List<T>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut T,
) -> nvmlReturn_t {
    // SAFETY: the host's pointers.
    unsafe { list_processes(untyped(real), device, count, infos.cast(), None) }
}

/// `nvmlDeviceGetRunningProcessDetailList`.
pub(crate) unsafe fn process_details(
    real: types::nvmlDeviceGetRunningProcessDetailList,
    device: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_v1_t,
) -> nvmlReturn_t {
    let sight = Sight::of(device);
    if list.is_null() || matches!(sight, Sight::Whole) {
        // SAFETY: the host's call.
        return unsafe { real(device, list) };
    }
    // SAFETY: not null; every version of the structure begins with its version.
    if unsafe { list.cast::<c_uint>().read() } != NVML_PROCESS_DETAIL_LIST_V1 {
        // A later version, whose layout is not known here.
        return nvmlReturn_t::INVALID_ARGUMENT;
    }
    // SAFETY: the host's structure, of this version.
    let list = unsafe { &mut *list };
    let mut question =
        nvmlProcessDetailList_v1_t { num_proc_array_entries: 0, proc_array: core::ptr::null_mut(), ..*list };
    // SAFETY: the structure is valid, and says that there is no room.
    let answer = unsafe { real(device, &raw mut question) };
    if !is_answered(answer) {
        return answer;
    }
    match sight {
        Sight::Part(share) if matches!(list.mode, NVML_PROCESS_MODE_COMPUTE | NVML_PROCESS_MODE_ALL) => {
            let write = write::<nvmlProcessDetail_v1_t>;
            // SAFETY: the host's array and its room.
            unsafe { list_own(&share, device, &mut list.num_proc_array_entries, list.proc_array.cast(), write) }
        }
        _ => {
            list.num_proc_array_entries = 0;
            nvmlReturn_t::SUCCESS
        }
    }
}
