//! Progress markers: how much work this process has in flight on a device.
//!
//! A marker is put into a stream behind a launch, and the device itself writes the marker's number into this process's
//! slot when it gets there; so the manager sees progress without any help of the process ([`device_writes`]). Where the
//! device cannot do that, or where the limits file asks for it, an event takes the marker's place, and the process
//! writes the number when it finds the event done ([`events`]).

use crate::clock;
use crate::gate;
use crate::hooks::real;
use crate::pacing;
use crate::process::{Part, Process};
use crate::sys;
use aliquot_abi::cuda::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUresult, CUstream, c_void,
};
use aliquot_abi::ledger;
use aliquot_abi::region::{MARKERS_MAX, SlotDevice};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

mod device_writes;
mod estimate;
mod events;
mod launches;

pub(crate) use device_writes::{DeviceWrites, MarkerPage};
use estimate::Estimates;
pub(crate) use launches::Launches;

/// What this process has in flight on one device. All zero: nothing, ever.
#[repr(C, align(64))]
pub(crate) struct Flight {
    /// [`Launches`] of all threads, counted at markers.
    launched: AtomicU64,
    /// [`Flight::launched`] when marker `n` was put into its stream, at `n % MARKERS_MAX`.
    launched_at: [AtomicU64; MARKERS_MAX],
    /// Newest marker that is known to be done, with all before it.
    done: AtomicU64,
    /// When that was seen.
    done_ns: AtomicU64,
    /// When it was last seen that it was not done yet.
    undone_ns: AtomicU64,
    /// When the launch was admitted after which work was in flight again; 0: not known.
    began_ns: AtomicU64,
    /// When work was last seen in flight.
    looked_ns: AtomicU64,
    /// When all work was done, if none is in flight: as seen, or as the launches' number allows where nobody looked.
    drained_ns: AtomicU64,
    estimates: Estimates,
    /// Events in place of markers, at `n % MARKERS_MAX`.
    events: [AtomicPtr<c_void>; MARKERS_MAX],
    /// The number of the marker that an event was recorded for last.
    recorded: [AtomicU64; MARKERS_MAX],
    /// The context of the stream that marker `n` was put into, at `n % MARKERS_MAX`; null: not known.
    contexts: [AtomicPtr<c_void>; MARKERS_MAX],
    /// That stream.
    streams: [AtomicPtr<c_void>; MARKERS_MAX],
    /// The [`Launches`] that marker `n` stands for, at `n % MARKERS_MAX`.
    stands_for: [AtomicU64; MARKERS_MAX],
    /// Not zero once an event has taken a marker's place.
    uses_events: AtomicU32,
    /// One more than [`Flight::done`] was when a launch last waited for room in vain.
    stalled_at: AtomicU64,
}

/// Work that one marker stands for: a fraction of what may be in flight.
const MARKERS_IN_FLIGHT: u64 = 4;
/// A launch waits no longer than this for room, so that streams that wait for each other, or for the host, cannot
/// deadlock.
const WAIT_NS_MAX: u64 = 1_000_000_000;
/// So few markers are in flight whatever all streams' launches take.
const FEW_MARKERS: u64 = 8;
/// A launch that waits for room looks again after such a time.
const SLEEP_NS_MIN: u64 = 20_000;
const SLEEP_NS_MAX: u64 = 200_000;
/// A sleep lasts so much longer than it is told to: by the kernel's usual slack for timers, which is the host's to change,
/// and the time that it takes to wake up. For a wait that is shorter a thread does not sleep.
const OVERSLEEP_NS: u64 = 60_000;
/// It keeps the processor busy for so long at most, if nobody else wants it; then it sleeps after all.
const SPIN_NS_MAX: u64 = 100_000;
const SPINS_PER_LOOK: u32 = 64;

/// Waits until there is room for one more launch into `stream`, which has waited since `start_ns`. Returns `false` if
/// the gate's word is no longer `gate`: the caller must look at it again.
///
/// A launch waits for the work of its own stream: another stream's work may go on for long, or wait for a peer. All
/// streams together may have twice as much, once more than a few markers are in flight, and no more markers than there
/// are places. Behind a full row of markers a stream with work of its own waits, because launches that nobody counts
/// would have no bound. A stream without work is let in once the oldest marker has been in flight for longer than
/// usual.
pub(crate) fn has_room(part: &Part, stream: CUstream, gate: u32, start_ns: u64) -> bool {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return true };
    let Some(row) = part.row() else { return true };
    let room_ns = u64::from(part.limits.inflight_ns_max.load(Ordering::Relaxed));
    let mut now_ns = clock::now_ns();
    let mut spun_ns = 0_u64;
    loop {
        let newest = slot.marker_submitted.load(Ordering::Acquire);
        let done = look(part, slot, flight, newest, Look::Anytime, now_ns);
        if done >= newest {
            return true;
        }
        let since_ns = flight.done_ns.load(Ordering::Relaxed).max(slot.busy_since_ns.load(Ordering::Relaxed));
        let elapsed_ns = now_ns.saturating_sub(since_ns);
        let (in_flight, of_all) = flight.in_flight_of(stream, row, newest);
        let wait_ns = flight.estimates.wait_for_room_ns(in_flight, elapsed_ns, room_ns);
        let markers = newest - done;
        let wait_for_all_ns = match flight.estimates.wait_for_room_ns(of_all, elapsed_ns, room_ns.saturating_mul(2)) {
            _ if markers < FEW_MARKERS => 0,
            0 if markers >= row.len() as u64 => SLEEP_NS_MIN,
            wait_ns => wait_ns,
        };
        if wait_ns == 0 && (wait_for_all_ns == 0 || (elapsed_ns > room_ns && in_flight == Launches::NONE)) {
            return true;
        }
        let wait_ns = wait_ns.max(wait_for_all_ns);
        // A marker that does not come, as of a stream that waits for the host or a peer, is waited for once, not at
        // each launch.
        if flight.stalled_at.load(Ordering::Relaxed) == done + 1 {
            return true;
        }
        if now_ns.saturating_sub(start_ns) > WAIT_NS_MAX {
            flight.stalled_at.store(done + 1, Ordering::Relaxed);
            return true;
        }
        let spins = wait_ns < OVERSLEEP_NS && spun_ns < SPIN_NS_MAX;
        if spins {
            (0..SPINS_PER_LOOK).for_each(|_| core::hint::spin_loop());
            sys::yield_now();
        } else {
            sys::sleep_ns(wait_ns.saturating_sub(OVERSLEEP_NS).clamp(SLEEP_NS_MIN, SLEEP_NS_MAX));
        }
        if part.limits.gate.load(Ordering::Relaxed) != gate {
            return false;
        }
        let before_ns = core::mem::replace(&mut now_ns, clock::now_ns());
        if spins {
            spun_ns += now_ns.saturating_sub(before_ns);
        }
    }
}

/// Whether the process has ever put a marker there.
pub(crate) fn has_launched(part: &Part) -> bool {
    part.flight().is_some_and(|flight| flight.launched().count() > 0)
}

/// How many kernels, or else graphs, the next marker should stand for.
pub(crate) fn launches_per_marker(part: &Part, is_graph: bool) -> u32 {
    let most = part.limits.marker_launches_max.load(Ordering::Relaxed).clamp(1, 1024);
    let ns_of = |flight: &Flight| if is_graph { flight.estimates.graph_ns() } else { flight.estimates.kernel_ns() };
    let one_ns = part.flight().map_or(0, ns_of);
    let room_ns = u64::from(part.limits.inflight_ns_max.load(Ordering::Relaxed));
    let launches = (room_ns / MARKERS_IN_FLIGHT).checked_div(one_ns).unwrap_or(1);
    (launches.min(most.into()) as u32).max(1)
}

/// Whether there is work in flight of which the manager learns only by this process's looking at events.
pub(crate) fn is_told_by_events(part: &Part) -> bool {
    let uses_events = part.flight().is_some_and(|flight| flight.uses_events.load(Ordering::Relaxed) != 0);
    uses_events && matches!(look_now(part, Look::Anytime), Some(Seen::InFlight { .. }))
}

/// The host is about to wait for work on some device.
#[inline(never)]
pub(crate) fn look_at_all(process: &'static Process) {
    for part in shared_parts(process) {
        let _ = look_now(&part, Look::Anytime);
    }
}

/// The host has waited for something on some device.
#[inline(never)]
pub(crate) fn note_progress(process: &'static Process, when: Look) {
    for part in shared_parts(process) {
        let _ = look_now(&part, when);
        pacing::pay_for_unwatched(&part);
    }
}

/// The parts that are shared in time now.
fn shared_parts(process: &'static Process) -> impl Iterator<Item = Part> {
    process.all_parts().filter(|part| !gate::is_free(part.limits.gate.load(Ordering::Relaxed)))
}

/// When somebody looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// What is done may have been so since the last look.
    Anytime,
    /// When the host has waited for work: what was not done before has just been done.
    AfterWait,
}

/// What is seen of this process's work on a device.
pub(crate) enum Seen {
    /// There is some, since this time.
    InFlight { since_ns: u64 },
    /// All is done; the last was from the first time until the second one.
    Drained { since_ns: u64, until_ns: u64 },
}

/// Looks which work is done.
pub(crate) fn look_now(part: &Part, when: Look) -> Option<Seen> {
    let (slot, flight) = (part.work()?, part.flight()?);
    let newest = slot.marker_submitted.load(Ordering::Acquire);
    let done = look(part, slot, flight, newest, when, clock::now_ns());
    let since_ns = slot.busy_since_ns.load(Ordering::Relaxed);
    Some(match done < newest {
        true => Seen::InFlight { since_ns },
        false => Seen::Drained { since_ns, until_ns: flight.drained_ns.load(Ordering::Relaxed) },
    })
}

impl Flight {
    fn launched(&self) -> Launches {
        Launches(self.launched.load(Ordering::Relaxed))
    }

    fn launched_at(&self, marker: u64) -> Launches {
        Launches(self.launched_at.get(marker as usize % MARKERS_MAX).map_or(0, |count| count.load(Ordering::Relaxed)))
    }

    /// Takes note that what was behind marker `before`, up to marker `done`, has now been seen done.
    fn note_done(&self, slot: &SlotDevice, before: u64, done: u64, when: Look, now_ns: u64) {
        let undone_ns = if when == Look::AfterWait { now_ns } else { self.looked_ns.load(Ordering::Relaxed) };
        // The device was at work since the marker before was done, or since work came after it had drained.
        let busy_since_ns = slot.busy_since_ns.load(Ordering::Relaxed);
        let began_last_ns = self.done_ns.swap(now_ns, Ordering::Relaxed).max(busy_since_ns);
        // The marker may have been put long after the launch, by a thread that did not run meanwhile.
        let began_ns = self.began_ns.load(Ordering::Relaxed);
        let began_first_ns = self.undone_ns.swap(undone_ns, Ordering::Relaxed).max(began_ns);
        let launches = self.launched_at(done).since(self.launched_at(before));
        // Counts of markers that far apart have been overwritten.
        if done - before < MARKERS_MAX as u64 {
            self.estimates.learn(
                launches,
                undone_ns.saturating_sub(began_last_ns),
                now_ns.saturating_sub(began_first_ns),
            );
        }
        let by_number_ns = began_last_ns.saturating_add(self.estimates.longest_ns(launches));
        self.drained_ns.store(by_number_ns.max(undone_ns).min(now_ns), Ordering::Relaxed);
    }
}

/// Finds out which markers up to `newest` are done, and learns from it how long launches take. Returns the newest
/// marker before which all are done.
fn look(part: &Part, slot: &SlotDevice, flight: &Flight, newest: u64, when: Look, now_ns: u64) -> u64 {
    let Some(row) = part.row() else { return newest };
    if flight.uses_events.load(Ordering::Relaxed) != 0 {
        events::query(flight, row, newest);
    }
    let before = flight.done.load(Ordering::Relaxed);
    let done = ledger::oldest_in_flight(before, newest, row).map_or(newest, |oldest| oldest.saturating_sub(1));
    if done > before && flight.done.compare_exchange(before, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        flight.note_done(slot, before, done, when, now_ns);
    }
    if done < newest {
        flight.looked_ns.store(now_ns, Ordering::Relaxed);
    }
    done
}

/// Puts a marker behind launches into `stream` of which the last was made a while ago, if there are any.
pub(crate) fn put_for(part: &Part, stream: CUstream, launches: Launches) {
    if launches.count() > 0 {
        let last = Launches::one(launches.graphs() > 0);
        put(part, stream, launches, last, None);
    }
}

/// When a launch was admitted: its work cannot have begun before. The calling thread may have been stopped since, while
/// the device was at work.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    pub(crate) at_ns: u64,
    /// Whether the container admitted it itself, for want of a manager, and pays from then on.
    pub(crate) is_paced: bool,
}

/// Puts a marker for `launches` behind the `last` of them, which was made into `stream` after its `admission`, if that is
/// known.
#[cold]
pub(crate) fn put(part: &Part, stream: CUstream, launches: Launches, last: Launches, admission: Option<Admission>) {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return };
    let Some(row) = part.row() else { return };
    let now_ns = clock::now_ns();
    slot.launches.fetch_add(launches.count(), Ordering::Relaxed);
    let launched = Launches(flight.launched.fetch_add(launches.0, Ordering::Relaxed)) + launches;
    let by_device = device_writes::address(part).is_some();
    slot.markers_by_device.store(u32::from(by_device), Ordering::Relaxed);
    let mut newest = slot.marker_submitted.load(Ordering::Relaxed);
    let (number, was_drained) = loop {
        let oldest = ledger::oldest_in_flight(flight.done.load(Ordering::Relaxed), newest, row);
        if oldest.is_some_and(|oldest| newest + 1 >= oldest + row.len() as u64) {
            // Other streams have filled the row: as long as it is full the process counts as at work, and this launch
            // with it.
            return;
        }
        if oldest.is_none() {
            let since_ns = admission.filter(|admission| admission.is_paced).map_or(now_ns, |admission| admission.at_ns);
            slot.busy_since_ns.store(since_ns, Ordering::Relaxed);
        }
        // Pairs with the manager's load: whoever sees the number sees its cell not yet written, or written for it.
        match slot.marker_submitted.compare_exchange(newest, newest + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break (newest + 1, oldest.is_none()),
            Err(now) => newest = now,
        }
    };
    slot.marker_submitted_ns.store(now_ns, Ordering::Relaxed);
    let place = number as usize % MARKERS_MAX;
    if was_drained && let Some(count) = flight.launched_at.get((number - 1) as usize % MARKERS_MAX) {
        // Those before the last one are done: nothing is to be learnt from how long they take from now on.
        count.store(launched.before(last).0, Ordering::Relaxed);
        flight.began_ns.store(admission.map_or(0, |admission| admission.at_ns), Ordering::Relaxed);
    }
    if let Some(count) = flight.launched_at.get(place) {
        count.store(launched.0, Ordering::Relaxed);
    }
    if let (Some(context), Some(known), Some(stands_for)) =
        (flight.contexts.get(place), flight.streams.get(place), flight.stands_for.get(place))
    {
        context.store(context_of(stream).0, Ordering::Relaxed);
        known.store(stream.0, Ordering::Relaxed);
        stands_for.store(launches.0, Ordering::Relaxed);
    }
    // Pairs with the fence in `DeviceWrites::pause`: either the pause is seen below, or the marker is there.
    fence(Ordering::SeqCst);
    let put = match device_writes::address(part) {
        Some(address) => device_writes::write(part, stream, address, number),
        None => events::record(flight, stream, place, number),
    };
    if !put.is_ok() {
        // A marker that no device will write must not be waited for.
        if let Some(cell) = ledger::cell(row, number) {
            cell.store(number, Ordering::Release);
        }
        part.process.marker_page().forget_after(put);
    }
}

/// After a call that ended like this: work of the calling thread's context that will never be done is in flight no
/// longer. Its markers are never written: if they were waited for, the container would look busy for ever.
pub(crate) fn note_failure(result: CUresult) {
    if CUresult::FATAL.contains(&result)
        && let Some(process) = Process::if_attached()
    {
        let failed = context_of(CUstream::NULL);
        process.all_parts().for_each(|part| device_writes::forget_context(&part, failed));
    }
}

/// The context of a stream; null if the driver does not say.
pub(crate) fn context_of(stream: CUstream) -> CUcontext {
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

/// One of the markers that were put last.
struct Marker<'a> {
    number: u64,
    cell: &'a AtomicU64,
    event: &'a AtomicPtr<c_void>,
    recorded: &'a AtomicU64,
    context: &'a AtomicPtr<c_void>,
    stream: &'a AtomicPtr<c_void>,
    stands_for: &'a AtomicU64,
}

impl Marker<'_> {
    fn stream(&self) -> CUstream {
        CUstream(self.stream.load(Ordering::Relaxed))
    }

    fn stands_for(&self) -> Launches {
        Launches(self.stands_for.load(Ordering::Relaxed))
    }

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
    /// Launches behind markers that are not done: in `stream`, and in all.
    fn in_flight_of(&self, stream: CUstream, row: &[AtomicU64], newest: u64) -> (Launches, Launches) {
        let undone = self.newest_markers(row, newest).filter(|marker| !marker.is_done());
        undone.fold((Launches::NONE, Launches::NONE), |(own, all), marker| {
            let launches = marker.stands_for();
            (if marker.stream() == stream { own + launches } else { own }, all + launches)
        })
    }

    /// The markers up to `newest` whose places no newer one has taken.
    fn newest_markers<'a>(&'a self, row: &'a [AtomicU64], newest: u64) -> impl Iterator<Item = Marker<'a>> {
        (newest.saturating_sub(row.len() as u64) + 1..=newest).filter_map(move |number| {
            let place = number as usize % MARKERS_MAX;
            Some(Marker {
                number,
                cell: ledger::cell(row, number)?,
                event: self.events.get(place)?,
                recorded: self.recorded.get(place)?,
                context: self.contexts.get(place)?,
                stream: self.streams.get(place)?,
                stands_for: self.stands_for.get(place)?,
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
