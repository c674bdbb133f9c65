//! Finds out which of a process's progress markers the device has written.

use crate::atomic::{AtomicU64, Ordering};
use crate::region::SlotDevice;

/// Whether the device has done all work of the slot's owner that a marker follows.
///
/// `row` is the device's row in the slot: see [`Slot::row`](crate::region::Slot::row).
#[must_use]
pub fn drained(part: &SlotDevice, row: &[AtomicU64]) -> bool {
    let newest = part.marker_submitted.load(Ordering::Acquire);
    oldest_in_flight(0, newest, row).is_none()
}

/// Number of the oldest marker up to `newest` that the device has not written yet, if there is one. The markers up to
/// `done` are known to be written.
#[must_use]
pub fn oldest_in_flight(done: u64, newest: u64, row: &[AtomicU64]) -> Option<u64> {
    let first = newest.saturating_sub(row.len() as u64).max(done).saturating_add(1);
    (first..=newest).find(|&number| cell(row, number).is_some_and(|cell| cell.load(Ordering::Acquire) < number))
}

/// The cell of marker `number` in a device's row.
#[must_use]
pub fn cell(row: &[AtomicU64], number: u64) -> Option<&AtomicU64> {
    row.get(number.checked_rem(row.len() as u64)? as usize)
}
