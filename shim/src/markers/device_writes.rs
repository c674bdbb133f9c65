//! Markers that the device writes, by stream memory operations, into this process's slot. The slot's page is registered
//! with the driver.

use super::{SLEEP_NS_MIN, WAIT_NS_MAX, context_of, outside_capture};
use crate::clock;
use crate::context;
use crate::hooks::real;
use crate::live_contexts::primary_of;
use crate::process::{Part, Process};
use crate::sys;
use aliquot_abi::cuda::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUcontext, CUdeviceptr, CUresult, CUstream, c_void,
};
use aliquot_abi::ledger;
use aliquot_abi::region::Slot;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// The registration of the page into which the device writes markers.
#[repr(C, align(64))]
pub(crate) struct MarkerPage {
    /// The slot's address on the device; 0: not registered with the driver. It is the address of a page, so its lower
    /// bits are free. They count how often the address was forgotten: so a thread never stores an address here that it
    /// learned before that.
    address: AtomicU64,
    /// The context in which the page was registered; null: unknown.
    context: AtomicPtr<c_void>,
    /// Number of contexts that are about to end, and that may take the registration with them: see [`DeviceWrites`].
    pauses: AtomicU32,
    /// How often a registration has failed, or a marker was refused.
    failures: AtomicU32,
}

/// The bits of [`MarkerPage::address`] that count how often it was forgotten.
const FORGOTTEN: u64 = 0xfff;
/// After this many failures, events take the place of markers for good.
const FAILURES_MAX: u32 = 4;

impl MarkerPage {
    /// Registers the page ahead of the first marker: after an allocation, which needs a context as the registration
    /// does, or at the latest before the first gated launch. With kernels running, the registration could wait for
    /// them, or they for it. A registration that fails here is tried again when a marker is put.
    #[inline]
    pub(crate) fn prepare(&self, process: &'static Process) {
        if self.address.load(Ordering::Relaxed) == 0 {
            self.prepare_now(process);
        }
    }

    #[cold]
    #[inline(never)]
    fn prepare_now(&self, process: &'static Process) {
        let is_tried = self.failures.load(Ordering::Relaxed) != 0;
        if !is_tried && self.pauses.load(Ordering::Acquire) == 0 && !process.marks_by_events() {
            let _ = self.register(process.slot(), 0);
        }
    }

    #[cold]
    fn register(&self, slot: &Slot, word: u64) -> Option<CUdeviceptr> {
        let start: *mut c_void = core::ptr::from_ref(slot).cast_mut().cast();
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        let mut address = 0;
        let registered = outside_capture(|| {
            let (Some(register), Some(get)) = (real!(cuMemHostRegister_v2), real!(cuMemHostGetDevicePointer_v2)) else {
                return CUresult::NOT_FOUND;
            };
            // SAFETY: the slot is a whole page that is mapped for ever.
            match unsafe { register(start, size_of::<Slot>(), flags) } {
                CUresult::SUCCESS => self.context.store(context_of(CUstream::NULL).0, Ordering::Relaxed),
                // Another thread has registered it first.
                CUresult::HOST_MEMORY_ALREADY_REGISTERED => {}
                error => return error,
            }
            // SAFETY: the pointer is valid.
            unsafe { get(&raw mut address, start, 0) }
        });
        if !registered.is_ok() || address == 0 || address & FORGOTTEN != 0 {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let known = address | word;
        match self.address.compare_exchange(word, known, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(address),
            Err(now) => (now == known).then_some(address),
        }
    }

    /// Forgets the address, so that the page is registered again next time. `false` if it was not registered.
    fn forget(&self) -> bool {
        let forgotten = |word: u64| Some(word.wrapping_add(1) & FORGOTTEN);
        let before = self.address.fetch_update(Ordering::AcqRel, Ordering::Acquire, forgotten);
        before.is_ok_and(|word| word & !FORGOTTEN != 0)
    }

    /// After a marker was refused with `error`: has the page registered again next time, because the context of its
    /// registration may be gone.
    pub(super) fn forget_after(&self, error: CUresult) {
        const CAPTURE_ERRORS: core::ops::RangeInclusive<u32> = 900..=908;
        if !CAPTURE_ERRORS.contains(&error.0) && self.forget() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Puts marker `number` into `stream`. `address` is the slot's address on the device.
pub(super) fn write(part: &Part, stream: CUstream, address: CUdeviceptr, number: u64) -> CUresult {
    let Some(cell) = part.row().and_then(|row| ledger::cell(row, number)) else { return CUresult::NOT_FOUND };
    let place = core::ptr::from_ref(cell).addr().wrapping_sub(core::ptr::from_ref(part.slot()).addr());
    let cell = address.wrapping_add(place as u64);
    // The second version of the call needs no special set-up of the driver. Before CUDA 11.7 only the first exists.
    match real!(cuStreamWriteValue64_v2).or_else(|| real!(cuStreamWriteValue64)) {
        // SAFETY: the cell lies in the slot's page, which is registered with the driver and mapped for ever.
        Some(write) => unsafe { write(stream, cell, number, 0) },
        None => CUresult::NOT_FOUND,
    }
}

/// The slot's address on the device, registered with the driver at the first call. `None`: events must be used.
pub(super) fn address(part: &Part) -> Option<CUdeviceptr> {
    let page = part.process.marker_page();
    if page.pauses.load(Ordering::Acquire) != 0 || part.process.marks_by_events() {
        return None;
    }
    let word = page.address.load(Ordering::Acquire);
    match word & !FORGOTTEN {
        0 if page.failures.load(Ordering::Relaxed) < FAILURES_MAX => page.register(part.slot(), word),
        0 => None,
        address => Some(address),
    }
}

/// A pause of the device's writes into the slot's page, while a context is about to end.
///
/// The page's registration may end with that context. A marker in another context that is written after that would
/// cause a fault there.
pub(crate) struct DeviceWrites {
    process: &'static Process,
    ending: CUcontext,
    /// Whether the page may be registered in the ending context.
    paused: bool,
}

impl DeviceWrites {
    /// To be called before `ending` ends (null stands for an unknown context). New markers are events from now on. It
    /// waits for the markers that devices have still to write in other contexts.
    pub(crate) fn pause(process: &'static Process, ending: CUcontext, is_primary: bool) -> DeviceWrites {
        let page = process.marker_page();
        let registered_in = page.context.load(Ordering::Relaxed);
        // A registration that was made while a green context was current belongs to the primary context, which has
        // another handle.
        let paused = is_primary || registered_in.is_null() || registered_in == ending.0;
        if paused {
            page.pauses.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let start_ns = clock::now_ns();
            while process.all_parts().any(|part| is_yet_to_write(&part, ending))
                && clock::now_ns().saturating_sub(start_ns) < WAIT_NS_MAX
            {
                sys::sleep_ns(SLEEP_NS_MIN);
            }
        }
        DeviceWrites { process, ending, paused }
    }

    /// To be called if the context lives on.
    pub(crate) fn resume(self) {
        if self.paused {
            self.process.marker_page().pauses.fetch_sub(1, Ordering::Release);
        }
    }

    /// To be called if the context has ended.
    pub(crate) fn resume_without_context(self) {
        if self.paused {
            let page = self.process.marker_page();
            page.context.store(core::ptr::null_mut(), Ordering::Relaxed);
            page.forget();
        }
        for part in self.process.all_parts() {
            forget_context(&part, self.ending);
        }
        self.resume();
    }
}

/// Whether the device has still to write a marker in another context than `ending`.
fn is_yet_to_write(part: &Part, ending: CUcontext) -> bool {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return false };
    let Some(row) = part.row() else { return false };
    flight.newest_markers(row, slot.marker_submitted.load(Ordering::Acquire)).any(|marker| {
        let is_event = marker.recorded.load(Ordering::Acquire) == marker.number;
        !is_event && !marker.is_done() && marker.context().map(primary_of) != Some(ending)
    })
}

/// After the end of a context, and of the green contexts on it: its events are gone, and the markers in its streams are
/// not waited for any more. Markers in contexts that live are still waited for: otherwise a late write would be taken
/// for that of a newer marker in the same cell.
pub(super) fn forget_context(part: &Part, ended: CUcontext) {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return };
    let Some(row) = part.row() else { return };
    let ended = primary_of(ended);
    for marker in flight.newest_markers(row, slot.marker_submitted.load(Ordering::Acquire)) {
        let lives = marker.context().is_some_and(|context| primary_of(context) != ended && context::is_alive(context));
        if !lives || marker.is_done() || marker.recorded.load(Ordering::Acquire) != marker.number {
            marker.event.store(core::ptr::null_mut(), Ordering::Release);
        }
        if !lives {
            marker.cell.fetch_max(marker.number, Ordering::Release);
        }
    }
}
