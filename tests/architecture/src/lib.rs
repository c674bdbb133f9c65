//! Checks imports: between the crates of the workspace ([`crates`]), between the layers of one crate ([`layers`]), and of
//! one crate by files of another ([`names`]).
//! The rules themselves are in `tests/rules.rs`.

#![forbid(unsafe_code)]

pub mod crates;
pub mod layers;
pub mod names;
mod paths;
