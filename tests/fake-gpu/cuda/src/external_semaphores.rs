//! Import of external semaphores. The descriptor refers to a file whose first eight bytes are the value, so that any
//! holder of the file can signal and read it.

use core::ffi::{c_int, c_uint, c_void};

use aliquot_abi::cuda::{CUexternalSemaphore, CUresult, CUstream, NullStream};

use crate::Done;
use crate::backing::Backing;
use crate::caller::{get, get_all, not_null, put};
use crate::capture::{self, Issue};
use crate::context::current;
use crate::graph_nodes::NodeKind;
use crate::handles::{self, Kind, Object};
use crate::memory_operations::{MemoryOperation, ValueWait, ValueWrite};
use crate::process::process;
use crate::queue;
use crate::streams::stream;

const OPAQUE_FD: c_uint = 1;
const TIMELINE_FD: c_uint = 9;
/// Greatest `CUexternalSemaphoreHandleType`.
const HANDLE_TYPE_MAX: c_uint = 10;
const PAGE_BYTES: u64 = 4096;

struct Semaphore {
    /// The address at which its value is mapped.
    address: u64,
    /// Whether it is a counter (timeline semaphore). Otherwise it is only signalled or not.
    is_timeline: bool,
}

impl Object for Semaphore {
    const KIND: Kind = Kind::ExternalSemaphore;
}

/// `CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HandleDescription {
    kind: c_uint,
    handle: [u64; 2],
    flags: c_uint,
    reserved: [c_uint; 16],
}

/// The begin of `CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS` and of the parameters for waiting: the value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    value: u64,
    others: [u64; 8],
    flags: c_uint,
    reserved: [c_uint; 16],
}

const _: () = assert!(size_of::<HandleDescription>() == 96 && size_of::<Parameters>() == 144);

fn semaphore(handle: CUexternalSemaphore) -> Done<&'static Semaphore> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn cuImportExternalSemaphore(target: *mut CUexternalSemaphore, description: *const c_void) -> Done {
    current()?;
    not_null(target)?;
    let description = get(description.cast::<HandleDescription>())?;
    if description.flags != 0 || description.reserved != [0; 16] {
        return Err(CUresult::INVALID_VALUE);
    }
    let is_timeline = match description.kind {
        OPAQUE_FD => false,
        TIMELINE_FD => true,
        2..=HANDLE_TYPE_MAX => return Err(CUresult::NOT_SUPPORTED),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let number = description.handle[0] as c_int;
    // SAFETY: duplicating a descriptor accesses no memory; an invalid number is refused.
    let file = Backing::own(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) });
    let file = file.filter(|file| file.bytes().is_some_and(|bytes| bytes >= 8)).ok_or(CUresult::INVALID_HANDLE)?;
    let mapped = file.map(0, PAGE_BYTES, 0, libc::PROT_READ | libc::PROT_WRITE);
    let address = mapped.ok_or(CUresult::INVALID_HANDLE)?;
    // From now on the descriptor belongs to the driver. SAFETY: the program has given up this descriptor; the file
    // stays mapped.
    unsafe { libc::close(number) };
    put(target, CUexternalSemaphore(handles::register(Semaphore { address, is_timeline }).0))
}

pub(crate) fn cuDestroyExternalSemaphore(handle: CUexternalSemaphore) -> Done {
    semaphore(handle)?;
    // The value stays mapped, because streams may still have to signal the semaphore.
    handles::retire::<Semaphore>(handle.0).map(|_| ()).ok_or(CUresult::INVALID_HANDLE)
}

/// Issues each semaphore's operations on the stream.
fn issue(
    null: NullStream,
    semaphores: *const CUexternalSemaphore,
    parameters: *const c_void,
    count: c_uint,
    handle: CUstream,
    operations_of: impl Fn(&Semaphore, u64) -> Vec<MemoryOperation>,
    node: fn(Vec<MemoryOperation>) -> NodeKind,
) -> Done {
    let stream = stream(null, handle)?;
    let entries = get_all(semaphores, count as usize)?;
    let parameters = get_all(parameters.cast::<Parameters>(), count as usize)?;
    let mut operations = Vec::new();
    for (handle, parameters) in entries.into_iter().zip(parameters) {
        operations.extend(operations_of(semaphore(handle)?, parameters.value));
    }
    if let Issue::Captured = capture::issue(stream, || node(operations.clone()))? {
        return Ok(());
    }
    queue::submit_all(stream, operations.into_iter().filter_map(MemoryOperation::work), false);
    Ok(())
}

pub(crate) fn cuSignalExternalSemaphoresAsync(
    null: NullStream,
    semaphores: *const CUexternalSemaphore,
    parameters: *const c_void,
    count: c_uint,
    handle: CUstream,
) -> Done {
    let operations_of = |semaphore: &Semaphore, value| {
        vec![ValueWrite::own(semaphore.address, if semaphore.is_timeline { value } else { 1 })]
    };
    issue(null, semaphores, parameters, count, handle, operations_of, NodeKind::SemaphoreSignal)
}

pub(crate) fn cuWaitExternalSemaphoresAsync(
    null: NullStream,
    semaphores: *const CUexternalSemaphore,
    parameters: *const c_void,
    count: c_uint,
    handle: CUstream,
) -> Done {
    let operations_of = |semaphore: &Semaphore, value| match semaphore.is_timeline {
        true => vec![ValueWait::own(semaphore.address, value)],
        // The waiting stream consumes the signal.
        false => vec![ValueWait::own(semaphore.address, 1), ValueWrite::own(semaphore.address, 0)],
    };
    issue(null, semaphores, parameters, count, handle, operations_of, NodeKind::SemaphoreWait)
}
