//! Parts of a device, and green contexts, which run on a part of it.
//!
//! A green context is another handle of the primary context: it has the same memory and modules. Parts are counted and
//! checked, but work takes as long on a part as on the whole device.

use core::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevice, CUgreenCtx, CUresult, CUstream, NullStream,
};

use crate::Done;
use crate::caller::{get, get_all, not_null, put, put_all, put_if_wanted};
use crate::context::{self, Context};
use crate::device::{Device, device};
use crate::handles::{self, Kind, Object};
use crate::process::process;
use crate::streams::{self, stream};

const RESOURCE_SM: c_uint = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: c_uint = 1;
const NON_BLOCKING: c_uint = 1;
/// Ignore coscheduling, and make room for large clusters.
const SPLIT_FLAGS: c_uint = 0x3;
const IGNORE_COSCHEDULING: c_uint = 0x1;

/// The device resources from which a green context can be made.
struct Description {
    ordinal: usize,
    sm_count: c_uint,
}

pub(crate) struct GreenContext {
    ordinal: usize,
    /// This green context's own handle of the primary context.
    context: CUcontext,
}

impl Object for Description {
    const KIND: Kind = Kind::ResourceDescription;
}

impl Object for GreenContext {
    const KIND: Kind = Kind::GreenContext;
}

fn green_context(handle: CUgreenCtx) -> Done<&'static GreenContext> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_CONTEXT)
}

/// The minimum number of SMs of a part; the number must be a multiple of it. Depends on the compute capability.
fn sm_step(device: &Device) -> c_uint {
    match device.config.compute_capability.0 {
        0..=6 => 1,
        7 | 8 => 2,
        _ => 8,
    }
}

fn sm_resource(device: &Device, sm_count: c_uint) -> CUdevResource {
    let step = sm_step(device);
    CUdevResource::of_sms(RESOURCE_SM, device.ordinal as u64 + 1, [sm_count, step, step, 0, 0])
}

fn check_kind(kind: c_uint) -> Done {
    if kind == RESOURCE_SM { Ok(()) } else { Err(CUresult::INVALID_RESOURCE_TYPE) }
}

pub(crate) fn cuDeviceGetDevResource(ordinal: CUdevice, target: *mut CUdevResource, kind: c_uint) -> Done {
    let device = device(ordinal)?;
    not_null(target)?;
    check_kind(kind)?;
    put(target, sm_resource(device, device.config.sm_count))
}

pub(crate) fn cuCtxGetDevResource(handle: CUcontext, target: *mut CUdevResource, kind: c_uint) -> Done {
    let device = context::context(handle)?.device();
    not_null(target)?;
    check_kind(kind)?;
    let sm_count = sm_count_of(handle).unwrap_or(device.config.sm_count);
    put(target, sm_resource(device, sm_count))
}

pub(crate) fn cuGreenCtxGetDevResource(handle: CUgreenCtx, target: *mut CUdevResource, kind: c_uint) -> Done {
    let green = green_context(handle)?;
    cuCtxGetDevResource(green.context, target, kind)
}

/// The device and number of SMs of a resource that a program passes.
fn read_resource(resource: &CUdevResource) -> Done<(&'static Device, c_uint)> {
    if resource.kind != RESOURCE_SM {
        return Err(CUresult::INVALID_RESOURCE_TYPE);
    }
    let number = resource.origin().checked_sub(1).ok_or(CUresult::INVALID_VALUE)?;
    let device = device(c_int::try_from(number).map_err(|_| CUresult::INVALID_VALUE)?)?;
    let [sm_count, ..] = resource.sms();
    if sm_count == 0 || sm_count > device.config.sm_count {
        return Err(CUresult::INVALID_RESOURCE_CONFIGURATION);
    }
    Ok((device, sm_count))
}

pub(crate) fn cuDevSmResourceSplitByCount(
    results: *mut CUdevResource,
    group_count: *mut c_uint,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: c_uint,
    least: c_uint,
) -> Done {
    process()?;
    let (device, sm_count) = read_resource(&get(input)?)?;
    let wanted = get(group_count)?;
    if flags & !SPLIT_FLAGS != 0 || least > sm_count {
        return Err(CUresult::INVALID_VALUE);
    }
    let step = if flags & IGNORE_COSCHEDULING == 0 { sm_step(device) } else { 2.min(sm_step(device)) };
    let size = least.max(step).next_multiple_of(step);
    let possible = sm_count / size;
    let groups = if results.is_null() { possible } else { possible.min(wanted) };
    if groups == 0 {
        return Err(CUresult::INVALID_RESOURCE_CONFIGURATION);
    }
    if !results.is_null() {
        put_all(results, (0..groups).map(|_| sm_resource(device, size)))?;
        let rest = sm_count - groups * size;
        let nothing = CUdevResource::of_sms(0, 0, [0; 5]);
        put_if_wanted(remainder, if rest == 0 { nothing } else { sm_resource(device, rest) });
    }
    put(group_count, groups)
}

pub(crate) fn cuDevResourceGenerateDesc(
    target: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    count: c_uint,
) -> Done {
    process()?;
    not_null(target)?;
    let parts = get_all(resources, count as usize)?.iter().map(read_resource).collect::<Done<Vec<_>>>()?;
    let (first, _) = parts.first().ok_or(CUresult::INVALID_VALUE)?;
    let sm_count: c_uint = parts.iter().map(|(_, sm_count)| *sm_count).sum();
    let of_one = parts.iter().all(|(device, _)| device.ordinal == first.ordinal);
    if !of_one || sm_count > first.config.sm_count {
        return Err(CUresult::INVALID_RESOURCE_CONFIGURATION);
    }
    let description = Description { ordinal: first.ordinal, sm_count };
    put(target, CUdevResourceDesc(handles::register(description).0))
}

/// The handles of green contexts, to recognise a context as green.
static GREEN: Mutex<Vec<(CUcontext, c_uint)>> = Mutex::new(Vec::new());

fn green() -> MutexGuard<'static, Vec<(CUcontext, c_uint)>> {
    GREEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sm_count_of(handle: CUcontext) -> Option<c_uint> {
    green().iter().find(|(known, _)| *known == handle).map(|(_, sm_count)| *sm_count)
}

pub(crate) fn cuGreenCtxCreate(
    target: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    ordinal: CUdevice,
    flags: c_uint,
) -> Done {
    let device = device(ordinal)?;
    not_null(target)?;
    let description = handles::find::<Description>(description.0).ok_or(CUresult::INVALID_VALUE)?;
    if flags & !DEFAULT_STREAM != 0 || description.ordinal != device.ordinal {
        return Err(CUresult::INVALID_VALUE);
    }
    // A green context retains the primary context as long as it lives.
    let mut primary = CUcontext::NULL;
    context::cuDevicePrimaryCtxRetain(&mut primary, ordinal)?;
    let context = CUcontext(handles::name(context::context(primary)?));
    green().push((context, description.sm_count));
    put(target, CUgreenCtx(handles::register(GreenContext { ordinal: device.ordinal, context }).0))
}

pub(crate) fn cuGreenCtxDestroy(handle: CUgreenCtx) -> Done {
    green_context(handle)?;
    let found = handles::retire::<GreenContext>(handle.0).ok_or(CUresult::INVALID_CONTEXT)?;
    green().retain(|(known, _)| *known != found.context);
    handles::retire::<Context>(found.context.0);
    context::cuDevicePrimaryCtxRelease_v2(found.ordinal as CUdevice)
}

pub(crate) fn cuCtxFromGreenCtx(target: *mut CUcontext, handle: CUgreenCtx) -> Done {
    put(target, green_context(handle)?.context)
}

pub(crate) fn cuGreenCtxStreamCreate(
    target: *mut CUstream,
    handle: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> Done {
    let found = green_context(handle)?;
    not_null(target)?;
    if flags != NON_BLOCKING {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, streams::create(context::context(found.context)?, flags, priority, handle)?)
}

pub(crate) fn cuStreamGetGreenCtx(handle: CUstream, target: *mut CUgreenCtx) -> Done {
    let stream = stream(NullStream::Legacy, handle)?;
    put(target, stream.green_context)
}
