//! The beginning of a context, which is charged ([`live_contexts`]), its end, which frees everything that was allocated
//! in it, and the end of a stream, which frees nothing.
//!
//! A green context holds no memory: memory that is allocated while it is current belongs to the primary context of its
//! device. But a green context keeps the primary context alive, so its end can be the end of the primary context.

pub(crate) use crate::modules::{load_module, load_module_with_options};

use crate::allocations::{Charge, Ending};
use crate::call::Call;
use crate::gate;
use crate::hooks::{real, types};
use crate::live_contexts::{self, Kind, MayEnd};
use crate::markers::DeviceWrites;
use crate::modules::loading;
use crate::process::{self, Part, Process};
use crate::references::{References, Release};
use crate::region::{Region, Unattached};
use crate::{arrays, pools};
use aliquot_abi::cuda::{
    CUcontext, CUdevResourceDesc, CUdevice, CUgreenCtx, CUresult, CUstream, CUuuid, NullStream, c_int, c_uint, c_void,
};
use aliquot_abi::region::CONTEXT_NEGLIGIBLE;
use core::sync::atomic::Ordering;

/// Makes a call that creates a context on `device`, if the slice has room for one. `made` returns its handle
/// afterwards.
fn beginning(device: CUdevice, kind: Kind, call: &dyn Call<CUresult>, made: &dyn Call<CUcontext>) -> CUresult {
    let process = match Process::for_call() {
        Ok(process) => process,
        Err(unattached) => return unattached.answer(CUresult::NOT_PERMITTED, call),
    };
    let Some(part) = process.part(device) else {
        // The device is not the slice's, or does not exist: then the driver returns its own error.
        return if process.has_device(device) { CUresult::OUT_OF_MEMORY } else { call.make() };
    };
    if gate::is_taken_away(&part) {
        return CUresult::NOT_PERMITTED;
    }
    let known_bytes = part.limits.context_bytes.load(Ordering::Relaxed);
    let charged_bytes = if known_bytes == CONTEXT_NEGLIGIBLE { 0 } else { known_bytes };
    let moving = Charge::moving(part.index, charged_bytes);
    // Threads that first use the primary context together share it, and the first to charge it charges it for all.
    let references = process.primary_references(device).filter(|_| kind == Kind::Primary);
    let is_shared = || references.is_some_and(|references| is_begun_by_another(references, device));
    let charge = match charged_bytes {
        0 => Some(Charge { account: part.index, bytes: 0 }),
        _ if is_shared() => None,
        bytes => part.charge_at_once(bytes).or_else(|| if is_shared() { None } else { part.charge(bytes) }),
    };
    let Some(charge) = charge else {
        return if is_shared() { call.make() } else { CUresult::OUT_OF_MEMORY };
    };
    references.inspect(|references| references.begins());
    let result = call.make();
    if result.is_ok() {
        live_contexts::begun(&part, made.make(), kind, charge);
    }
    references.inspect(|references| references.has_begun());
    if !result.is_ok() {
        charge.refund();
        return result;
    }
    drop(moving);
    match known_bytes {
        0 => await_size(&part),
        _ => part.ask_for_look(),
    }
    result
}

/// To be called when the first context on the device is there: its size becomes overhead before anything else is
/// allocated. A look misses it if the manager had not heard of this process when the look began. So looks are awaited
/// until the size is known, or not to be had.
#[inline(never)]
fn await_size(part: &Part) {
    const LOOKS_MAX: u32 = 4;
    for _ in 0..LOOKS_MAX {
        if !part.await_look() || part.limits.context_bytes.load(Ordering::Relaxed) != 0 {
            return;
        }
    }
}

/// Whether another thread has charged the primary context of `device`, and the driver is making it or has made it.
#[inline(never)]
fn is_begun_by_another(references: &References, device: CUdevice) -> bool {
    references.is_beginning() || is_active(device) == Some(true)
}

/// The handle that a successful call has written.
///
/// # Safety
/// The driver must have written to `context`.
unsafe fn written(context: *mut CUcontext) -> CUcontext {
    // SAFETY: vouched for by the caller.
    unsafe { *context }
}

/// `cuCtxCreate`, the first two versions.
pub(crate) unsafe fn create(
    _: NullStream,
    real: types::cuCtxCreate,
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the host's call; what it writes is read only after a success.
    unsafe { beginning(device, Kind::Own, &|| real(context, flags, device), &|| written(context)) }
}

/// `cuCtxCreate_v3`.
pub(crate) unsafe fn create_with_affinity(
    _: NullStream,
    real: types::cuCtxCreate_v3,
    context: *mut CUcontext,
    affinities: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: as for `create`.
    unsafe { beginning(device, Kind::Own, &|| real(context, affinities, count, flags, device), &|| written(context)) }
}

/// `cuCtxCreate_v4`.
pub(crate) unsafe fn create_with_parameters(
    _: NullStream,
    real: types::cuCtxCreate_v4,
    context: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: as for `create`.
    unsafe { beginning(device, Kind::Own, &|| real(context, parameters, flags, device), &|| written(context)) }
}

/// `cuGreenCtxCreate`: takes a reference to the device's primary context, and creates that if it is not active.
pub(crate) unsafe fn green_create(
    _: NullStream,
    real: types::cuGreenCtxCreate,
    green: *mut CUgreenCtx,
    resources: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(green, resources, device, flags) };
    let result = match is_active(device) {
        Some(true) => call(),
        _ => beginning(device, Kind::Primary, &call, &|| primary_context(device)),
    };
    // SAFETY: the call has succeeded, so it has written the handle.
    if let Some(context) = result.is_ok().then(|| context_of_green(unsafe { *green })).flatten() {
        live_contexts::known(context, primary_context(device));
    }
    result
}

/// `cuCtxAttach`.
pub(crate) unsafe fn attach(
    _: NullStream,
    real: types::cuCtxAttach,
    context: *mut CUcontext,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(context, flags) };
    if result.is_ok() {
        // SAFETY: the call succeeded.
        live_contexts::attached(unsafe { written(context) });
    }
    result
}

/// `CUcheckpointRestoreArgs`, as far as its fields are read here.
#[repr(C)]
struct RestoreArguments {
    /// The UUIDs of devices at the checkpoint and after it.
    pairs: *const [CUuuid; 2],
    count: c_uint,
}

/// `cuCheckpointProcessRestore`: in a slice each device stays the same. The process goes on to use the part of the
/// slice that it has found for a device when it attached.
pub(crate) unsafe fn restore(
    _: NullStream,
    real: types::cuCheckpointProcessRestore,
    pid: c_int,
    arguments: *mut c_void,
) -> CUresult {
    // SAFETY: a pointer that is not null is the host's structure, whose list has `count` elements.
    let is_another = unsafe {
        arguments.cast::<RestoreArguments>().as_ref().is_some_and(|RestoreArguments { pairs, count }| {
            !pairs.is_null()
                && (0..*count as usize).any(|number| {
                    let [before, after] = &*pairs.wrapping_add(number);
                    before.bytes != after.bytes
                })
        })
    };
    if is_another && Region::get().err() != Some(Unattached::Free) {
        return CUresult::NOT_PERMITTED;
    }
    // SAFETY: the host's call.
    unsafe { real(pid, arguments) }
}

/// `CU_LIMIT_STACK_SIZE`.
const STACK_SIZE: c_uint = 0;

/// `cuCtxSetLimit`: waits for the device. The driver takes memory for stacks at once, for all threads that the device
/// can run. What it takes for another limit, such as that of launches by kernels, is known only afterwards. It takes
/// the heap of kernels when a module is loaded.
pub(crate) unsafe fn set_limit(_: NullStream, real: types::cuCtxSetLimit, limit: c_uint, value: usize) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    let call = || unsafe { real(limit, value) };
    if limit != STACK_SIZE {
        return loading(&call);
    }
    let current = Process::attached().and_then(|process| Some((process, process.current_ordinal().ok()?)));
    let part = current.and_then(|(process, device)| Some((process.part(device)?, device)));
    let Some((part, device)) = part else { return call() };
    let bytes = growth_of_stacks(device, value as u64).unwrap_or(0);
    let moving = Charge::moving(part.index, bytes);
    let charge = if bytes == 0 { Some(Charge { account: part.index, bytes }) } else { part.charge(bytes) };
    let Some(charge) = charge else { return CUresult::OUT_OF_MEMORY };
    let result = call();
    if result.is_ok() {
        charge.becomes_overhead();
        drop(moving);
        part.ask_for_look();
    } else {
        charge.refund();
    }
    result
}

/// The memory that stacks of `bytes` take beyond those of the present size.
fn growth_of_stacks(device: CUdevice, bytes: u64) -> Option<u64> {
    const MULTIPROCESSORS: c_uint = 16; // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    const THREADS: c_uint = 39; // CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
    let (get_limit, get_attribute) = (real!(cuCtxGetLimit)?, real!(cuDeviceGetAttribute)?);
    let mut present = 0;
    let (mut multiprocessors, mut threads): (c_int, c_int) = (0, 0);
    // SAFETY: the pointers are valid.
    let told = unsafe {
        get_limit(&raw mut present, STACK_SIZE).is_ok()
            && get_attribute(&raw mut multiprocessors, MULTIPROCESSORS, device).is_ok()
            && get_attribute(&raw mut threads, THREADS, device).is_ok()
    };
    let stacks = u64::try_from(multiprocessors).ok()?.saturating_mul(u64::try_from(threads).ok()?);
    told.then(|| bytes.saturating_sub(present as u64).saturating_mul(stacks))
}

/// `cuCtxDestroy`.
pub(crate) unsafe fn destroy(_: NullStream, real: types::cuCtxDestroy, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    Subject::of(context).ending(&|| unsafe { real(context) }, &CUresult::is_ok)
}

/// `cuCtxDetach`: destroys the context if this was its last attachment.
pub(crate) unsafe fn detach(_: NullStream, real: types::cuCtxDetach, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    Subject::of(context)
        .ending(&|| unsafe { real(context) }, &|result| result.is_ok() && live_contexts::detached(context))
}

/// `cuStreamCreate`.
pub(crate) unsafe fn create_stream(
    _: NullStream,
    real: types::cuStreamCreate,
    stream: *mut CUstream,
    flags: c_uint,
) -> CUresult {
    about_to_create_stream(flags);
    // SAFETY: the host's call.
    unsafe { real(stream, flags) }
}

/// `cuStreamCreateWithPriority`.
pub(crate) unsafe fn create_stream_with_priority(
    _: NullStream,
    real: types::cuStreamCreateWithPriority,
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    about_to_create_stream(flags);
    // SAFETY: the host's call.
    unsafe { real(stream, flags, priority) }
}

#[inline(never)]
fn about_to_create_stream(flags: c_uint) {
    const NON_BLOCKING: c_uint = 1; // CU_STREAM_NON_BLOCKING
    if let (0, Some(process)) = (flags & NON_BLOCKING, Process::attached()) {
        gate::about_to_block(process);
    }
}

/// `cuStreamDestroy`.
pub(crate) unsafe fn destroy_stream(_: NullStream, real: types::cuStreamDestroy, stream: CUstream) -> CUresult {
    if let Some(process) = Process::if_attached() {
        gate::forget_stream(process, stream);
    }
    // SAFETY: the host's call.
    unsafe { real(stream) }
}

/// Whether `context` lives. The driver is not asked: it could take a stale handle for that of another context, or
/// fault.
pub(crate) fn is_alive(context: CUcontext) -> bool {
    live_contexts::is_alive(context)
}

/// `cuDevicePrimaryCtxRetain`.
pub(crate) unsafe fn primary_retain(
    _: NullStream,
    real: types::cuDevicePrimaryCtxRetain,
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    // Often the first call of a process after `cuInit`, so it attaches. If this reference were not counted, each later
    // release would look like the last one.
    let references = Process::attached().and_then(|process| process.primary_references(device));
    let epoch = references.map(|references| (references, references.epoch()));
    // SAFETY: the host's call.
    let call = || unsafe { real(context, device) };
    // A known reference keeps the context alive. Only without one can it begin now.
    let lives = references.is_some_and(References::is_held) || is_active(device) == Some(true);
    let result = match lives {
        true => call(),
        // SAFETY: what the call writes is read only after a success.
        false => beginning(device, Kind::Primary, &call, &|| unsafe { written(context) }),
    };
    if let (Some((references, epoch)), true) = (epoch, result.is_ok()) {
        references.taken_since(epoch);
    }
    result
}

/// `cuDevicePrimaryCtxReset`.
pub(crate) unsafe fn primary_reset(_: NullStream, real: types::cuDevicePrimaryCtxReset, device: CUdevice) -> CUresult {
    let process = Process::attached();
    let references = process.and_then(|process| process.primary_references(device));
    let void = || references.inspect(|references| references.void());
    void();
    let call = || {
        // SAFETY: the host's call.
        let result = unsafe { real(device) };
        void();
        result
    };
    let account = process.and_then(|process| process.part(device)).map(|part| part.index);
    let context = match is_active(device) {
        // The driver may not report a context as active that a fault has ruined. The reset ends it all the same.
        Some(false) => account.and_then(live_contexts::primary),
        _ => Some(primary_context(device)),
    };
    match context {
        Some(context) => Subject { context, is_primary: true, account }.ending(&call, &CUresult::is_ok),
        None => call(),
    }
}

/// `cuDevicePrimaryCtxRelease`: ends the context if this was its last reference.
pub(crate) unsafe fn primary_release(
    _: NullStream,
    real: types::cuDevicePrimaryCtxRelease,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the host's call.
    releasing_primary(device, 1, &|| unsafe { real(device) })
}

/// `cuGreenCtxDestroy`: ends the device's primary context if this was its last reference. The green context's default
/// streams are named by its handle, which the driver must not be given afterwards.
pub(crate) unsafe fn green_destroy(_: NullStream, real: types::cuGreenCtxDestroy, context: CUgreenCtx) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(context) };
    let current = context_of_green(context);
    if let Some(process) = Process::if_attached() {
        gate::mark_all(process);
        gate::forget_all_streams(process);
    }
    let result = match current.and_then(|current| with_current(current, || process::current_ordinal().ok())) {
        Some(device) => releasing_primary(device, 0, &call),
        None => call(),
    };
    if let (Some(current), true) = (current, result.is_ok()) {
        live_contexts::forgotten(current);
    }
    result
}

/// Makes a call that gives up one reference to the primary context of `device`. `counted` is 1 if this reference is a
/// counted one, otherwise 0.
fn releasing_primary(device: CUdevice, counted: u64, call: &dyn Call<CUresult>) -> CUresult {
    let references = Process::if_attached().and_then(|process| process.primary_references(device));
    let release = references.map(|references| references.release(counted));
    let result = match &release {
        Some(Release { is_harmless: true, .. }) => call.make(),
        _ if is_active(device) == Some(true) => {
            let ended = |result: CUresult| result.is_ok() && is_active(device) != Some(true);
            Subject { context: primary_context(device), is_primary: true, account: None }.ending(call, &ended)
        }
        _ => call.make(),
    };
    if let Some(release) = release {
        release.finish(result.is_ok());
    }
    result
}

/// The handle by which a green context is made current, if the driver knows the context.
#[inline(never)]
fn context_of_green(green: CUgreenCtx) -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    let get_context = real!(cuCtxFromGreenCtx)?;
    // SAFETY: the pointer is valid; the driver checks the handle.
    unsafe { get_context(&raw mut context, green) }.is_ok().then_some(context)
}

/// Whether the primary context of `device` is active; `None` if the driver does not answer.
#[inline(never)]
fn is_active(device: CUdevice) -> Option<bool> {
    let (mut flags, mut active): (c_uint, _) = (0, 0);
    let get_state = real!(cuDevicePrimaryCtxGetState)?;
    // SAFETY: the pointers are valid.
    let told = unsafe { get_state(device, &raw mut flags, &raw mut active) };
    told.is_ok().then_some(active != 0)
}

/// The handle of the primary context of `device`, which is active. The reference that this takes is given back at once.
#[inline(never)]
fn primary_context(device: CUdevice) -> CUcontext {
    let mut context = CUcontext::NULL;
    let release = real!(cuDevicePrimaryCtxRelease_v2).or_else(|| real!(cuDevicePrimaryCtxRelease));
    if let (Some(retain), Some(release)) = (real!(cuDevicePrimaryCtxRetain), release) {
        // SAFETY: the pointer is valid; the context stays alive, because another holder activated it and has a
        // reference too.
        unsafe {
            if retain(&raw mut context, device).is_ok() {
                let _ = release(device);
            }
        }
    }
    context
}

/// Calls `question` with `context` current. `None` if the driver rejects the context.
pub(crate) fn with_current<T>(context: CUcontext, question: impl FnOnce() -> Option<T>) -> Option<T> {
    let mut popped = CUcontext::NULL;
    let (push, pop) = (real!(cuCtxPushCurrent_v2)?, real!(cuCtxPopCurrent_v2)?);
    // SAFETY: the driver checks the handle.
    if !unsafe { push(context) }.is_ok() {
        return None;
    }
    let answer = question();
    // SAFETY: the pointer is valid; what was pushed above is on top.
    let _ = unsafe { pop(&raw mut popped) };
    answer
}

/// A context that a call may end.
struct Subject {
    /// Null: the driver did not tell the handle.
    context: CUcontext,
    is_primary: bool,
    /// For a reset: the account of the device. If the driver answers no question about an allocation, it is refunded if
    /// it was charged to this account.
    account: Option<usize>,
}

impl Subject {
    fn of(context: CUcontext) -> Subject {
        Subject { context, is_primary: false, account: None }
    }

    /// Makes a call that can end the context; `ended` tells whether it did. Then refunds the memory that was allocated
    /// in it.
    ///
    /// The driver is asked for the context of each address while the context lives. So an allocation needs no note of
    /// its context, and memory of other contexts is left alone. Other threads may allocate in the context between these
    /// questions and its end. The driver does not know that memory afterwards, and it is refunded then. This takes time
    /// in proportion to the number of allocations, but contexts end rarely.
    fn ending(&self, call: &dyn Call<CUresult>, ended: &dyn Fn(CUresult) -> bool) -> CUresult {
        if let Some(process) = Process::if_attached() {
            gate::forget_all_streams(process);
        }
        let process = Process::attached().filter(|_| !self.context.is_null() || self.account.is_some());
        let Some(process) = process else { return call.make() };
        let end = Ending::new();
        self.note_what_belongs_to_it(&end);
        let writes = DeviceWrites::pause(process, self.context, self.is_primary);
        let may_end = MayEnd::new(self.context);
        let result = call.make();
        if !ended(result) {
            may_end.lives();
            end.finish(|_| false);
            writes.resume();
            return result;
        }
        may_end.ended();
        end.finish(|_| true);
        arrays::refund_of_context(self.context);
        refund_what_is_unknown(process);
        writes.resume_without_context();
        result
    }

    fn note_what_belongs_to_it(&self, end: &Ending) {
        let Some(get_attribute) = real!(cuPointerGetAttribute) else { return };
        let note = || {
            end.note(|address, charge| self.holds(get_attribute, address, charge));
            Some(())
        };
        // The driver answers only a thread with a current context that lives.
        if with_current(self.context, note).is_none() {
            let _ = note();
        }
    }

    /// Whether the memory at `address` is freed with the context.
    fn holds(&self, get_attribute: types::cuPointerGetAttribute, address: u64, charge: Charge) -> bool {
        const CONTEXT: c_uint = 1; // CU_POINTER_ATTRIBUTE_CONTEXT
        let mut owner = CUcontext::NULL;
        // SAFETY: the pointer is valid for the attribute, which is a context.
        match unsafe { get_attribute((&raw mut owner).cast(), CONTEXT, address) } {
            CUresult::SUCCESS => owner == self.context,
            CUresult::INVALID_VALUE => false,
            // The thread has no context, so the driver did not look for the memory.
            CUresult::INVALID_CONTEXT => false,
            // After a fault in a kernel the driver answers every question with that error, until the reset.
            _ => Some(charge.account) == self.account,
        }
    }
}

/// Refunds the allocations that the driver does not know any more after the end of a context.
fn refund_what_is_unknown(process: &'static Process) {
    let end = Ending::new();
    end.note(|_, _| true);
    end.finish(is_unknown);
    pools::settle_all(process);
}

/// Whether the driver says that nothing is allocated at `address`. A thread without a context gets another answer.
pub(crate) fn is_unknown(address: u64) -> bool {
    const MEMORY_TYPE: c_uint = 2; // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    let mut kind: c_uint = 0;
    // SAFETY: the pointer is valid for the attribute, which is an unsigned number.
    let asked = |get: types::cuPointerGetAttribute| unsafe { get((&raw mut kind).cast(), MEMORY_TYPE, address) };
    real!(cuPointerGetAttribute).map(asked) == Some(CUresult::INVALID_VALUE)
}
