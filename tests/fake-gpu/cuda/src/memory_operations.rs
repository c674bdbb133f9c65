//! Stream memory operations: a stream writes a value to memory, or waits for a value in memory.

use core::ffi::c_uint;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::cuda::{CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, NullStream};

use crate::Done;
use crate::caller::get_all;
use crate::capture::{self, Issue};
use crate::graph_nodes::NodeKind;
use crate::memory::{is_managed, known_side_of, touch};
use crate::process::{initialised, keep_processor, process};
use crate::queue::{self, Work};
use crate::streams::stream;

const WAIT_FLUSH: c_uint = 1 << 30;
const WRITE_NO_MEMORY_BARRIER: c_uint = 1;
/// Maximum number of operations in a batch.
const BATCH_MAX: c_uint = 256;

/// The API's versions of these operations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    /// Refuses operations of a version that the driver does not have.
    fn check(self) -> Done {
        let is_there = self == Version::Two || process()?.config.stream_mem_ops_v1;
        if is_there { Ok(()) } else { Err(CUresult::NOT_SUPPORTED) }
    }

    /// Valid flags of a write.
    fn write_flags(self) -> c_uint {
        match self {
            Version::One => WRITE_NO_MEMORY_BARRIER,
            Version::Two => 0,
        }
    }
}

/// The width of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Bits32,
    Bits64,
}

/// A value to write.
#[derive(Clone, Copy)]
pub(crate) struct ValueWrite {
    address: u64,
    value: u64,
    width: Width,
}

/// A value to wait for.
#[derive(Clone, Copy)]
pub(crate) struct ValueWait {
    address: u64,
    value: u64,
    width: Width,
    condition: Condition,
}

#[derive(Clone, Copy)]
enum Condition {
    /// (seen - wanted) ≥ 0, as a signed number.
    GreaterOrEqual,
    Equal,
    And,
    Nor,
}

/// An operation of either kind, or a barrier, which has no effect here.
#[derive(Clone, Copy)]
pub(crate) enum MemoryOperation {
    Write(ValueWrite),
    Wait(ValueWait),
    Order,
}

impl MemoryOperation {
    pub(crate) fn work(self) -> Option<Work> {
        match self {
            MemoryOperation::Write(write) => Some(Work::Write { write, duration_ns: initialised().config.write_ns }),
            MemoryOperation::Wait(wait) => Some(Work::WaitValue(wait)),
            MemoryOperation::Order => None,
        }
    }
}

/// Refuses an address that is not aligned, does not belong to the driver, or is managed.
fn check(address: u64, width: Width) -> Done {
    let bytes = if width == Width::Bits32 { 4 } else { 8 };
    if !address.is_multiple_of(bytes) || is_managed(address) {
        return Err(CUresult::INVALID_VALUE);
    }
    known_side_of(address, bytes).map(|_| ())
}

impl ValueWrite {
    fn checked(version: Version, address: u64, value: u64, width: Width, flags: c_uint) -> Done<MemoryOperation> {
        if flags & !version.write_flags() != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        check(address, width)?;
        touch(address);
        Ok(MemoryOperation::Write(ValueWrite { address, value, width }))
    }

    /// A write to a 64-bit word of the driver's own.
    pub(crate) fn own(address: u64, value: u64) -> MemoryOperation {
        MemoryOperation::Write(ValueWrite { address, value, width: Width::Bits64 })
    }

    /// A kernel's write to a 64-bit word.
    pub(crate) fn by_kernel(address: u64, value: u64) -> Done<ValueWrite> {
        check(address, Width::Bits64)?;
        touch(address);
        Ok(ValueWrite { address, value, width: Width::Bits64 })
    }

    pub(crate) fn carry_out(&self) {
        // SAFETY: the address was checked to be aligned and in memory that the driver knows, which by the API's
        // contract the caller keeps until the operation is done. Other threads may access it at the same time, so the
        // store is atomic.
        unsafe {
            match self.width {
                Width::Bits32 => (*(self.address as *const AtomicU32)).store(self.value as u32, Ordering::Release),
                Width::Bits64 => (*(self.address as *const AtomicU64)).store(self.value, Ordering::Release),
            }
        }
    }
}

impl ValueWait {
    fn checked(_: Version, address: u64, value: u64, width: Width, flags: c_uint) -> Done<MemoryOperation> {
        let condition = match flags & !WAIT_FLUSH {
            0 => Condition::GreaterOrEqual,
            1 => Condition::Equal,
            2 => Condition::And,
            3 => Condition::Nor,
            _ => return Err(CUresult::INVALID_VALUE),
        };
        check(address, width)?;
        Ok(MemoryOperation::Wait(ValueWait { address, value, width, condition }))
    }

    /// A wait until a 64-bit word of the driver's own is at least `value`.
    pub(crate) fn own(address: u64, value: u64) -> MemoryOperation {
        let (width, condition) = (Width::Bits64, Condition::GreaterOrEqual);
        MemoryOperation::Wait(ValueWait { address, value, width, condition })
    }

    /// A kernel's wait until a 64-bit word is at least `value`.
    pub(crate) fn by_kernel(address: u64, value: u64) -> Done<ValueWait> {
        check(address, Width::Bits64)?;
        Ok(ValueWait { address, value, width: Width::Bits64, condition: Condition::GreaterOrEqual })
    }

    pub(crate) fn is_satisfied(&self) -> bool {
        // SAFETY: as in `ValueWrite::carry_out`.
        let (seen, wanted) = unsafe {
            match self.width {
                // Sign extension preserves the result of each condition.
                Width::Bits32 => (
                    i64::from((*(self.address as *const AtomicU32)).load(Ordering::Acquire) as i32) as u64,
                    i64::from(self.value as u32 as i32) as u64,
                ),
                Width::Bits64 => ((*(self.address as *const AtomicU64)).load(Ordering::Acquire), self.value),
            }
        };
        match self.condition {
            Condition::GreaterOrEqual if self.width == Width::Bits32 => (seen as i32).wrapping_sub(wanted as i32) >= 0,
            Condition::GreaterOrEqual => (seen as i64).wrapping_sub(wanted as i64) >= 0,
            Condition::Equal => seen == wanted,
            Condition::And => seen & wanted != 0,
            Condition::Nor => !(seen | wanted) != 0,
        }
    }
}

fn issue(null: NullStream, handle: CUstream, operations: Vec<MemoryOperation>) -> Done {
    let stream = stream(null, handle)?;
    if let Issue::Captured = capture::issue(stream, || NodeKind::MemoryOperations(operations.clone()))? {
        return Ok(());
    }
    let writes = operations.iter().any(|operation| matches!(operation, MemoryOperation::Write(_)));
    if writes {
        keep_processor(initialised().config.write_call_ns);
    }
    queue::submit_all(stream, operations.into_iter().filter_map(MemoryOperation::work), writes);
    Ok(())
}

macro_rules! operations {
    ($($version:ident: $name:ident: $value:ty => $kind:ident, $width:ident;)*) => {$(
        pub(crate) fn $name(
            null: NullStream,
            handle: CUstream,
            address: CUdeviceptr,
            value: $value,
            flags: c_uint,
        ) -> Done {
            Version::$version.check()?;
            stream(null, handle)?;
            let operation = $kind::checked(Version::$version, address, u64::from(value), Width::$width, flags)?;
            issue(null, handle, vec![operation])
        }
    )*};
}

operations! {
    One: cuStreamWaitValue32: u32 => ValueWait, Bits32;
    One: cuStreamWaitValue64: u64 => ValueWait, Bits64;
    One: cuStreamWriteValue32: u32 => ValueWrite, Bits32;
    One: cuStreamWriteValue64: u64 => ValueWrite, Bits64;
    Two: cuStreamWaitValue32_v2: u32 => ValueWait, Bits32;
    Two: cuStreamWaitValue64_v2: u64 => ValueWait, Bits64;
    Two: cuStreamWriteValue32_v2: u32 => ValueWrite, Bits32;
    Two: cuStreamWriteValue64_v2: u64 => ValueWrite, Bits64;
}

fn operation(version: Version, parameters: &CUstreamBatchMemOpParams) -> Done<MemoryOperation> {
    let &CUstreamBatchMemOpParams { operation, address, value64, flags, .. } = parameters;
    match operation {
        1 => ValueWait::checked(version, address, value64, Width::Bits32, flags),
        2 => ValueWrite::checked(version, address, value64, Width::Bits32, flags),
        4 => ValueWait::checked(version, address, value64, Width::Bits64, flags),
        5 => ValueWrite::checked(version, address, value64, Width::Bits64, flags),
        // Flush of remote writes, memory barrier
        3 | 6 => Ok(MemoryOperation::Order),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// Reads a batch.
pub(crate) fn read_operations(
    version: Version,
    count: c_uint,
    parameters: *const CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Done<Vec<MemoryOperation>> {
    if flags != 0 || count > BATCH_MAX {
        return Err(CUresult::INVALID_VALUE);
    }
    get_all(parameters, count as usize)?.iter().map(|parameters| operation(version, parameters)).collect()
}

fn issue_batch(
    version: Version,
    null: NullStream,
    handle: CUstream,
    count: c_uint,
    parameters: *const CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Done {
    version.check()?;
    stream(null, handle)?;
    issue(null, handle, read_operations(version, count, parameters, flags)?)
}

pub(crate) fn cuStreamBatchMemOp(
    null: NullStream,
    handle: CUstream,
    count: c_uint,
    parameters: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Done {
    issue_batch(Version::One, null, handle, count, parameters, flags)
}

pub(crate) fn cuStreamBatchMemOp_v2(
    null: NullStream,
    handle: CUstream,
    count: c_uint,
    parameters: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Done {
    issue_batch(Version::Two, null, handle, count, parameters, flags)
}
