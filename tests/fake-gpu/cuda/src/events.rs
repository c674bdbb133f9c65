//! Events, with their records and queries.

use core::ffi::c_uint;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aliquot_abi::cuda::{CUevent, CUipcEventHandle, CUresult, CUstream, NullStream};

use crate::Done;
use crate::backing::{Backing, BackingPlace, Plain};
use crate::caller::{not_null, put};
use crate::capture::{self, CapturedAt};
use crate::context::{Owner, current};
use crate::handles::{self, Kind, Object};
use crate::queue::{self, Work};
use crate::streams::stream;

const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;
/// With this flag the record or wait becomes a node of the captured graph, not a dependency inside it.
const EXTERNAL: c_uint = 1;

/// The progress of an event. Its records are numbered from 1.
#[derive(Default)]
#[repr(C)]
struct Progress {
    recorded: AtomicU64,
    completed: AtomicU64,
    /// When the last completed record was done, on the timeline.
    completed_ns: AtomicU64,
}

/// Size of a file that holds a [`Progress`].
const PROGRESS_BYTES: u64 = 4096;

impl Progress {
    /// Makes a progress that other processes can map.
    fn create_shared() -> Option<(&'static Progress, Backing)> {
        let backing = Backing::create(c"simulated-gpu-event", PROGRESS_BYTES)?;
        Some((Progress::map(&backing)?, backing))
    }

    fn map(backing: &Backing) -> Option<&'static Progress> {
        let address = backing.map(0, PROGRESS_BYTES, 0, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: a mapping of a whole page that is never unmapped; the structure consists of atomics, for which any
        // bytes are valid.
        Some(unsafe { &*(address as *const Progress) })
    }
}

pub(crate) struct Event {
    pub(crate) owner: Owner,
    flags: c_uint,
    progress: &'static Progress,
    /// Whether other processes may record it. This process is not notified of their records.
    pub(crate) is_shared: bool,
    /// The file of the progress of a shared event, until the event is destroyed.
    backing: Mutex<Option<Backing>>,
    /// The position of the last record, if that was in a capture.
    captured: Mutex<Option<CapturedAt>>,
    handle: OnceLock<CUevent>,
}

impl Object for Event {
    const KIND: Kind = Kind::Event;
    const IS_REUSED: bool = true;
}

impl Event {
    fn register(owner: Owner, flags: c_uint, progress: (&'static Progress, Option<Backing>)) -> CUevent {
        let (progress, backing) = progress;
        let is_shared = backing.is_some();
        let (backing, captured) = (Mutex::new(backing), Mutex::new(None));
        let event = Event { owner, flags, progress, is_shared, backing, captured, handle: OnceLock::new() };
        let (handle, event) = handles::register(event);
        *event.handle.get_or_init(|| CUevent(handle))
    }

    pub(crate) fn handle(&self) -> CUevent {
        self.handle.get().copied().unwrap_or(CUevent::NULL)
    }

    fn backing(&self) -> MutexGuard<'_, Option<Backing>> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a record, which completes later. Returns its number.
    pub(crate) fn announce(&self) -> u64 {
        *self.captured() = None;
        self.progress.recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(crate) fn complete(&self, number: u64, at_ns: u64) {
        self.progress.completed_ns.store(at_ns, Ordering::Release);
        self.progress.completed.fetch_max(number, Ordering::AcqRel);
    }

    /// When the record with this number, or a later one, completed; `None` if it has not. Without any record, number 0
    /// counts as complete.
    pub(crate) fn completed_at(&self, number: u64) -> Option<u64> {
        let completed = self.progress.completed.load(Ordering::Acquire) >= number;
        completed.then(|| self.progress.completed_ns.load(Ordering::Acquire))
    }

    pub(crate) fn last_record(&self) -> u64 {
        self.progress.recorded.load(Ordering::Acquire)
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
    let progress = if flags & INTERPROCESS == 0 {
        let private = Box::leak(Box::new(Progress::default()));
        (&*private, None)
    } else {
        let (shared, backing) = Progress::create_shared().ok_or(CUresult::OUT_OF_MEMORY)?;
        (shared, Some(backing))
    };
    put(target, Event::register(context.owner(), flags, progress))
}

pub(crate) fn cuEventDestroy_v2(handle: CUevent) -> Done {
    event(handle)?;
    let event = handles::retire::<Event>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    // The progress stays mapped, because streams may still have to record the event.
    event.backing().take();
    Ok(())
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

/// Refuses to query an event that was recorded in a capture.
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

/// The contents of an event's IPC handle.
#[derive(Clone, Copy)]
#[repr(C)]
struct EventTicket {
    magic: u64,
    place: BackingPlace,
    device_index: u64,
}

// SAFETY: integers only, and the assertion below excludes padding.
unsafe impl Plain for EventTicket {}

const _: () = assert!(size_of::<EventTicket>() == 32);
const TICKET_MAGIC: u64 = u64::from_be_bytes(*b"alqEvent");

pub(crate) fn cuIpcGetEventHandle(target: *mut CUipcEventHandle, handle: CUevent) -> Done {
    let event = event(handle)?;
    not_null(target)?;
    let place = event.backing().as_ref().map(Backing::place).ok_or(CUresult::INVALID_VALUE)?;
    let device_index = event.owner.device().index as u64;
    let ticket = EventTicket { magic: TICKET_MAGIC, place, device_index };
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    handle.reserved[..size_of::<EventTicket>()].copy_from_slice(ticket.bytes());
    put(target, handle)
}

pub(crate) fn cuIpcOpenEventHandle(target: *mut CUevent, handle: CUipcEventHandle) -> Done {
    let context = current()?;
    not_null(target)?;
    let ticket = EventTicket::from_bytes(&handle.reserved).filter(|ticket| ticket.magic == TICKET_MAGIC);
    let ticket = ticket.ok_or(CUresult::INVALID_HANDLE)?;
    if ticket.place.process_id == std::process::id() {
        return Err(CUresult::INVALID_CONTEXT);
    }
    if ticket.device_index != context.device().index as u64 {
        return Err(CUresult::INVALID_HANDLE);
    }
    let backing = Backing::open(&ticket.place).ok_or(CUresult::INVALID_HANDLE)?;
    let progress = Progress::map(&backing).ok_or(CUresult::MAP_FAILED)?;
    put(target, Event::register(context.owner(), INTERPROCESS | DISABLE_TIMING, (progress, Some(backing))))
}
