//! What the environment tells the driver.
//!
//! Only what the shim must do more than usual is read here. So no variable loosens a limit.

use aliquot_abi::cuda::c_char;

unsafe extern "C" {
    /// The C library's list of variables, which ends with null.
    static __environ: *const *const c_char;
}

/// Whether `CUDA_LAUNCH_BLOCKING` is set, and is not 0. The driver reads it when it is initialised. Then it returns from
/// a launch only when the kernel has ended.
pub(super) fn says_that_launches_block() -> bool {
    const NAME: &[u8] = b"CUDA_LAUNCH_BLOCKING=";
    // SAFETY: the list is read as the driver has just read it: each element is a string, of which no byte behind the
    // end is read.
    unsafe {
        let mut next = __environ;
        while let Some(&variable) = next.as_ref().filter(|variable| !variable.is_null()) {
            let is_at = |(place, &byte): (usize, &u8)| *variable.wrapping_add(place) as u8 == byte;
            if NAME.iter().enumerate().all(is_at) {
                return *variable.wrapping_add(NAME.len()) as u8 != b'0';
            }
            next = next.wrapping_add(1);
        }
    }
    false
}
