//! Progress markers: how much work this process has in flight on a device.
//!
//! A marker is put into a stream behind a launch. When the device reaches the marker, it writes the marker's number
//! into this process's slot, so that the manager sees progress without any help of the process ([`device_writes`]). If
//! the device cannot do that, or the limits file asks for events, an event takes the marker's place, and the process
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

/// This process's work in flight on one device. All zero: there never was any.
#[repr(C, align(64))]
pub(crate) struct Flight {
    /// The [`Launches`] of all threads so far, counted at markers.
    launched: AtomicU64,
    /// The value of [`Flight::launched`] when marker `n` was put into its stream, at `n % MARKERS_MAX`.
    launched_at: [AtomicU64; MARKERS_MAX],
    /// The newest marker that is known to be done together with all before it.
    done: AtomicU64,
    /// When that was seen.
    done_ns: AtomicU64,
    /// The last time before that at which the marker was not done yet.
    undone_ns: AtomicU64,
    /// When the launch was admitted that ended the last idle time; 0: unknown.
    began_ns: AtomicU64,
    /// When work was last seen in flight.
    looked_ns: AtomicU64,
    /// When all work was done, if none is in flight: the time at which it was seen or, if no thread looked then, an
    /// estimate from the number of launches.
    drained_ns: AtomicU64,
    estimates: Estimates,
    /// The events that take the place of markers, at `n % MARKERS_MAX`.
    events: [AtomicPtr<c_void>; MARKERS_MAX],
    /// For each event, the number of the marker for which it was last recorded.
    recorded: [AtomicU64; MARKERS_MAX],
    /// The context of the stream that marker `n` was put into, at `n % MARKERS_MAX`; null: unknown.
    contexts: [AtomicPtr<c_void>; MARKERS_MAX],
    /// The stream of marker `n`, at the same place.
    streams: [AtomicPtr<c_void>; MARKERS_MAX],
    /// The [`Launches`] that marker `n` stands for, at `n % MARKERS_MAX`.
    stands_for: [AtomicU64; MARKERS_MAX],
    /// Not zero once an event has taken the place of a marker.
    uses_events: AtomicU32,
    /// [`Flight::done`] plus one at the time when a launch last waited for room in vain.
    stalled_at: AtomicU64,
}

/// A marker stands for this fraction of the work that may be in flight.
const MARKERS_IN_FLIGHT: u64 = 4;
/// A launch waits at most this long for room, so that streams that wait for each other, or for the host, cannot
/// deadlock.
const WAIT_NS_MAX: u64 = 1_000_000_000;
/// With fewer markers in flight, the bound for all streams together does not apply.
const FEW_MARKERS: u64 = 8;
/// Limits of the time after which a launch that waits for room looks again.
const SLEEP_NS_MIN: u64 = 20_000;
const SLEEP_NS_MAX: u64 = 200_000;
/// A sleep lasts about this much longer than requested: by the kernel's usual timer slack, which the host can change,
/// and the time to wake up. For a shorter wait a thread spins instead.
const OVERSLEEP_NS: u64 = 60_000;
/// A thread spins for at most this long in one wait, and lets other threads run meanwhile; then it sleeps after all.
const SPIN_NS_MAX: u64 = 100_000;
const SPINS_PER_LOOK: u32 = 64;

/// Waits until there is room for one more launch into `stream`; the launch has waited since `start_ns`. Returns `false`
/// if the gate's word is no longer `gate`: then the caller must read it again.
///
/// A launch waits for the work of its own stream only: the work of another stream may go on for long, or wait for a
/// peer. All streams together may have twice as much in flight. This second bound applies once at least [`FEW_MARKERS`]
/// are in flight, and includes the number of cells for markers. If all cells are in use, a stream with work of its own
/// waits, because launches that no marker counts would have no bound. A stream without work is let in once the oldest
/// marker has been in flight for longer than the bound.
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
        // A marker that does not come, for example because its stream waits for the host or a peer, is waited for once,
        // not at each launch.
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

/// Whether the process has ever put a marker on this device.
pub(crate) fn has_launched(part: &Part) -> bool {
    part.flight().is_some_and(|flight| flight.launched().count() > 0)
}

/// How many kernels or, if `is_graph`, graphs the next marker should stand for.
pub(crate) fn launches_per_marker(part: &Part, is_graph: bool) -> u32 {
    let most = part.limits.marker_launches_max.load(Ordering::Relaxed).clamp(1, 1024);
    let marker_ns = u64::from(part.limits.inflight_ns_max.load(Ordering::Relaxed)) / MARKERS_IN_FLIGHT;
    let launches = part.flight().map_or(1, |flight| match is_graph {
        true => flight.estimates.graphs_in(marker_ns),
        false => flight.estimates.kernels_in(marker_ns),
    });
    launches.min(most.into()) as u32
}

/// Whether there is work in flight whose end the manager learns only if this process queries events.
pub(crate) fn is_told_by_events(part: &Part) -> bool {
    let uses_events = part.flight().is_some_and(|flight| flight.uses_events.load(Ordering::Relaxed) != 0);
    uses_events && matches!(look_now(part, Look::Anytime), Some(Seen::InFlight { .. }))
}

/// To be called when the program is about to wait for work on some device.
#[inline(never)]
pub(crate) fn look_at_all(process: &'static Process) {
    for part in shared_parts(process) {
        let _ = look_now(&part, Look::Anytime);
    }
}

/// To be called when the program has waited for something on some device.
#[inline(never)]
pub(crate) fn note_progress(process: &'static Process, when: Look) {
    for part in shared_parts(process) {
        let _ = look_now(&part, when);
        pacing::pay_for_unwatched(&part);
    }
}

/// The parts that are currently shared in time.
fn shared_parts(process: &'static Process) -> impl Iterator<Item = Part> {
    process.all_parts().filter(|part| !gate::is_free(part.limits.gate.load(Ordering::Relaxed)))
}

/// When a look takes place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// At any time: work that is found done may have been done at any moment since the last look.
    Anytime,
    /// Just after the program has waited for work: work that was not done at the last look has just been done.
    AfterWait,
}

/// The state of this process's work on a device.
pub(crate) enum Seen {
    /// There is work in flight, since this time.
    InFlight { since_ns: u64 },
    /// All work is done; the last of it ran from the first time to the second.
    Drained { since_ns: u64, until_ns: u64 },
}

/// Finds out which work is done by now.
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

    /// Records that the markers after `before`, up to `done`, have now been seen done.
    fn note_done(&self, slot: &SlotDevice, before: u64, done: u64, when: Look, now_ns: u64) {
        let undone_ns = if when == Look::AfterWait { now_ns } else { self.looked_ns.load(Ordering::Relaxed) };
        // The device has worked since the earlier of these markers was done, or since work arrived after an idle time.
        let busy_since_ns = slot.busy_since_ns.load(Ordering::Relaxed);
        let began_last_ns = self.done_ns.swap(now_ns, Ordering::Relaxed).max(busy_since_ns);
        // The marker may have been put long after the launch, by a thread that did not run meanwhile.
        let began_ns = self.began_ns.load(Ordering::Relaxed);
        let began_first_ns = self.undone_ns.swap(undone_ns, Ordering::Relaxed).max(began_ns);
        let launches = self.launched_at(done).since(self.launched_at(before));
        // With more markers in between, the older counts have been overwritten.
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

/// Finds out which markers up to `newest` are done, and learns from that how long launches take. Returns the newest
/// marker that is known to be done together with all before it.
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

/// Puts a marker for `launches` into `stream`, if there are any. The last of them was made some time ago.
pub(crate) fn put_for(part: &Part, stream: CUstream, launches: Launches) {
    if launches.count() > 0 {
        let last = Launches::one(launches.graphs() > 0);
        put(part, stream, launches, last, None);
    }
}

/// When a launch was admitted. Its work cannot have begun earlier. The calling thread may have been stopped since then,
/// while the device was at work.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    pub(crate) at_ns: u64,
    /// Whether the container admitted the launch itself, because no manager did, and pays from then on.
    pub(crate) is_paced: bool,
}

/// Puts a marker for `launches` into `stream`. `last` is the last of them, made after its `admission`, if that is
/// known.
#[cold]
fn put(part: &Part, stream: CUstream, launches: Launches, last: Launches, admission: Option<Admission>) {
    let marker = announce(part, stream, launches, last, admission);
    put_announced(part, stream, launches, marker);
}

/// Counts a marker for `launches` as in flight, which will be put into `stream` as soon as the last of them is made.
/// Returns the marker's number, or 0: there is no room for one.
#[cold]
#[inline(never)]
pub(crate) fn announce(
    part: &Part,
    stream: CUstream,
    launches: Launches,
    last: Launches,
    admission: Option<Admission>,
) -> u64 {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return 0 };
    let Some(row) = part.row() else { return 0 };
    let now_ns = clock::now_ns();
    let launched = Launches(flight.launched.fetch_add(launches.0, Ordering::Relaxed)) + launches;
    let mut newest = slot.marker_submitted.load(Ordering::Relaxed);
    let (number, was_drained) = loop {
        let oldest = ledger::oldest_in_flight(flight.done.load(Ordering::Relaxed), newest, row);
        if oldest.is_some_and(|oldest| newest + 1 >= oldest + row.len() as u64) {
            // Other streams have filled the row. While it is full the process counts as busy, and this launch with it.
            return 0;
        }
        if oldest.is_none() {
            let since_ns = admission.filter(|admission| admission.is_paced).map_or(now_ns, |admission| admission.at_ns);
            slot.busy_since_ns.store(since_ns, Ordering::Relaxed);
        }
        // Pairs with the manager's load: a thread that sees the number sees the marker's cell either not yet written,
        // or written for this number.
        match slot.marker_submitted.compare_exchange(newest, newest + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break (newest + 1, oldest.is_none()),
            Err(now) => newest = now,
        }
    };
    slot.marker_submitted_ns.store(now_ns, Ordering::Relaxed);
    let place = number as usize % MARKERS_MAX;
    if was_drained && let Some(count) = flight.launched_at.get((number - 1) as usize % MARKERS_MAX) {
        // The launches before the last one are done, so the time from now on says nothing about them.
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
    number
}

/// Puts the marker that was [announced](announce) for `launches` into `stream`. If there was no room for one, only
/// counts the launches.
#[cold]
#[inline(never)]
pub(crate) fn put_announced(part: &Part, stream: CUstream, launches: Launches, number: u64) {
    let (Some(slot), Some(flight)) = (part.work(), part.flight()) else { return };
    slot.launches.fetch_add(launches.count(), Ordering::Relaxed);
    if number == 0 {
        return;
    }
    // Pairs with the fence in `DeviceWrites::pause`: either the pause is seen below, or the pause sees the marker.
    fence(Ordering::SeqCst);
    let address = device_writes::address(part);
    slot.markers_by_device.store(u32::from(address.is_some()), Ordering::Relaxed);
    let put = match address {
        Some(address) => device_writes::write(part, stream, address, number),
        None => events::record(flight, stream, number as usize % MARKERS_MAX, number),
    };
    if !put.is_ok() {
        // No device will write this marker, so it must not be waited for.
        write_by_host(part, number);
        part.process.marker_page().forget_after(put);
    }
}

/// Takes back the marker that was [announced](announce) for `launches`, which have failed.
#[cold]
pub(crate) fn withdraw(part: &Part, launches: Launches, number: u64) {
    let Some(flight) = part.flight() else { return };
    flight.launched.fetch_sub(launches.0, Ordering::Relaxed);
    if number != 0 {
        // They took no time, so nothing is to be learned from them.
        if let Some(count) = flight.launched_at.get(number as usize % MARKERS_MAX) {
            count.fetch_sub(launches.0, Ordering::Relaxed);
        }
        write_by_host(part, number);
    }
}

/// Writes marker `number` in place of a device.
fn write_by_host(part: &Part, number: u64) {
    if let Some(cell) = part.row().and_then(|row| ledger::cell(row, number)) {
        cell.store(number, Ordering::Release);
    }
}

/// To be called after a call that returned `result`. If the error is fatal, work of the calling thread's context will
/// never be done, and is no longer counted as in flight. Its markers are never written: if they were waited for, the
/// container would look busy for ever.
#[inline]
pub(crate) fn note_failure(result: CUresult) {
    if !result.is_ok() {
        note_error(result);
    }
}

#[cold]
#[inline(never)]
fn note_error(error: CUresult) {
    if CUresult::FATAL.contains(&error)
        && let Some(process) = Process::if_attached()
    {
        let failed = context_of(CUstream::NULL);
        process.all_parts().for_each(|part| device_writes::forget_context(&part, failed));
    }
}

/// The context of `stream`; null if the driver does not tell.
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

/// One of the newest markers, with its record.
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

    /// The context of the marker's stream, if known.
    fn context(&self) -> Option<CUcontext> {
        let context = self.context.load(Ordering::Relaxed);
        (!context.is_null()).then_some(CUcontext(context))
    }
}

impl Flight {
    /// The launches of markers that are not done: in `stream`, and in all streams together.
    fn in_flight_of(&self, stream: CUstream, row: &[AtomicU64], newest: u64) -> (Launches, Launches) {
        let undone = self.newest_markers(row, newest).filter(|marker| !marker.is_done());
        undone.fold((Launches::NONE, Launches::NONE), |(own, all), marker| {
            let launches = marker.stands_for();
            (if marker.stream() == stream { own + launches } else { own }, all + launches)
        })
    }

    /// The markers up to `newest` whose cells no newer marker has taken.
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

/// Makes a call that must not affect a stream capture elsewhere in the process.
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
