//! Events.

use core::ffi::c_uint;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUevent, CUresult, CUstream, NullStream};

use crate::Done;
use crate::caller::{not_null, put};
use crate::capture::{self, CapturedAt};
use crate::context::{Owner, current};
use crate::handles::{self, Kind, Object};
use crate::queue::{self, Work};
use crate::streams::stream;

const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;
/// The record or wait becomes a node of the captured graph, instead of a dependency inside it.
const EXTERNAL: c_uint = 1;

/// An event. Its records are numbered from 1.
pub(crate) struct Event {
    pub(crate) owner: Owner,
    flags: c_uint,
    recorded: AtomicU64,
    completed: AtomicU64,
    /// When the last completed record ended on the timeline.
    completed_ns: AtomicU64,
    /// Where in a capture it was recorded last, if that was in a capture.
    captured: Mutex<Option<CapturedAt>>,
}

impl Object for Event {
    const KIND: Kind = Kind::Event;
}

impl Event {
    /// Announces a record, to be completed later. Returns its number.
    pub(crate) fn announce(&self) -> u64 {
        *self.captured() = None;
        self.recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn complete(&self, number: u64, at_ns: u64) {
        self.completed_ns.store(at_ns, Ordering::Release);
        self.completed.fetch_max(number, Ordering::AcqRel);
    }

    /// When the record with this number, or a later one, completed. A record that never was counts as complete.
    pub(crate) fn completed_at(&self, number: u64) -> Option<u64> {
        let completed = self.completed.load(Ordering::Acquire) >= number;
        completed.then(|| self.completed_ns.load(Ordering::Acquire))
    }

    pub(crate) fn last_record(&self) -> u64 {
        self.recorded.load(Ordering::Acquire)
    }

    pub(crate) fn captured(&self) -> MutexGuard<'_, Option<CapturedAt>> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The event that a handle names.
pub(crate) fn event(handle: CUevent) -> Done<&'static Event> {
    crate::process::process()?;
    match handles::find::<Event>(handle.0) {
        Some(event) if event.owner.is_alive() => Ok(event),
        Some(_) => Err(CUresult::CONTEXT_IS_DESTROYED),
        None => Err(CUresult::INVALID_HANDLE),
    }
}

pub(crate) fn cuEventCreate(target: *mut CUevent, flags: c_uint) -> Done {
    let context = current()?;
    not_null(target)?;
    let interprocess_with_timing = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
    if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 || interprocess_with_timing {
        return Err(CUresult::INVALID_VALUE);
    }
    let (handle, _) = handles::register(Event {
        owner: context.owner(),
        flags,
        recorded: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        completed_ns: AtomicU64::new(0),
        captured: Mutex::new(None),
    });
    put(target, CUevent(handle))
}

pub(crate) fn cuEventDestroy_v2(handle: CUevent) -> Done {
    event(handle)?;
    handles::retire::<Event>(handle.0).map(|_| ()).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn cuEventRecord(null: NullStream, handle: CUevent, stream_handle: CUstream) -> Done {
    cuEventRecordWithFlags(null, handle, stream_handle, 0)
}

pub(crate) fn cuEventRecordWithFlags(
    null: NullStream,
    handle: CUevent,
    stream_handle: CUstream,
    flags: c_uint,
) -> Done {
    let stream = stream(null, stream_handle)?;
    let event = event(handle)?;
    if flags & !EXTERNAL != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if !core::ptr::eq(event.owner.context, stream.owner.context) {
        return Err(CUresult::INVALID_HANDLE);
    }
    if capture::record_event(stream, event, flags & EXTERNAL != 0)? {
        return Ok(());
    }
    queue::submit(stream, Work::Record(event, event.announce()), false);
    Ok(())
}

pub(crate) fn cuStreamWaitEvent(null: NullStream, stream_handle: CUstream, handle: CUevent, flags: c_uint) -> Done {
    let stream = stream(null, stream_handle)?;
    let event = event(handle)?;
    if flags & !EXTERNAL != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if capture::wait_event(stream, event, flags & EXTERNAL != 0)? {
        return Ok(());
    }
    queue::submit(stream, Work::Wait(event, event.last_record()), false);
    Ok(())
}

/// Refuses to look at an event from outside the capture in which it was recorded.
fn check_visible(event: &Event) -> Done {
    if event.captured().is_some() { Err(CUresult::CAPTURED_EVENT) } else { capture::check_unsafe_call() }
}

pub(crate) fn cuEventQuery(handle: CUevent) -> Done {
    let event = event(handle)?;
    check_visible(event)?;
    event.completed_at(event.last_record()).map(|_| ()).ok_or(CUresult::NOT_READY)
}

pub(crate) fn cuEventSynchronize(handle: CUevent) -> Done {
    let event = event(handle)?;
    check_visible(event)?;
    queue::wait_for_event(event, event.last_record());
    crate::pools::trim_after_synchronize(event.owner.device());
    Ok(())
}

pub(crate) fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Done {
    let (start, end) = (event(start)?, event(end)?);
    not_null(milliseconds)?;
    let timed = |event: &Event| event.flags & DISABLE_TIMING == 0 && event.last_record() > 0;
    if !timed(start) || !timed(end) || !core::ptr::eq(start.owner.context, end.owner.context) {
        return Err(CUresult::INVALID_HANDLE);
    }
    if start.captured().is_some() || end.captured().is_some() {
        return Err(CUresult::CAPTURED_EVENT);
    }
    let instants = start.completed_at(start.last_record()).zip(end.completed_at(end.last_record()));
    let (from_ns, to_ns) = instants.ok_or(CUresult::NOT_READY)?;
    put(milliseconds, ((to_ns as f64 - from_ns as f64) / 1e6) as f32)
}

pub(crate) fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Done {
    cuEventElapsedTime(milliseconds, start, end)
}
