//! The limits of a context, of which those of stacks and of pending launches take memory.

use core::ffi::c_uint;

use aliquot_abi::cuda::CUresult;

use super::current;
use crate::Done;
use crate::caller::put;
use crate::device::Device;

const STACK_LIMIT: c_uint = 0;
const PENDING_LAUNCHES_LIMIT: c_uint = 4;
/// What the device keeps for a launch by a kernel.
const PENDING_LAUNCH_BYTES: u64 = 256;
const THREADS_PER_SM: u64 = 2048;
/// Stack, printf buffer, heap, nesting depth, pending launches, L2 fetch granularity, persisting L2, shared memory.
const LIMIT_DEFAULTS: [usize; 8] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0];

pub(crate) fn cuCtxSetLimit(limit: c_uint, value: usize) -> Done {
    let context = current()?;
    let mut state = context.state();
    let state = &mut *state;
    let (wanted_bytes, bytes) = match limit {
        STACK_LIMIT => (stack_bytes(context.device(), value), &mut state.stack_bytes),
        PENDING_LAUNCHES_LIMIT => (pending_launches_bytes(value), &mut state.pending_launches_bytes),
        _ => (0, &mut 0),
    };
    let more_bytes = wanted_bytes.saturating_sub(*bytes);
    context.device().reserve(more_bytes)?;
    *bytes += more_bytes;
    let slot = state.limits.get_mut(limit as usize).ok_or(CUresult::INVALID_VALUE)?;
    *slot = Some(value);
    Ok(())
}

/// The memory that stacks of `value` bytes take more than stacks of the default size, for all threads that a device can
/// run at once.
fn stack_bytes(device: &Device, value: usize) -> u64 {
    let threads = u64::from(device.config.sm_count) * THREADS_PER_SM;
    (value.saturating_sub(LIMIT_DEFAULTS[STACK_LIMIT as usize]) as u64).saturating_mul(threads)
}

/// The memory that `value` pending launches take more than those by default.
fn pending_launches_bytes(value: usize) -> u64 {
    let default = LIMIT_DEFAULTS[PENDING_LAUNCHES_LIMIT as usize];
    (value.saturating_sub(default) as u64).saturating_mul(PENDING_LAUNCH_BYTES)
}

pub(crate) fn cuCtxGetLimit(value: *mut usize, limit: c_uint) -> Done {
    let context = current()?;
    let default = *LIMIT_DEFAULTS.get(limit as usize).ok_or(CUresult::INVALID_VALUE)?;
    put(value, context.state().limits[limit as usize].unwrap_or(default))
}
