//! The host's monotonic clock, by which the manager's heartbeats and the times in slots are written.
//!
//! The vDSO, the kernel's own library in every process, reads it without a system call. The C library's function would
//! do so too, but the host can interpose it: a tool that fakes the time for a program must not fake it for the limits.

use crate::linkmap;
use crate::sys::{self, Access, File, Timespec};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

type Read = unsafe extern "C" fn(c_int, *mut Timespec) -> c_int;

/// The vDSO's function after the first search, or [`ABSENT`].
static READ: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
const ABSENT: *mut c_void = core::ptr::without_provenance_mut(1);

/// How far this process's monotonic clock is ahead of the host's, in nanoseconds.
static OFFSET_NS: AtomicI64 = AtomicI64::new(0);

#[cfg(target_arch = "x86_64")]
const SYMBOL: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const SYMBOL: &CStr = c"__kernel_clock_gettime";

/// The host's `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    read_ns(sys::CLOCK_MONOTONIC).wrapping_sub(OFFSET_NS.load(Ordering::Relaxed) as u64)
}

/// Microseconds since 1970, the unit of NVML's time stamps.
pub(crate) fn since_1970_us() -> u64 {
    read_ns(sys::CLOCK_REALTIME) / 1000
}

fn read_ns(clock: c_int) -> u64 {
    let mut read = READ.load(Ordering::Relaxed);
    if read.is_null() {
        read = find();
    }
    let mut time = Timespec::from_ns(0);
    if read == ABSENT {
        sys::read_clock(clock, &mut time);
    } else {
        // SAFETY: the address is that of the vDSO's function, which stays mapped as long as the process lives.
        let read = unsafe { core::mem::transmute::<*mut c_void, Read>(read) };
        // SAFETY: writes a `struct timespec`. The function knows these clocks; if it cannot read the hardware it asks
        // the kernel.
        unsafe { read(clock, &raw mut time) };
    }
    time.to_ns()
}

#[cold]
fn find() -> *mut c_void {
    let vdso = linkmap::find(|object| object.image.has_soname(c"linux-vdso.so.1").then_some(object.image));
    let found = vdso.map_or(core::ptr::null_mut(), |vdso| vdso.function(SYMBOL));
    let found = if found.is_null() { ABSENT } else { found };
    READ.store(found, Ordering::Relaxed);
    found
}

/// Learns how far this process's clock is ahead of the host's, if it runs in a time namespace. A child can be in
/// another time namespace than its parent, so each process does this for itself.
pub(crate) fn learn_offset() {
    OFFSET_NS.store(offset_ns().unwrap_or(0), Ordering::Relaxed);
}

fn offset_ns() -> Option<i64> {
    let mut buffer = [0_u8; 128];
    let length = File::open(c"/proc/self/timens_offsets", Access::ReadOnly).ok()?.read(&mut buffer).ok()?;
    let offset_ns = monotonic_offset_ns(buffer.get(..length)?)?;
    if offset_ns == 0 {
        return Some(0);
    }
    // The file describes the namespace of this process's children. If the process itself is in another one, that is
    // most likely the host's, whose offset is 0.
    let (own, of_children) = (sys::inode(c"/proc/self/ns/time"), sys::inode(c"/proc/self/ns/time_for_children"));
    Some(if own == of_children { offset_ns } else { 0 })
}

/// The offset in `text`, which has a line for each clock: name, seconds, nanoseconds.
fn monotonic_offset_ns(text: &[u8]) -> Option<i64> {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"monotonic "))?;
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).skip(1);
    let (seconds, nanoseconds) = (number(fields.next()?)?, number(fields.next()?)?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

fn number(digits: &[u8]) -> Option<i64> {
    let (sign, digits) = match digits {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    digits.iter().try_fold(0_i64, |number, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(i64::from(digit) * sign)
    })
}
