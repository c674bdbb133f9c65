//! Events in place of markers, for devices that cannot write into host memory. An event is recorded behind a launch,
//! and queried at each look.

use super::{Flight, outside_capture};
use crate::hooks::real;
use aliquot_abi::cuda::{CUevent, CUresult, CUstream, c_uint};
use aliquot_abi::ledger;
use aliquot_abi::region::MARKERS_MAX;
use core::sync::atomic::{AtomicU64, Ordering};

/// Records an event in place of marker `number`. If the event belongs to another context than the stream, or its
/// context is gone, it cannot be recorded, and a new one replaces it.
pub(super) fn record(flight: &Flight, stream: CUstream, place: usize, number: u64) -> CUresult {
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
        // Pairs with the load in `query`: until now the event may still report on an earlier marker.
        recorded_for.store(number, Ordering::Release);
        flight.uses_events.store(1, Ordering::Relaxed);
    }
    recorded
}

/// Creates an event in the calling thread's context, and destroys `old`: otherwise events would accumulate when
/// contexts take turns.
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

/// Writes the numbers of the markers whose events are done.
pub(super) fn query(flight: &Flight, row: &[AtomicU64], newest: u64) {
    let Some(query) = real!(cuEventQuery) else { return };
    let done = flight.done.load(Ordering::Relaxed);
    for number in done.max(newest.saturating_sub(row.len() as u64)) + 1..=newest {
        let place = number as usize % MARKERS_MAX;
        let (Some(cell), Some(event), Some(recorded)) =
            (ledger::cell(row, number), flight.events.get(place), flight.recorded.get(place))
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
