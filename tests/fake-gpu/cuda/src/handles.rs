//! Handles, with which the caller names objects.
//!
//! A handle is the address of a slot in one large reservation. Objects are never freed (their contents are dropped when
//! they are destroyed). So any number that a caller passes can be checked without accessing foreign memory.
//!
//! Handles of most kinds that programs make and destroy often are reused, last in, first out, as in NVIDIA's driver,
//! where they are addresses too. A slot keeps its kind, so a thread that has just looked up a handle has an object of
//! that kind, whatever happens to the handle.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::process::reserve_memory_range;

/// A kind of object. The numbers are arbitrary and never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Kind {
    Context = 1,
    Module,
    Function,
    Library,
    Kernel,
    Array,
    MipmappedArray,
    Stream,
    Event,
    Graph,
    GraphNode,
    GraphExec,
    MemoryPool,
    PhysicalMemory,
    UserObject,
    ExternalMemory,
    ExternalSemaphore,
    LinkState,
    GreenContext,
    ResourceDescription,
    Texture,
    Surface,
}

/// Marks a slot whose object was destroyed.
const RETIRED: u64 = 1 << 32;
const SLOT_COUNT: usize = 1 << 28;
/// More than the greatest number of a kind.
const KINDS: usize = 32;

const _: () = assert!((Kind::Surface as usize) < KINDS);

/// An object that a handle can name.
pub(crate) trait Object: Sync + 'static {
    const KIND: Kind;
    /// Whether its handle is reused after its end. Not so for objects whose handles the library itself stores.
    const IS_REUSED: bool = false;
}

#[repr(C)]
struct Slot {
    kind: AtomicU64,
    object: AtomicPtr<c_void>,
}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// Free slots for reuse, by kind.
static FREE: [Mutex<Vec<usize>>; KINDS] = [const { Mutex::new(Vec::new()) }; KINDS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Reserves the address range for handles. Called once, before the first handle.
pub(crate) fn prepare() -> bool {
    match reserve_memory_range(SLOT_COUNT * size_of::<Slot>()) {
        Some(address) => {
            SLOTS.store(address.cast(), Ordering::Release);
            true
        }
        None => false,
    }
}

/// Makes a handle for `object`, which is leaked.
pub(crate) fn register<T: Object>(object: T) -> (*mut c_void, &'static T) {
    let object: &'static T = Box::leak(Box::new(object));
    (name(object), object)
}

/// Makes another handle for a leaked object.
pub(crate) fn name<T: Object>(object: &'static T) -> *mut c_void {
    let free = if T::IS_REUSED { free::<T>().pop() } else { None };
    let index = free.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
    let Some(slot) = slot_at(index) else {
        // A process is not expected to make 2^28 handles. If it does, further handles are invalid.
        return core::ptr::without_provenance_mut(usize::MAX);
    };
    slot.object.store((&raw const *object).cast_mut().cast(), Ordering::Relaxed);
    slot.kind.store(T::KIND as u64, Ordering::Release);
    (&raw const *slot).cast_mut().cast()
}

fn free<T: Object>() -> MutexGuard<'static, Vec<usize>> {
    FREE[T::KIND as usize].lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn slot_at(index: usize) -> Option<&'static Slot> {
    let slots = SLOTS.load(Ordering::Acquire);
    if slots.is_null() || index >= SLOT_COUNT {
        return None;
    }
    // SAFETY: the reservation has SLOT_COUNT zeroed slots and is never unmapped; slots are atomics.
    Some(unsafe { &*slots.add(index) })
}

#[inline]
fn slot_of(handle: *mut c_void) -> Option<&'static Slot> {
    let offset = handle.addr().wrapping_sub(SLOTS.load(Ordering::Relaxed).addr());
    if !offset.is_multiple_of(size_of::<Slot>()) {
        return None;
    }
    slot_at(offset / size_of::<Slot>())
}

fn object_in<T: Object>(slot: &Slot) -> &'static T {
    // SAFETY: the caller saw T's kind in the slot, which is stored after a pointer to a leaked T.
    unsafe { &*slot.object.load(Ordering::Relaxed).cast::<T>() }
}

/// The object of kind `T` that `handle` names.
#[inline]
pub(crate) fn find<T: Object>(handle: *mut c_void) -> Option<&'static T> {
    let slot = slot_of(handle)?;
    (slot.kind.load(Ordering::Acquire) == T::KIND as u64).then(|| object_in(slot))
}

/// Ends `handle`. If several threads do so, only one gets the object.
pub(crate) fn retire<T: Object>(handle: *mut c_void) -> Option<&'static T> {
    let slot = slot_of(handle)?;
    let kind = T::KIND as u64;
    slot.kind.compare_exchange(kind, kind | RETIRED, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    let object = object_in(slot);
    if T::IS_REUSED {
        let offset = handle.addr() - SLOTS.load(Ordering::Relaxed).addr();
        free::<T>().push(offset / size_of::<Slot>());
    }
    Some(object)
}
