//! Handles: what the caller holds instead of objects.
//!
//! A handle is the address of a slot in one large reservation. Slots are never used twice and objects are never freed
//! (what they own is dropped when they are destroyed), so any number that a caller passes can be checked without
//! touching foreign memory, and a handle that was destroyed is told from one that never was.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

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

/// An object that a handle can name.
pub(crate) trait Object: Sync + 'static {
    const KIND: Kind;
}

#[repr(C)]
struct Slot {
    kind: AtomicU64,
    object: AtomicPtr<c_void>,
}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Makes the room for handles. Called once, before the first handle.
pub(crate) fn prepare() -> bool {
    match reserve_memory_range(SLOT_COUNT * size_of::<Slot>()) {
        Some(address) => {
            SLOTS.store(address.cast(), Ordering::Release);
            true
        }
        None => false,
    }
}

/// Makes a handle for `object`, which lives for ever from now on.
pub(crate) fn register<T: Object>(object: T) -> (*mut c_void, &'static T) {
    let object: &'static T = Box::leak(Box::new(object));
    (name(object), object)
}

/// Makes another handle for an object that lives for ever.
pub(crate) fn name<T: Object>(object: &'static T) -> *mut c_void {
    let index = NEXT.fetch_add(1, Ordering::Relaxed);
    let Some(slot) = slot_at(index) else {
        // No process makes 2^28 handles in its life; should one, its new handles are invalid.
        return core::ptr::without_provenance_mut(usize::MAX);
    };
    slot.object.store((&raw const *object).cast_mut().cast(), Ordering::Relaxed);
    slot.kind.store(T::KIND as u64, Ordering::Release);
    (&raw const *slot).cast_mut().cast()
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

/// The object of kind `T` that `handle` named before it was destroyed.
pub(crate) fn find_retired<T: Object>(handle: *mut c_void) -> Option<&'static T> {
    let slot = slot_of(handle)?;
    (slot.kind.load(Ordering::Acquire) == T::KIND as u64 | RETIRED).then(|| object_in(slot))
}

/// Ends `handle`. Of several callers one gets the object.
pub(crate) fn retire<T: Object>(handle: *mut c_void) -> Option<&'static T> {
    let slot = slot_of(handle)?;
    let kind = T::KIND as u64;
    let ended = slot.kind.compare_exchange(kind, kind | RETIRED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    ended.then(|| object_in(slot))
}
