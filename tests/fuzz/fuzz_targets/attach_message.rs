//! See `aliquot_fuzz::targets::attach_message`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| aliquot_fuzz::targets::attach_message(bytes));
