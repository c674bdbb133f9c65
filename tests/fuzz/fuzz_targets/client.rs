//! See `aliquot_fuzz::targets::client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| aliquot_fuzz::targets::client(bytes));
