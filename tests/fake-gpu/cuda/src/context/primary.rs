//! The primary context of each device, which any number of holders retain.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aliquot_abi::cuda::{CUcontext, CUdevice, CUresult};

use super::{CREATE_FLAGS, Context, SCHEDULE_MASK};
use crate::Done;
use crate::caller::{not_null, put};
use crate::device::device;

/// A device's primary context, and the number of its holders.
pub(crate) struct PrimaryContext {
    context: OnceLock<(CUcontext, &'static Context)>,
    retained: Mutex<u32>,
}

impl PrimaryContext {
    pub(crate) fn new() -> PrimaryContext {
        PrimaryContext { context: OnceLock::new(), retained: Mutex::new(0) }
    }

    pub(crate) fn set(&self, handle: *mut c_void, context: &'static Context) {
        // `cuInit` sets these once, so this cannot fail.
        let _ = context.handle.set(CUcontext(handle));
        let _ = self.context.set((CUcontext(handle), context));
    }

    fn get(&self) -> Done<(CUcontext, &'static Context)> {
        self.context.get().copied().ok_or(CUresult::NOT_INITIALIZED)
    }

    fn retained(&self) -> MutexGuard<'_, u32> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn cuDevicePrimaryCtxRetain(target: *mut CUcontext, ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    not_null(target)?;
    let (handle, context) = device.primary.get()?;
    let mut retained = device.primary.retained();
    if !context.is_alive() {
        context.begin()?;
    }
    *retained += 1;
    put(target, handle)
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    let (_, context) = device.primary.get()?;
    let mut retained = device.primary.retained();
    *retained = retained.checked_sub(1).ok_or(CUresult::INVALID_CONTEXT)?;
    if *retained == 0 {
        context.end();
    }
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(ordinal: CUdevice, flags: c_uint) -> Done {
    let device = device(ordinal)?;
    if flags & !CREATE_FLAGS != 0 || !matches!(flags & SCHEDULE_MASK, 0 | 1 | 2 | 4) {
        return Err(CUresult::INVALID_VALUE);
    }
    let (_, context) = device.primary.get()?;
    context.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxGetState(ordinal: CUdevice, flags: *mut c_uint, active: *mut c_int) -> Done {
    let device = device(ordinal)?;
    not_null(active)?;
    let (_, context) = device.primary.get()?;
    put(flags, context.flags.load(Ordering::Relaxed))?;
    put(active, c_int::from(context.is_alive()))
}

/// Ends the primary context's life, also if it is retained. It can be retained again.
pub(crate) fn cuDevicePrimaryCtxReset_v2(ordinal: CUdevice) -> Done {
    let device = device(ordinal)?;
    let (_, context) = device.primary.get()?;
    let mut retained = device.primary.retained();
    context.end();
    // Remaining holders hold a dead context: the next retain begins a new life.
    *retained = 0;
    Ok(())
}
