//! Panics are impossible, and the linker checks it.

unsafe extern "C" {
    /// Defined nowhere: with `-z defs`, code from which a panic can be reached does not link.
    fn aliquot_shim_must_not_be_able_to_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never called, since a library that calls it cannot be linked.
    unsafe { aliquot_shim_must_not_be_able_to_panic() }
}

// Without link-time optimisation, as in the dev profile, parts of libcore that are never run name Rust's unwinding
// routine. Hidden, so that a host that has the real one keeps it.
core::arch::global_asm!(".hidden rust_eh_personality", ".weak rust_eh_personality", "rust_eh_personality:");
