//! Memory sets.

use core::ffi::c_uint;

use aliquot_abi::cuda::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUresult, CUstream, NullStream};
use aliquot_fake_machine::{CopyPath, copy_duration_ns};

use crate::Done;
use crate::capture::{self, Issue};
use crate::graph_nodes::NodeKind;
use crate::memory::{known_side_of, touch};
use crate::process::initialised;
use crate::queue::{self, Work};
use crate::streams::stream;

/// A set whose parameters were checked.
#[derive(Clone, Copy)]
pub(crate) struct Set {
    target: u64,
    pitch: u64,
    value: u32,
    element_bytes: u64,
    width: u64,
    height: u64,
}

impl Set {
    pub(crate) fn new(p: &CUDA_MEMSET_NODE_PARAMS) -> Done<Set> {
        let set = Set {
            target: p.dst,
            pitch: p.pitch as u64,
            value: p.value,
            element_bytes: u64::from(p.element_size),
            width: p.width as u64,
            height: p.height as u64,
        };
        if !matches!(p.element_size, 1 | 2 | 4) || !p.dst.is_multiple_of(u64::from(p.element_size)) {
            return Err(CUresult::INVALID_VALUE);
        }
        let row_bytes = set.width.checked_mul(set.element_bytes).ok_or(CUresult::INVALID_VALUE)?;
        if set.height > 1 && set.pitch < row_bytes {
            return Err(CUresult::INVALID_VALUE);
        }
        if row_bytes > 0 && set.height > 0 {
            let above = (set.height - 1).checked_mul(set.pitch).and_then(|bytes| bytes.checked_add(row_bytes));
            known_side_of(set.target, above.ok_or(CUresult::INVALID_VALUE)?)?;
        }
        Ok(set)
    }

    pub(crate) fn parameters(&self) -> CUDA_MEMSET_NODE_PARAMS {
        CUDA_MEMSET_NODE_PARAMS {
            dst: self.target,
            pitch: self.pitch as usize,
            value: self.value,
            element_size: self.element_bytes as c_uint,
            width: self.width as usize,
            height: self.height as usize,
        }
    }

    pub(crate) fn duration_ns(&self) -> u64 {
        if initialised().instant {
            return 0;
        }
        copy_duration_ns(CopyPath::DeviceDevice, self.width * self.element_bytes * self.height)
    }

    pub(crate) fn carry_out(&self) {
        touch(self.target);
        for row in 0..self.height {
            let start = self.target + row * self.pitch;
            // SAFETY: the whole set was checked to lie in one allocation, which stays until this is done.
            unsafe {
                match self.element_bytes {
                    1 => core::ptr::write_bytes(start as *mut u8, self.value as u8, self.width as usize),
                    2 => {
                        core::slice::from_raw_parts_mut(start as *mut u16, self.width as usize).fill(self.value as u16)
                    }
                    _ => core::slice::from_raw_parts_mut(start as *mut u32, self.width as usize).fill(self.value),
                }
            }
        }
    }

    pub(crate) fn work(self) -> Work {
        Work::Task { duration_ns: self.duration_ns(), effect: Some(Box::new(move || self.carry_out())) }
    }
}

/// A set's target: an address, the bytes from row to row, and elements and rows.
struct Target(CUdeviceptr, usize, [usize; 2]);

fn issue(null: NullStream, handle: CUstream, target: Target, value: u32, element_size: c_uint, waits: bool) -> Done {
    let stream = stream(null, handle)?;
    let Target(dst, pitch, [width, height]) = target;
    let set = Set::new(&CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, element_size, width, height })?;
    if waits {
        capture::check_unsafe_call()?;
    }
    if let Issue::Captured = capture::issue(stream, || NodeKind::Set(set))? {
        return Ok(());
    }
    if width * height > 0 {
        queue::submit(stream, set.work(), false);
    }
    Ok(())
}

macro_rules! sets {
    ($($linear:ident, $linear_async:ident, $rows:ident, $rows_async:ident: $value:ty;)*) => {$(
        pub(crate) fn $linear(null: NullStream, target: CUdeviceptr, value: $value, count: usize) -> Done {
            let element_bytes = size_of::<$value>() as c_uint;
            issue(null, CUstream::NULL, Target(target, 0, [count, 1]), value.into(), element_bytes, true)
        }

        pub(crate) fn $linear_async(
            null: NullStream,
            target: CUdeviceptr,
            value: $value,
            count: usize,
            handle: CUstream,
        ) -> Done {
            let element_bytes = size_of::<$value>() as c_uint;
            issue(null, handle, Target(target, 0, [count, 1]), value.into(), element_bytes, false)
        }

        pub(crate) fn $rows(
            null: NullStream,
            target: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
        ) -> Done {
            let element_bytes = size_of::<$value>() as c_uint;
            issue(null, CUstream::NULL, Target(target, pitch, [width, height]), value.into(), element_bytes, true)
        }

        pub(crate) fn $rows_async(
            null: NullStream,
            target: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
            handle: CUstream,
        ) -> Done {
            let element_bytes = size_of::<$value>() as c_uint;
            issue(null, handle, Target(target, pitch, [width, height]), value.into(), element_bytes, false)
        }
    )*};
}

sets! {
    cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD2D8_v2, cuMemsetD2D8Async: u8;
    cuMemsetD16_v2, cuMemsetD16Async, cuMemsetD2D16_v2, cuMemsetD2D16Async: u16;
    cuMemsetD32_v2, cuMemsetD32Async, cuMemsetD2D32_v2, cuMemsetD2D32Async: u32;
}
