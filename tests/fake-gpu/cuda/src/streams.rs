//! Streams, including the default streams.

use core::cell::RefCell;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aliquot_abi::cuda::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUdeviceptr, CUgreenCtx, CUresult, CUstream,
    CUstreamCallback, NullStream,
};

use crate::Done;
use crate::caller::{get, not_null, put, put_if_wanted};
use crate::context::{Context, Owner, current};
use crate::handles::{self, Kind, Object};
use crate::process::die_of_stale;
use crate::queue::{self, Work};

/// The priority of work that can wait.
pub(crate) const LEAST_PRIORITY: c_int = 0;
/// The priority of work that comes first.
pub(crate) const GREATEST_PRIORITY: c_int = -5;

const NON_BLOCKING: c_uint = 1;
/// Bytes of a `CUstreamAttrValue`.
const ATTRIBUTE_BYTES: usize = 64;
/// Attributes that a stream has: access policy, synchronisation policy, priority, memory synchronisation map and
/// domain.
const ATTRIBUTES: [c_uint; 5] = [1, 3, 8, 9, 10];
const PRIORITY_ATTRIBUTE: c_uint = 8;

/// How a stream synchronises with the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    Legacy,
    /// The stream and the legacy stream wait for each other.
    Blocking,
    NonBlocking,
}

impl StreamKind {
    pub(crate) fn waits_for(self, other: StreamKind) -> bool {
        matches!((self, other), (StreamKind::Legacy, StreamKind::Blocking) | (StreamKind::Blocking, StreamKind::Legacy))
    }
}

pub(crate) struct Stream {
    pub(crate) owner: Owner,
    pub(crate) kind: StreamKind,
    pub(crate) id: u64,
    pub(crate) lane: usize,
    priority: c_int,
    /// The green context in which it was made; null for other streams.
    pub(crate) green_context: CUgreenCtx,
    attributes: Mutex<Vec<(c_uint, [u8; ATTRIBUTE_BYTES])>>,
}

impl Object for Stream {
    const KIND: Kind = Kind::Stream;
    const IS_REUSED: bool = true;
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// This thread's default streams, one for each life of a context. Never dropped: see the context stack.
    static PER_THREAD: RefCell<ManuallyDrop<Vec<&'static Stream>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

impl Stream {
    fn new(owner: Owner, kind: StreamKind, priority: c_int) -> Stream {
        Stream {
            owner,
            kind,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            lane: queue::open_lane(owner.device(), owner.life, kind, priority),
            priority,
            green_context: CUgreenCtx::NULL,
            attributes: Mutex::new(Vec::new()),
        }
    }

    fn flags(&self) -> c_uint {
        if self.kind == StreamKind::NonBlocking { NON_BLOCKING } else { 0 }
    }
}

/// A context's legacy default stream, for one life of the context.
pub(crate) fn new_legacy(owner: Owner) -> &'static Stream {
    Box::leak(Box::new(Stream::new(owner, StreamKind::Legacy, LEAST_PRIORITY)))
}

fn per_thread(context: &'static Context) -> &'static Stream {
    PER_THREAD.with_borrow_mut(|streams| {
        streams.retain(|stream| stream.owner.is_alive());
        if let Some(stream) = streams.iter().find(|stream| stream.owner.is(context)) {
            return *stream;
        }
        let stream: &'static Stream =
            Box::leak(Box::new(Stream::new(context.owner(), StreamKind::Blocking, LEAST_PRIORITY)));
        streams.push(stream);
        stream
    })
}

/// The stream of `handle`, for a function in which a null handle means `null`.
#[inline]
pub(crate) fn stream(null: NullStream, handle: CUstream) -> Done<&'static Stream> {
    // A stream's own context need not be current, but some context must be.
    let context = current()?;
    match null.explicit(handle) {
        CU_STREAM_LEGACY => Ok(context.legacy_stream()),
        CU_STREAM_PER_THREAD => Ok(per_thread(context)),
        handle => created(handle),
    }
}

#[inline]
fn created(handle: CUstream) -> Done<&'static Stream> {
    match handles::find::<Stream>(handle.0) {
        Some(stream) if stream.owner.is_alive() => Ok(stream),
        Some(_) => die_of_stale("a stream whose context was destroyed"),
        None => Err(CUresult::INVALID_HANDLE),
    }
}

pub(crate) fn cuStreamCreate(target: *mut CUstream, flags: c_uint) -> Done {
    cuStreamCreateWithPriority(target, flags, LEAST_PRIORITY)
}

pub(crate) fn cuStreamCreateWithPriority(target: *mut CUstream, flags: c_uint, priority: c_int) -> Done {
    let context = current()?;
    not_null(target)?;
    put(target, create(context, flags, priority, CUgreenCtx::NULL)?)
}

pub(crate) fn create(
    context: &'static Context,
    flags: c_uint,
    priority: c_int,
    green_context: CUgreenCtx,
) -> Done<CUstream> {
    let kind = match flags {
        0 => StreamKind::Blocking,
        NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let stream = Stream { green_context, ..Stream::new(context.owner(), kind, priority) };
    Ok(CUstream(handles::register(stream).0))
}

pub(crate) fn cuStreamDestroy_v2(handle: CUstream) -> Done {
    // The default streams cannot be destroyed.
    if handle.is_null() || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD {
        current()?;
        return Err(CUresult::INVALID_HANDLE);
    }
    current()?;
    // A stream that has ended with its context has nothing left to destroy.
    let stream = handles::find::<Stream>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    if !stream.owner.is_alive() {
        return Err(CUresult::CONTEXT_IS_DESTROYED);
    }
    crate::capture::stream_destroyed(stream);
    handles::retire::<Stream>(handle.0).ok_or(CUresult::INVALID_HANDLE)?;
    queue::close_lane(stream.lane);
    Ok(())
}

pub(crate) fn cuStreamGetPriority(null: NullStream, handle: CUstream, priority: *mut c_int) -> Done {
    put(priority, stream(null, handle)?.priority)
}

pub(crate) fn cuStreamGetFlags(null: NullStream, handle: CUstream, flags: *mut c_uint) -> Done {
    put(flags, stream(null, handle)?.flags())
}

pub(crate) fn cuStreamGetId(null: NullStream, handle: CUstream, id: *mut u64) -> Done {
    put(id, stream(null, handle)?.id)
}

pub(crate) fn cuStreamGetCtx(null: NullStream, handle: CUstream, context: *mut CUcontext) -> Done {
    put(context, stream(null, handle)?.owner.context.handle())
}

pub(crate) fn cuStreamGetCtx_v2(
    null: NullStream,
    handle: CUstream,
    context: *mut CUcontext,
    green_context: *mut c_void,
) -> Done {
    // For a stream of a green context, the context is the primary one.
    cuStreamGetCtx(null, handle, context)?;
    put_if_wanted(green_context.cast(), stream(null, handle)?.green_context);
    Ok(())
}

pub(crate) fn cuStreamGetDevice(null: NullStream, handle: CUstream, device: *mut CUdevice) -> Done {
    put(device, stream(null, handle)?.owner.device().ordinal as CUdevice)
}

pub(crate) fn cuStreamQuery(null: NullStream, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    crate::capture::check_synchronise(stream)?;
    if queue::is_stream_done(stream) { Ok(()) } else { Err(CUresult::NOT_READY) }
}

pub(crate) fn cuStreamSynchronize(null: NullStream, handle: CUstream) -> Done {
    let stream = stream(null, handle)?;
    crate::capture::check_synchronise(stream)?;
    queue::wait_for_stream(stream);
    crate::pools::trim_after_synchronize(stream.owner.device());
    Ok(())
}

pub(crate) fn cuStreamAddCallback(
    null: NullStream,
    handle: CUstream,
    callback: CUstreamCallback,
    user_data: *mut c_void,
    flags: c_uint,
) -> Done {
    let stream = stream(null, handle)?;
    let callback = callback.filter(|_| flags == 0).ok_or(CUresult::INVALID_VALUE)?;
    crate::capture::refuse_in_capture(stream)?;
    let user_data = user_data.expose_provenance();
    let call = move || {
        // SAFETY: the caller passed the function and its argument for this call, which is made once.
        unsafe { callback(handle, CUresult::SUCCESS, core::ptr::with_exposed_provenance_mut(user_data)) }
    };
    queue::submit(stream, Work::Host(Box::new(call)), false);
    Ok(())
}

pub(crate) fn cuStreamAttachMemAsync(
    null: NullStream,
    handle: CUstream,
    address: CUdeviceptr,
    _length: usize,
    flags: c_uint,
) -> Done {
    let stream = stream(null, handle)?;
    if !matches!(flags, 1 | 2 | 4) || !crate::memory::is_managed(address) {
        return Err(CUresult::INVALID_VALUE);
    }
    crate::capture::refuse_in_capture(stream)
}

impl Stream {
    fn attribute(&self, attribute: c_uint) -> [u8; ATTRIBUTE_BYTES] {
        if attribute == PRIORITY_ATTRIBUTE {
            let mut value = [0; ATTRIBUTE_BYTES];
            value[..4].copy_from_slice(&self.priority.to_ne_bytes());
            return value;
        }
        let attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        attributes.iter().find(|(known, _)| *known == attribute).map_or([0; ATTRIBUTE_BYTES], |(_, value)| *value)
    }

    fn set_attribute(&self, attribute: c_uint, value: [u8; ATTRIBUTE_BYTES]) {
        let mut attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        attributes.retain(|(known, _)| *known != attribute);
        attributes.push((attribute, value));
    }
}

pub(crate) fn cuStreamGetAttribute(null: NullStream, handle: CUstream, attribute: c_uint, value: *mut c_void) -> Done {
    let stream = stream(null, handle)?;
    if !ATTRIBUTES.contains(&attribute) {
        return Err(CUresult::INVALID_VALUE);
    }
    put(value.cast(), stream.attribute(attribute))
}

pub(crate) fn cuStreamSetAttribute(
    null: NullStream,
    handle: CUstream,
    attribute: c_uint,
    value: *const c_void,
) -> Done {
    let stream = stream(null, handle)?;
    // A stream's priority is fixed when it is made.
    if !ATTRIBUTES.contains(&attribute) || attribute == PRIORITY_ATTRIBUTE {
        return Err(CUresult::INVALID_VALUE);
    }
    stream.set_attribute(attribute, get(value.cast())?);
    Ok(())
}

pub(crate) fn cuStreamCopyAttributes(null: NullStream, target: CUstream, source: CUstream) -> Done {
    let (target, source) = (stream(null, target)?, stream(null, source)?);
    for attribute in ATTRIBUTES.into_iter().filter(|&attribute| attribute != PRIORITY_ATTRIBUTE) {
        target.set_attribute(attribute, source.attribute(attribute));
    }
    Ok(())
}
