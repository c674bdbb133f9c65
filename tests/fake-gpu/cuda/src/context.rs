//! Contexts: a process's state on one device, and the threads' current contexts.

mod limits;
mod primary;

use core::cell::{Cell, RefCell};
use core::ffi::{c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aliquot_abi::cuda::{CUcontext, CUdevice, CUresult};

use crate::Done;
use crate::caller::{not_null, put, put_if_wanted};
use crate::device::{Device, device};
use crate::handles::{self, Kind, Object};
use crate::process::{initialised, process};
use crate::streams::Stream;
pub(crate) use limits::*;
pub(crate) use primary::*;

/// Valid flags for a new context: scheduling, mapping, local memory, synchronous memory operations, core dumps.
const CREATE_FLAGS: c_uint = 0x1ff;
const SCHEDULE_MASK: c_uint = 0x7;
const MAP_HOST: c_uint = 0x8;
/// The API version of a context made by `cuCtxCreate_v2` or later.
const API_VERSION: c_uint = 3020;

/// A context. A primary context is one object for the whole process, whose life can begin and end any number of times.
pub(crate) struct Context {
    ordinal: usize,
    pub(crate) primary: bool,
    /// Number of the present life; 0 when the context is not alive.
    life: AtomicU32,
    flags: AtomicU32,
    state: Mutex<ContextState>,
    legacy_stream: AtomicPtr<Stream>,
    handle: OnceLock<CUcontext>,
    attached: AtomicUsize,
}

#[derive(Default)]
struct ContextState {
    limits: [Option<usize>; 8],
    cache_config: c_uint,
    shared_memory_config: c_uint,
    peers: Vec<(usize, u32)>,
    /// Device memory for the stacks of kernels, in addition to that of every context.
    stack_bytes: u64,
    /// Device memory for launches by kernels, likewise.
    pending_launches_bytes: u64,
}

impl Object for Context {
    const KIND: Kind = Kind::Context;
    const IS_REUSED: bool = true;
}

static LIVES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The top of this thread's context stack.
    static CURRENT: Cell<Option<(CUcontext, &'static Context)>> = const { Cell::new(None) };
    /// The rest of the stack.
    // Never dropped, so that the driver can be called while a thread's other variables are being dropped.
    static BELOW: RefCell<ManuallyDrop<Vec<(CUcontext, &'static Context)>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The owner of an object: a context, and the life of the context in which the object was made.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) context: &'static Context,
    pub(crate) life: u32,
}

impl Owner {
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        self.context.life.load(Ordering::Relaxed) == self.life
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.context.device()
    }

    pub(crate) fn is(&self, context: &'static Context) -> bool {
        core::ptr::eq(self.context, context) && self.is_alive()
    }
}

impl Context {
    fn new(device: &Device, primary: bool, flags: c_uint) -> Context {
        Context {
            ordinal: device.ordinal,
            primary,
            life: AtomicU32::new(0),
            flags: AtomicU32::new(flags),
            state: Mutex::new(ContextState::default()),
            legacy_stream: AtomicPtr::new(core::ptr::null_mut()),
            handle: OnceLock::new(),
            attached: AtomicUsize::new(1),
        }
    }

    pub(crate) fn new_primary(device: &Device) -> Context {
        Context::new(device, true, 0)
    }

    pub(crate) fn device(&self) -> &'static Device {
        &initialised().devices[self.ordinal]
    }

    pub(crate) fn owner(&'static self) -> Owner {
        Owner { context: self, life: self.life.load(Ordering::Relaxed) }
    }

    /// Number of the context's present life; 0 if it is not alive.
    #[inline]
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Relaxed)
    }

    fn is_alive(&self) -> bool {
        self.life() != 0
    }

    fn state(&self) -> MutexGuard<'_, ContextState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle that names the context.
    pub(crate) fn handle(&self) -> CUcontext {
        self.handle.get().copied().unwrap_or(CUcontext::NULL)
    }

    /// The legacy default stream, which exists whenever the context is alive.
    #[inline]
    pub(crate) fn legacy_stream(&self) -> &'static Stream {
        // SAFETY: set to a leaked stream when the context's life begins; only callers that saw the context alive get
        // here.
        unsafe { &*self.legacy_stream.load(Ordering::Acquire) }
    }

    fn begin(&'static self) -> Done {
        let process = process()?;
        let device = self.device();
        device.reserve(process.config.context_memory_bytes)?;
        process.member.add_context(device.index);
        let life = LIVES.fetch_add(1, Ordering::Relaxed) + 1;
        let legacy_stream = crate::streams::new_legacy(Owner { context: self, life });
        self.legacy_stream.store((&raw const *legacy_stream).cast_mut(), Ordering::Release);
        ALIVE.lock().unwrap_or_else(PoisonError::into_inner).insert(life, self);
        self.life.store(life, Ordering::Release);
        Ok(())
    }

    /// Ends the context's life: waits for its work, frees its memory, and makes its objects invalid.
    fn end(&'static self) {
        let life = self.life();
        if life == 0 {
            return;
        }
        crate::queue::wait_for_context(self);
        self.life.store(0, Ordering::Release);
        ALIVE.lock().unwrap_or_else(PoisonError::into_inner).remove(&life);
        let process = initialised();
        let device = self.device();
        let accounts = device.accounts();
        let held = device.arena.give_back_all(|extent| extent.owner == life && extent.usage.is_of_context());
        device.arena.give_back_all(|extent| extent.owner == life && extent.usage == crate::arena::Use::Sparse);
        crate::sparse_arrays::unmap_ended(device);
        crate::shared_extents::forget_ended(device);
        crate::host_memory::release_context(life);
        crate::imported::release_context(life);
        let ContextState { stack_bytes, pending_launches_bytes, .. } = core::mem::take(&mut *self.state());
        process.member.remove_context(device.index);
        device.release(held + stack_bytes + pending_launches_bytes + process.config.context_memory_bytes);
        drop(accounts);
    }

    /// Whether kernels of this context may access memory of `peer`.
    pub(crate) fn has_peer(&self, peer: &Context) -> bool {
        self.state().peers.contains(&(peer.ordinal, peer.life()))
    }
}

/// The contexts that are alive, by the number of their present life.
static ALIVE: Mutex<BTreeMap<u32, &'static Context>> = Mutex::new(BTreeMap::new());

/// The handle of the context whose present life is number `life`; null if that has ended.
pub(crate) fn handle_of_life(life: u32) -> CUcontext {
    let alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    alive.get(&life).map_or(CUcontext::NULL, |context| context.handle())
}

/// The calling thread's current context.
#[inline]
pub(crate) fn current() -> Done<&'static Context> {
    let process = process()?;
    match CURRENT.get() {
        Some((_, context)) if process.member.is_lost(context.device().index) => Err(CUresult::UNKNOWN),
        Some((_, context)) if context.is_alive() => Ok(context),
        Some(_) => Err(CUresult::CONTEXT_IS_DESTROYED),
        None => Err(no_context()),
    }
}

#[cold]
fn no_context() -> CUresult {
    if IN_CALLBACK.get() { CUresult::NOT_PERMITTED } else { CUresult::INVALID_CONTEXT }
}

/// Marks the calling thread as the one that runs host functions, which may not call the driver.
pub(crate) fn enter_callback_thread() {
    IN_CALLBACK.set(true);
}

/// The context that a handle names.
pub(crate) fn context(handle: CUcontext) -> Done<&'static Context> {
    process()?;
    match handles::find::<Context>(handle.0) {
        Some(context) if context.is_alive() => Ok(context),
        Some(_) => Err(CUresult::CONTEXT_IS_DESTROYED),
        None => Err(CUresult::INVALID_CONTEXT),
    }
}

/// The context that a handle names; null names the current one.
fn context_or_current(handle: CUcontext) -> Done<&'static Context> {
    if handle.is_null() { current() } else { context(handle) }
}

fn push(entry: Option<(CUcontext, &'static Context)>) {
    if let Some(top) = CURRENT.get() {
        BELOW.with_borrow_mut(|below| below.push(top));
    }
    CURRENT.set(entry);
}

fn pop() -> Option<(CUcontext, &'static Context)> {
    let top = CURRENT.get()?;
    CURRENT.set(BELOW.with_borrow_mut(|below| below.pop()));
    Some(top)
}

pub(crate) fn cuCtxCreate_v2(target: *mut CUcontext, flags: c_uint, ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    not_null(target)?;
    if flags & !CREATE_FLAGS != 0 || !matches!(flags & SCHEDULE_MASK, 0 | 1 | 2 | 4) {
        return Err(CUresult::INVALID_VALUE);
    }
    let (handle, context) = handles::register(Context::new(device, false, flags));
    let _ = context.handle.set(CUcontext(handle));
    if let Err(error) = context.begin() {
        handles::retire::<Context>(handle);
        return Err(error);
    }
    push(Some((CUcontext(handle), context)));
    put(target, CUcontext(handle))
}

pub(crate) fn cuCtxCreate_v3(
    target: *mut CUcontext,
    affinity: *mut c_void,
    affinity_count: c_int,
    flags: c_uint,
    ordinal: CUdevice,
) -> Done {
    process()?;
    if !affinity.is_null() || affinity_count != 0 {
        // An execution affinity needs MPS.
        return Err(CUresult::NOT_SUPPORTED);
    }
    cuCtxCreate_v2(target, flags, ordinal)
}

pub(crate) fn cuCtxCreate_v4(
    target: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    ordinal: CUdevice,
) -> Done {
    process()?;
    if !parameters.is_null() {
        return Err(CUresult::NOT_SUPPORTED);
    }
    cuCtxCreate_v2(target, flags, ordinal)
}

pub(crate) fn cuCtxDestroy_v2(handle: CUcontext) -> Done {
    let context = context(handle)?;
    if context.primary {
        return Err(CUresult::INVALID_CONTEXT);
    }
    handles::retire::<Context>(handle.0).ok_or(CUresult::INVALID_CONTEXT)?;
    if CURRENT.get().is_some_and(|(top, _)| top == handle) {
        pop();
    }
    context.end();
    Ok(())
}

pub(crate) fn cuCtxPushCurrent_v2(handle: CUcontext) -> Done {
    push(Some((handle, context(handle)?)));
    Ok(())
}

pub(crate) fn cuCtxPopCurrent_v2(target: *mut CUcontext) -> Done {
    process()?;
    let (handle, _) = pop().ok_or(CUresult::INVALID_CONTEXT)?;
    put_if_wanted(target, handle);
    Ok(())
}

pub(crate) fn cuCtxSetCurrent(handle: CUcontext) -> Done {
    process()?;
    if handle.is_null() {
        pop();
        return Ok(());
    }
    let entry = (handle, context(handle)?);
    CURRENT.set(Some(entry));
    Ok(())
}

pub(crate) fn cuCtxGetCurrent(target: *mut CUcontext) -> Done {
    process()?;
    put(target, CURRENT.get().map_or(CUcontext::NULL, |(handle, _)| handle))
}

pub(crate) fn cuCtxGetDevice(target: *mut CUdevice) -> Done {
    put(target, current()?.ordinal as CUdevice)
}

pub(crate) fn cuCtxGetDevice_v2(target: *mut CUdevice, handle: CUcontext) -> Done {
    put(target, context_or_current(handle)?.ordinal as CUdevice)
}

pub(crate) fn cuCtxGetFlags(flags: *mut c_uint) -> Done {
    put(flags, current()?.flags.load(Ordering::Relaxed) | MAP_HOST)
}

pub(crate) fn cuCtxSetFlags(flags: c_uint) -> Done {
    let context = current()?;
    if flags & !CREATE_FLAGS != 0 || !matches!(flags & SCHEDULE_MASK, 0 | 1 | 2 | 4) {
        return Err(CUresult::INVALID_VALUE);
    }
    context.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetId(handle: CUcontext, id: *mut u64) -> Done {
    put(id, u64::from(context_or_current(handle)?.life()))
}

pub(crate) fn cuCtxSynchronize() -> Done {
    synchronize(current()?)
}

pub(crate) fn cuCtxSynchronize_v2(handle: CUcontext) -> Done {
    synchronize(context_or_current(handle)?)
}

fn synchronize(context: &'static Context) -> Done {
    crate::capture::check_unsafe_call()?;
    crate::queue::wait_for_context(context);
    crate::pools::trim_after_synchronize(context.device());
    Ok(())
}

pub(crate) fn cuCtxGetCacheConfig(config: *mut c_uint) -> Done {
    put(config, current()?.state().cache_config)
}

pub(crate) fn cuCtxSetCacheConfig(config: c_uint) -> Done {
    let context = current()?;
    if config > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    context.state().cache_config = config;
    Ok(())
}

pub(crate) fn cuCtxGetSharedMemConfig(config: *mut c_uint) -> Done {
    put(config, current()?.state().shared_memory_config)
}

pub(crate) fn cuCtxSetSharedMemConfig(config: c_uint) -> Done {
    let context = current()?;
    if config > 2 {
        return Err(CUresult::INVALID_VALUE);
    }
    context.state().shared_memory_config = config;
    Ok(())
}

pub(crate) fn cuCtxGetApiVersion(handle: CUcontext, version: *mut c_uint) -> Done {
    context_or_current(handle)?;
    put(version, API_VERSION)
}

pub(crate) fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Done {
    current()?;
    put_if_wanted(least, crate::streams::LEAST_PRIORITY);
    put_if_wanted(greatest, crate::streams::GREATEST_PRIORITY);
    Ok(())
}

pub(crate) fn cuCtxAttach(target: *mut CUcontext, flags: c_uint) -> Done {
    let context = current()?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let handle = CURRENT.get().map_or(CUcontext::NULL, |(handle, _)| handle);
    put(target, handle)?;
    context.attached.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Undoes the context's creation or one attachment. The context must be current. The last detach destroys it.
pub(crate) fn cuCtxDetach(handle: CUcontext) -> Done {
    let found = context(handle)?;
    if CURRENT.get().is_none_or(|(top, _)| top != handle) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    // Detaching cannot destroy a primary context: only attachments can be undone.
    let least = usize::from(found.primary);
    let taken = |count: usize| (count > least).then(|| count - 1);
    match found.attached.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
        Err(_) => Err(CUresult::INVALID_CONTEXT),
        Ok(1) => cuCtxDestroy_v2(handle),
        Ok(_) => Ok(()),
    }
}

pub(crate) fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> Done {
    let (own, peer) = (current()?, context(peer)?);
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if core::ptr::eq(own, peer) || own.ordinal == peer.ordinal {
        return Err(CUresult::INVALID_DEVICE);
    }
    if !crate::device::linked(own.device(), peer.device()) {
        return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
    }
    if own.has_peer(peer) {
        return Err(CUresult::PEER_ACCESS_ALREADY_ENABLED);
    }
    own.state().peers.push((peer.ordinal, peer.life()));
    Ok(())
}

pub(crate) fn cuCtxDisablePeerAccess(peer: CUcontext) -> Done {
    let (own, peer) = (current()?, context(peer)?);
    let entry = (peer.ordinal, peer.life());
    let mut state = own.state();
    let place = state.peers.iter().position(|&known| known == entry).ok_or(CUresult::PEER_ACCESS_NOT_ENABLED)?;
    state.peers.swap_remove(place);
    Ok(())
}

pub(crate) fn cuCtxResetPersistingL2Cache() -> Done {
    current().map(|_| ())
}
