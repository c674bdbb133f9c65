//! Panics are impossible, and the linker checks it.

unsafe extern "C" {
    /// Not defined anywhere: with `-z defs`, code that can reach a panic does not link.
    fn aliquot_shim_must_not_be_able_to_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never called, since a library that calls it cannot be linked.
    unsafe { aliquot_shim_must_not_be_able_to_panic() }
}

// Without link-time optimisation, as in the dev profile, parts of libcore that never run refer to Rust's unwinding
// routine. The symbol is hidden, so that the program keeps its real one.
core::arch::global_asm!(".hidden rust_eh_personality", ".weak rust_eh_personality", "rust_eh_personality:");
