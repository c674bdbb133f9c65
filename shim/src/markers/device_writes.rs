//! Markers that the device writes: stream memory operations into this process's slot, whose page is registered with the
//! driver.

use super::{SLEEP_NS_MIN, WAIT_NS_MAX, context_of, outside_capture};
use crate::clock;
use crate::context;
use crate::hooks::real;
use crate::process::{Part, Process};
use crate::sys;
use aliquot_abi::cuda::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUcontext, CUdeviceptr, CUresult, CUstream, c_void,
};
use aliquot_abi::ledger;
use aliquot_abi::region::Slot;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// Where the device writes markers.
#[repr(C, align(64))]
pub(crate) struct MarkerPage {
    /// The slot's address as the device knows it; 0: not registered with the driver. As it is a page's, the lower bits
    /// are free to say how often it was forgotten: what a thread learned before is not put here afterwards.
    address: AtomicU64,
    /// The context that it was registered in; null: not known.
    context: AtomicPtr<c_void>,
    /// Contexts that are about to end, and with them maybe the registration: see [`DeviceWrites`].
    pauses: AtomicU32,
    /// How often registering it was tried in vain.
    failures: AtomicU32,
}

/// The part of [`MarkerPage::address`] that counts.
const FORGOTTEN: u64 = 0xfff;
/// After so many failures to let the device write markers, events take over.
const FAILURES_MAX: u32 = 4;

impl MarkerPage {
    /// Registers the page ahead of the first launch, after an allocation, which needs a context as this does, or at last
    /// before that launch: beside kernels it could wait for them, or they for each other. What fails here is tried again
    /// when a marker is put.
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
                // Another thread was first.
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

    /// Registers again next time. `false` if it was not registered.
    fn forget(&self) -> bool {
        let forgotten = |word: u64| Some(word.wrapping_add(1) & FORGOTTEN);
        let before = self.address.fetch_update(Ordering::AcqRel, Ordering::Acquire, forgotten);
        before.is_ok_and(|word| word & !FORGOTTEN != 0)
    }

    /// After a marker was refused: registers again next time, in case the context that the page was registered in is
    /// gone.
    pub(super) fn forget_after(&self, error: CUresult) {
        const CAPTURE_ERRORS: core::ops::RangeInclusive<u32> = 900..=908;
        if !CAPTURE_ERRORS.contains(&error.0) && self.forget() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Puts marker `number` into `stream`; the device knows the slot by `address`.
pub(super) fn write(part: &Part, stream: CUstream, address: CUdeviceptr, number: u64) -> CUresult {
    let Some(cell) = part.row().and_then(|row| ledger::cell(row, number)) else { return CUresult::NOT_FOUND };
    let place = core::ptr::from_ref(cell).addr().wrapping_sub(core::ptr::from_ref(part.slot()).addr());
    let cell = address.wrapping_add(place as u64);
    // The second version of the call needs no special set-up of the driver; before CUDA 11.7 there is only the first.
    match real!(cuStreamWriteValue64_v2).or_else(|| real!(cuStreamWriteValue64)) {
        // SAFETY: the cell lies in the slot's page, which is registered with the driver and mapped for ever.
        Some(write) => unsafe { write(stream, cell, number, 0) },
        None => CUresult::NOT_FOUND,
    }
}

/// The slot's address as the device knows it, registered with the driver at the first call; `None`: events must do.
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

/// The devices' writes into the slot's page, while a context is about to end.
///
/// The page's registration may go with that context, and a marker that is yet to be written in another one would be a
/// fault there.
pub(crate) struct DeviceWrites {
    process: &'static Process,
    ending: CUcontext,
    /// Whether the page may be registered in that context.
    paused: bool,
}

impl DeviceWrites {
    /// Call before `ending` (null: not known which) ends: new markers go by events, and those that devices are yet to
    /// write in other contexts are waited for.
    pub(crate) fn pause(process: &'static Process, ending: CUcontext, is_primary: bool) -> DeviceWrites {
        let page = process.marker_page();
        let registered_in = page.context.load(Ordering::Relaxed);
        // What was registered in a green context is the primary one's, but under another handle.
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

    /// The context lives on.
    pub(crate) fn resume(self) {
        if self.paused {
            self.process.marker_page().pauses.fetch_sub(1, Ordering::Release);
        }
    }

    /// The context has ended.
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

/// Whether the device is yet to write a marker in another context than `ending`.
fn is_yet_to_write(part: &Part, ending: CUcontext) -> bool {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return false };
    let Some(row) = part.row() else { return false };
    flight.newest_markers(row, slot.marker_submitted.load(Ordering::Acquire)).any(|marker| {
        let is_event = marker.recorded.load(Ordering::Acquire) == marker.number;
        !is_event && !marker.is_done() && marker.context() != Some(ending)
    })
}

/// With a context have gone its events, and the streams that its markers were in: those are not waited for any more.
/// Markers in contexts that live are: a write that comes late would be taken for that of a newer marker at the same
/// place.
pub(super) fn forget_context(part: &Part, ended: CUcontext) {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return };
    let Some(row) = part.row() else { return };
    for marker in flight.newest_markers(row, slot.marker_submitted.load(Ordering::Acquire)) {
        let lives = marker.context().is_some_and(|context| context != ended && context::is_alive(context));
        if !lives || marker.is_done() || marker.recorded.load(Ordering::Acquire) != marker.number {
            marker.event.store(core::ptr::null_mut(), Ordering::Release);
        }
        if !lives {
            marker.cell.fetch_max(marker.number, Ordering::Release);
        }
    }
}
