//! Progress markers: how much work this process has in flight on a device.
//!
//! A marker is put into a stream behind a launch, and the device itself writes the marker's number into this process's slot
//! when it gets there; so the manager sees progress without any help of the process. Where the device cannot do that, an
//! event takes the marker's place, and the process writes the number when it finds the event done.

use crate::clock;
use crate::context;
use crate::hooks::real;
use crate::process::{Part, Process};
use crate::sys;
use aliquot_abi::cuda::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_LEGACY,
    CU_STREAM_PER_THREAD, CUcontext, CUdeviceptr, CUevent, CUresult, CUstream, c_uint, c_void,
};
use aliquot_abi::ledger;
use aliquot_abi::region::{MARKERS_MAX, Slot, SlotDevice};
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// What this process has in flight on one device.
#[repr(C, align(64))]
pub(crate) struct Flight {
    /// Launches of all threads, counted at markers.
    launched: AtomicU64,
    /// [`Flight::launched`] when marker `n` was put into its stream, at `n % MARKERS_MAX`.
    launched_at: [AtomicU64; MARKERS_MAX],
    /// Newest marker that is known to be done, with all before it.
    done: AtomicU64,
    /// When that was seen.
    done_ns: AtomicU64,
    /// Estimated time of one launch's work; 0: not known yet.
    launch_ns: AtomicU32,
    /// Events in place of markers, at `n % MARKERS_MAX`.
    events: [AtomicPtr<c_void>; MARKERS_MAX],
    /// The number of the marker that an event was recorded for last.
    recorded: [AtomicU64; MARKERS_MAX],
    /// The context of the stream that marker `n` was put into, at `n % MARKERS_MAX`; null: not known.
    contexts: [AtomicPtr<c_void>; MARKERS_MAX],
    /// Not zero once an event has taken a marker's place.
    uses_events: AtomicU32,
    /// One more than [`Flight::done`] was when a launch last waited for room in vain.
    stalled_at: AtomicU64,
}

/// Where the device writes markers.
#[repr(C, align(64))]
pub(crate) struct MarkerPage {
    /// The slot's address as the device knows it; 0: not registered with the driver. As it is a page's, the lower bits are free to say
    /// how often it was forgotten: what a thread learned before is not put here afterwards.
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
/// Work that one marker stands for: a fraction of what may be in flight.
const MARKERS_IN_FLIGHT: u64 = 4;
/// A launch waits no longer than this for room, so that streams that wait for each other, or for the host, cannot deadlock.
const WAIT_NS_MAX: u64 = 1_000_000_000;
/// A launch that waits for room looks again after such a time.
const SLEEP_NS_MIN: u64 = 20_000;
const SLEEP_NS_MAX: u64 = 200_000;

/// Waits until there is room for one more launch, with fewer than `markers_max` markers in flight. `false` if the gate's word is not
/// `gate` any more: look at it again.
pub(crate) fn has_room(part: &Part, gate: u32, markers_max: usize) -> bool {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return true };
    let room_ns = u64::from(part.limits.inflight_ns_max.load(Ordering::Relaxed));
    let start_ns = clock::now_ns();
    let mut now_ns = start_ns;
    loop {
        let newest = slot.marker_submitted.load(Ordering::Acquire);
        let done = look(part, slot, flight, newest, now_ns);
        if done >= newest {
            return true;
        }
        let remaining_ns = flight.remaining_ns(done, slot.busy_since_ns.load(Ordering::Relaxed), now_ns);
        // With no estimate yet, one launch at a time.
        let excess_ns = remaining_ns.map_or(room_ns, |remaining_ns| remaining_ns.saturating_sub(room_ns));
        if remaining_ns.is_some() && excess_ns == 0 && newest - done < markers_max as u64 {
            return true;
        }
        // A marker that does not come, as of a stream that waits for the host or a peer, is waited for once, not at each launch.
        if flight.stalled_at.load(Ordering::Relaxed) == done + 1 {
            return true;
        }
        if now_ns.saturating_sub(start_ns) > WAIT_NS_MAX {
            flight.stalled_at.store(done + 1, Ordering::Relaxed);
            return true;
        }
        sys::sleep_ns(excess_ns.clamp(SLEEP_NS_MIN, SLEEP_NS_MAX));
        if part.limits.gate.load(Ordering::Relaxed) != gate {
            return false;
        }
        now_ns = clock::now_ns();
    }
}

/// Launches that the next marker should stand for.
pub(crate) fn launches_per_marker(part: &Part) -> u32 {
    let most = part.limits.marker_launches_max.load(Ordering::Relaxed).clamp(1, 1024);
    let room_ns = part.limits.inflight_ns_max.load(Ordering::Relaxed);
    let launch_ns = part.flight().map_or(0, |flight| flight.launch_ns.load(Ordering::Relaxed));
    (room_ns / MARKERS_IN_FLIGHT as u32).checked_div(launch_ns).map_or(1, |launches| launches.min(most).max(1))
}

impl Flight {
    /// Estimated time until all work in flight is done, where marker `done` and all before it are; `None` with no estimate of a
    /// launch's time.
    ///
    /// What the oldest launch has been at already does not count, so that the next one of a series of long kernels is let in
    /// shortly before the device would have nothing to do.
    fn remaining_ns(&self, done: u64, busy_since_ns: u64, now_ns: u64) -> Option<u64> {
        let launch_ns = u64::from(NonZeroU32::new(self.launch_ns.load(Ordering::Relaxed))?.get());
        let in_flight = self.launched.load(Ordering::Relaxed).saturating_sub(self.launched_at(done)).max(1);
        let since_ns = self.done_ns.load(Ordering::Relaxed).max(busy_since_ns);
        let elapsed_ns = now_ns.saturating_sub(since_ns).min(launch_ns);
        Some(in_flight.saturating_mul(launch_ns) - elapsed_ns)
    }

    fn launched_at(&self, marker: u64) -> u64 {
        self.launched_at.get(marker as usize % MARKERS_MAX).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// Finds out which markers up to `newest` are done, and learns from it how long a launch takes. Returns the newest marker
/// before which all are done.
fn look(part: &Part, slot: &SlotDevice, flight: &Flight, newest: u64, now_ns: u64) -> u64 {
    let Some(row) = part.slot().markers.get(part.index) else { return newest };
    if flight.uses_events.load(Ordering::Relaxed) != 0 {
        query_events(flight, row, newest);
    }
    let done = ledger::oldest_in_flight(newest, row).map_or(newest, |oldest| oldest.saturating_sub(1));
    let before = flight.done.load(Ordering::Relaxed);
    if done > before && flight.done.compare_exchange(before, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        let done_ns = flight.done_ns.swap(now_ns, Ordering::Relaxed);
        // The device was at work since the last marker was seen done, or since work came after it had drained.
        let since_ns = done_ns.max(slot.busy_since_ns.load(Ordering::Relaxed));
        let launches = flight.launched_at(done).saturating_sub(flight.launched_at(before));
        // Counts of markers that far apart have been overwritten.
        if done - before < MARKERS_MAX as u64
            && let Some(sample_ns) = now_ns.saturating_sub(since_ns).checked_div(launches)
        {
            let sample_ns = sample_ns.clamp(1, 1 << 31) as u32;
            let old_ns = flight.launch_ns.load(Ordering::Relaxed);
            // With nothing left in flight the device may have been idle since: the sample says at most how long.
            let new_ns = match old_ns {
                0 => sample_ns,
                _ if done == newest => sample_ns.min(old_ns),
                _ => old_ns / 2 + sample_ns / 2,
            };
            flight.launch_ns.store(new_ns.max(1), Ordering::Relaxed);
        }
    }
    done
}

/// Puts a marker for `launches` launches behind the launch that has just been made into `stream`.
#[cold]
pub(crate) fn put(part: &Part, stream: CUstream, launches: u32) {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return };
    let Some(row) = part.slot().markers.get(part.index) else { return };
    let now_ns = clock::now_ns();
    let launches = u64::from(launches);
    slot.launches.fetch_add(launches, Ordering::Relaxed);
    let launched = flight.launched.fetch_add(launches, Ordering::Relaxed) + launches;
    let by_device = marker_address(part).is_some();
    slot.markers_by_device.store(u32::from(by_device), Ordering::Relaxed);
    let mut newest = slot.marker_submitted.load(Ordering::Relaxed);
    let number = loop {
        let oldest = ledger::oldest_in_flight(newest, row);
        if oldest.is_some_and(|oldest| newest + 1 >= oldest + MARKERS_MAX as u64) {
            // Other threads have filled the row since this one found room; their markers stand for this launch too.
            return;
        }
        if oldest.is_none() {
            slot.busy_since_ns.store(now_ns, Ordering::Relaxed);
        }
        // Pairs with the manager's load: whoever sees the number sees its cell not yet written, or written for it.
        match slot.marker_submitted.compare_exchange(newest, newest + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break newest + 1,
            Err(now) => newest = now,
        }
    };
    slot.marker_submitted_ns.store(now_ns, Ordering::Relaxed);
    let place = number as usize % MARKERS_MAX;
    if let Some(count) = flight.launched_at.get(place) {
        count.store(launched, Ordering::Relaxed);
    }
    if let Some(context) = flight.contexts.get(place) {
        context.store(context_of(stream).0, Ordering::Relaxed);
    }
    // Pairs with the fence in `DeviceWrites::pause`: either the pause is seen below, or the marker is there.
    fence(Ordering::SeqCst);
    let put = match marker_address(part) {
        Some(address) => write_by_device(part, stream, address, place, number),
        None => record_event(flight, stream, place, number),
    };
    if !put.is_ok() {
        // A marker that no device will write must not be waited for.
        if let Some(cell) = row.get(place) {
            cell.store(number, Ordering::Release);
        }
        part.process.marker_page().forget_after(put);
    }
}

fn write_by_device(part: &Part, stream: CUstream, address: CUdeviceptr, place: usize, number: u64) -> CUresult {
    let row = core::mem::offset_of!(Slot, markers) + part.index * MARKERS_MAX * 8;
    let cell = address + (row + place * 8) as u64;
    // The second version of the call needs no special set-up of the driver; before CUDA 11.7 there is only the first.
    match real!(cuStreamWriteValue64_v2).or_else(|| real!(cuStreamWriteValue64)) {
        // SAFETY: the cell lies in the slot's page, which is registered with the driver and mapped for ever.
        Some(write) => unsafe { write(stream, cell, number, 0) },
        None => CUresult::NOT_FOUND,
    }
}

/// The slot's address as the device knows it, registered with the driver at the first call; `None`: events must do.
fn marker_address(part: &Part) -> Option<CUdeviceptr> {
    let page = part.process.marker_page();
    if page.pauses.load(Ordering::Acquire) != 0 {
        return None;
    }
    let word = page.address.load(Ordering::Acquire);
    match word & !FORGOTTEN {
        0 if page.failures.load(Ordering::Relaxed) < FAILURES_MAX => page.register(part.slot(), word),
        0 => None,
        address => Some(address),
    }
}

/// The context of a stream; null if the driver does not say.
fn context_of(stream: CUstream) -> CUcontext {
    let mut context = CUcontext::NULL;
    // The default streams are those of the calling thread's context.
    if [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream) {
        // SAFETY: the pointer is valid.
        let _ = real!(cuCtxGetCurrent).map(|get| unsafe { get(&raw mut context) });
    } else {
        // SAFETY: the pointer is valid; the driver checks the handle.
        let _ = real!(cuStreamGetCtx).map(|get| unsafe { get(stream, &raw mut context) });
    }
    context
}

impl MarkerPage {
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

    /// After a marker was refused: registers again next time, in case the context that the page was registered in is gone.
    fn forget_after(&self, error: CUresult) {
        const CAPTURE_ERRORS: core::ops::RangeInclusive<u32> = 900..=908;
        if !CAPTURE_ERRORS.contains(&error.0) && self.forget() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Records an event in place of marker `number`. An event of another context than the stream's, or of one that is gone, cannot be
/// recorded; then a new one takes its place.
fn record_event(flight: &Flight, stream: CUstream, place: usize, number: u64) -> CUresult {
    let Some(record) = real!(cuEventRecord) else { return CUresult::NOT_FOUND };
    let (Some(known), Some(recorded_for)) = (flight.events.get(place), flight.recorded.get(place)) else {
        return CUresult::NOT_FOUND;
    };
    let mut event = CUevent(known.load(Ordering::Acquire));
    // SAFETY: the driver checks both handles.
    let mut recorded = if event.is_null() { CUresult::INVALID_HANDLE } else { unsafe { record(event, stream) } };
    if !recorded.is_ok() {
        event = match replace_event(event) {
            Ok(event) => event,
            Err(error) => {
                known.store(core::ptr::null_mut(), Ordering::Release);
                return error;
            }
        };
        known.store(event.0, Ordering::Release);
        // SAFETY: as above.
        recorded = unsafe { record(event, stream) };
    }
    if recorded.is_ok() {
        // Pairs with the load in `query_events`: before this the event may still tell of an earlier marker.
        recorded_for.store(number, Ordering::Release);
        flight.uses_events.store(1, Ordering::Relaxed);
    }
    recorded
}

/// Makes an event in the calling thread's context, and destroys `old`, which has served its time: with contexts that take turns
/// events would else become ever more.
fn replace_event(old: CUevent) -> Result<CUevent, CUresult> {
    const DISABLE_TIMING: c_uint = 2;
    let create = real!(cuEventCreate).ok_or(CUresult::NOT_FOUND)?;
    let mut event = CUevent::NULL;
    let created = outside_capture(|| {
        if let (false, Some(destroy)) = (old.is_null(), real!(cuEventDestroy_v2)) {
            // SAFETY: the driver checks the handle, whose context may be gone.
            let _ = unsafe { destroy(old) };
        }
        // SAFETY: the pointer is valid.
        unsafe { create(&raw mut event, DISABLE_TIMING) }
    });
    if created.is_ok() { Ok(event) } else { Err(created) }
}

/// Writes the markers whose events are done.
fn query_events(flight: &Flight, row: &[AtomicU64; MARKERS_MAX], newest: u64) {
    let Some(query) = real!(cuEventQuery) else { return };
    let done = flight.done.load(Ordering::Relaxed);
    for number in done.max(newest.saturating_sub(MARKERS_MAX as u64)) + 1..=newest {
        let place = number as usize % MARKERS_MAX;
        let (Some(cell), Some(event), Some(recorded)) =
            (row.get(place), flight.events.get(place), flight.recorded.get(place))
        else {
            continue;
        };
        if recorded.load(Ordering::Acquire) != number || cell.load(Ordering::Relaxed) >= number {
            continue;
        }
        let event = CUevent(event.load(Ordering::Acquire));
        if event.is_null() {
            continue;
        }
        // SAFETY: the driver checks the handle.
        if outside_capture(|| unsafe { query(event) }) != CUresult::NOT_READY {
            cell.store(number, Ordering::Release);
        }
    }
}

/// The devices' writes into the slot's page, while a context is about to end.
///
/// The page's registration may go with that context, and a marker that is yet to be written in another one would be a fault there.
pub(crate) struct DeviceWrites {
    process: &'static Process,
    ending: CUcontext,
    /// Whether the page may be registered in that context.
    paused: bool,
}

impl DeviceWrites {
    /// Call before `ending` (null: not known which) ends: new markers go by events, and those that devices are yet to write in other
    /// contexts are waited for.
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
    let Some(row) = part.slot().markers.get(part.index) else { return false };
    flight.newest_markers(row, slot.marker_submitted.load(Ordering::Acquire)).any(|marker| {
        let is_event = marker.recorded.load(Ordering::Acquire) == marker.number;
        !is_event && !marker.is_done() && marker.context() != Some(ending)
    })
}

/// With a context have gone its events, and the streams that its markers were in: those are not waited for any more. Markers in
/// contexts that live are: a write that comes late would be taken for that of a newer marker at the same place.
fn forget_context(part: &Part, ended: CUcontext) {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return };
    let Some(row) = part.slot().markers.get(part.index) else { return };
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

/// One of the markers that were put last.
struct Marker<'a> {
    number: u64,
    cell: &'a AtomicU64,
    event: &'a AtomicPtr<c_void>,
    recorded: &'a AtomicU64,
    context: &'a AtomicPtr<c_void>,
}

impl Marker<'_> {
    fn is_done(&self) -> bool {
        self.cell.load(Ordering::Acquire) >= self.number
    }

    /// The context of its stream, if known.
    fn context(&self) -> Option<CUcontext> {
        let context = self.context.load(Ordering::Relaxed);
        (!context.is_null()).then_some(CUcontext(context))
    }
}

impl Flight {
    /// The markers up to `newest` whose places no newer one has taken.
    fn newest_markers<'a>(
        &'a self,
        row: &'a [AtomicU64; MARKERS_MAX],
        newest: u64,
    ) -> impl Iterator<Item = Marker<'a>> {
        (newest.saturating_sub(MARKERS_MAX as u64 - 1).max(1)..=newest).filter_map(move |number| {
            let place = number as usize % MARKERS_MAX;
            Some(Marker {
                number,
                cell: row.get(place)?,
                event: self.events.get(place)?,
                recorded: self.recorded.get(place)?,
                context: self.contexts.get(place)?,
            })
        })
    }
}

/// Makes a call that a stream capture elsewhere in the process must not notice.
pub(crate) fn outside_capture(call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(exchange) = real!(cuThreadExchangeStreamCaptureMode) else { return call() };
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointer is valid; the thread's own mode is put back below.
    let exchanged = unsafe { exchange(&raw mut mode) }.is_ok();
    let result = call();
    if exchanged {
        // SAFETY: as above.
        let _ = unsafe { exchange(&raw mut mode) };
    }
    result
}
